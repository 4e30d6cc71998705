"""The documentation: every code block of README and docs/ runs, every link leads somewhere, and the site builds.

The blocks of a page run in order, in a folder with a model, its corpus and a short training run. In a `console` block
the lines after `$ ` run, and the lines below are what the command prints: any number stands for a number, `...` for the
rest of a line, and a line `...` for any lines; with a line `error: ...`, the command fails. A block with `title="FILE"`
is written to FILE. `pip install` is never run, but its extras and packages must be in pyproject.toml. A server runs to
the end of the page, at a free port. A comment above a block changes this:

    <!-- parsed: REASON -->     does not run; Python is compiled, and our commands parse their options and recipes
    <!-- needs: NAME -->        runs where this package or program is installed, else as above
    <!-- local Hub: NOTE -->    runs with a Hub on this machine, whose models are small and have random weights
    <!-- output of: MODEL -->   runs; the output shown is that of a trained model, which is not the model here
"""

import contextlib
import gzip
import importlib.util
import io
import itertools
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import onnx
import pyarrow
import pytest
from accelerate.commands.launch import launch_command_parser
from browser import DESKTOP, NODE_MODULES, PHONE, chromium, served
from conftest import read_rows, write_lines
from golden import EXPECTED_RESULTS, golden, opus_folder
from hub_server import WRITE_TOKEN, HubServer
from packaging.requirements import Requirement
from pyarrow import parquet
from saved_model import saved_model
from test_conversion_multilingual import nllb_tokenizer, random_model
from typer.core import TyperCommand

from training import demo_corpus
from training.model import check_model_fields
from training.recipe import load_recipe
from training.recipe_options import RECIPE_OPTIONS, parse_options
from vaswani_transformer import SearchSettings, Translator, __version__
from vaswani_transformer.programs import import_program
from vaswani_transformer.translator import TranslationOptions

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = {DOCS / "reference" / name for name in ("commands.md", "recipe-keys.md")}
WRITTEN = sorted(set(DOCS.rglob("*.md")) - GENERATED)
PAGES = {str(path.relative_to(ROOT)): path for path in [ROOT / "README.md", *WRITTEN]}
# The pages of the repository; paper/page.md is a template.
MARKDOWN = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
for folder in ("benchmarks", "conversion", "examples", "hub", "paper", "serving", "tests", "training"):
    MARKDOWN += (ROOT / folder).rglob("*.md")
