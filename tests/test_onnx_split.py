"""The split layout: the names that Optimum and transformers.js expect, and torch's logits."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from saved_model import saved_model, trained_model, trained_tokenizer, untrained_model
from tiny_models import ModelMaker, padded, random_sentences

from conversion.onnx.__main__ import main
from conversion.onnx.export import export_split_folder
from conversion.onnx.split import FirstDecoder, NextDecoder
from conversion.onnx.verify import cross_attentions, verify_split
from vaswani_transformer.beam_search import MASKED
from vaswani_transformer.errors import InputError, ProofError
from vaswani_transformer.loading import load_model

pytestmark = pytest.mark.timeout(1200)  # an export takes 20 seconds of an idle processor, and minutes of a busy one


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    source = saved_model(tmp_path_factory.mktemp("model"))
    output = tmp_path_factory.mktemp("onnx") / "split"
    main([str(source), str(output), "--layout", "split"])
    return source, output


def inputs_and_outputs(path: Path) -> tuple[list[str], list[str]]:
    session = onnxruntime.InferenceSession(str(path))
    return [value.name for value in session.get_inputs()], [value.name for value in session.get_outputs()]


@pytest.mark.slow
def test_files_inputs_and_outputs_have_the_names_of_optimum(folders: tuple[Path, Path]) -> None:
    """The names are those of `ORTModelForSeq2SeqLM` for a decoder of two layers."""
    folder = folders[1]
    beside = {"config.json", "generation_config.json", "export.json", "tokenizer.json", "tokenizer_config.json"}

    def cache(prefix: str, parts: tuple[str, ...]) -> set[str]:
        return {f"{prefix}.{n}.{part}.{what}" for n in range(2) for part in parts for what in ("key", "value")}

    both = ("decoder", "encoder")
    expected = {
        "encoder_model": ({"input_ids", "attention_mask"}, {"last_hidden_state"}),
        "decoder_model": (
            {"input_ids", "encoder_hidden_states", "encoder_attention_mask"},
            {"logits"} | cache("present", both),
        ),
        "decoder_with_past_model": (
            {"input_ids", "encoder_attention_mask"} | cache("past_key_values", both),
            {"logits"} | cache("present", ("decoder",)),
        ),
        "decoder_model_merged": (
            {"input_ids", "encoder_hidden_states", "encoder_attention_mask", "use_cache_branch"}
            | cache("past_key_values", both),
            {"logits"} | cache("present", both),
        ),
    }
    assert {path.name for path in folder.iterdir()} == beside | {f"{name}.onnx" for name in expected}
    for name, (inputs, outputs) in expected.items():
        found_inputs, found_outputs = inputs_and_outputs(folder / f"{name}.onnx")
        assert (set(found_inputs), set(found_outputs)) == (inputs, outputs), name


@pytest.mark.slow
def test_the_merged_decoder_has_every_weight_once(folders: tuple[Path, Path]) -> None:
    graph = onnx.load(folders[1] / "decoder_model_merged.onnx").graph
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer if len(tensor.dims) == 2]
    large = [np.sort(array, axis=None).tobytes() for array in arrays if array.size >= 1024]
    assert large and len(set(large)) == len(large)
    branches = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    assert len(branches) == 2 and not any(branch.initializer for branch in branches)


def test_greedy_search_with_the_decoders_equals_generate() -> None:
    """Uses the modules that the files are exported from."""
    model: Any = trained_model()
    batch = padded(random_sentences(0, 5, 300, 9))
    tokens = torch.zeros(5, 1, dtype=torch.long)
    with torch.no_grad():
        memory = model.model.encoder(**batch).last_hidden_state
        logits, *past = FirstDecoder(model)(tokens, memory, batch["attention_mask"])
        for _ in range(11):
            logits[:, :, [0, 1]] = -torch.inf
            tokens = torch.cat((tokens, logits[:, -1:].argmax(-1)), dim=1)
            logits, *of_self = NextDecoder(model)(tokens[:, -1:], batch["attention_mask"], past)
            past[::4], past[1::4] = of_self[::2], of_self[1::2]
    expected = model.generate(**batch, num_beams=1, max_new_tokens=11)
    for row, tokens_of_generate in zip(tokens.tolist(), expected.tolist(), strict=True):
        end = tokens_of_generate.index(2) + 1 if 2 in tokens_of_generate else len(tokens_of_generate)
        assert row[:end] == tokens_of_generate[:end]


@pytest.mark.slow
def test_the_check_detects_slightly_wrong_logits(folders: tuple[Path, Path]) -> None:
    model = load_model(folders[0])
    verify_split(folders[1], model)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.002)
    ways = "decoder_model, all tokens.*decoder_model, then decoder_with_past_model.*decoder_model_merged"
    with pytest.raises(ProofError, match=ways):
        verify_split(folders[1], model)


def test_the_decoder_returns_its_attention_to_a_padded_source(tiny_model: ModelMaker) -> None:
    """Equal to transformers' `output_attentions`, which other code computes."""
    model = tiny_model(3, d_k=3, d_v=5)
    batch: Any = padded(random_sentences(0, count=4, vocab_size=30, longest=9))
    tokens = torch.tensor([[0, 5, 6, 7]]).repeat(4, 1)
    memory = model.model.encoder(**batch).last_hidden_state
    found = FirstDecoder(model, attention=True)(tokens, memory, batch["attention_mask"])[-3:]
    for ours, theirs in zip(found, cross_attentions(model, batch, tokens), strict=True):
        assert ours.shape == (4, 2, 4, batch["input_ids"].shape[1])
        np.testing.assert_allclose(ours.detach().numpy(), theirs, atol=1e-6)
        assert not ours[batch["attention_mask"][:, None, None].expand_as(ours) == 0].any()


