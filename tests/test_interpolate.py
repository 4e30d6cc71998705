"""Of several translations the one nearest its reference."""

from pathlib import Path

import pytest
from saved_model import saved_model

from training.interpolate import main
from vaswani_transformer.cli import main as program

REFERENCES = ["A dog runs on the grass.", "", "Two men sit."]
BEST = [
    "1\t-0.1\tA cat runs on the grass.",
    "1\t-0.2\ta dog RUNS ON the grass.",
    "1\t-0.3\tNothing of it.",
    "2\t-0.1\t",
    "3\t-0.5\tTwo men sit .",
    "3\t-0.6\tTwo men sit.",
]


def write(folder: Path, best: list[str], references: list[str]) -> tuple[str, str]:
    for name, lines in (("best.tsv", best), ("references.en", references)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(folder / "best.tsv"), str(folder / "references.en")


def test_the_nearest_is_taken_and_the_first_of_equals(tmp_path: Path):
    out = tmp_path / "nearest.en"
    main([*write(tmp_path, BEST, REFERENCES), "--output", str(out), "--lowercase"])
    # sacreBLEU separates the full stop: both translations of line 3 are the reference.
    assert out.read_text() == "a dog RUNS ON the grass.\n\nTwo men sit .\n"
    main([*write(tmp_path, BEST[:3], REFERENCES[:1]), "--output", str(out)])
    assert out.read_text() == "A cat runs on the grass.\n"


def test_what_translate_writes_is_read(tmp_path: Path):
    saved_model(tmp_path / "model")
    sources = ["Ein Hund.", "", "Zwei Männer\tsitzen."]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    best, references = tmp_path / "best.tsv", tmp_path / "in"
    program(
        ["translate", "--model", str(tmp_path / "model"), "--input", str(references), "--output", str(best)]
        + ["--num-beams", "3", "--n-best", "3"]
    )
    main([str(best), str(references), "--output", str(tmp_path / "out")])
    written = (tmp_path / "out").read_text(encoding="utf-8").split("\n")
    columns = [line.split("\t", 2) for line in best.read_text(encoding="utf-8").split("\n")[:-1]]
    offered = [{text for number, _, text in columns if number == str(line)} for line in (1, 2, 3)]
    assert len(written) == 4 and all(text in texts for text, texts in zip(written, offered, strict=False))


@pytest.mark.parametrize(
    ("best", "references", "message"),
    [
        (BEST[:3], REFERENCES, "has no translation of line 2 of"),
        (BEST, REFERENCES[:2], "has more lines than"),
        ([BEST[0], *BEST[4:]], REFERENCES, "has no translation of line 2 of"),
        (["a dog"], REFERENCES[:1], "best.tsv line 1: not a line of `translate --n-best`: 'a dog'"),
        (["x\t-1\ta dog"], REFERENCES[:1], "best.tsv line 1: not a line of"),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture, best: list[str], references: list[str], message: str
):
    with pytest.raises(SystemExit) as left:
        main([*write(tmp_path, best, references), "--output", str(tmp_path / "out")])
    assert left.value.code == 2 and message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.tsv", "references.en"]
