"""Section 6.1: how good a model's translations are: BLEU in the five ways people mean, chrF, and exact matches."""

import csv
import json
import os
import platform
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from vaswani_transformer import __version__
from vaswani_transformer.cli import in_one_line
from vaswani_transformer.errors import InputError, UnavailableError, exit_cleanly
from vaswani_transformer.lines import read_lines, written_whole
from vaswani_transformer.texts import TextTranslator
from vaswani_transformer.translator import Translator

from . import demo_corpus
from .checkpoint import STATE, checkpoints, read_json
from .corpus import parallel_texts
from .recipe import EMBEDDED, Recipe, load_recipe

# The columns of training/results/*.csv, in their order.
COLUMNS = (
    "date", "commit", "command", "hardware", "hours", "cpu_hours", "steps", "parameters", "data", "test", "sentences",
    "beam", "alpha", "bleu", "bleu_signature", "bleu_lowercase", "bleu_lowercase_signature", "bleu_tokenised",
    "bleu_compound_split", "chrf", "chrf_signature", "exact_match",
)  # fmt: skip


@dataclass(frozen=True)
class TestSet:
    """Sources with their references, and what kind of sentence each is, where that is known."""

    name: str
    data: str
    sources: list[str]
    references: list[str]
    kinds: list[str] | None = None
    language: str = "en"


def corpus_bleu(translations: list[str], references: list[str], lowercase: bool = False) -> float:
    """sacreBLEU of detokenised text (13a), cased or lower-cased."""
    return BLEU(lowercase=lowercase, force=True).corpus_score(translations, [references]).score


