"""Build a parallel corpus of real text from Debian's packages: English and German, or English and French.

    python examples/debian_corpus/build.py --language de --output data/debian

It writes train, val and test as .en.gz, .de.gz and .source.gz, which names the source of each line, the licences of the
packages, and statistics.json. Run it again after an interruption: it keeps what it has downloaded and extracted. The
result depends only on the versions of the packages, which statistics.json lists.
"""

import argparse
import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import descriptions
import dictionary
import manual_pages
import office_help
from apt import Packages
from clean import FEWEST_WORDS, Pair, clean, cut_into_sentences, split

SOURCES = {"descriptions": descriptions, "help": office_help, "manual": manual_pages, "dictionary": dictionary}
HELD_OUT = 500  # pairs of each source in val and in test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", choices=("de", "fr"), default="de", help="the language beside English")
    parser.add_argument("--output", type=Path, required=True, help="a folder for the corpus")
    options = parser.parse_args()
    try:
        build(options.language, options.output)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}; run the same command again to continue")


def build(language: str, output: Path) -> None:
    packages = Packages(output / "packages", ["en", language])
    sources: dict[str, list[Pair]] = {}
    statistics: dict[str, dict[str, int]] = {}
    for name, source in SOURCES.items():
        if source.PACKAGES and language not in source.PACKAGES:
            continue
        dropped: Counter[str] = Counter()
        pairs = list(clean(cut_into_sentences(source.read_pairs(packages, language)), dropped))
        for part, members in divide(name, pairs).items():
            sources[part] = members
            statistics[part] = {"pairs": len(members), "English words": count_words(members)}
        print(f"{name}: {len(pairs):,} pairs; dropped: {dict(dropped)}", file=sys.stderr)
        statistics[f"{name}, dropped"] = dict(dropped)
    held_out = {name: pairs for name, pairs in sources.items() if name != "phrases"}
    parts = split(held_out, HELD_OUT)
    parts["train"] += [("phrases", pair) for pair in sources.get("phrases", [])]
    for part, pairs in parts.items():
        write(output, part, language, pairs)
        print(f"{part}: {len(pairs):,} pairs", file=sys.stderr)
        statistics[part] = {"pairs": len(pairs), "English words": count_words(pair for _, pair in pairs)}
    packages.copy_licences(output / "licences")
    about = {"language": language, "packages": packages.versions, "statistics": statistics}
    (output / "statistics.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def divide(name: str, pairs: list[Pair]) -> dict[str, list[Pair]]:
    """Divide the dictionary into sentences and phrases, which are too short for a test; others are one part.

    Phrases have several words in both languages; the rest of the dictionary are single words.
    """
    if name != "dictionary":
        return {name: pairs}
    parts: dict[str, list[Pair]] = {"sentences": [], "phrases": []}
    for pair in pairs:
        if dictionary.is_sentence(*pair):
            parts["sentences"].append(pair)
        elif len(pair[1].split()) >= FEWEST_WORDS:
            parts["phrases"].append(pair)
    return parts


def count_words(pairs) -> int:
    return sum(len(english.split()) for english, _ in pairs)


def write(output: Path, part: str, language: str, pairs: list[tuple[str, Pair]]) -> None:
    columns = {
        "source": [source for source, _ in pairs],
        "en": [pair[0] for _, pair in pairs],
        language: [pair[1] for _, pair in pairs],
    }
    for name, lines in columns.items():
        path = output / f"{part}.{name}.gz"
        unfinished = path.with_name(f"{path.name}.unfinished")
        # Without the time, so that the same pairs give the same file.
        with unfinished.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as file:
            file.writelines(f"{line}\n".encode() for line in lines)
        unfinished.replace(path)


if __name__ == "__main__":
    main()
