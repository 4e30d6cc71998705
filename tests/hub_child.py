"""Uses a repository as a user without the package does, with only torch and transformers.

    HF_ENDPOINT=... HF_HOME=... python -S hub_child.py REPO_OR_FOLDER... < texts.json

Prints a JSON object: for each repository, the translations of each text by generate() and by the pipeline; one with two
vocabularies is also saved, by the model and by the pipeline, and loaded again. `--train` runs steps of Seq2SeqTrainer
instead.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

try:
    importlib.import_module("vaswani_transformer.modeling_vaswani_transformer")
    sys.exit("the package can be imported here")
except ModuleNotFoundError as error:
    assert error.name in ("vaswani_transformer", "vaswani_transformer.modeling_vaswani_transformer"), error.name

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import (  # noqa: E402
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
pipeline: Any = transformers.pipeline


def load(repo: str) -> tuple[Any, Any, Any]:
    """Return the model and both tokenizers, loaded by the Auto classes."""
    config = AutoConfig.from_pretrained(repo, trust_remote_code=True)
    assert type(config).__module__.startswith("transformers_modules."), type(config).__module__
    model = AutoModelForSeq2SeqLM.from_pretrained(repo, trust_remote_code=True).eval()
    tokenizer = target = AutoTokenizer.from_pretrained(repo, trust_remote_code=True)
    if not config.share_encoder_decoder_embeddings:
        target = AutoTokenizer.from_pretrained(repo, subfolder="target_tokenizer", trust_remote_code=True)
    return model, tokenizer, target


def translations(repo: str, texts: list[str]) -> dict[str, Any]:
    model, tokenizer, target = load(repo)
    base = AutoModel.from_pretrained(repo, trust_remote_code=True).eval()
    for name, tensor in base.state_dict().items():
        assert torch.equal(tensor, model.model.state_dict()[name]), name
    assert model.generation_config.num_beams == 4 and model.generation_config.length_penalty == 0.6

    batch = tokenizer(texts, return_tensors="pt", padding=True)
    translate = pipeline("translation", model=repo, trust_remote_code=True, device="cpu")
    assert type(translate).__module__.startswith("transformers_modules."), type(translate).__module__
    searches: dict[str, dict[str, Any]] = {
        "generate": {},
        "uncached": {"use_cache": False},
        "static": {"cache_implementation": "static"},
        "greedy": {"num_beams": 1},
        "greedy uncached": {"num_beams": 1, "use_cache": False},
    }
    found = {
        name: target.batch_decode(model.generate(**batch, **settings), skip_special_tokens=True)
        for name, settings in searches.items()
    }
    found |= {
        "pipeline": [found["translation_text"] for found in translate(texts, batch_size=2)],
        "n_best": [found["translation_text"] for found in translate(texts[0], num_return_sequences=3)],
    }
    if target is not tokenizer and not Path(repo).is_dir():
        saved = Path("saved_by_remote_code", Path(repo).name)
        translate.save_pretrained(saved / "pipeline")
        AutoModelForSeq2SeqLM.from_pretrained(repo, trust_remote_code=True).save_pretrained(saved / "model")
        for name in ("tokenizer.json", "tokenizer_config.json", "target_tokenizer"):
            if (saved / "pipeline" / name).exists():
                (saved / "model" / name).symlink_to((saved / "pipeline" / name).absolute())
        for way in ("pipeline", "model"):
            assert translations(str(saved / way), texts) == found, way
    return found


def trained_a_step(repo: str, texts: list[str]) -> dict[str, Any]:
    """Return the loss before and after some steps of Seq2SeqTrainer, which also generates in its evaluation."""
    model, tokenizer, target = load(repo)
    data: Any = [tokenizer(text) | {"labels": target(text)["input_ids"]} for text in texts]
    arguments = Seq2SeqTrainingArguments(
        "trained", max_steps=3, report_to=[], use_cpu=True, predict_with_generate=True, generation_max_length=8,
        disable_tqdm=True, save_strategy="no", learning_rate=1e-3,
    )  # fmt: skip
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=data, eval_dataset=data, data_collator=collator)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    return {"before": before, "after": trainer.evaluate()["eval_loss"]}


if __name__ == "__main__":
    action = trained_a_step if "--train" in sys.argv else translations
    texts = json.load(sys.stdin)
    print(json.dumps({repo: action(repo, texts) for repo in sys.argv[1:] if repo != "--train"}))
