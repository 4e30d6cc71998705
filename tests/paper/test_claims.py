"""`paper claims`: measurements that are known otherwise, verdicts that follow from them, and resumed commands."""

import json
import random
import re

import pytest
import torch
from training_runs import SMALL, write_in_capitals

from paper.__main__ import main
from paper.claims import CLAIMS
from paper.claims.attention import count_saved_bytes, measure_softmax
from paper.claims.comparison import train_and_load
from paper.claims.positions import remove_positions
from paper.claims.search import compare_bleu
from paper.claims.speed import decode_greedily
from paper.claims.training import remove_factor
from paper.fit_model import train_lstm
from paper.rnn import RnnWithAttention, make_rnn
from training.recipe import Recipe
from training.train import train
from vaswani_transformer.errors import InputError
from vaswani_transformer.modeling_vaswani_transformer import MultiHeadAttention


def test_the_softmax_saturates_without_the_factor():
    assert measure_softmax(512, scaled=True, seed=1) == pytest.approx(measure_softmax(4, scaled=True, seed=1), rel=0.2)
    entropy, gradient = measure_softmax(512, scaled=False, seed=1)
    assert entropy < 0.3 < 3 < measure_softmax(512, scaled=True, seed=1)[0]
    assert gradient < 0.6 * measure_softmax(512, scaled=True, seed=1)[1]


def test_eager_attention_keeps_the_weights_for_the_backward_pass():
    """8 heads of 256 x 256 weights in float32 are 2 MiB; the fused kernel keeps only vectors."""
    assert count_saved_bytes("eager", 256) > 8 * 256 * 256 * 4 > 2 * count_saved_bytes("sdpa", 256)
    assert count_saved_bytes("sdpa", 512) == pytest.approx(2 * count_saved_bytes("sdpa", 256), rel=0.3)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_rnn_has_the_wanted_size_and_attends(cell):
    model = make_rnn(1_000_000, 500, cell)
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(1_000_000, rel=0.1)
    small = RnnWithAttention(20, 8, cell)
    source, target = torch.randint(0, 20, (2, 5)), torch.randint(0, 20, (2, 4))
    logits = small(source, target)
    assert logits.shape == (2, 4, 20)
    changed = small(source, torch.cat((target[:, :3], target[:, 3:] * 0), dim=1))
    assert torch.equal(logits[:, :3], changed[:, :3])  # no look into the future
    assert not torch.equal(logits[:, 0], small(source.flip(1), target)[:, 0])  # but at the source


def test_a_model_without_positions_ignores_the_source_order(tiny_model):
    model, ids = tiny_model(), torch.tensor([[5, 6, 7, 8, 2]])
    before = model.get_encoder()(ids).last_hidden_state
    remove_positions(model)
    order = [3, 1, 0, 2, 4]
    after = model.get_encoder()(ids).last_hidden_state
    torch.testing.assert_close(model.get_encoder()(ids[:, order]).last_hidden_state, after[:, order])
    assert not torch.allclose(before, after)


def test_removing_the_factor_equals_longer_queries(tiny_model):
    changed, same = tiny_model(), tiny_model()
    remove_factor(changed)
    for module in same.modules():
        if isinstance(module, MultiHeadAttention):
            for parameter in module.q_proj.parameters():
                parameter.data *= module.d_k**0.5
    ids = torch.tensor([[5, 6, 7, 2]])
    found, expected = (model(input_ids=ids, decoder_input_ids=ids).logits for model in (changed, same))
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, tiny_model()(input_ids=ids, decoder_input_ids=ids).logits)


