"""Third-party clients that call the model in ways of their own, compared with generate() and autograd."""

import urllib.error
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_model import ENGLISH, GERMAN, trained_model, trained_tokenizer, untrained_model
from torch import Tensor
from torch.utils.data import DataLoader
from translation_server import in_thread

from vaswani_transformer import TorchTranslator
from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model

pytestmark = pytest.mark.slow
NEEDED = "runs in .venv-clients, at the end of `make test-slow`"


def encoded(sentences: list[str]) -> dict[str, Any]:
    return dict(trained_tokenizer()(sentences, return_tensors="pt", padding=True))


def translations(model: Model, sentences: list[str]) -> list[str]:
    """Translate without a cache: the clients use one."""
    sequences = model.generate(**encoded(sentences), use_cache=False)
    return trained_tokenizer().batch_decode(sequences, skip_special_tokens=True)


def test_captum_explains_the_whole_difference_of_a_logit() -> None:
    """Both methods distribute f(source) - f(baseline) over the source tokens, without a remainder. Integrated gradients
    replace the output of the embedding in `forward`; Shapley values replace tokens."""
    attr = pytest.importorskip("captum.attr", reason=NEEDED)

    model, source = trained_model(), encoded(ENGLISH[:1])
    ids, baseline = source["input_ids"], torch.full_like(source["input_ids"], 3)
    translation = model.generate(**source)
    prefix, target = translation[:, :3], int(translation[0, 3])

    def logit(input_ids: Tensor) -> Tensor:
        rows = len(input_ids)
        mask, decoder_ids = torch.ones_like(input_ids), prefix.expand(rows, -1)
        return model(input_ids, mask, decoder_input_ids=decoder_ids, use_cache=False).logits[:, -1, target]

    with torch.no_grad():
        difference = (logit(ids) - logit(baseline)).sum()
    assert difference.abs() > 0.1

    # captum types its callables and outputs loosely.
    gradients: Any = attr.LayerIntegratedGradients(logit, model.model.encoder.embed_tokens)
    found = gradients.attribute(ids, baseline, n_steps=200, internal_batch_size=50)
    assert found.shape == (*ids.shape, model.config.d_model)
    torch.testing.assert_close(found.sum().to(difference.dtype), difference, atol=0.01, rtol=0.01)  # 200 steps
    values: Any = attr.ShapleyValueSampling(logit)
    found = values.attribute(ids, baseline, n_samples=2)
    torch.testing.assert_close(found.sum(), difference, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")  # warnings of inseq's many dependencies
def test_inseq_attributes_each_token_of_the_translation(model_folder: Path) -> None:
    """inseq calls generate(), then the decoder once for each target token."""
    inseq = pytest.importorskip("inseq", reason=NEEDED)
    tokenizer, sentence = trained_tokenizer(), ENGLISH[1]
    eager: Any = Model.from_pretrained(model_folder, attn_implementation="eager").eval()
    source = encoded([sentence])
    sequence = eager.generate(**source, use_cache=False)  # inseq uses the cache
    labels = sequence[:, 1:]

    def attributed(method: str) -> Any:
        client: Any = inseq.load_model(eager, method, tokenizer=str(model_folder))
        found = client.attribute(sentence, show_progress=False)
        assert found.info["generated_texts"] == tokenizer.batch_decode(sequence, skip_special_tokens=True)
        return found[0].source_attributions

    eager.requires_grad_(True)
    # (source, target, layers, heads), without the column of the start token
    weights = eager(**source, decoder_input_ids=sequence[:, :-1], output_attentions=True).cross_attentions
    expected = torch.stack([layer[0] for layer in weights])  # (layers, heads, target, source)
    assert expected.shape[3] == source["input_ids"].shape[1] != expected.shape[2]
    torch.testing.assert_close(attributed("attention"), expected.permute(3, 2, 0, 1).detach(), atol=1e-5, rtol=1e-4)

    embeddings = eager.get_input_embeddings()(source["input_ids"]).detach().requires_grad_()
    mask = source["attention_mask"]
    logits = eager(inputs_embeds=embeddings, attention_mask=mask, decoder_input_ids=sequence[:, :-1]).logits
    probabilities = logits.softmax(dim=-1).gather(-1, labels[..., None])[0, :, 0]
    gradients = [torch.autograd.grad(p, embeddings, retain_graph=True)[0][0] for p in probabilities]
    expected = torch.stack(gradients, dim=1).abs()  # (source, target, d_model)
    torch.testing.assert_close(attributed("saliency"), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")  # Lightning suggests more workers, and its own uses of torch are deprecated
def test_lightning_trains_and_predicts_as_a_plain_loop(tmp_path: Path) -> None:
    lightning: Any = pytest.importorskip("lightning", reason=NEEDED)
    tokenizer, adam = trained_tokenizer(), {"lr": 3e-3, "betas": (0.9, 0.98)}

    def collate(pairs: list[tuple[str, str]]) -> dict[str, Any]:
        sources, targets = zip(*pairs, strict=True)
        batch = dict(tokenizer(list(sources), text_target=list(targets), return_tensors="pt", padding=True))
        batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
        return batch

    pairs: Any = list(zip(ENGLISH, GERMAN, strict=True)) * 2
    batches = DataLoader(pairs, batch_size=3, collate_fn=collate)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = untrained_model()

        def training_step(self, batch: dict[str, Any], index: int) -> Tensor:
            return self.model(**batch, label_smoothing=0.1).loss

        def predict_step(self, batch: dict[str, Any], index: int) -> list[str]:
            del batch["labels"]
            return tokenizer.batch_decode(self.model.generate(**batch), skip_special_tokens=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), **adam)

    module = Module()
    module.train()
    options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=20, default_root_dir=tmp_path, **options)
    trainer.fit(module, batches)

    plain = untrained_model().train()
    optimizer = torch.optim.Adam(plain.parameters(), **adam)
    for _ in range(20):
        for batch in batches:
            optimizer.zero_grad()
            plain(**batch, label_smoothing=0.1).loss.backward()
            optimizer.step()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(module.model.get_parameter(name), weight, atol=0.0, rtol=0.0)

    expected = translations(plain.eval(), ENGLISH)
    assert len(set(expected)) > 1
    predicted: Any = trainer.predict(module, DataLoader(pairs, batch_size=4, collate_fn=collate))
    assert predicted[0] == expected
    trainer.save_checkpoint(tmp_path / "trained.ckpt")
    restored = Module.load_from_checkpoint(tmp_path / "trained.ckpt", weights_only=True)
    assert restored.model.lm_head.weight is restored.model.model.shared.weight
    assert translations(restored.model.eval(), ENGLISH) == expected


