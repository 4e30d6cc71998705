"""training/recipe.py and the shipped recipes: values are applied as written, and errors name the key."""

import json
import os

import pytest
import torch
import yaml
from conftest import read_rows, write_lines
from torch.utils.flop_counter import FlopCounterMode

from training import metrics, parallel_text
from training.cost import count_parameters, training_flops
from training.estimate import estimate
from training.plan import main as plan_command
from training.recipe import SHIPPED, Recipe, describe_recipe, load_recipe, recipe_path, shipped_recipes
from training.recipe_options import SIZES, Size, parse_options, read_command, read_processes, scale
from vaswani_transformer import PRESETS, VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.cli import main
from vaswani_transformer.errors import InputError

RESULTS = SHIPPED.parent / "results"


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_load_and_document_their_bleu(name):
    recipe = load_recipe(name)
    assert recipe.preset in PRESETS
    VaswaniTransformerConfig.from_preset(recipe.preset, vocab_size=recipe.vocab_size, **recipe.model)
    head = [line for line in (SHIPPED / f"{name}.yaml").read_text().splitlines() if line.startswith("#")]
    comment = " ".join(head).lower()
    assert any(word in comment for word in ("reproduces", "published", "target"))
    assert "bleu" in comment
    assert max(map(len, head)) <= 120


