"""Debian's packages without root: an own copy of apt's lists, and packages unpacked into a folder.

The system's sources are used, and nothing of the system is changed.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CONFIGURATION = """\
#clear Acquire::Languages;
Acquire::Languages {{ {languages} }};
Dir::State::Lists "{folder}/lists";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "root";  // packages are downloaded into our folder, also by root
"""


class Packages:
    """Packages and translated descriptions, downloaded into a folder once."""

    def __init__(self, folder: Path, languages: list[str]):
        """Download the lists of packages. Raises FileNotFoundError without apt, CalledProcessError if apt fails."""
        for program in ("apt-get", "dpkg-deb"):
            if shutil.which(program) is None:
                raise FileNotFoundError(f"{program} is not installed: run this on Debian or Ubuntu, or in a container")
        self.folder = folder.resolve()
        self.configuration = self.folder / "apt.conf"
        (self.folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (self.folder / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        names = " ".join(f'"{language}";' for language in languages)
        self.configuration.write_text(CONFIGURATION.format(languages=names, folder=self.folder), encoding="utf-8")
        self.versions: dict[str, str] = {}
        self._run("apt-get", "-c", self.configuration, "-qq", "update")

    def unpack(self, *names: str) -> list[Path]:
        """Download and unpack packages; return their folders. Unpacked packages of the same version are kept."""
        folders = []
        for name in names:
            uri = self._run("apt-get", "-c", self.configuration, "-qq", "--print-uris", "download", name)
            file = uri.split()[1]  # 'address' name_version_architecture.deb size hash
            self.versions[name] = file.split("_")[1].replace("%3a", ":")
            target = self.folder / "unpacked" / file.removesuffix(".deb")
            if not target.is_dir():
                self._run("apt-get", "-c", self.configuration, "-qq", "download", name)
                unfinished = target.with_name(f"{target.name}.unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir(parents=True)
                self._run("dpkg-deb", "--extract", self.folder / file, unfinished)
                (self.folder / file).unlink()
                unfinished.rename(target)
            folders.append(target)
        return folders

    def read_descriptions(self, language: str) -> Iterator[str]:
        """Yield the lines of the descriptions of all packages in a language."""
        form = ["--format", "$(FILENAME)", "Created-By: Translations", f"Language: {language}"]
        for path in sorted(self._run("apt-get", "-c", self.configuration, "indextargets", *form).split()):
            # The lists may be compressed; apt knows how.
            command = ["/usr/lib/apt/apt-helper", "cat-file", path]
            with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
                assert process.stdout is not None
                yield from process.stdout
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, command)

    def copy_licences(self, folder: Path) -> None:
        """Copy the copyright file of every unpacked package."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.folder.glob("unpacked/*/usr/share/doc/*/copyright")):
            shutil.copyfile(path, folder / f"{path.parent.name}.txt")

    def _run(self, *command: str | Path) -> str:
        done = subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.PIPE, encoding="utf-8")
        return done.stdout