MARKDOWN = sorted(path for path in MARKDOWN if "node_modules" not in path.parts and path != ROOT / "paper" / "page.md")
BLOCK = re.compile(
    r"(?:^<!-- (?P<rule>parsed|needs|output of|local Hub): (?P<why>[^>]+) -->\n)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
LANGUAGES = {"python", "console", "yaml", "text", "js", "cpp"}
FAST = {"docs/index.md"}  # it takes seconds; commands of other pages take minutes
# Added to the training commands of the documentation: they end after four steps of a tiny model.
SHORT = {
    "max_steps": "4", "save_every": "2", "validate_every": "2", "bleu_every": "4", "tokens_per_step": "1000",
    "micro_batches": "1", "vocab_size": "400", "max_length": "100", "average_last": "2",
    "model.d_model": "32", "model.encoder_layers": "1", "model.decoder_layers": "3",  # a page draws the third
}  # fmt: skip
# The words that choose a free port, and the exit code after SIGTERM, for which http.server has no handler.
SERVERS = {"vaswani-transformer serve ": ("--port 0", 0), "python -m http.server ": ("0", -signal.SIGTERM)}
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
OURS = {"vaswani-transformer", "accelerate", "python", "pip"}
MODEL_KEYS = {key for key in SHORT if key.startswith("model.")} | {"vocab_size"}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    title: str | None
    rule: str | None
    why: str

    @property
    def runs(self) -> bool:
        return self.rule in (None, "output of", "local Hub") or (
            self.rule == "needs" and bool(importlib.util.find_spec(self.why) or shutil.which(self.why))
        )

    @property
    def commands(self) -> list[str]:
        """Return the lines after `$ ` of a console block, with continued lines joined."""
        return [command for command, _ in self.steps]

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Return each command with the lines below it, its output."""
        found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", self.text.replace("\\\n", " "), re.MULTILINE)
        return [(command, output.rstrip()) for command, output in found]


def blocks(page: str) -> Iterator[Block]:
    text = PAGES[page].read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        found = match.groupdict()
        yield Block(page, line, found["language"], found["text"], found["title"], found["rule"], found["why"] or "")


ALL = [block for page in PAGES for block in blocks(page)]


# ---- read, not run -----------------------------------------------------------------------------------------------


def test_every_block_has_a_known_language():
    for page, path in PAGES.items():
        fences = len(re.findall(r"^```", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert fences == 2 * len(list(blocks(page))), f"{page}: a block that does not begin and end at the margin"
    for block in ALL:
        assert block.language in LANGUAGES, f"{block.page}:{block.line}: {block.language!r}"


def test_no_line_of_a_block_is_wider_than_a_page_of_the_site():
    for block in ALL:
        for line in block.text.splitlines():
            assert len(line) <= 100, f"{block.page}:{block.line}: {line}"


def test_python_blocks_compile():
    for block in ALL:
        if block.language == "python":
            compile(block.text, f"{block.page}:{block.line}", "exec")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_javascript_blocks_compile(tmp_path):
    for block in ALL:
        if block.language == "js":
            (tmp_path / "block.mjs").write_text(block.text, encoding="utf-8")
            subprocess.run(["node", "--check", tmp_path / "block.mjs"], check=True)


def test_yaml_blocks_are_recipes(tmp_path):
    for block in ALL:
        if block.language == "yaml":
            (tmp_path / "recipe.yaml").write_text(block.text, encoding="utf-8")
            load_recipe(str(tmp_path / "recipe.yaml"))


@pytest.fixture
def parse_only(monkeypatch) -> None:
    """Let programs end when they have parsed their options, and `train` and `plan` also their recipe."""
    from vaswani_transformer import cli

    invoke, parse_args = TyperCommand.invoke, ArgumentParser.parse_args

    def parsed(command: Any, context: Any) -> Any:
        if command.context_settings == cli.PASS_ON:
            return invoke(command, context)
        if command.context_settings == RECIPE_OPTIONS:
            recipe = load_recipe(context.params["config"], parse_options(context.args))
            check_model_fields(recipe.settings().model)

    def parsed_by_argparse(parser: ArgumentParser, *arguments: Any) -> None:
        parse_args(parser, *arguments)
        sys.exit()

    monkeypatch.setattr(TyperCommand, "invoke", parsed)
    monkeypatch.setattr(ArgumentParser, "parse_args", parsed_by_argparse)


def test_commands_are_ones_that_the_programs_accept(parse_only, tmp_path, monkeypatch):
    """Includes blocks that do not run, such as those for several GPUs, and the script for SLURM."""
    for name in ("examples", "training", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    accepted = set()
    for block in ALL:
        if block.title is not None:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        is_script = block.text.startswith("#!/bin/bash\n")
        for line in [block.text.replace("\\\n", " ")] if is_script else block.commands:
            for words in our_commands(line):
                if not (block.runs and words[0] == "python"):
                    assert refusal(words) == "", f"{block.page}:{block.line}: {shlex.join(words)}"
                    accepted.add(" ".join(words[:2]))
    assert len(accepted) > 20, accepted
    assert accepted >= {"accelerate launch", "python -m", "pip install", "vaswani-transformer serve"}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("vaswani-transformer translate demo/model --inptu a", "No such option: --inptu"),
        ("vaswani-transformer plot attention demo/model --output a.png", "Missing option '--source'"),
        ("time vaswani-transformer serve | tee log", "Missing argument 'model'"),
        ("vaswani-transformer train --config debian_en_de --model.width 3", "width"),
        ("vaswani-transformer plan --config debian", "debian"),
        ("srun bash -c 'exec accelerate launch -m training --config tiny --max_step 3'", "max_step"),
        ("accelerate launch --config_file training/accelerate/three.yaml -m training --config tiny", "three.yaml"),
        ("accelerate launch --machines 2 -m training --config tiny", "--machines"),
        ("python -m benchmarks.decode_base_size --batch 1", "No such option: --batch"),
        ("python examples/debian_corpus/build.py --language it", "invalid choice: 'it'"),
        ('pip install --constraint constraints.txt ".[onnx,hud]"', "no extra hud"),
        ("pip install numpy onnxruntim", "onnxruntim"),
        ("pip install --constraint versions.txt numpy", "versions.txt"),
    ],
)
def test_commands_that_the_programs_refuse_are_found(parse_only, monkeypatch, line, error):
    monkeypatch.chdir(ROOT)
    (words,) = our_commands(line)
    assert error in refusal(words)


def our_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of the commands in a line of a shell that this package, Accelerate, Python or pip runs."""
    lexer = shlex.shlex(re.sub(r"\$[A-Z_]+", "2", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("();<>|&"):
            starts = [place for place, found in enumerate(words) if found in OURS]
            if starts:
                yield words[starts[0] :]
            words = []
        elif re.search(r"\b(vaswani-transformer|accelerate launch) ", word):  # bash -c '...'
            yield from our_commands(word)
        else:
            words.append(word)


def refusal(words: list[str]) -> str:
    """Return the error of a program that refuses its command, else an empty text."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as printed,
        warnings.catch_warnings(action="ignore"),  # runpy: the module is imported already
    ):
        try:
            parse(words)
        except SystemExit as end:
            return f"{printed.getvalue()}{end.code}" if end.code else ""
    return ""


def parse(words: list[str]) -> None:
    from vaswani_transformer import cli

    match words:
        case ["vaswani-transformer", "train", *arguments]:  # the command itself starts Accelerate's launcher
            import_program("training", "__main__").main(arguments)
        case ["vaswani-transformer", *arguments]:
            cli.main(arguments)
        case ["accelerate", "launch", *arguments]:
            launch, unknown = launch_command_parser().parse_known_args(arguments)
            if unknown or not (ROOT / (launch.config_file or "")).exists():
                sys.exit(f"accelerate launch: {unknown or launch.config_file}")
            parse(["python", *(["-m"] if launch.module else []), launch.training_script, *launch.training_script_args])
        case ["python", *script]:
            with pytest.MonkeyPatch.context() as patch:
                if script[0] == "-m":
                    patch.setattr(sys, "argv", script[1:])
                    runpy.run_module(script[1], run_name="__main__", alter_sys=True)
                elif "ray" not in Path(script[0]).parts or importlib.util.find_spec("ray"):
                    patch.setattr(sys, "argv", script)
                    patch.syspath_prepend(str(Path(script[0]).parent))
                    runpy.run_path(script[0], run_name="__main__")
        case ["pip", "install", *arguments]:
            check_requirements(arguments)


def check_requirements(words: list[str]) -> None:
    """Exit with an error if a requirement is not one of this package, or a file of constraints does not exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    known = {Requirement(line).name for line in itertools.chain(project["dependencies"], *extras.values())}
    for option, word in itertools.pairwise(["", *words]):
        if option == "--constraint" and not (ROOT / word).is_file():
            sys.exit(f"no file {word}")
        if word.startswith("--") or option == "--constraint":
            continue
        requirement = Requirement(word.replace(".", project["name"], 1) if word.startswith(".") else word)
        if requirement.name not in {project["name"], *known}:
            sys.exit(f"{requirement.name} is not in pyproject.toml")
        if missing := requirement.extras - extras.keys():
            sys.exit(f"no extra {', '.join(missing)}")


def test_every_command_of_a_program_is_documented():
    """docs/generate.py replaces commands that pass their arguments on; their own help is empty."""
    from typer.main import get_command

    from vaswani_transformer import cli

    commands: Any = dict(get_command(cli.app).commands)  # pyright: ignore[reportAttributeAccessIssue]
    for name in ("export", "recipes", "plot"):
        commands |= commands.pop(name).commands
    assert {name for name, command in commands.items() if command.context_settings == cli.PASS_ON} == set(cli.PROGRAMS)


def prose(path: Path) -> str:
    """Return a page without its blocks of code and comments, and with `code` for code within lines."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "`code`", text)


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub and MkDocs give to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_of_the_repository(page):
    """`mkdocs build --strict` checks those of the site. MkDocs' own syntax would be text on GitHub."""
    text = prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, heading = target.partition("#")
        if not re.match(r"https?:", target):
            assert (page.parent / name).exists(), target
            assert not heading or heading in anchors(page.parent / name if name else page), target
    assert not re.search(r"^(:::|!!!|\?\?\?|===) |\)\{|\]\[", text, re.MULTILINE)


def test_the_results_of_the_readme_are_recorded():
    readme = PAGES["README.md"].read_text(encoding="utf-8")
    files = [ROOT / f"training/results/{name}.csv" for name in ("debian", "demo", "multi30k")]
    records = [row for file in files for row in read_rows(file)]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+\.\d+) \| (cased|lower-cased) \|$", readme, re.MULTILINE)
    assert len(rows) == 5
    for recipe, score, text in rows:
        mine = [row for row in records if f"--config {recipe}" in row["command"]]
        scores = {row["bleu" if text == "cased" else "bleu_lowercase"] for row in mine}
        alpha = str(load_recipe(recipe).length_penalty)
        of_seeds = [float(row["bleu"]) for row in mine if "--seed" in row["command"] and row["alpha"] == alpha]
        assert score in scores or (text == "cased" and score == f"{fmean(of_seeds):.2f}"), recipe


def test_the_readme_has_the_name_of_the_built_wheel():
    assert f"vaswani_transformer-{__version__}-py3" in PAGES["README.md"].read_text(encoding="utf-8")


def test_the_make_targets_of_the_documentation_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    command = re.compile(r"^(?:    |\$ )make ([\w -]+?)(?:  | [A-Z]+=|$)|`make ([\w-]+)`", re.MULTILINE)
    for page in (*PAGES.values(), ROOT / "CONTRIBUTING.md"):
        for words in command.findall(page.read_text(encoding="utf-8")):
            for target in " ".join(words).split():
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


# ---- run ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """The folder that the pages expect, with the model of a demo and text."""
    folder = tmp_path_factory.mktemp("documentation")
    saved_model(folder / "demo" / "model")
    (folder / "demo" / "model" / "README.md").write_text("---\nlanguage: [en, de]\n---\n")
    for name, column in (("eight.en", 1), ("eight.de", 2)):
        write_lines(folder / "demo" / name, [row[column] for row in demo_corpus.load("test")[:8]])
    for corpus, names, opened in (
        ("mytext", ("train", "val", "test"), open),
        ("data/multi30k", ("train", "val", "test_2016_flickr"), gzip.open),
        ("data/debian", ("train", "val", "test"), gzip.open),
    ):
        (folder / corpus).mkdir(parents=True)
        for split, name, pairs in zip(("train", "validation", "test"), names, (300, 20, 20), strict=True):
            for column, language in ((1, "en"), (2, "de")):
                suffix = ".gz" if opened is gzip.open else ""
                with opened(folder / corpus / f"{name}.{language}{suffix}", "wt", encoding="utf-8") as file:
                    file.writelines(f"{row[column]}\n" for row in demo_corpus.load(split)[:pairs])
    with gzip.open(folder / "data" / "debian" / "test.source.gz", "wt") as file:
        file.write("ddtp\nding.sentences\nlohelp\nman\n" * 5)
    write_lines(folder / "gzip.txt", ["GZIP(1)", "", *(row[1] for row in demo_corpus.load("test")[:20])])
    (folder / "grep.po").write_text(MESSAGES, encoding="utf-8")
    (folder / "demo" / "corpus").mkdir()
    for column, name in enumerate(("kinds", "en", "de")):
        write_lines(folder / "demo" / "corpus" / f"test.{name}", [row[column] for row in demo_corpus.load("test")[:20]])
    for name, target in {
        "training": "training", "tests": "tests", "examples": "examples", "hub": "hub",
        "fairseq-checkpoint": "tests/fixtures/fairseq", "my.model": "tests/fixtures/hf-marian/source.spm",
    }.items():  # fmt: skip
        (folder / name).symlink_to(ROOT / target)
    add_users_text(folder)
    return folder


def add_users_text(folder: Path) -> None:
    """Write what pages take for granted: a large text, text of an old and a new domain, and of two directions."""
    pairs = [row[1:] for row in demo_corpus.load("train")[:200]]
    with gzip.open(folder / "corpus.en.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{english}\n" for english, _ in pairs)
    write_lines(folder / "text.en", [english for english, _ in pairs[:5]])
    write_lines(folder / "mytext" / "gold.align", ["0-0 1-1"] * 20)
    for name, chosen in (("old", pairs[:100]), ("new", pairs[100:])):
        for column, language in enumerate(("en", "de")):
            write_lines(folder / "mytext" / f"{name}.{language}", [pair[column] for pair in chosen])
    for name, chosen in (("train", pairs[:180]), ("val", pairs[180:])):
        english, german = (list(side) for side in zip(*chosen, strict=True))
        sources = [*(f"<2de> {text}" for text in english), *(f"<2en> {text}" for text in german)]
        write_lines(folder / "mytext" / f"{name}.src", sources)
        write_lines(folder / "mytext" / f"{name}.tgt", german + english)


# The messages of grep's that the page shows, with the header that `msgfmt --check` wants.
MESSAGES = r"""
msgid ""
msgstr ""
"Project-Id-Version: grep\n"
"PO-Revision-Date: 2026-01-01 00:00+0000\n"
"Last-Translator: none\n"
"Language-Team: none\n"
"Language: de\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Content-Transfer-Encoding: 8bit\n"

msgid "%s: option '%s%s' is ambiguous\n"
msgstr ""

msgid "Memory exhausted"
msgstr ""

msgid "Unmatched ["
msgstr ""

msgid "%s: unrecognized option '%s%s'\n"
msgstr ""

msgid "invalid argument %s for %s"
msgstr ""
"""


def add_files_of_a_cluster(folder: Path, exported: Path) -> None:
    """Write text for Ray, and link the models that its nodes have."""
    (folder / "models").mkdir()
    (folder / "models" / "en-de").symlink_to(exported / "model")
    (folder / "models" / "en-de-onnx").symlink_to(exported / "onnx")
    texts = [english for _, english, _ in demo_corpus.load("test")[:100]]
    write_lines(folder / "captions.en", texts)
    parquet.write_table(pyarrow.table({"en": texts}), folder / "corpus.parquet")


@pytest.fixture(scope="session")
def run_of_mytext(template) -> Path:
    """A finished training run of `mytext`, for the pages that begin with one."""
    options = " ".join(f"--{key} {value}" for key, value in SHORT.items())
    command = "train --data mytext --train train --validation val --test test --preset base --output_dir runs/mine"
    shell(f"vaswani-transformer {command} --model.encoder_ffn_dim 32 {options}", template)
    return template / "runs" / "mine"


@pytest.fixture(scope="session")
def hub(template, exported, tmp_path_factory) -> Iterator[HubServer]:
    """A Hub with the models and the text that the pages name, all of them small."""
    folder = tmp_path_factory.mktemp("hub")
    command = "vaswani-transformer push demo/model owner/name"
    shell(f"{command} --onnx {exported / 'onnx'} --to-folder {folder / 'ours'}", template)
    opus_folder(folder / "gem", [">>deu<<", ">>nld<<"], two_vocabularies=False)
    tokenizer = nllb_tokenizer()
    random_model("m2m_100", vocab_size=len(tokenizer), max_position_embeddings=200).save_pretrained(folder / "nllb")
    tokenizer.save_pretrained(folder / "nllb")
    repositories = {
        "owner/name": folder / "ours",
        "Helsinki-NLP/opus-mt-en-de": golden("hf-marian"),
        "Helsinki-NLP/opus-mt-en-gem": folder / "gem",
        "facebook/nllb-200-distilled-600M": folder / "nllb",
        "bentrevett/multi30k": write_dataset(folder / "multi30k", "en", "de"),
        "owner/dataset": write_dataset(folder / "dataset", "input", "output"),
    }
    with HubServer() as server:
        for name, path in repositories.items():
            files = [file for file in path.rglob("*") if file.is_file() and file.name not in EXPECTED_RESULTS]
            server.create(name, **{str(file.relative_to(path)): file.read_bytes() for file in files})
        yield server
    assert not server.unknown


def write_dataset(folder: Path, *columns: str) -> Path:
    """Write pairs of the demo's corpus as JSON lines, a file for each split."""
    folder.mkdir()
    for split in demo_corpus.SPLITS:
        rows = [dict(zip(columns, row[1:], strict=True)) for row in demo_corpus.load(split)[:200]]
        write_lines(folder / f"{split}.jsonl", [json.dumps(row) for row in rows])
    return folder


def environment(folder: Path, hub: HubServer | None) -> dict[str, str]:
    bin_folder = Path(sys.executable).parent
    variables = os.environ | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",  # the two streams in the order of a terminal
    }
    if hub is not None:
        variables |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "huggingface")}
        variables |= {"HF_TOKEN": WRITE_TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return variables


BASH = ["bash", "-euo", "pipefail", "-c"]
TOGETHER: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def shell(command: str, folder: Path, hub: HubServer | None = None, fails: bool = False) -> str:
    done = subprocess.run([*BASH, command], cwd=folder, env=environment(folder, hub), **TOGETHER)
    assert (done.returncode != 0) == fails, f"{command}\n{done.stdout[-6000:]}"
    return done.stdout


@contextlib.contextmanager
def running(server: str, folder: Path, hub: HubServer | None) -> Iterator[str]:
    """Run a server at a free port; yield what it has printed when it is ready. SIGTERM ends it, without a word."""
    ((port, code),) = (SERVERS[start] for start in SERVERS if server.startswith(start))
    command = [*BASH, f"exec {server} {port}"]
    with subprocess.Popen(command, cwd=folder, env=environment(folder, hub), **TOGETHER) as process:
        try:
            assert process.stdout is not None
            printed = ""
            for line in process.stdout:
                printed += line
                if ADDRESS.search(line):
                    break
            yield printed
            assert process.poll() is None, printed
            process.terminate()
            rest = process.communicate()[0]
            assert (process.returncode, rest) == (code, ""), f"{server}\n{printed}{rest}"
        finally:
            process.kill()


# Progress bars, and what only the small models and the short runs of the tests print.
ONLY_HERE = re.compile(
    r"━|it/s\]|^warning: (doubtful translations|the learning rate rises|the model will average|\d+ of \d+ test)"
)
NUMBER = r"-?\d[\d.,:]*(?:e[-+]?\d+|\+c(?:pu|u\d+))?"  # also torch 2.13.0+cpu


def shape(text: str) -> str:
    """Return a pattern of what a command prints: numbers and line breaks vary, and `...` leaves something out."""
    lines = []
    for line in text.splitlines():
        words = [re.sub(NUMBER, lambda _: "#", word) for word in line.split()]
        pattern = r"\s+".join(re.escape(word) for word in words)
        pattern = pattern.replace(re.escape("#"), f"(?:{NUMBER})").replace(re.escape("..."), ".*")
        lines.append(r"(?:.*\n)*" if line == "..." else rf"\s*{pattern}[ \t]*\n")
    return "".join(lines)


def check_output(shown: str, printed: str, where: str) -> None:
    lines = [line for line in re.split(r"[\n\r]+", printed) if line.strip() and not ONLY_HERE.search(line)]
    printed = "".join(f"{line}\n" for line in lines)
    assert re.fullmatch(shape(shown), printed), f"{where} prints\n{printed}\nbut the page shows\n{shown}"


def test_the_output_of_a_command_is_compared_by_its_shape():
    shown = "step 50/1700  loss 6.9  rate 8.0e-06 ...\n...\nruns/own: the model"
    check_output(shown, "step 2/4  loss 6.53  rate 1e-3  0:00:00 left\na\nb\nruns/own: the model\n", "train")
    check_output(shown, "step 2/4  loss -1  rate 1e-3 5\nruns/own: the model\n", "train")
    for other in ("step 2/4  loss  rate 1e-3 5\nruns/own: the model\n", "step 2/4  loss 1  rate 1 5\nruns/own:\n"):
        with pytest.raises(AssertionError):
            check_output(shown, other, "train")
    with pytest.raises(AssertionError, match="the page shows"):
        check_output("", "printed\n", "a command without its output")


def shortened(command: str) -> str:
    """Shorten a training command to a few steps, whose keys keep their values, and other commands that take long."""
    command = command.replace(" /models/", " models/").replace(" | col -bx", " | col -bx | sed -n 1,40p")
    command = command.replace("vaswani-transformer demo", "vaswani-transformer demo --quick demo")
    if NODE_MODULES.is_dir():  # else npm installs the packages
        command = command.replace("assemble.mjs for-browser", f"assemble.mjs --packages {NODE_MODULES} for-browser")
    command = re.sub(r"(examples/seq2seq_trainer.py .*)", r"\1 2 400", command)
    if command.startswith("vaswani-transformer train --config demo "):
        return f"{command} --max-steps 200 --warmup-steps 80"  # as `demo --quick`
    if not re.match(r"vaswani-transformer (train|plan) ", command):
        return command
    keys = {key: value for key, value in SHORT.items() if f"--{key} " not in command}
    if "finetune" in command or "--initial_weights" in command:  # it has the size of the initial model
        keys = {key: value for key, value in keys.items() if key not in MODEL_KEYS}
    return " ".join([command, *(f"--{key} {value}" for key, value in keys.items())])


def run_page(
    page: str, folder: Path, languages: tuple[str, ...] = ("python", "console"), hub: HubServer | None = None
) -> int:
    """Run the blocks of a page in order; return their number. Servers run until the end of the page."""
    namespace: dict[str, object] = {}
    chosen = [block for block in blocks(page) if block.runs and block.language in languages]
    with contextlib.ExitStack() as servers:
        addresses: dict[str, str] = {}  # of the servers: as shown -> as it is here

        def here(text: str) -> str:
            return ADDRESS.sub(lambda shown: addresses.get(shown[0], shown[0]), text)

        for block in blocks(page):
            of_block = hub if block.rule == "local Hub" else None
            if block.title is not None:
                (folder / block.title).write_text(block.text, encoding="utf-8")
            if block in chosen and block.language == "python":
                run_python(replace(block, text=here(block.text)), folder, of_block, namespace)
            for command, shown in block.steps if block in chosen and block.language == "console" else ():
                if command.startswith("pip install "):
                    continue
                if command.startswith(tuple(SERVERS)):
                    printed = servers.enter_context(running(command, folder, of_block))
                    addresses |= zip(ADDRESS.findall(shown), ADDRESS.findall(printed), strict=True)
                else:
                    is_error = "\nerror: " in f"\n{shown}"
                    printed = shell(shortened(here(command)), folder, of_block, is_error)
                if block.rule != "output of":
                    check_output(shown, printed, f"{page}:{block.line}: {command}")
                elif re.sub(r"warning: doubtful .*", "", printed).strip():  # the shortened demo's model is bad
                    assert shown, f"{page}:{block.line}: {command} is not followed by its output"
    return len(chosen)


def run_python(block: Block, folder: Path, hub: HubServer | None, namespace: dict[str, object]) -> None:
    if hub is not None:  # huggingface_hub is told where it is when it is imported
        (folder / "block.py").write_text(block.text, encoding="utf-8")
        shell("python block.py", folder, hub)
        return
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        if block.rule == "needs":  # PEFT calls functions that transformers has deprecated
            warnings.simplefilter("default")
        exec(compile(block.text, f"{block.page}:{block.line}", "exec"), namespace)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page, marks=[] if page in FAST else [pytest.mark.slow])
        for page in PAGES
        if any(block.runs and block.language in ("python", "console") for block in blocks(page))
    ],
)
def test_the_blocks_of_a_page_run(page: str, template: Path, tmp_path: Path, monkeypatch, request):
    text = PAGES[page].read_text(encoding="utf-8")
    if "runs/mine" in text and "mine.yaml" not in text:
        request.getfixturevalue("run_of_mytext")
    folder = tmp_path / "folder"
    shutil.copytree(template, folder, symlinks=True)
    if page == "docs/tutorial.md":
        shutil.rmtree(folder / "demo")  # the page creates it
    if page == "docs/how-to/train.md":
        shutil.rmtree(folder / "runs" / "mine", ignore_errors=True)  # the page creates it
    monkeypatch.chdir(folder)
    if page == "docs/how-to/cluster.md":
        add_files_of_a_cluster(folder, request.getfixturevalue("exported"))
    needs_hub = any(block.rule == "local Hub" for block in blocks(page))
    assert run_page(page, folder, hub=request.getfixturevalue("hub") if needs_hub else None) > 0