def test_decoders_for_transformers_js_repeat_the_end(tiny_model: ModelMaker) -> None:
    model = tiny_model(1)
    batch: Any = padded(random_sentences(0, count=2, vocab_size=30, longest=9))
    memory, tokens = model.model.encoder(**batch).last_hidden_state, torch.tensor([[0, 5, 2, 2], [0, 2, 6, 7]])
    plain, *cache = FirstDecoder(model)(tokens, memory, batch["attention_mask"])
    logits = FirstDecoder(model, end=2)(tokens, memory, batch["attention_mask"])[0]
    assert (logits.argmax(-1)[tokens == 2] == 2).all()
    assert torch.equal(logits[tokens != 2], plain[tokens != 2])
    logits = NextDecoder(model, end=2)(torch.tensor([[2], [6]]), batch["attention_mask"], cache)[0]
    assert logits[0].argmax() == 2 and logits[1].min() > MASKED


def test_sizes_that_transformers_js_does_not_know_are_refused(tmp_path: Path) -> None:
    untrained_model(d_k=3).save_pretrained(tmp_path / "model")
    trained_tokenizer().save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match="assumes d_k = d_v = d_model / heads"):
        export_split_folder(tmp_path / "model", tmp_path / "out", library="transformers.js")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_only_the_first_decoder_returns_attention(folders: tuple[Path, Path], tmp_path: Path) -> None:
    main([str(folders[0]), str(tmp_path / "out"), "--layout", "split", "--attention"])
    for path in folders[1].glob("*.onnx"):
        inputs, outputs = inputs_and_outputs(path)
        more = ["cross_attentions.0", "cross_attentions.1"] if path.stem == "decoder_model" else []
        assert inputs_and_outputs(tmp_path / "out" / path.name) == (inputs, outputs + more)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8", "int8-weights"])
def test_the_other_precisions_are_checked(folders: tuple[Path, Path], tmp_path: Path, precision: str) -> None:
    main([str(folders[0]), str(tmp_path / "out"), "--layout", "split", "--precision", precision])
    sizes = [(folder / "decoder_model.onnx").stat().st_size for folder in (tmp_path / "out", folders[1])]
    assert sizes[0] < sizes[1]