@pytest.mark.slow
def test_a_finished_training_is_loaded(text, tmp_path):
    recipe = Recipe.model_validate(SMALL | {"data": str(text), "output_dir": str(tmp_path), "log_every": 6})
    trained, _ = train_lstm(recipe)
    saved = json.loads((tmp_path / "losses.json").read_text())
    losses = [loss for _, loss in saved["losses"]]
    assert len(losses) == 4 and losses[-1] < losses[0]
    loaded, _ = train_lstm(recipe)
    assert not loaded.training
    torch.testing.assert_close(loaded.state_dict(), trained.state_dict(), rtol=0, atol=0)
    for key, now, said in (
        ("seed", 2, "another recipe: seed was 1, is 2; remove the folder"),
        ("max_steps", 30, "another recipe: max_steps was 24, is 30; remove the folder"),
    ):
        with pytest.raises(InputError, match=said):
            train_lstm(recipe.model_copy(update={key: now}))


@pytest.mark.slow
def test_an_lstm_is_trained_with_the_label_smoothing_of_the_recipe(text, tmp_path):
    losses = set()
    for smoothing in ({}, {"label_smoothing": 0.2}):
        output = tmp_path / str(len(losses))
        keys = SMALL | smoothing | {"data": str(text), "output_dir": str(output), "max_steps": 1}
        train_lstm(Recipe.model_validate(keys))
        losses.add(json.loads((output / "losses.json").read_text())["losses"][0][1])
    assert len(losses) == 2


@pytest.mark.slow
def test_a_changed_transformer_is_trained_and_loaded_with_the_change(text, tmp_path):
    """`train` itself trains it, so it follows every key of the recipe, as the models that it is compared with."""
    keys = SMALL | {"data": str(text), "max_steps": 2}
    usual, changed = (Recipe.model_validate(keys | {"output_dir": str(tmp_path / name)}) for name in ("a", "b"))
    before, after = train_and_load(usual).model, train_and_load(changed, remove_positions).model
    assert not torch.equal(before.lm_head.weight, after.lm_head.weight)
    ids = torch.tensor([[5, 6, 7, 8, 2]])
    states = [after.get_encoder()(order).last_hidden_state for order in (ids, ids.flip(1))]
    torch.testing.assert_close(states[0], states[1].flip(1))
    again = train_and_load(changed, remove_positions).model  # finished, so it is only loaded
    torch.testing.assert_close(again.state_dict(), after.state_dict(), rtol=0, atol=0)


def test_greedy_decoding_takes_the_likeliest_tokens():
    torch.manual_seed(0)
    model, source = RnnWithAttention(9, 8, "gru").eval(), torch.tensor([[4, 5, 6], [7, 8, 4]])
    found = decode_greedily(model, source, 5)
    given = torch.cat((source[:, :1], found[:, :-1]), dim=1)
    assert torch.equal(model(source, given).argmax(-1), found)


def test_paired_bleu_tells_different_systems_apart():
    references = [f"the {word} is {other} today ." for word in "abcdefgh" for other in "klmnopqr"]
    bleu = compare_bleu({"bad": ["the is ."] * len(references), "good": references}, references)
    assert bleu["good"]["bleu"] == pytest.approx(100) and bleu["good"]["p"] < 0.05 and bleu["bad"]["p"] is None


@pytest.mark.slow
def test_a_measured_claim_is_skipped(text, tmp_path, capsys, refused):
    finished_run = tmp_path / "run"
    train(Recipe.model_validate(SMALL | {"max_steps": 10, "data": str(text), "output_dir": str(finished_run)}))
    capsys.readouterr()
    command = f"claims --run {finished_run} --data {text} --output {tmp_path} --sentences 2 --seeds 1,2".split()
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--only", "label_smoothing,saturation,averaging"])
    first, error = capsys.readouterr()
    assert stopped.value.code == 2 and "label_smoothing: " in error and "has no rows base and D-ls0.0" in error
    assert first.startswith("label_smoothing: not measured\nsaturation: reproduced: at d_k = 512, ")
    assert "averaging: " in first and "nats per token" in first
    found = json.loads((tmp_path / "claims" / "averaging.json").read_text())
    assert found["claim"].startswith("The average of the last") and len(found["checkpoints"]) >= 2
    assert found.keys() >= {"verdict", "evidence", "command", "commit", "hardware", "seeds", "seconds"}
    assert (tmp_path / "claims" / "saturation.png").is_file()
    main([*command, "--only", "averaging"])
    assert capsys.readouterr().out == "averaging: already measured, skipped\n"
    for words, said in (
        (["--only", "nothing"], "--only nothing: not a claim"),
        (["--only", "averaging", "--sentences", "3"], "averaging.json was made by `python -m paper claims"),
        (["--run", "absent"], "--run absent: no such folder"),
    ):
        assert said in refused(main, [*command, *words])
    for option in ("--warmup_steps", "--warmup-steps"):
        error = refused(main, [*command, "--only", "warm_up", option, "5"], out="warm_up: not measured\n")
        assert "--warmup_steps cannot be given: the claim sets it" in error