def test_the_python_of_the_readme_runs(template: Path, monkeypatch):
    monkeypatch.chdir(template)
    assert run_page("README.md", template, ("python",)) == 2


# Parts of texts, every second of which is copied.
SPLIT = ["One.", "", "One. |Two!", "|\n |One.", "a b|\n\n|---|\r\n|c. |D?| ", "3.14 is  pi", "Dr.| |No", "| |", "a.b c"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_cpp_program_splits_texts_like_the_python_of_the_readme(tmp_path):
    (block,) = (block for block in ALL if block.language == "cpp")
    function = block.text[block.text.index("std::vector<std::string> split") : block.text.index("int main")]
    loop = 'for (auto& piece : split(argv[1])) std::cout << piece << "\\x1f";'
    includes = "".join(f"#include <{name}>\n" for name in ("algorithm", "iostream", "string", "vector"))
    program = f"{includes}{function}int main(int, char** argv) {{ {loop} }}"
    (tmp_path / "split.cpp").write_text(program)
    subprocess.run(["g++", "-std=c++17", "-o", tmp_path / "split", tmp_path / "split.cpp"], check=True)
    readme = (ROOT / "conversion/onnx/README.text.template").read_text(encoding="utf-8").replace("$$", "$")
    (pattern,) = re.findall(r're.split\(r"(.*)", text\)', readme)
    for text in ("".join(pieces.split("|")) for pieces in SPLIT):
        done = subprocess.run([tmp_path / "split", text], check=True, capture_output=True)
        assert done.stdout.decode().split("\x1f")[:-1] == re.split(pattern, text), repr(text)
    assert re.split(pattern, "a b.\n\n---\r\nc. D? ") == ["a b.", "\n\n", "---", "\r\n", "c.", " ", "D?", " ", ""]


@pytest.mark.slow
def test_the_cpp_program_uses_the_exported_names(template, tmp_path):
    (block,) = (block for block in ALL if block.language == "cpp")
    shell(f"vaswani-transformer export onnx demo/model {tmp_path / 'for-cpp'} --text", template)
    graph = onnx.load(str(tmp_path / "for-cpp" / "model_text.onnx")).graph
    for words, values in (("inputs", graph.input), ("outputs", graph.output)):
        (named,) = re.findall(rf'{words}\[\] = {{"(\w+)"}}', block.text)
        assert named in {value.name for value in values}
    headers = Path("/usr/include/onnxruntime")  # of Debian's libonnxruntime-dev
    if not headers.is_dir():
        return
    (library,) = Path("/usr/lib").glob("*/libonnxruntime.so")
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "include").symlink_to(headers)
    (tmp_path / "onnxruntime" / "lib").symlink_to(library.parent)
    (tmp_path / "translate.cpp").write_text(block.text)
    (build, _), (translate, _) = next(other.steps for other in blocks(block.page) if "g++" in other.text)
    shell(build, tmp_path)
    sentences = re.findall(r"\w.*?\.", translate.partition('"')[2])
    translator = Translator.from_pretrained(template / "demo" / "model", device="cpu")
    assert shell(translate, tmp_path).splitlines()[-1] == " ".join(translator.translate(sentences))