def test_clients_of_libretranslate_translate_with_a_server() -> None:
    libretranslatepy: Any = pytest.importorskip("libretranslatepy", reason=NEEDED)
    deep_translator: Any = pytest.importorskip("deep_translator", reason=NEEDED)
    exceptions: Any = pytest.importorskip("deep_translator.exceptions", reason=NEEDED)
    translatehtml: Any = pytest.importorskip("translatehtml", reason=NEEDED)
    translator = TorchTranslator(trained_model(), trained_tokenizer())
    expected = translator.translate(ENGLISH)
    with in_thread(translator, api_key="secret") as (address, _):
        url = f"http://127.0.0.1:{address.port}/"
        client = libretranslatepy.LibreTranslateAPI(url, "secret")
        assert [client.translate(text, "en", "de") for text in ENGLISH] == expected
        assert [language["code"] for language in client.languages()] == ["en", "de"]
        with pytest.raises(urllib.error.HTTPError, match="400"), client.translate("a", "en", "fr"):
            pass

        options = {"source": "English", "target": "German", "custom_url": url}
        deep = deep_translator.LibreTranslator(api_key="secret", **options)
        assert deep.translate_batch(ENGLISH) == expected
        with pytest.raises(exceptions.AuthorizationException):
            deep_translator.LibreTranslator(api_key="public", **options).translate("a")

        class Translation:  # as those of Argos Translate
            def translate(self, text: str) -> str:
                return client.translate(text, "en", "de")

        page = "".join(f'<p class="a">{text}</p><code>x</code>' for text in ENGLISH)
        translated = str(translatehtml.translate_html(Translation(), page))
        assert translated == address.translate(page, format="html", api_key="secret").json["translatedText"]
        for text, translation in zip(ENGLISH, expected, strict=True):
            page = page.replace(text, translation)
        assert translated == page