@pytest.mark.slow
def test_ctrl_c_stops_all_commands(text, tmp_path, monkeypatch, refused):
    train(Recipe.model_validate(SMALL | {"max_steps": 1, "data": str(text), "output_dir": str(tmp_path / "run")}))
    command = f"all --output {tmp_path / 'paper'} --data {text} --seeds 1"

    def interrupted(*_):
        raise KeyboardInterrupt

    def unexpected(*_):
        raise AssertionError("a command ran after Ctrl-C")

    monkeypatch.setattr("paper.table1.write_table1", interrupted)
    monkeypatch.setattr("paper.table2.write_table2", unexpected)
    refused(main, [*command.split(), "--run", tmp_path / "run"], 130)
    monkeypatch.setattr("paper.table1.write_table1", unexpected)
    assert "--run absent: no such folder" in refused(main, [*command.split(), "--run", "absent"])
    assert "--treebank absent: no such file or folder" in refused(
        main, [*command.split(), "--run", tmp_path / "run", "--treebank", "absent"]
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_commands_run_for_a_trained_model(tmp_path, monkeypatch):
    """Sentences of up to 18 letters for training, and up to 40 for validation: beyond the trained lengths."""
    generator = random.Random(0)
    for name, count, longest in (("train", 100, 18), ("val", 60, 40)):
        lines = ["".join(generator.choices("abcdefgh", k=generator.randint(2, longest))) for _ in range(count)]
        write_in_capitals(tmp_path, name, lines)
    train(Recipe(**SMALL, data=str(tmp_path), output_dir=str(tmp_path / "run")))
    (tmp_path / "results.csv").write_text("command\n")  # the recipes of our results need more text than there is here
    monkeypatch.setattr("paper.table2.RESULTS", tmp_path / "results.csv")
    output = tmp_path / "paper"
    words = f"all --run {tmp_path / 'run'} --output {output} --data {tmp_path} --rows base,D-ls0.0 --seeds 1,2"
    words += " --seconds 0.1 --jobs 2 --vocab_size 262 --max_steps 5 --validate_every 5 --model.d_model 16"
    main([*words.split(), "--model.encoder_layers", "1", "--model.decoder_layers", "1"])
    written = (output / "README.md").read_text()
    headings = ["Table 1", "Table 2", "Table 3", "Figure 1", "Figure 4", "A walk", "What each", "Label smoothing"]
    for heading in [*headings, "An RNN beats"]:
        assert re.search(rf"^##+ {heading}", written, re.MULTILINE), heading
    found = {path.stem: json.loads(path.read_text()) for path in (output / "claims").glob("*.json")}
    assert found.keys() == CLAIMS.keys()
    nats = found["length_extrapolation"]["nats_per_token"]
    assert {kind: [len(buckets) for buckets in by_seed] for kind, by_seed in nats.items()} == dict.fromkeys(
        ("sinusoidal", "learned", "none"), [3, 3]
    )
    assert [len(by_seed) for by_seed in found["warm_up"]["validation_loss"].values()] == [2, 2]
    bleu = found["small_data"]["bleu"]
    assert found["small_data"]["pairs"] == [100] and [len(by_seed) for by_seed in bleu.values()] == [2, 2]
    assert found["decoding_speed"]["tokens_per_second"].keys() == {"Transformer", "GRU", "LSTM"}