def load_program(name: str) -> Any:
    """Import a program of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


TYPER = re.search(r"^typer==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.skipif(TYPER is None or version("typer") != TYPER[1], reason="other versions of typer word help otherwise")
def test_the_committed_reference_is_that_of_the_code(monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    pages = load_program("generate").committed_pages()
    assert set(pages) >= GENERATED
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(ROOT)}: run `make docs`"


def test_the_python_reference_describes_every_setting_of_a_translation():
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    for kind in (TranslationOptions, SearchSettings):
        for field in fields(kind):
            assert re.search(rf"^\| `{kind.__name__}\.{field.name} = .*` \| \w", text, re.MULTILINE), field.name


@pytest.mark.parametrize(
    "files",
    [
        "conversion/onnx/README.template conversion/onnx/readme.py",
        "docs/explanation/search.md",
        "docs/how-to/onnx-cpu.md",
        "hub/space-static/translator.js",
        "vaswani_transformer/cli.py",
    ],
)
def test_every_setting_of_the_search_is_named_where_users_set_it(files):
    text = "".join((ROOT / file).read_text(encoding="utf-8") for file in files.split())
    assert [field.name for field in fields(SearchSettings) if not re.search(rf"\b{field.name}\b", text)] == []


def test_the_notebook_is_built_from_its_script():
    notebook = load_program("notebook")
    script = ROOT / "examples" / "annotated_transformer.py"
    built = script.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert built == notebook.as_notebook(script), "run `make docs`"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_annotated_transformer_runs(tmp_path):
    """Checks its assertions, and that its model learns the task."""
    printed = shell(f"python {ROOT / 'examples' / 'annotated_transformer.py'}", tmp_path)
    assert "unseen numbers are right" in printed


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        external = re.findall(r'<(?:script|link|img)\b[^>]*(?:src|href)="(https?://[^"]+)', page.read_text("utf-8"))
        assert not external, f"{page.name} loads {external}"


@pytest.mark.slow
def test_every_link_and_picture_of_the_site_is_in_it(site):
    address = re.compile(r'<(?:a|img|link|script)\b[^>]* (?:src|href)="?([^" >#?]+)')
    for page in set(site.rglob("*.html")) - {site / "404.html"}:  # whose links begin at the root of a server
        for target in address.findall(page.read_text("utf-8")):
            if not re.match(r"[a-z]+:|//", target):
                assert (page.parent / target).exists(), f"{page.relative_to(site)}: {target}"


browser = pytest.fixture(chromium, scope="module")
TOO_WIDE = """() => [document.documentElement, ...document.querySelectorAll("pre > code, .md-typeset__scrollwrap")]
    .filter(box => box.scrollWidth > box.clientWidth).map(box => `${box.tagName} ${box.innerText.slice(0, 80)}`)"""


@pytest.mark.slow
@pytest.mark.browser
def test_no_page_of_the_site_is_wider_than_the_window(site, browser):
    """On a phone, blocks of code and tables scroll by themselves; the page does not."""
    for viewport in (DESKTOP, PHONE):
        page = browser.new_page(viewport=viewport)
        with served(site) as (address, _):
            for file in sorted(site.rglob("*.html")):
                page.goto(address + file.relative_to(site).as_posix())
                found = [box for box in page.evaluate(TOO_WIDE) if viewport == DESKTOP or box.startswith("HTML ")]
                assert not found, f"{file.relative_to(site)} at {viewport['width']} pixels: {found}"
        page.close()
