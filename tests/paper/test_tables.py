"""`python -m paper table1` and `table2`: counted complexities with the paper's exponents, and rows of the results."""

import csv
import json
from functools import partial

import pytest
import torch

from paper.__main__ import main
from paper.table1 import (
    attend,
    attend_nearby,
    convolve,
    count_steps,
    draw_curves,
    format_result,
    measure_layers,
    measure_path,
    recur,
)
from training.metrics import matmul_flop_rate
from training.result_row import hardware


@pytest.mark.slow
def test_counted_operations_have_the_exponents_of_the_paper():
    counted = measure_layers(lengths=(16, 32, 64), widths=(64, 128))
    expected = {"self-attention": [2, 1], "recurrent": [1, 2], "convolutional": [1, 2, 1]}
    expected["restricted self-attention"] = [1, 1, 1]
    for kind, powers in expected.items():
        assert counted[kind]["flops_exponents"] == pytest.approx(powers, abs=0.01), kind
    assert counted["recurrent"]["steps_exponent"] == pytest.approx(1) == counted["recurrent"]["path_exponents"][0]
    assert counted["self-attention"]["steps_exponent"] == pytest.approx(0, abs=1e-9)
    assert counted["restricted self-attention"]["path_exponents"] == pytest.approx([1, -1], abs=0.15)
    table = format_result({"layers": counted})
    assert "| recurrent | O(n d²) | n^1.00 d^2.00 | O(n) | 64; n^1.00 | O(n) | 64; n^1.00 |" in table
    assert "(k = 3)" in table and "log_k n" in table
    assert [len(axis.lines) for axis in draw_curves(counted).axes] == [4, 4, 4]


def test_running_layers_have_the_steps_and_paths_counted_by_hand():
    """By hand: attention needs two products and one of them on the path, windows of 8 reach 4 positions a layer."""
    assert (count_steps(attend, 40, 8), measure_path(attend, 40, 8)) == (2, 1)
    assert (count_steps(recur, 40, 8), measure_path(recur, 40, 8)) == (40, 40)
    convolution, windows = partial(convolve, kernel=3), partial(attend_nearby, neighbourhood=8)
    assert count_steps(convolution, 40, 8) == 1
    assert measure_path(convolution, 14, 8) == 3  # 1 + 3 + 9 = 13 positions
    assert measure_path(windows, 41, 8) == 10
    assert measure_path(recur, 1024, 64) == 1024  # the signal does not vanish


@pytest.mark.slow
def test_table_2_has_a_row_for_every_result(text, tmp_path, capsys):
    columns = "command,hardware,cpu_hours,steps,parameters,test,beam,alpha,bleu,bleu_signature,bleu_lowercase"
    command = "python -m training --config multi30k_en_de --output-dir runs/x --model.dropout 0.2 --max_length 40"
    command += " --vocab_size 270 --tokens_per_step 1000"
    with (tmp_path / "results.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns.split(","), "bleu_compound_split"])
        writer.writerow([command, hardware(), 0.5, 100, 3_000_000, "test", 4, 0.6, 36.5, "nrefs:1", 37.0, 36.6])
        other = "vaswani-transformer train --config mine.yaml"
        writer.writerow([other, "a CPU", 1, 7, 1000, "test", 4, 0.6, 10, "nrefs:1", 11, 12])
    words = ["--output", str(tmp_path), "--data", str(text), "--results", str(tmp_path / "results.csv")]
    main(["table2", *words])
    result = json.loads((tmp_path / "table2.json").read_text())
    first, second = result["rows"]
    assert first["bleu"] == 36.5 and first["changes"]["model.dropout"] == "0.2" and second["changes"] == {}
    assert first["flops_counted"] > 100 * 1000 * 6 * 1e6 and second["flops_counted"] is None
    assert first["flops_estimated"] == pytest.approx(1800 * result["flop_per_cpu_second"])
    assert second["flops_estimated"] is None  # another machine has another rate
    table = capsys.readouterr().out
    assert "| Transformer (big) | 28.4 | 41.8 | 2.3e+19 | 2.3e+19 |" in table
    assert "| mine |  | 4, 0.6 | 10.00 | 12.00 |" in table


def test_a_missing_results_file_is_named(tmp_path, refused):
    error = refused(main, ["table2", "--output", tmp_path, "--results", tmp_path / "absent.csv"])
    assert "absent.csv: No such file" in error


def test_the_rate_of_cpu_time_ignores_the_number_of_threads():
    """Two threads take half the elapsed time of one, but the same CPU time."""
    elapsed, cpu = iter(range(0, 100, 1)), iter(range(0, 200, 2))
    device = torch.device("cpu")
    by_elapsed, by_cpu = (matmul_flop_rate(device, torch.float32, 0, partial(next, ticks)) for ticks in (elapsed, cpu))
    assert by_elapsed == 2 * by_cpu


@pytest.mark.parametrize("words", ["table3 --seed 5", "table3 --output-dir x", "table4 --treebank t --train x"])
def test_keys_that_a_command_sets_for_each_model_are_refused(tmp_path, refused, words):
    command, *options = words.split()
    error = refused(main, [command, "--output", tmp_path, *options])
    assert f"{options[-2]} is set by this command; leave it out" in error and not any(tmp_path.iterdir())
