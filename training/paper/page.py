"""The page that shows every row file of a folder: README.md beside them, and paper.md of the documentation."""

from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object

from . import claims, heads, table1, table2, table3, table4
from .results import in_words, markdown, save

INTRODUCTION = """# The paper, reproduced

Each table, figure and claim of *Attention Is All You Need* that this package reproduces is a command. This page is
made from the row files that the commands leave, and so is every number on it. Rows marked as quoted are the paper's
(arXiv 1706.03762v7); all other numbers were measured with this package, at a scale that a CPU trains: Multi30k
English-German captions, models of up to a few million parameters. They show whether the paper's directions hold at
that scale, not its BLEU.

A verdict is *holds* or *does not hold here* if the 95 % interval of a difference (Student's t) lies on one side of
zero, and *not sure* if it does not, or if there is only one seed. ± is the half width of such an interval, over the
seeds if the text names nothing else.

*Elapsed time* is wall-clock time. *CPU time* is summed over the cores that worked for the command; other programs on
the same machine do not change it.

The same commands run for any model of this package; `paper --help` lists them one by one:

```console
$ vaswani-transformer train --config multi30k_en_de --data data/multi30k
$ vaswani-transformer paper all --run runs/multi30k_en_de --data data/multi30k --output paper --jobs 2
```
"""
TABLE1 = """## Table 1: complexity, counted

Layers of each kind run on random input. Operations are counted by torch's FLOP counter and fitted by powers of the
length n, the width d, the kernel k and the neighbourhood r. Sequential steps are the longest chain of matrix products
in the autograd graph. A path is the number of products between the first input and the last output position, through
as many stacked layers as the signal needs; dilated convolutions (1, k, k², ...) are the paper's logarithmic case.
"""
TABLE2 = """## Table 2: BLEU and training cost

The paper gives 41.8 for the big English-French model in its abstract and in Table 2, and 41.0 in section 6.1. Its
FLOPs are training time × number of GPUs × sustained FLOP/s of a GPU (P100: 9.5e12).

Ours are trained on Multi30k, so their BLEU cannot be compared with the rows above. A model whose cased BLEU is far
below its lower-cased BLEU writes lower case. Recipes that are not in the package were experiments. FLOPs are given
twice: *counted*, as the matrix products of a step × the number of steps, for recipes of the package; and by the paper's
formula, as CPU time × the rate at which this machine multiplies large float32 matrices, for runs on the machine that
made this page. The second number is larger, because training does not only multiply large matrices.
"""
TABLE3 = """## Table 3: variations of the architecture

Each row has the paper's proportions (`training/recipes/multi30k_table3.yaml` is the base row), sees the same tokens
and is trained with several seeds. As in the paper, perplexity per token and BLEU are those of the development set,
without averaging. ± is the 95 % interval of the mean over seeds; *bootstrap ±* the largest one of a single run over
sentences. With about one pass over 29,000 pairs nothing is overfitted yet: regularisation can hardly help, and deep or
wide models are still far from what they would reach. The paper's base model sees 4,000 times as many tokens.
"""
TABLE4 = """## Table 4: constituency parsing

*Data.* The paper's parsers learn from 40,000 trees of the Wall Street Journal and are tested on section 23. Ours learn
from NLTK's sample of them: 3,396 trees of files 1 to 159; the 273 of files 160 to 179 are the development set, the 245
of files 180 to 199 the test set. Their F1 shows what a twelfth of the data allows, not how good the parser is.
Recombined trees are trees of the sample in which constituents were replaced by others of the same kind, 20 of each;
"more" are 60 of each.

*Model and training.* The model has 2 layers where the paper's has 4. The Transformers are trained in bfloat16 and
average 5 checkpoints, the LSTM does neither (bfloat16 would save it 5 % of its time). It takes steps of 1,600 tokens
instead of 4,000, with which it does not learn to copy words (F1 7). The systems see 10 million tokens, those with more
trees and steps 30 million. For as many tokens, the LSTM needs 2.3 times the CPU time, because it computes one word
after another; in the last row it has as much CPU time as the Transformer and sees 13 million. Rows of one seed were
trained on another processor (an Intel Xeon) than those of three (an AMD EPYC), so their CPU times do not compare.

*Search.* The search is the paper's: beam 21, alpha 0.3, up to 300 tokens more than the source. It is constrained to
well-formed trees over the given words; the last column is the share of well-formed trees without the constraint and
with beam 4. The sentence fixes the next word, so its log-probability is a weighted mean: a quarter its own and three
quarters that of any word; half and half for the LSTM. These shares were the best on 80 sentences of the development
set, whose F1 is therefore a little too high. F1 is EVALB's with the parameters of Collins.

*Result.* With one seed and 245 sentences, the three systems of the second to fourth row cannot be told apart; the
captions did not help here. More trees and steps bring 7 to 8 points to both models. The line below the table says how
far the Transformer is ahead of the LSTM: little for the same tokens, more for the same time.
"""
FIGURES = """## Figures 1 to 5

Figures 1 and 2 are drawn from a running model: boxes are the modules and operations in the order in which they run.
The model divides Q by √d_k before the product with K, which gives the same scores as the paper's Scale after it. In
figures 3 to 5, lines lead from a word to the words that its encoder self-attention reads: one colour for each head,
darker for a larger weight.
"""
CAPTIONS = {
    "figure1": "Figure 1: the architecture of the model",
    "figure2": "Figure 2: scaled dot-product attention and multi-head attention",
    "figure3": "Figure 3: long-distance dependency",
    "figure4": "Figure 4: the nearest thing to anaphora resolution",
    "figure5": "Figure 5: two heads with different tasks",
}
WALK = """## A walk through attention

All values of Equation (1) for one head and one sentence; `walk.json` has the numbers.
"""
HEADS = """## What each head does

Means over sentences: entropy of the weights in nats, distance between query and key in tokens, the share of attention
at the head's best fixed distance, the share on `</s>`, and for cross-attention the agreement with the alignment of
the mean over all heads.
"""
VERDICTS = """## Claims

The verdict on averaging is over the sentences of one run, and that on the beam size is a paired bootstrap test on one
run: both systems translate the same sentences, so a difference much smaller than the interval of either BLEU can be
certain. Memory and speed are compared with a threshold. Speeds are tokens per second of CPU time; they say nothing
about hardware that works in parallel. A step of training is 1,000 tokens.
"""
MADE = """## How the numbers were made

Times are elapsed times; Table 3's is CPU time, because other programs ran beside its runs.
"""


