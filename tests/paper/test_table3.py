"""`paper table3`: rows with the paper's proportions, resumable runs, and verdicts that follow from the numbers."""

import json
import math

import pytest

from paper.__main__ import main
from paper.result_files import PAPER
from paper.table3 import FINDINGS, RECIPE, ROWS, judge_rows, parse_rows, scale_row
from paper.verdicts import FAILS, HOLDS, UNSURE, compare_with_control, estimate_mean, judge
from training.recipe import load_recipe
from vaswani_transformer import PRESETS, VaswaniTransformerConfig


def test_rows_keep_the_proportions_of_the_paper():
    """Each row costs the same share of the base row's layer matrices as in the paper, rounded to whole sizes."""
    base = load_recipe(RECIPE)

    def layer_matrices(config: VaswaniTransformerConfig) -> int:
        of_head = config.d_model // config.encoder_attention_heads
        heads = config.encoder_attention_heads * ((config.d_k or of_head) + (config.d_v or of_head))
        encoder, decoder = config.encoder_layers, config.decoder_layers
        attention = 2 * config.d_model * heads * (encoder + 2 * decoder)
        return attention + 2 * config.d_model * (config.encoder_ffn_dim * encoder + config.decoder_ffn_dim * decoder)

    def ours(row: str) -> int:
        recipe = load_recipe(RECIPE, scale_row(row, base))
        return layer_matrices(VaswaniTransformerConfig(**recipe.model))

    for row in ROWS:
        paper = layer_matrices(VaswaniTransformerConfig(**PRESETS[row])) / layer_matrices(VaswaniTransformerConfig())
        assert ours(row) / ours("base") == pytest.approx(paper), row
    assert load_recipe(RECIPE, scale_row("D-ls0.2", base)).label_smoothing == 0.2
    assert scale_row("B-dk16", base) == {"model.d_k": "4", "model.d_v": "16"}


