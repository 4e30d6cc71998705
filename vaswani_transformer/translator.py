"""Translate texts with torch, and compute the probability of given translations.

>>> translator = Translator.from_pretrained("demo/model")
>>> translator.translate(["The house is small."])
['Das Haus ist klein.']
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from .errors import InputError
from .model_folder import local_folder
from .search_settings import LARGEST_COUNT, SearchSettings, check_number, search_settings_of
from .text_translator import Hypothesis, TextTranslator, as_texts, batches_by_length, shown_progress
from .text_vaswani_transformer import TARGET_TOKENIZER

if TYPE_CHECKING:  # at run time they are imported where they are used: the ONNX backend needs no torch
    import torch
    from peft import PeftMixedModel, PeftModel
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

    from .modeling_vaswani_transformer import VaswaniTransformerForConditionalGeneration
    from .onnx_translator import OnnxTranslator

BACKENDS = ("torch", "onnx")

# PEFT methods that, like prompt learning, do more than change layers one by one. Lily averages over all tokens of a
# batch; the others have task ids (Poly) or a part that runs before or beside the layers (Shadow, X-LoRA).
NOT_IN_LAYERS = ("LILY", "POLY", "SHADOW", "XLORA")
# Methods that generate() does not apply either: prefixes take the place of its cache, and PEFT wrote the other two for
# decoders without an encoder.
NOT_IN_GENERATE = ("CARTRIDGE", "PREFIX_TUNING", "SHADOW", "XLORA")


@dataclass(frozen=True)
class ForcedDecoding:
    """The token ids of a given translation, </s> included, and the log-probability of each, in nats."""

    tokens: list[int]
    log_probabilities: list[float]

    @property
    def total(self) -> float:
        """log P(Y | X)"""
        return math.fsum(self.log_probabilities)


class Translator(TextTranslator):
    """A model and its tokenizer; translates (`translate`) and scores (`score`) texts of any number and length.

    Where generation_config.json says `"early_stopping": "never"`, `translate` assumes that no live hypothesis grows by
    more than 5 tokens (or the file's `stopping_lookahead`), which is faster and hardly ever changes a translation; pass
    `early_stopping="never"` for the search of `generate()`.
    """

    def __init__(
        self,
        model: VaswaniTransformerForConditionalGeneration | PeftModel | PeftMixedModel,
        tokenizer: PreTrainedTokenizerFast,
        target_tokenizer: PreTrainedTokenizerFast | None = None,
    ):
        """Set up a Translator, and put the model into eval mode.

        model: the model, or a PeftModel around it with an adapter that changes layers: LoRA, DoRA, IA3 and others.
        target_tokenizer: the tokenizer of the decoder's vocabulary, if it has its own.
        Raises InputError for other adapters, such as prompt tuning.
        """
        model = without_peft_wrapper(model.eval())
        source, target = model.config.vocab_size, model.config.decoder_vocab_size
        if target_tokenizer is None and target != source:
            raise InputError(
                f"the model has {source} source and {target} target tokens; it needs a second tokenizer for its "
                f"translations (in a folder: {TARGET_TOKENIZER}/tokenizer.json)"
            )
        self.model, self.tokenizer, self.target_tokenizer = model, tokenizer, target_tokenizer or tokenizer
        self.trained_length = getattr(model.generation_config, "max_source_length", None)
        self.positions, self.pad = model.config.learned_positions, cast(int, model.config.pad_token_id)

    @overload
    @classmethod
    def from_pretrained(
        cls,
        folder_or_repo: str | Path,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
        *,
        backend: Literal["torch"] = "torch",
    ) -> Translator: ...

    @overload
    @classmethod
    def from_pretrained(
        cls,
        folder_or_repo: str | Path,
        device: str | torch.device | None = None,
        *,
        revision: str | None = None,
        backend: Literal["onnx"],
        threads: int | None = None,
        precision: str | None = None,
    ) -> OnnxTranslator: ...

    @classmethod
    def from_pretrained(
        cls,
        folder_or_repo: str | Path,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
        *,
        backend: str = "torch",
        threads: int | None = None,
        precision: str | None = None,
    ) -> Translator | OnnxTranslator:
        """Load a Translator from a model folder, or from the repository `owner/name` of the Hub.

        device: None for a GPU if there is one.
        dtype: None for the saved one.
        revision: branch, tag or commit of the repository.
        backend: "torch", or "onnx", which needs neither torch nor transformers, for a folder that `export onnx` wrote
            or a model folder or repository with onnx/model.onnx.
        threads: ONNX only, for each operator on the CPU; None for as many as there are cores.
        precision: ONNX only, "int8" for model_int8.onnx, and so on; None for model.onnx.
        Raises InputError, BrokenFileError or UnavailableError naming the file that cannot be used, and why.
        """
        if backend not in BACKENDS:
            raise InputError(f"backend {backend!r} is not one of {', '.join(BACKENDS)}")
        if backend == "onnx":
            from .onnx_translator import OnnxTranslator

            if dtype is not None:
                raise InputError(f"dtype is {dtype!r}; an ONNX file has a fixed precision, chosen by precision")
            device_name = None if device is None else str(device)
            return OnnxTranslator.from_pretrained(folder_or_repo, device_name, threads, precision, revision)
        if threads is not None or precision is not None:
            raise InputError("threads and precision are for the ONNX backend; for torch: torch.set_num_threads, dtype")
        from .loading import load_model, load_tokenizer, refuse_unsupported_settings

        folder = local_folder(folder_or_repo, revision)
        model = load_model(folder, device, dtype)
        refuse_unsupported_settings(model, folder)
        second = folder / TARGET_TOKENIZER
        target = load_tokenizer(second, model.config, target=True) if second.is_dir() else None
        return cls(model, load_tokenizer(folder, model.config), target)

    @property
    def default_search(self) -> SearchSettings:
        return search_settings_of(self.model.generation_config.to_dict())

    def description(self) -> str:
        model = self.model
        return f"{model.num_parameters():,} parameters, {str(model.dtype).removeprefix('torch.')} on {model.device}"

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        encoding = self.tokenizer(text, return_offsets_mapping=True, verbose=False)
        return cast(list[int], encoding["input_ids"]), [start for start, _ in encoding["offset_mapping"]]

    def _decode(self, tokens: list[int]) -> str:
        return cast(str, self.target_tokenizer.decode(tokens, skip_special_tokens=True))

    def _search(self, sources: list[list[int]], settings: SearchSettings, n_best: int) -> list[list[Hypothesis]]:
        import torch

        from .beam_search import beam_search, output_limit_offset

        batch, options = self._batch(sources), settings._asdict() | {"num_return_sequences": n_best}
        options["max_source_length_offset"] = output_limit_offset(self.model)
        with torch.inference_mode():
            sequences, scores = beam_search(self.model, batch["input_ids"], batch["attention_mask"], **options)
        return self._hypotheses(sequences.tolist(), scores.tolist())

    def score(
        self,
        sources: str | Sequence[str],
        targets: str | Sequence[str],
        *,
        batch_tokens: int = 8192,
        progress: bool = False,
    ) -> list[ForcedDecoding]:
        """Compute the log-probability of every token of given translations (forced decoding); no text is split.

        Raises InputError if the numbers of texts differ or a text has more tokens than the model has positions.
        """
        sources, targets = as_texts(sources, "source"), as_texts(targets, "target")
        if len(sources) != len(targets):
            raise InputError(f"{len(sources)} sources and {len(targets)} targets: each source needs its translation")
        batch_tokens = check_number("batch_tokens", batch_tokens, 1, LARGEST_COUNT)
        if not sources:
            return []
        source_ids = cast(list[list[int]], self.tokenizer(sources, verbose=False)["input_ids"])
        target_ids = cast(list[list[int]], self.target_tokenizer(text_target=targets, verbose=False)["input_ids"])
        for kind, side in (("source", source_ids), ("target", target_ids)):
            for number, ids in enumerate(side, start=1):
                if self.positions is not None and len(ids) > self.positions:
                    raise InputError(f"{kind} {number} has {len(ids)} tokens; the model has {self.positions} positions")
        lengths = [max(len(source), len(target)) for source, target in zip(source_ids, target_ids, strict=True)]
        decodings: dict[int, ForcedDecoding] = {}
        with shown_progress(progress, "scoring", len(sources)) as advance:
            for batch in batches_by_length(lengths, batch_tokens):
                forced = self._log_probabilities([source_ids[i] for i in batch], [target_ids[i] for i in batch])
                for i, log_probabilities in zip(batch, forced, strict=True):
                    decodings[i] = ForcedDecoding(target_ids[i], log_probabilities)
                advance(len(batch))
        return [decodings[i] for i in range(len(sources))]

    def _log_probabilities(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """Return log P of each target token, given the source and the preceding target tokens."""
        import torch

        labels = self._batch(targets)["input_ids"]  # (batch, target)
        with torch.inference_mode():
            logits = self.model(
                **self._batch(sources),
                decoder_input_ids=self.model.prepare_decoder_input_ids_from_labels(labels),
                use_cache=False,
            ).logits.float()  # (batch, target, vocab_size)
        log_probabilities = logits.gather(-1, labels[..., None]).squeeze(-1) - logits.logsumexp(-1)
        return [row[: len(target)] for row, target in zip(log_probabilities.tolist(), targets, strict=True)]

    def _batch(self, rows: list[list[int]]) -> dict[str, Tensor]:
        """Return input_ids and attention_mask, (batch, longest), on the model's device."""
        import torch

        ids, mask = (torch.tensor(padded, device=self.model.device) for padded in self._padded(rows))
        return {"input_ids": ids, "attention_mask": mask}


def without_peft_wrapper(model: Any) -> VaswaniTransformerForConditionalGeneration:
    """Return the model inside a PeftModel, and any other model as it is.

    Its layers are those of the active adapters, so that the search applies them, and later calls of set_adapter().
    Raises InputError if an adapter has other parts.
    """
    if "peft" not in sys.modules:
        return model
    from peft import PeftMixedModel, PeftModel, PeftType

    if not isinstance(model, PeftModel | PeftMixedModel):
        return model
    for config in model.peft_config.values():
        if config.is_prompt_learning or config.peft_type in NOT_IN_LAYERS:
            remedy = "train such an adapter" if config.peft_type in NOT_IN_GENERATE else "call model.generate()"
            raise InputError(
                f"the model has a {PeftType(config.peft_type).value} adapter, and Translator supports only adapters "
                f"that change layers one by one, such as LORA; {remedy}"
            )
    return cast(Any, model.base_model).model
