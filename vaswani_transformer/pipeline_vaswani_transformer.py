"""`pipeline("translation", model=...)`, which transformers 5 no longer has, for the models of this package.

>>> from transformers import pipeline
>>> translate = pipeline("translation", model="folder-or-repository")
>>> translate("The house is small.")
[{'translation_text': 'Das Haus ist klein.'}]

Importing the package registers it. Without the package a repository brings it along: `trust_remote_code=True`.

The file travels to the Hub and needs torch and transformers alone.
"""

# Pipelines are typed as taking and giving anything.
# pyright: reportIncompatibleMethodOverride=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalCall=false
# pyright: reportOptionalIterable=false, reportOptionalSubscript=false

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import ChunkPipeline
from transformers.utils.hub import cached_file

from .text_vaswani_transformer import MAX_SOURCE_LENGTH, SHORTEST_MAX_SOURCE_LENGTH, TARGET_TOKENIZER, split_text

TASK = "translation"


class VaswaniTransformerTranslationPipeline(ChunkPipeline):
    """Texts in, translations out, in the format of transformers 4's translation pipeline.

    Arguments of a call, or of `pipeline(...)` for all calls:

    batch_size: how many texts, or parts of long texts, are translated at once (default 1)
    num_return_sequences: n, for a list of the n best translations, best first, for each text
    return_scores: with each `translation_text` its `score`, log P(Y | X) / ((5 + |Y|) / 6)^alpha
    return_tensors: `translation_token_ids` instead of `translation_text`
    max_source_length: a text of more tokens is cut at the ends of sentences, or else at spaces, or else between
        letters, and its translations are joined (default: 256, or the model's learned positions if fewer)

    All others are those of `generate()`; with none it is the paper's search. A text of white space alone is
    translated to an empty one. No translation depends on the others in its batch.
    """

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False

    def __init__(self, *args: Any, target_tokenizer: PreTrainedTokenizerFast | None = None, **kwargs: Any):
        """target_tokenizer: what decodes, where the languages share no vocabulary; default: the one beside the model,
        of the repository's main branch where transformers does not say which revision was asked for"""
        super().__init__(*args, **kwargs)
        config = self.model.config
        if config.model_type != "vaswani_transformer":
            raise ValueError(
                f"this translation pipeline is for models of the kind vaswani_transformer, not {config.model_type}; "
                "transformers 5 has none for others: use the model's generate()"
            )
        if self.tokenizer is None:
            raise ValueError("a translation pipeline needs a tokenizer; pass tokenizer=")
        self.target_tokenizer = target_tokenizer or beside_the_model(config) or self.tokenizer
        if len(self.target_tokenizer) > config.decoder_vocab_size:
            raise ValueError(
                f"the tokenizer that decodes has {len(self.target_tokenizer)} tokens and the model's decoder "
                f"{config.decoder_vocab_size}; pass target_tokenizer="
            )

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, tuple):
            inputs = list(inputs)
        if isinstance(inputs, list) and not inputs:
            return []
        result = super().__call__(inputs, **kwargs)
        # As in transformers 4: a list of texts gives a list of translations, unless several were asked for.
        if isinstance(inputs, list) and all(len(translations) == 1 for translations in result):
            return [translations[0] for translations in result]
        return result

    def _sanitize_parameters(
        self,
        return_tensors: bool | None = None,
        return_scores: bool | None = None,
        max_source_length: int | None = None,
        **generate: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        before = {} if max_source_length is None else {"max_source_length": max_source_length}
        after = {} if return_tensors is None else {"return_tensors": return_tensors}
        if return_scores is not None:
            after["return_scores"] = generate["return_scores"] = return_scores
        return before, generate, after

    def preprocess(self, text: Any, max_source_length: int | None = None) -> Iterator[dict[str, Any]]:
        """The parts of a text that are translated at once; one, unless it is long."""
        if not isinstance(text, str):
            raise ValueError(f"a text to translate is a str or a list of str, not {type(text).__name__}")
        limit = self._source_limit(max_source_length)
        parts = list(split_text(text, limit, self._encode))
        is_blank = not parts
        if is_blank:  # white space alone; every text needs a part
            parts = [(self._encode("")[0], "")]
        for number, (ids, separator) in enumerate(parts, start=1):
            input_ids = torch.tensor([ids])
            yield {
                "input_ids": input_ids,
                "attention_mask": torch.ones_like(input_ids),
                "separator": separator,
                "is_blank": is_blank,
                "is_last": number == len(parts),
            }

    def _source_limit(self, max_source_length: int | None) -> int:
        positions = self.model.config.max_position_embeddings
        if max_source_length is None:
            return MAX_SOURCE_LENGTH if positions is None else min(MAX_SOURCE_LENGTH, positions)
        most = 1_000_000 if positions is None else positions
        if not SHORTEST_MAX_SOURCE_LENGTH <= max_source_length <= most:
            raise ValueError(
                f"max_source_length is {max_source_length}; it must lie between {SHORTEST_MAX_SOURCE_LENGTH} and {most}"
            )
        return max_source_length

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids, ending in </s>, and the character at which each token begins."""
        encoding = self.tokenizer(text, return_offsets_mapping=True, verbose=False)
        return encoding["input_ids"], [start for start, _ in encoding["offset_mapping"]]

    def _forward(self, inputs: dict[str, Any], return_scores: bool = False, **generate: Any) -> dict[str, Any]:
        """sequences: (batch, n, length), without the start token;  scores: (batch, n)"""
        input_ids, attention_mask = inputs["input_ids"], inputs["attention_mask"]
        generated = self.model.generate(input_ids=input_ids, attention_mask=attention_mask, **generate)
        sequences = generated if isinstance(generated, Tensor) else generated.sequences
        shape = (input_ids.shape[0], sequences.shape[0] // input_ids.shape[0])
        outputs: dict[str, Any] = {"sequences": sequences[:, 1:].unflatten(0, shape)}
        if return_scores:
            configured = [generate.get("generation_config"), self.model.generation_config]
            alphas = [
                generate.get("length_penalty"),
                *(getattr(config, "length_penalty", None) for config in configured),
            ]
            alpha = next(alpha for alpha in [*alphas, 0.6] if alpha is not None)
            outputs["scores"] = self._scores(input_ids, attention_mask, sequences, alpha).unflatten(0, shape)
        return outputs | {key: inputs[key] for key in ("separator", "is_blank", "is_last")}

    def _scores(self, input_ids: Tensor, attention_mask: Tensor, sequences: Tensor, alpha: float) -> Tensor:
        """(batch x n,): log P(Y | X) / ((5 + |Y|) / 6)^alpha of translations (batch x n, 1 + length)"""
        copies = sequences.shape[0] // input_ids.shape[0]
        logits = self.model(
            input_ids=input_ids.repeat_interleave(copies, dim=0),
            attention_mask=attention_mask.repeat_interleave(copies, dim=0),
            decoder_input_ids=sequences[:, :-1],
            use_cache=False,
        ).logits.float()  # (batch x n, length, V)
        labels = sequences[:, 1:]
        log_probabilities = logits.gather(-1, labels[..., None]).squeeze(-1) - logits.logsumexp(dim=-1)
        counts = torch.arange(labels.shape[1], device=labels.device) < self._lengths(labels)[:, None]
        return (log_probabilities * counts).sum(dim=1) / ((5 + counts.sum(dim=1)) / 6) ** alpha

    def _lengths(self, sequences: Tensor) -> Tensor:
        """(rows,): tokens of each sequence up to </s>, which counts; padding does not"""
        config = self.model.config
        is_end = (sequences == config.eos_token_id).long()
        ended_before = is_end.cumsum(dim=1) - is_end > 0
        return (~ended_before & (sequences != config.pad_token_id)).sum(dim=1)

    def postprocess(
        self, parts: list[dict[str, Any]], return_tensors: bool = False, return_scores: bool = False
    ) -> list[dict[str, Any]]:
        """The translations of a text, best first, from those of its parts: the k-th best with the k-th best."""
        texts, scores, tokens = [""], [0.0], [[]]
        if not parts[0]["is_blank"]:
            for number, part in enumerate(parts):
                sequences = part["sequences"][0]  # (n, length)
                lengths = self._lengths(sequences).tolist()
                kept = [row for row, length in enumerate(lengths) if length] or [0]  # others never finished
                ids = [sequences[row, : lengths[row]].tolist() for row in kept]
                found = [str(self.target_tokenizer.decode(row, skip_special_tokens=True)) for row in ids]
                values = [float(part["scores"][0][row]) if return_scores else 0.0 for row in kept]
                if number == 0:
                    texts, scores, tokens = found, values, ids
                else:  # a part may have fewer
                    texts = [a + part["separator"] + b for a, b in zip(texts, found, strict=False)]
                    scores = [a + b for a, b in zip(scores, values, strict=False)]
                    tokens = [a + b for a, b in zip(tokens, ids, strict=False)]
        translations = []
        for text, score, ids in zip(texts, scores, tokens, strict=True):
            record: dict[str, Any] = {f"{TASK}_text": text}
            if return_tensors:
                record = {f"{TASK}_token_ids": torch.tensor(ids, dtype=torch.long)}
            translations.append(record | {"score": score} if return_scores else record)
        return translations


def beside_the_model(config: Any) -> PreTrainedTokenizerFast | None:
    """The tokenizer of the target language in the model's folder or repository, if it has one of its own."""
    if config.share_encoder_decoder_embeddings or not config._name_or_path:
        return None
    # Which commit the model came from: transformers 5.17 keeps it, 5.23 only in the name of code that it has fetched.
    commit = getattr(config, "_commit_hash", None) or next(re.finditer(r"\b[0-9a-f]{40}\b", __name__), [None])[0]
    place = {"revision": commit, "subfolder": TARGET_TOKENIZER}
    found = cached_file(config._name_or_path, "tokenizer.json", **place, _raise_exceptions_for_missing_entries=False)
    return None if found is None else PreTrainedTokenizerFast.from_pretrained(config._name_or_path, **place)


def register_pipeline() -> None:
    """Make `pipeline("translation", ...)` known to transformers."""
    from transformers import pipelines

    # transformers 5.23 refuses the names of its former tasks before it looks at what is registered.
    getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(
            TASK, VaswaniTransformerTranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
        )


__all__ = ["VaswaniTransformerTranslationPipeline", "register_pipeline"]