@pytest.mark.parametrize(
    ("differences", "sign", "expected"),
    [
        ([-1.0, -1.1, -0.9], -1, HOLDS),
        ([-1.0, -1.1, -0.9], +1, FAILS),
        ([-1.0, 0.1, -0.9], -1, UNSURE),
        ([-5.0], -1, UNSURE),
        ([0.1, -0.1, 0.0], 0, HOLDS),
        ([2.1, 1.9, 2.0], 0, FAILS),
        ([2.1, -1.9, 0.0], 0, UNSURE),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_of_zero(differences, sign, expected):
    assert judge(estimate_mean(differences), sign, margin=1.0) == expected


@pytest.mark.parametrize("score", ["bleu", "perplexity"])
def test_findings_have_the_signs_of_the_paper(score):
    rows = PAPER["table3"]
    for row, _, *signs in FINDINGS:
        if sign := dict(zip(("bleu", "perplexity"), signs, strict=True))[score]:
            assert sign * (rows[row][score] - rows["base"][score]) > 0, row


def test_the_interval_of_a_mean_is_students():
    mean, half = estimate_mean([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    for degrees, quantile in ((10, 2.228), (20, 2.086), (60, 2.000)):  # from a table of the distribution
        values = [-1.0, 1.0] * (degrees // 2) + [0.0]  # with a standard deviation of 1
        assert estimate_mean(values)[1] == pytest.approx(quantile / (degrees + 1) ** 0.5, rel=1e-3)


def test_intervals_of_many_comparisons_are_bonferronis():
    """From tables of Student's t: 2.560 at 0.05 / 2 and 12 degrees of freedom, 2.744 at 0.05 / 4 and 20."""
    spread = [-1.0, -1.0, 0.0, 1.0, 1.0]  # with a standard deviation of 1
    for count, quantile in ((2, 2.560), (4, 2.744)):
        samples = [[10 * i + value for value in spread] for i in range(1, count + 1)]
        for i, (difference, half) in enumerate(compare_with_control(samples, spread, count), 1):
            assert difference == 10 * i and half == pytest.approx(quantile * (2 / 5) ** 0.5, rel=0.001)
    assert compare_with_control([[2.0], [3.0]], [1.0], 2) == [(1.0, None), (2.0, None)]


def test_findings_compare_all_runs_of_a_row_with_those_of_the_base_row():
    rows = [
        {"row": row, "seed": seed, "bleu": bleu + 0.01 * seed, "perplexity": perplexity + 0.001 * seed}
        for row, bleu, perplexity in (("base", 20.0, 8.0), ("A-h1", 19.0, 9.0), ("E-learned-positions", 20.1, 8.0))
        for seed in (1, 2)
    ]
    head, learned = judge_rows(rows)
    assert head.row == "A-h1" and head.bleu_verdict == head.perplexity_verdict == HOLDS
    assert learned.bleu_verdict == learned.perplexity_verdict == HOLDS
    assert head.bleu[0] == pytest.approx(-1) and head.log_perplexity[0] == pytest.approx(math.log(9 / 8), abs=1e-3)
    assert judge_rows(rows[2:]) == [] == judge_rows(rows[:2])  # no base row; nothing to compare with it
    assert {judged.bleu_verdict for judged in judge_rows(rows[::2])} == {UNSURE}  # one seed


def test_a_row_given_twice_is_trained_once():
    assert parse_rows("base,big,base") == ["base", "big"] and parse_rows(None) == ROWS


@pytest.fixture
def command(text, tmp_path) -> list[str]:
    """Runs of two steps of a tiny model."""
    words = f"table3 --output {tmp_path} --seeds 1 --data {text} --max_steps 2 --validate_every 2"
    words += " --warmup_steps 1 --vocab_size 270 --max_length 40"
    return f"{words} --model.d_model 16 --model.encoder_layers 1 --model.decoder_layers 1".split()


@pytest.mark.slow
def test_missing_runs_are_trained_and_finished_ones_are_kept(command, tmp_path, capsys, refused):
    main([*command, "--rows", "base"])
    before = (tmp_path / "table3" / "base-seed1.json").stat().st_mtime_ns
    main([*command, "--rows", "base,B-dk16"])
    assert (tmp_path / "table3" / "base-seed1.json").stat().st_mtime_ns == before
    rows = json.loads((tmp_path / "table3.json").read_text())["rows"]
    assert [(row["row"], row["seed"], row["steps"]) for row in rows] == [("base", 1, 2), ("B-dk16", 1, 2)]
    assert rows[1]["parameters"] < rows[0]["parameters"] and rows[0]["tokens"] == rows[1]["tokens"]
    for key in ("perplexity", "bleu", "bleu_interval", "seconds", "hardware", "commit", "command", "seeds"):
        assert key in rows[0], key
    assert "| B-dk16 | d_k 1, d_v 2 | 5.16 | 25.1 | 58 M |" in capsys.readouterr().out
    for words, said in (
        (["--rows", "C-N3"], "--rows C-N3: not a row of Table 3"),
        (["--seeds", "one"], "--seeds one: must be whole numbers"),
        (["--seeds", "1,2,1"], "--seeds 1,2,1: a seed is given twice"),
        (["--rows", "C-N8", "--label_smoothing", "0.3"], "B-dk16-seed1.json was made by `vaswani-transformer train"),
        (["--model.d_modl", "3"], "unknown config field 'd_modl'; did you mean 'd_model'?"),
    ):
        assert said in refused(main, [*command, *words])


@pytest.mark.slow
def test_several_runs_are_processes_of_their_own(command, tmp_path, refused):
    main([*command, "--rows", "base,C-N8", "--jobs", "2"])
    assert len(json.loads((tmp_path / "table3.json").read_text())["rows"]) == 2
    assert "step 2/2" in (tmp_path / "table3" / "C-N8-seed1.log").read_text()
    other = [str(tmp_path / "other") if word == str(tmp_path) else word for word in command]
    assert "absent.en: no such file" in refused(main, [*other, "--rows", "big,D-ls0.0", "--train", "absent"])