@pytest.mark.parametrize(
    ("name", "parameters", "steps", "averaged", "dropout"),
    [
        ("paper_base_en_de", 63_045_632, 100_000, 5, 0.1),
        ("paper_big_en_de", 214_171_648, 300_000, 20, 0.3),
        ("paper_big_en_fr", 209_051_648, 300_000, 20, 0.1),
    ],
)
def test_paper_recipes_have_the_numbers_of_the_paper(name, parameters, steps, averaged, dropout):
    recipe = load_recipe(name)
    config = VaswaniTransformerConfig.from_preset(recipe.preset, vocab_size=recipe.vocab_size, **recipe.model)
    assert count_parameters(config).total == parameters
    assert (recipe.max_steps, recipe.average_last, config.dropout) == (steps, averaged, dropout)
    assert (recipe.adam_beta1, recipe.adam_beta2, recipe.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (recipe.warmup_steps, recipe.label_smoothing, recipe.tokens_per_step) == (4000, 0.1, 50_000)
    assert recipe.learning_rate is None and recipe.learning_rate_factor == 1 and recipe.decay_share == 0


def test_flags_override_the_file_and_model_fields():
    words = ["--max_steps", "7", "--model.dropout=0.3", "--adam-epsilon", "1e-9", "--overwrite", "--train", "[a, b]"]
    recipe = load_recipe("multi30k_en_de", parse_options(words))
    assert recipe.max_steps == 7 and recipe.adam_epsilon == 1e-9 and recipe.overwrite is True
    assert recipe.train == ["a", "b"]
    assert recipe.model == {**load_recipe("multi30k_en_de").model, "dropout": 0.3}
    assert load_recipe("multi30k_en_de", {"mixed_precision": "no"}).mixed_precision == "no"  # YAML reads `no` as false
    with pytest.raises(InputError, match="'7' is not an option; write `--key value`, such as --data FOLDER$"):
        parse_options(["7"])
    with pytest.raises(InputError, match=r"--train is given twice; several names are one list: --train '\[a, b\]'"):
        parse_options(["--train", "a", "--train=b"])
    with pytest.raises(InputError, match="--max-steps is given twice; give it once$"):
        parse_options(["--max_steps", "1", "--max-steps", "2"])
    with pytest.raises(InputError, match="^--average-last: average_last is 9; it must be at most"):
        load_recipe("multi30k_en_de", {"average-last": "9"})


@pytest.mark.parametrize("name", ["2024_06_01", "2024-06-01", "010", "1e3", "yes", "{language}/train.txt", "a: b"])
def test_names_are_not_parsed_as_yaml(name):
    recipe = load_recipe(None, {"output_dir": name, "train": name, "data": json.dumps(name)})
    assert (recipe.output_dir, recipe.train, recipe.data) == (name, [name], name)


def test_the_recipe_sets_the_number_of_processes(tmp_path):
    (tmp_path / "two.yaml").write_text("processes: 2\n")
    words = ["--config", str(tmp_path / "two.yaml"), "--seed", "3"]
    assert read_processes(words) == 2 and read_processes([*words, "--processes=3"]) == 3
    assert read_processes(["--config", "demo"]) is None
    # Other keys are checked with the recipe that is chosen later, not with the defaults.
    assert read_processes(["--data", "mytext", "--tokens_per_step", "2000"]) is None
    (tmp_path / "two.yaml").write_text("processes: 2\nmax_steps: null\n")  # complete with the option alone
    assert read_processes([*words, "--max_epochs", "3"]) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_step": "1"}, "--max_step: unknown key; did you mean 'max_steps'?"),
        ({"zzz": "1"}, "--zzz: unknown key; `vaswani-transformer train --help` lists the keys"),
        ({"dropout": "0.2"}, "--dropout: unknown key; did you mean 'model.dropout'?"),
        ({"d-model": "64"}, "--d-model: unknown key; did you mean 'model.d_model'?"),
        ({"batch_size": "64"}, "^--batch_size: unknown key; did you mean 'tokens_per_step'[?] Source and target"),
        ({"num-train-epochs": "3"}, "^--num-train-epochs: unknown key; did you mean 'max_epochs'[?]$"),
        ({"save_steps": "9"}, "^--save_steps: unknown key; did you mean 'save_every'[?] Steps between checkpoints"),
        ({"resume": None}, "^--resume: unknown key; did you mean 'output_dir'[?] .*; the same command resumes it"),
        ({"max_steps": None}, "--max_steps needs a value"),
        ({"output_dir": ""}, "^--output_dir is empty; give a value$"),
        ({"learning_rate": ""}, "^--learning_rate is empty; give a value, or null for none$"),
        ({"model.dropout": " "}, "^--model.dropout is empty; give a value$"),
        ({"max_steps": "many"}, "--max_steps is 'many'; it must be a valid integer$"),
        ({"overwrite": "maybe"}, "--overwrite is 'maybe'; it must be a valid boolean$"),
        ({"model": "d_model=3"}, "--model is 'd_model=3'; it must be a table, such as {dropout: 0.3}$"),
        ({"vocab_size": "1000000000"}, "--vocab_size is '1000000000'; it must be less than or equal to 1000000"),
        ({"label_smoothing": "nan"}, "--label_smoothing is 'nan'; it must be a finite number"),
        ({"compile": "some"}, "--compile is 'some'; it must be 'auto', 'yes' or 'no'"),
        ({"train": "[]"}, "train is empty"),
        ({"source_language": "de"}, "^--source_language: source_language and target_language are both 'de'"),
        ({"output_dir": "[a, b]"}, r"--output_dir is \['a', 'b'\]; it must be a valid string"),
        ({"bleu_every": "1500"}, r"bleu_every is 1500; it must be a multiple of 1000 \(validate_every\)"),
        ({"validation": "[]", "patience": "3"}, "patience is 3, but validation is empty"),
        ({"validation": "[]", "bleu_every": "1000"}, "bleu_every is 1000, but validation is empty"),
        ({"max_steps": "null"}, "max_steps and max_epochs are both null"),
        ({"max_epochs": "0"}, "--max_epochs is '0'; it must be greater than 0"),
        ({"average_last": "6"}, r"average_last is 6; it must be at most 5 \(keep\)"),
        ({"seed": "1", "seed.x": "1"}, "--seed.x: seed is 1, not a table"),
        ({"data": "a", "dataset": "b"}, "data and dataset are both given"),
        (
            {"data": "a", "streaming": "true"},
            "streaming is true without a dataset; set dataset, or leave streaming out",
        ),
        ({"data": "a", "dataset_config": "de-en"}, "^--dataset_config: dataset_config is 'de-en' without a dataset"),
        ({"data": "a", "dataset_revision": "v1"}, "^--dataset_revision: dataset_revision is 'v1' without a dataset"),
        (
            {"learning_rate": "1e-3", "learning_rate_factor": "2"},
            "learning_rate_factor is 2.0, but learning_rate 0.001",
        ),
        ({"model": "{dropout: 0, dropout: 1}"}, "is not YAML: line 1 gives dropout a second time"),
        ({"train": "[1"}, r"--train '\[1' is not YAML"),
        ({"tokens_per_step": "4095"}, "max_length 256 does not fit into a micro-batch of 511 tokens"),
    ],
)
def test_wrong_keys_and_values_are_named_with_the_limit(flags, message):
    with pytest.raises(InputError, match=message):
        load_recipe(None, flags)