def scores(
    translations: list[str], references: list[str], kinds: list[str] | None = None, language: str = "en"
) -> dict[str, Any]:
    """Every score of translations against one reference each.

    bleu: sacreBLEU, the number to compare; bleu_lowercase: of lower-cased text; bleu_tokenised: of text lower-cased and
    tokenised by Moses' scripts, what papers on Multi30k print, None without sacremoses; bleu_as_written: of the words
    between spaces, what fairseq prints of IWSLT's text, which is tokenised already; bleu_compound_split: as
    get_ende_bleu.sh of tensor2tensor counts, the paper's Table 2, in which every hyphen between letters is a word of
    its own, with mteval-v13a's tokens.
    language: of the translations, a code such as de, for Moses' rules
    """
    # force: no advice on detokenising, where a corpus spells its full stops apart.
    bleu, lowercase = BLEU(force=True), BLEU(lowercase=True, force=True)
    plain, chrf = BLEU(tokenize="none", force=True), CHRF()
    split = [[split_compounds(text) for text in side] for side in (translations, references)]
    tokenised = [moses_tokenised(side, language) for side in (translations, references)]
    matches = [t.strip() == r.strip() for t, r in zip(translations, references, strict=True)]
    result: dict[str, Any] = {
        "sentences": len(references),
        "bleu": bleu.corpus_score(translations, [references]).score,
        "bleu_signature": str(bleu.get_signature()),
        "bleu_lowercase": lowercase.corpus_score(translations, [references]).score,
        "bleu_lowercase_signature": str(lowercase.get_signature()),
        "bleu_tokenised": plain.corpus_score(tokenised[0], [tokenised[1]]).score if all(tokenised) else None,
        "bleu_as_written": plain.corpus_score(translations, [references]).score,
        "bleu_compound_split": plain.corpus_score(split[0], [split[1]]).score,
        "chrf": chrf.corpus_score(translations, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
        "exact_match": 100 * sum(matches) / len(matches),
    }
    if kinds is not None:
        by_kind = defaultdict(list)
        for kind, match in zip(kinds, matches, strict=True):
            by_kind[kind].append(match)
        result["exact_match_by_kind"] = {k: 100 * sum(v) / len(v) for k, v in sorted(by_kind.items())}
    return result


def moses_tokenised(lines: list[str], language: str) -> list[str]:
    """Lower-cased, punctuation normalised, tokenised: task1-tokenize.sh of Multi30k. Empty without sacremoses."""
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ModuleNotFoundError:
        return []
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return [" ".join(tokenizer.tokenize(normalizer.normalize(line.lower()))) for line in lines]


def split_compounds(text: str) -> str:
    """Tokenised, and "rich-text" as "rich ##AT##-##AT## text": utils/get_ende_bleu.sh of tensor2tensor."""
    return re.sub(r"(\S)-(?=\S)", r"\1 ##AT##-##AT## ", Tokenizer13a()(text))


def test_set(recipe: Recipe) -> TestSet:
    """The sentences that a recipe's `test` names."""
    names = recipe.test or recipe.validation
    if not names:
        raise InputError("the recipe names no test corpus; --test NAME, or --source and --reference files")
    sources, references = [], []
    for text in parallel_texts(recipe, names):
        for chunk in text.chunks():
            sources += [line or "" for line in chunk.sources]
            references += [line or "" for line in chunk.targets]
    kinds = None
    if recipe.data == EMBEDDED:
        kinds = [kind for name in names for kind, *_ in demo_corpus.load(name)]
    data = recipe.dataset or recipe.data or "."
    return TestSet(" + ".join(names), Path(data).name, clean(sources), clean(references), kinds, recipe.target_language)


def clean(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines]


def files_test_set(source: Path, reference: Path, kinds: Path | None) -> TestSet:
    """A test set of text files, line by line."""
    lines = {path: clean(list(read_lines(path))) for path in (source, reference, kinds) if path is not None}
    for path, content in lines.items():
        if len(content) != len(lines[source]):
            raise InputError(f"{source} has {len(lines[source])} lines, {path} has {len(content)}")
    if not lines[source]:
        raise InputError(f"{source} is empty")
    return TestSet(
        source.stem,
        source.parent.name,
        lines[source],
        lines[reference],
        lines[kinds] if kinds else None,
        language=reference.name.removesuffix(".gz").rpartition(".")[2],  # test.de
    )


def show(result: dict[str, Any]) -> str:
    """The scores as people read them."""
    rows = [
        f"BLEU {result['bleu']:.2f}   sacreBLEU, cased (it tokenises by mteval-v13a): {result['bleu_signature']}",
        f"BLEU {result['bleu_lowercase']:.2f}   sacreBLEU, lower-cased: {result['bleu_lowercase_signature']}",
        f"BLEU {result['bleu_tokenised']:.2f}   tokenised (Moses), lower-cased"
        if result["bleu_tokenised"] is not None
        else "BLEU   -     tokenised (Moses), lower-cased: pip install sacremoses",
        f"BLEU {result['bleu_compound_split']:.2f}   tokenised (13a), compounds split: the paper's Table 2",
        f"BLEU {result['bleu_as_written']:.2f}   of the words between spaces, for text that is tokenised already",
        f"chrF {result['chrf']:.2f}   {result['chrf_signature']}",
        f"exact match {result['exact_match']:.1f} % of {result['sentences']} sentences",
    ]
    for kind, share in result.get("exact_match_by_kind", {}).items():
        rows.append(f"    {kind:<14} {share:5.1f} %")
    return "\n".join(rows)


def record(path: Path, model: Path, test: TestSet, result: dict[str, Any], beam: int, alpha: float) -> None:
    """Append a row to a results file; see training/results/README.md for the columns."""
    run = read_json(model / "run.json") if (model / "run.json").is_file() else {}
    folders = checkpoints(model / "checkpoints")
    progress = read_json(folders[0] / STATE)["progress"] if folders else {}
    values: dict[str, Any] = {
        **result,
        "date": date.today().isoformat(),
        "commit": commit(),
        "command": run.get("command", ""),
        "hardware": hardware(),
        "hours": round(progress["seconds"] / 3600, 3) if progress else "",
        "cpu_hours": round(progress["cpu_seconds"] / 3600, 3) if progress else "",
        "steps": progress.get("step", ""),
        "parameters": parameters(model),
        "data": test.data,
        "test": test.name,
        "beam": beam,
        "alpha": alpha,
    }
    for name in ("bleu", "bleu_lowercase", "bleu_tokenised", "bleu_compound_split", "chrf", "exact_match"):
        values[name] = None if values[name] is None else round(values[name], 2)
    new = not path.exists()
    try:
        if not new:
            with path.open(newline="", encoding="utf-8") as file:
                if next(csv.reader(file), None) != list(COLUMNS):
                    raise InputError(f"--record {path}: its columns are not {','.join(COLUMNS)}; name a new file")
        with path.open("a", newline="", encoding="utf-8") as file:
            if not new and not path.read_bytes().endswith(b"\n"):
                file.write("\r\n")  # whoever edited it, or a full disk, left the last row without an end
            writer = csv.DictWriter(file, list[str](COLUMNS), extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow(values)
    except OSError as error:
        raise UnavailableError(f"--record {path} cannot be written: {error.strerror}") from error


def parameters(model: Path) -> int:
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", framework="pt") as file:
        return sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118


def commit() -> str:
    """The revision of the clone this program lies in, or the package's version outside of one."""
    here = Path(__file__).resolve().parent
    git = ["git", "-C", str(here)]
    try:  # the clone of somebody's project, with this package installed in a folder of it, is not ours
        known = subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=False)
    except FileNotFoundError:  # no git on this machine
        return __version__
    if known.returncode != 0:
        return __version__
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return __version__
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return name  # Not Linux: the platform's own word.
    return f"{len(os.sched_getaffinity(0))} cores of {name}"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Translate a test set and score it: BLEU five ways, chrF, exact matches.")
def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[Path | None, typer.Option(help="Source sentences, one a line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Their translations, one a line.")] = None,
    kinds: Annotated[Path | None, typer.Option(help="The kind of each sentence, one a line.")] = None,
    config: Annotated[
        str | None, typer.Option(help="The recipe whose test set to use; default: that of the model's run.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The folder of the recipe's text.")] = None,
    test: Annotated[str | None, typer.Option(help="Another corpus than the recipe's `test`.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; default: the model's.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Length penalty of GNMT; default: the model's.")] = None,
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda:0; default: the best there is.")] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens in a batch, times beams.")] = 8192,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; default: as saved.")] = None,
    backend: Annotated[str, typer.Option(help="torch, or onnx for a folder that `export onnx` wrote.")] = "torch",
    hypotheses: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
    record_to: Annotated[Path | None, typer.Option("--record", help="Append the result to this CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    if (source is None) != (reference is None):
        raise InputError("--source and --reference come together")
    if not model.is_dir():
        raise InputError(f"{model}: there is no such model folder")
    if source is None and kinds is not None:
        raise InputError("--kinds belongs to --source and --reference")
    if record_to is not None and (dtype is not None or backend != "torch"):
        raise InputError("--record: its rows are of models as they were trained, without --dtype and --backend")
    if source is not None and reference is not None:
        chosen = files_test_set(source, reference, kinds)
    else:
        flags = {key: value for key, value in (("data", data), ("test", test)) if value is not None}
        if data is not None:
            flags |= {"dataset": "null", "streaming": "false"}
        chosen = test_set(_recipe_of(model, config, flags))
    if hypotheses is not None and (hypotheses.is_dir() or not hypotheses.parent.is_dir()):
        raise InputError(f"--hypotheses {hypotheses}: give the name of a file in a folder that is there")
    from_pretrained: Any = Translator.from_pretrained  # which has a signature for each backend
    translator: TextTranslator = from_pretrained(model, device=device, dtype=dtype, backend=backend)
    beam, alpha = translator.search_settings(beam, alpha)
    translations = translator.translate(
        chosen.sources, num_beams=beam, length_penalty=alpha, batch_tokens=batch_tokens, progress=True
    )
    result = scores(translations, chosen.references, chosen.kinds, chosen.language)
    if hypotheses is not None:
        with written_whole(hypotheses) as out:
            out.write("".join(f"{in_one_line(line)}\n" for line in translations).encode())
    if as_json:
        typer.echo(json.dumps({"test": chosen.name, "beam": beam, "alpha": alpha, **result}, indent=1))
    else:
        typer.echo(f"{chosen.name}, beam {beam}, length penalty {alpha}\n{show(result)}")
    if record_to is not None:
        record(record_to, model, chosen, result, beam, alpha)


def _recipe_of(model: Path, config: str | None, flags: dict[str, str]) -> Recipe:
    if config is not None:
        return load_recipe(config, flags)
    if not (model / "run.json").is_file():
        raise InputError(f"{model} has no run.json; name a recipe (--config), or --source and --reference files")
    saved = read_json(model / "run.json").get("recipe", {})
    # Of a recipe that another version may have written, only what says where the text is.
    where = (
        "data", "dataset", "dataset_config", "streaming", "source_language", "target_language", "validation", "test",
    )  # fmt: skip
    texts = {key: json.dumps(saved[key], ensure_ascii=False) for key in where if key in saved}
    return load_recipe(None, texts | flags)


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="evaluate")


if __name__ == "__main__":
    main()