def page(folder: Path) -> str:
    """Return the page in Markdown for the row files that are there; pictures are linked by their names."""
    files, judged = row_files(folder), row_files(folder / "claims")
    if not files and not judged:
        raise InputError(f"--output {folder} has no row files; `vaswani-transformer paper --help` lists the commands")
    parts = [INTRODUCTION]
    if "table1" in files:
        parts += [TABLE1, table1.as_markdown(files["table1"]["layers"]), picture("table1.png", "Table 1 as curves")]
    for name, text, module in (("table2", TABLE2, table2), ("table3", TABLE3, table3), ("table4", TABLE4, table4)):
        if name in files:
            parts += [text, module.as_markdown(files[name]["rows"])]
    if drawn := [name for name in CAPTIONS if name in files]:
        parts.append(FIGURES)
        for name in drawn:
            parts += [f"### {CAPTIONS[name]}\n", *findings(files[name]), picture(f"{name}.png", CAPTIONS[name])]
    if "walk" in files:
        parts += [WALK, picture("walk.png", "The walk through attention")]
    if "heads" in files:
        parts += [HEADS, heads.heads_table(files["heads"]["heads"])]
    shown = [name for name in claims.CLAIMS if name in judged]
    if shown:
        verdicts = [[judged[name]["claim"], judged[name]["verdict"]] for name in shown]
        parts += [VERDICTS, markdown(["claim", "verdict"], verdicts)]
    for name in shown:
        about = judged[name]
        parts.append(f"### {about['claim']}\n\nVerdict: **{about['verdict']}**. {sentence(about['number'])}\n")
        if name == "beam_and_alpha":
            parts.append(systems_table(about["bleu"]))
        parts.append(picture(f"claims/{name}.png", about["claim"]))
    return "\n".join([*parts, origins(files | judged)])


def row_files(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: read_json_object(path) for path in sorted(folder.glob("*.json"))}


def picture(name: str, text: str) -> str:
    return f"![{text}]({name})\n"


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def findings(about: dict[str, Any]) -> list[str]:
    """Return sentences on the heads that a search found."""
    lines = []
    for each in about.get("found", []):
        numbers = ", ".join(map(str, each["heads"]))
        link = f", from “{each['query']}” most to “{each['key']}”" if each["query"] else ""
        heads_word = "heads" if len(each["heads"]) > 1 else "head"
        lines.append(f"Layer {each['layer']}, {heads_word} {numbers}{link} (score {each['score']:.2f}).\n")
    return lines


def systems_table(systems: dict[str, dict[str, Any]]) -> str:
    rows = [
        [name, f"{each['bleu']:.2f} ± {each['interval']:.2f}", "" if each["p"] is None else f"{each['p']:.3f}"]
        for name, each in systems.items()
    ]
    return markdown(["search", "BLEU", "p, against the first"], rows)


def origins(files: dict[str, dict[str, Any]]) -> str:
    """Return the table of commands, each with all of its row files: Tables 3 and 4 have one for each model."""
    made = [about for about in files.values() if "command" in about]
    made += files.get("table4", {}).get("rows", [])
    for each in files.get("table3", {}).get("rows", []):
        made.append(each | {"command": "vaswani-transformer paper table3", "seconds": each["cpu_seconds"]})
    by_command: dict[str, list[dict[str, Any]]] = {}
    for about in made:
        by_command.setdefault(about["command"], []).append(about)
    lines = [
        [
            f"`{command}`",
            max(each["date"] for each in group),
            *(", ".join(sorted({each[key] for each in group})) for key in ("commit", "hardware")),
            ", ".join(sorted({str(seed) for each in group for seed in each["seeds"]})),
            in_words(sum(each["seconds"] for each in group)),
        ]
        for command, group in sorted(by_command.items())
    ]
    return MADE + "\n" + markdown(["command", "date", "commit", "hardware", "seeds", "time"], lines)


def write_page(folder: Path) -> Path:
    """Draw the plots and judge the claims again from the numbers in the row files, and write README.md."""
    if (folder / "table1.json").is_file():
        save(table1.figure_of(read_json_object(folder / "table1.json")["layers"]), folder / "table1.png")
    for name, numbers in row_files(folder / "claims").items():
        if name in claims.CLAIMS:
            claims.publish(folder / "claims", name, numbers)
    path = folder / "README.md"
    with atomic_file(path) as file:
        file.write(page(folder).encode())
    return path