def test_every_key_has_a_description_in_the_help(capsys):
    plan_command(["--help"])
    said = capsys.readouterr().out
    for name, field in Recipe.model_fields.items():
        assert field.description and f"--{name} (" in said and field.description in said


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("max_steps: 0100", {"max_steps": "100"}),
        ("max_steps: 1_000", {"max_steps": "1000"}),
        ("learning_rate: 1e-3", {"learning_rate": "0.001"}),
        ("output_dir: 010", {"output_dir": "010"}),
        ("output_dir: 2024-06-01", {"output_dir": "2024-06-01"}),
        ("{dataset: a/b, dataset_revision: 1.10}", {"dataset": "a/b", "dataset_revision": "1.10"}),
        ("source_language: no", {"source_language": "no"}),
        ("mixed_precision: no", {"mixed_precision": "no"}),
        ("mixed_precision: off", {"mixed_precision": "false"}),
        ("compile: true", {"compile": "yes"}),
        ("{<<: {max_steps: 5, seed: 3}, seed: 2}", {"max_steps": "5", "seed": "2"}),
        ("model: {<<: {d_model: 64}, dropout: 0.2}", {"model.d_model": "64", "model.dropout": "0.2"}),
        ("overwrite: yes", {"overwrite": None}),
        ("train: [010, no]", {"train": "['010', 'no']"}),
        ("tokenizer: ~", {"tokenizer": "null"}),
        ("validation:\n- 2024_06", {"validation": "2024_06"}),
        ("model: {d_model: 0512, dropout: 1e-1, attention_bias: yes, d_k: null}",
         {"model.d_model": "512", "model.dropout": "0.1", "model.attention_bias": "true", "model.d_k": "null"}),
    ],
)  # fmt: skip
def test_a_value_means_the_same_in_a_file_and_as_an_option(tmp_path, line, options):
    (tmp_path / "mine.yaml").write_text(line)
    assert load_recipe(str(tmp_path / "mine.yaml")) == load_recipe(None, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_hours: 1:30", "mine.yaml: max_hours is '1:30'; it must be a valid number"),
        ("max_steps: yes", "mine.yaml: max_steps is 'yes'; it must be a valid integer"),
        ("learning_rate: true", "mine.yaml: learning_rate is 'true'; it must be a valid number"),
        ("a: [", "is not YAML"),
        ("- a", "must hold `key: value` lines, not a list"),
        ("warmup_steps: many", "mine.yaml: warmup_steps is 'many'; it must be a valid integer"),
        ("warmup_step: 3", "mine.yaml: warmup_step: unknown key; did you mean 'warmup_steps'"),
        ("seed: 1\n\nseed: 2", "mine.yaml is not YAML: line 3 gives seed a second time; give it once"),
        ("model:\n  dropout: 0.1\n  dropout: 0.2", "line 3 gives dropout a second time"),
        ("\xff\xfe\x00", "is not YAML"),
        ("output_dir: ''", "mine.yaml: output_dir is ''; it must have at least 1 character"),
    ],
    ids=lambda text: text[:20],
)
def test_an_invalid_recipe_file_is_named(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        load_recipe(str(tmp_path / "mine.yaml"))


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(InputError, match="recipe 'multi30k_en_dd' does not exist; did you mean 'multi30k_en_de'"):
        load_recipe("multi30k_en_dd")
    with pytest.raises(InputError, match="no such recipe file"):
        load_recipe(str(tmp_path / "mine.yaml"))
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(InputError, match=f"^{tmp_path}/pipe.yaml is a pipe or a device, which cannot be read twice"):
        load_recipe(str(tmp_path / "pipe.yaml"))


def test_recipes_are_listed_and_shown(capsys):
    main(["recipes"])
    listed = capsys.readouterr().out
    assert all(f"{name}\n    " in listed for name in shipped_recipes())
    assert "the base model on WMT 2014 English-German.\n    Never run to completion.\n" in listed
    assert "counts the pairs and chooses tiny, small, base or big" in listed and listed.startswith("tiny\n")
    main(["recipes", "show", "demo"])
    assert capsys.readouterr().out == recipe_path("demo").read_text()


@pytest.mark.parametrize("name", shipped_recipes())
def test_recipes_with_results_say_that_they_were_run(name):
    commands = [row["command"] for path in RESULTS.glob("*.csv") for row in read_rows(path)]
    _, status = describe_recipe(name)
    if any(f"--config {name} " in f"{command} " for command in commands):
        assert status.startswith("Run to completion")
    elif name != "multi30k_en_fr":  # see benchmarks/results/stopping_rules.csv
        assert status.startswith("Never run to completion")


@pytest.mark.parametrize(
    ("pairs", "name"),
    [(1, "tiny"), (50_000, "tiny"), (50_001, "small"), (10**6, "small"), (4_500_000, "base"), (36_000_000, "big")],
)
def test_the_number_of_pairs_chooses_a_recipe_that_keeps_case_and_the_papers_length_penalty(
    tmp_path, monkeypatch, capsys, pairs, name
):
    monkeypatch.setattr(parallel_text, "count_pairs", lambda _: pairs)
    write_lines(tmp_path / "train.en", ["a"])
    write_lines(tmp_path / "train.de", ["b"])
    recipe = read_command(None, ["--data", str(tmp_path), "--model.dropout", "0.25", "--warmup-steps", "77"])
    assert (recipe.lowercase, recipe.length_penalty, recipe.warmup_steps) == (False, 0.6, 77)
    assert recipe.model == load_recipe(name).model | {"dropout": 0.25}
    said = capsys.readouterr().err
    assert said.startswith(f"{pairs:,} pairs: recipe {name} (for ")
    assert f"), max_steps {recipe.max_steps:,}, vocab_size " in said
    assert said.count("\n") == 1 and "choose another with --config NAME" in said


def test_no_recipe_is_chosen_for_a_table_of_a_header_alone(tmp_path):
    write_lines(tmp_path / "pairs.tsv", ["en\tde"])
    with pytest.raises(InputError, match="train: there are no pairs in pairs.tsv"):
        read_command(None, ["--data", str(tmp_path), "--train", "pairs.tsv"])


def test_a_given_preset_or_recipe_is_not_replaced(tmp_path):
    missing = ["--data", str(tmp_path / "nowhere")]
    assert read_command(None, [*missing, "--preset", "big"]).max_steps == 100_000
    assert read_command("demo", missing).max_steps == load_recipe("demo").max_steps
    with pytest.raises(InputError, match="there is no folder .*nowhere"):
        read_command(None, missing)
    with pytest.raises(
        InputError, match="dataset owner/name is on the Hub, .*; name a recipe with --config: tiny, small"
    ):
        read_command(None, ["--dataset", "owner/name"])


def test_initial_weights_get_their_own_recipe(capsys):
    """The defaults are the paper's: few pairs would have few steps of 50,000 tokens, all of them in the warm-up."""
    recipe = read_command(None, ["--initial-weights", "model", "--max_epochs", "1"])
    assert recipe == load_recipe("fine_tune", {"initial_weights": "model", "max_epochs": "1"})
    assert recipe.warmup_steps < 200 and recipe.tokens_per_step < 10_000
    assert capsys.readouterr().err.startswith("initial_weights: recipe fine_tune; ")
    assert read_command("demo", ["--initial_weights", "model"]).warmup_steps == load_recipe("demo").warmup_steps


def test_given_steps_shorten_the_warm_up(tmp_path):
    write_lines(tmp_path / "train.en", ["a"])
    write_lines(tmp_path / "train.de", ["b"])
    recipe = read_command(None, ["--data", str(tmp_path), "--max_steps", "100"])
    assert (recipe.max_steps, recipe.warmup_steps) == (100, 25)


@pytest.mark.parametrize("size", SIZES, ids=[size.recipe for size in SIZES])
def test_steps_grow_with_the_pairs_within_limits(size: Size):
    written = load_recipe(size.recipe)
    assert scale(size, size.written_for)["max_steps"] == written.max_steps
    counts = [scale(size, int(size.written_for * share))["max_steps"] for share in (0.01, 0.5, 1.5, 100)]
    assert counts == pytest.approx([steps * (written.max_steps or 0) for steps in (1 / 3, 1 / 2, 3 / 2, 2)], rel=0.02)
    assert scale(size, 400)["vocab_size"] == 800 and scale(size, 10)["vocab_size"] == 300  # texts this short have few
    few = scale(size, 3000)
    assert few["vocab_size"] == 1000 and few["warmup_steps"] <= few["max_steps"] / 4
    if written.learning_rate is not None:  # it rises as fast
        rise = written.learning_rate / written.warmup_steps
        assert few["learning_rate"] / few["warmup_steps"] == pytest.approx(rise, rel=0.05)


def test_a_recipe_survives_yaml_and_json(tmp_path):
    recipe = load_recipe("demo")
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(recipe.model_dump()))
    assert load_recipe(str(tmp_path / "again.yaml")) == recipe
    assert json.loads(json.dumps(recipe.fixed_keys())) == recipe.fixed_keys()


