"""Adapters of PEFT: Translator applies those that change layers, and refuses others and folders that hold one."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import one_fast_in, write_lines
from hub_server import OWNER, WRITE_TOKEN, HubServer
from huggingface_hub import HfApi, constants
from peft import (
    IA3Config,
    LilyConfig,
    LoHaConfig,
    LoraConfig,
    PeftModel,
    PolyConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from saved_model import ENGLISH, GERMAN, change_json, trained_model, trained_tokenizer, untrained_model
from torch import Tensor

from hub.contents import collect_model_files
from vaswani_transformer import TorchTranslator, Translator, VaswaniTransformerForConditionalGeneration, cli
from vaswani_transformer.attention_maps import attention_maps
from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import load_config
from vaswani_transformer.onnx_translator import OnnxTranslator

# PEFT 0.21.2 reads an attribute that transformers 5.24 has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
ADAPTERS = {
    "LoRA": LoraConfig(target_modules=["q_proj", "v_proj"], task_type="SEQ_2_SEQ_LM"),
    "LoRA in all projections": LoraConfig(target_modules=PROJECTIONS),
    "LoRA and a trained layer": LoraConfig(target_modules=["k_proj"], modules_to_save=["fc2"]),
    "LoRA and tokens": LoraConfig(target_modules=["v_proj"], trainable_token_indices=list(range(5, 100))),
    "DoRA": LoraConfig(target_modules=PROJECTIONS, use_dora=True),
    "IA3": IA3Config(target_modules=["k_proj", "v_proj", "fc1"], feedforward_modules=["fc1"]),
    "LoHa": LoHaConfig(target_modules=PROJECTIONS),
}
PROMPTS = {"num_virtual_tokens": 3, "task_type": "SEQ_2_SEQ_LM"}


def adapted_model(config: Any, model: Any = None, **options: Any) -> Any:
    """Return a copy of a model with an adapter of large random weights, which change every translation.

    model: None for the trained one
    """
    adapted = get_peft_model(copy.deepcopy(model or trained_model()), config, **options)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape, generator=random)
    return adapted.eval()


def generated(model: Any, **inputs: Tensor) -> list[str]:
    """Return the translations of generate()."""
    inputs = inputs or dict(trained_tokenizer()(ENGLISH, return_tensors="pt", padding=True))
    return trained_tokenizer().batch_decode(model.generate(**inputs), skip_special_tokens=True)


def translated(model: Any) -> list[str]:
    """Return the translations of Translator, with the stopping rule of generate()."""
    return TorchTranslator(model, trained_tokenizer()).translate(ENGLISH, early_stopping="never")


@pytest.mark.parametrize("name", one_fast_in(3, ADAPTERS))
def test_the_adapter_is_in_the_translations(name):
    adapted = adapted_model(ADAPTERS[name])
    expected = generated(adapted)
    assert all(map(str.__ne__, expected, generated(trained_model()))), "the adapter has an effect"
    assert translated(adapted) == expected
    assert translated(adapted.merge_and_unload()) == expected


def test_adapters_of_two_methods_are_in_the_translations():
    adapted = adapted_model(ADAPTERS["LoRA"], mixed=True)
    adapted.add_adapter("second", LoHaConfig(target_modules=["fc1"], init_weights=False))
    adapted.set_adapter(["default", "second"])
    assert translated(adapted) == generated(adapted) != generated(adapted_model(ADAPTERS["LoRA"]))


def test_an_adapter_of_learned_positions_is_in_the_translations():
    model = untrained_model(position_embedding_type="learned", max_position_embeddings=64)
    adapted = adapted_model(LoraConfig(target_modules=["table"]), model)
    assert translated(adapted) == generated(adapted) != generated(model)


def test_scores_and_attention_are_those_of_the_merged_model():
    adapted = adapted_model(ADAPTERS["DoRA"])
    merged = copy.deepcopy(adapted).merge_and_unload()
    tokenizer = trained_tokenizer()
    ours, theirs = (TorchTranslator(model, tokenizer).score(ENGLISH, GERMAN) for model in (adapted, merged))
    without = TorchTranslator(trained_model(), tokenizer).score(ENGLISH, GERMAN)
    for decoding, expected, base in zip(ours, theirs, without, strict=True):
        assert decoding.log_probabilities == pytest.approx(expected.log_probabilities, abs=1e-4)
        assert abs(decoding.total - base.total) > 1
    ours, theirs = (attention_maps(model, tokenizer, ENGLISH[0], GERMAN[0]) for model in (adapted, merged))
    torch.testing.assert_close(ours.cross, theirs.cross, atol=1e-5, rtol=1e-4)


def test_a_translator_follows_changes_of_the_active_adapter():
    adapted = adapted_model(ADAPTERS["LoRA"])
    translator = TorchTranslator(adapted, trained_tokenizer())
    expected = translator.translate(ENGLISH)
    with adapted.disable_adapter():
        assert translator.translate(ENGLISH) == TorchTranslator(trained_model(), trained_tokenizer()).translate(ENGLISH)
    assert translator.translate(ENGLISH) == expected


@pytest.mark.parametrize(
    "config, remedy",
    [
        (PromptTuningConfig(**PROMPTS), "call model.generate()"),
        (PromptEncoderConfig(**PROMPTS), "call model.generate()"),
        (PrefixTuningConfig(**PROMPTS), "train such an adapter"),
        (LilyConfig(target_modules=["q_proj"]), "call model.generate()"),
        (PolyConfig(target_modules=["q_proj"]), "call model.generate()"),
    ],
    ids=["prompt tuning", "P-tuning", "prefix tuning", "Lily", "Poly"],
)
def test_an_adapter_with_parts_outside_the_layers_is_refused(config, remedy):
    with pytest.raises(InputError, match=rf"has a {config.peft_type.value} adapter, .*; {re.escape(remedy)}$"):
        TorchTranslator(adapted_model(config), trained_tokenizer())


def test_generate_puts_a_tuned_prompt_before_the_source():
    """A prompt of the embeddings of three tokens translates like a source that begins with these tokens."""
    adapted = adapted_model(PromptTuningConfig(**PROMPTS))
    prompt = torch.tensor([[20, 30, 40]])
    with torch.no_grad():
        embeddings = trained_model().get_input_embeddings()(prompt[0])
        # PEFT makes a second prompt for the decoder and uses the first one.
        adapted.prompt_encoder["default"].embedding.weight.copy_(embeddings.repeat(2, 1))
    batch = dict(trained_tokenizer()(ENGLISH, return_tensors="pt", padding=True))
    longer = torch.cat((prompt.expand(len(ENGLISH), -1), batch["input_ids"]), dim=1)
    mask = torch.cat((torch.ones(len(ENGLISH), 3, dtype=torch.long), batch["attention_mask"]), dim=1)
    expected = generated(trained_model(), input_ids=longer, attention_mask=mask)
    assert generated(adapted, **batch) == expected != generated(trained_model(), **batch)


@pytest.fixture
def adapter_folder(model_folder, tmp_path) -> Path:
    """The folder of an adapter, saved with its tokenizer as Trainer does."""
    base = VaswaniTransformerForConditionalGeneration.from_pretrained(model_folder)
    get_peft_model(base, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    trained_tokenizer().save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    "command",
    ["translate {}", "translate --backend onnx {}", "evaluate {} --source {}/text --reference {}/text"],
)
def test_the_folder_of_an_adapter_is_refused_with_a_remedy(adapter_folder, model_folder, command, capsys):
    write_lines(adapter_folder / "text", ENGLISH)
    with pytest.raises(SystemExit) as stopped:
        cli.main(command.replace("{}", str(adapter_folder)).split())
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {adapter_folder} holds a LORA adapter of PEFT, not a model; ")
    loaded = f"PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained('{model_folder}'), '{adapter_folder}')"
    assert f"; merge it into '{model_folder}' and copy the tokenizer: {loaded}.merge_and_unload()." in line


def test_an_adapter_on_the_hub_is_refused_with_a_remedy(adapter_folder, tmp_path, monkeypatch):
    with HubServer() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants._HF_DEFAULT_ENDPOINT, hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", WRITE_TOKEN)
        api = HfApi(hub.url, WRITE_TOKEN)
        api.create_repo(f"{OWNER}/adapter")
        (adapter_folder / "onnx").mkdir()
        write_lines(adapter_folder / "onnx" / "model.onnx", ["the graph of the model without the adapter"])
        api.upload_folder(repo_id=f"{OWNER}/adapter", folder_path=adapter_folder)
        for backend in ("torch", "onnx"):
            with pytest.raises(InputError, match="holds a LORA adapter of PEFT, not a model; merge it into"):
                Translator.from_pretrained(f"{OWNER}/adapter", backend=backend)


def test_the_remedy_for_an_adapter_gives_a_model(adapter_folder, model_folder, tmp_path):
    base = VaswaniTransformerForConditionalGeneration.from_pretrained(model_folder)
    adapted: Any = PeftModel.from_pretrained(base, str(adapter_folder))
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    trained_tokenizer().save_pretrained(tmp_path / "merged")
    assert Translator.from_pretrained(tmp_path / "merged", device="cpu").translate(ENGLISH[0])


def test_a_tuned_prompt_is_not_to_be_merged(adapter_folder):
    change_json(adapter_folder / "adapter_config.json", peft_type="PROMPT_TUNING", num_virtual_tokens=3)
    with pytest.raises(
        InputError, match="a PROMPT_TUNING adapter .*; it cannot be merged into .*; load it with PEFT: PeftMo"
    ):
        Translator.from_pretrained(adapter_folder)


@pytest.mark.parametrize(
    "load", [Translator.from_pretrained, OnnxTranslator.from_pretrained, load_config, collect_model_files]
)
def test_a_model_with_an_adapter_beside_it_is_refused(folder, load):
    """transformers would apply the adapter to the checked weights; PEFT saves into the folder of a model unasked."""
    (folder / "onnx").mkdir()
    adapted_model(LoraConfig(target_modules=["q_proj"])).save_pretrained(folder)
    with pytest.raises(
        InputError, match="both a model and a LORA adapter .*; move adapter_config.json and adapter_mod"
    ):
        load(folder)