def test_max_steps_may_change_without_decay():
    assert load_recipe(None, {"max_steps": "5"}).fixed_keys() == load_recipe(None, {"max_steps": "9"}).fixed_keys()
    decayed = [load_recipe(None, {"max_steps": n, "decay_share": "0.1"}).fixed_keys() for n in ("5", "9")]
    assert decayed[0] != decayed[1]


# --- the dry run ---------------------------------------------------------------------------------------------------


def test_planned_flops_equal_torch_counts():
    """All sizes differ, so that exchanged terms change the result."""
    config = VaswaniTransformerConfig(
        vocab_size=64, d_model=24, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=56, dropout=0.0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = VaswaniTransformerForConditionalGeneration(config)
    batch, source, target = 3, 11, 7
    ids = torch.randint(4, 64, (batch, source + target))
    with FlopCounterMode(display=False) as counter:
        model(ids[:, :source], labels=ids[:, source:]).loss.backward()
    counted = counter.get_total_flops()
    ours = training_flops(config, batch * source, batch * target, source, target)
    assert ours == pytest.approx(counted, rel=1e-9)


def test_the_paper_base_model_costs_9_5e17_flop():
    plan = estimate(load_recipe("paper_base_en_de"), seconds=0)
    assert plan["parameters"] == 63_045_632 and plan["steps"] == 100_000
    assert plan["flop"] == pytest.approx(9.5e17, rel=0.01)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", None),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", None),
    ],
)
def test_mfu_is_the_share_of_the_vendors_peak_on_a_known_gpu(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(metrics, "matmul_flop_rate", lambda *_: 7e12)
    found = metrics.peak_flop_rate(torch.device("cuda"), torch.bfloat16, 1)
    assert found == (("product_share", 7e12) if peak is None else ("mfu", peak))
    assert metrics.peak_flop_rate(torch.device("cuda"), torch.float32, 1) == ("product_share", 7e12)


def test_a_plan_counts_steps_and_measures_speed(capsys):
    plan_command(["--config", "demo", "--seconds", "0.2", "--json", "--vocab_size", "400", "--max_epochs", "2"])
    output = capsys.readouterr()
    plan = json.loads(output.out)
    assert "building the model, then measuring the speed for 0.2 s" in output.err
    assert plan["pairs"] > 15_000 and 0 < plan["padding"] < 0.05 and plan["vocabulary"] == 400
    assert plan["steps"] == min(load_recipe("demo").max_steps, 2 * plan["steps_per_epoch"])
    assert plan["hours"] > 0 and plan["product_share"] > 0
    plan_command(["--config", "multi30k_en_de", "--data", "null", "--dataset", "owner/name", "--seconds", "0"])
    said = capsys.readouterr().out
    assert "on the Hub, not downloaded: steps per epoch unknown" in said and "FLOP in total" not in said
    plan_command(["--config", "paper_big_en_de", "--seconds", "0"])
    assert "parameters        214,171,648" in capsys.readouterr().out
