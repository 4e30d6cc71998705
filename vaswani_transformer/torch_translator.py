"""Translate texts with torch, and compute the probability of given translations."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .beam_search import beam_search
from .cached_decoder import CachedDecoder
from .errors import InputError, as_input_errors
from .hub_files import find_folder
from .loading import load_model, wrap_tokenizer
from .model_folder import ModelFolder
from .modeling_vaswani_transformer import VaswaniTransformerForConditionalGeneration, target_vocab_size
from .search_vaswani_transformer import SearchSettings, check_number, refuse_settings_of_generate
from .sentences_vaswani_transformer import TARGET_TOKENIZER, LanguageTokens, choose_cleaning
from .translator import (
    LARGEST_COUNT,
    LOGITS_PER_TOKEN,
    Hypothesis,
    NotFiniteError,
    Translator,
    as_texts,
    batches_by_length,
    pad_rows,
    show_progress,
)

if TYPE_CHECKING:
    from peft import PeftMixedModel, PeftModel

# PEFT methods that, like prompt learning, do more than change layers one by one. Lily averages over all tokens of a
# batch; the others have task ids (Poly) or a part that runs before or beside the layers (Shadow, X-LoRA).
NOT_IN_LAYERS = ("LILY", "POLY", "SHADOW", "XLORA")
# Methods that generate() does not apply either: prefixes take the place of its cache, and PEFT wrote the other two for
# decoders without an encoder.
NOT_IN_GENERATE = ("CARTRIDGE", "PREFIX_TUNING", "SHADOW", "XLORA")


LONGEST_SCORED = 5000  # tokens; time and memory grow with the square, because no text is split


@dataclass(frozen=True)
class ForcedDecoding:
    """The token ids of a given translation, </s> included, and the log-probability of each, in nats."""

    tokens: list[int]
    log_probabilities: list[float]

    @property
    def total(self) -> float:
        """log P(Y | X)"""
        return math.fsum(self.log_probabilities)


class TorchTranslator(Translator):
    """A model and its tokenizer; translates (`translate`) and scores (`score`) texts of any number and length."""

    def __init__(
        self,
        model: VaswaniTransformerForConditionalGeneration | PeftModel | PeftMixedModel,
        tokenizer: PreTrainedTokenizerFast,
        target_tokenizer: PreTrainedTokenizerFast | None = None,
    ):
        """Use a model that is in memory, and put it into eval mode.

        model: the model, or a PeftModel around it with an adapter that changes layers: LoRA, DoRA, IA3 and others.
        target_tokenizer: the tokenizer of the decoder's vocabulary, if it has its own.
        Raises InputError for other adapters, such as prompt tuning.
        """
        model = unwrap_peft(model.eval())
        source, target = model.config.vocab_size, model.config.decoder_vocab_size
        if target_tokenizer is None and target != source:
            raise InputError(
                f"the model has {source} source and {target} target tokens; it needs a second tokenizer for its "
                f"translations (in a folder: {TARGET_TOKENIZER}/tokenizer.json)"
            )
        self.model, self.tokenizer, self.target_tokenizer = model, tokenizer, target_tokenizer or tokenizer
        self.clean = choose_cleaning(tokenizer.backend_tokenizer.normalizer)
        self.languages = LanguageTokens(tokenizer.backend_tokenizer)
        settings = model.generation_config.to_dict()
        with as_input_errors():
            refuse_settings_of_generate(settings)
            self.search = SearchSettings.from_generation_config(settings)
        self.trained_length = settings.get("max_source_length")
        self.positions, self.pad = model.config.learned_positions, cast(int, model.config.pad_token_id)
        self.target_vocabulary = target_vocab_size(model.config)

    @classmethod
    def from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        folder_or_repo: str | Path,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> TorchTranslator:
        """Load a model folder, or the repository `owner/name` of the Hub.

        device: None for a GPU if there is one.
        dtype: None for the saved one.
        revision: branch, tag or commit of the repository.
        local_files_only: take only a folder, and do not use the network.
        Raises InputError, BrokenFileError or UnavailableError naming the file that cannot be used, and why.
        """
        folder = ModelFolder(find_folder(folder_or_repo, revision, local_files_only))
        search, second = folder.search, folder.path / TARGET_TOKENIZER
        model = load_model(folder, device, dtype)
        target, source = folder.target_tokenizer, folder.tokenizer
        translator = cls(
            model,
            wrap_tokenizer(source, folder.path, model.config),
            None if target is source else wrap_tokenizer(target, second, model.config),
        )
        translator.folder, translator.search = folder.path, search
        return translator

    def description(self) -> str:
        model = self.model
        return f"{model.num_parameters():,} parameters, {str(model.dtype).removeprefix('torch.')} on {model.device}"

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        encoding = self.tokenizer(text, return_offsets_mapping=True, verbose=False)
        return cast(list[int], encoding["input_ids"]), [start for start, _ in encoding["offset_mapping"]]

    def _decode(self, tokens: list[int]) -> str:
        return cast(str, self.target_tokenizer.decode(tokens, skip_special_tokens=True))

    def _search(self, batches: Iterable[list[list[int]]], settings: SearchSettings) -> Iterator[list[list[Hypothesis]]]:
        decoder = CachedDecoder(self.model)  # copies weights, which the model may change before the next call
        for sources in batches:
            batch = self._batch(sources)
            with torch.inference_mode():
                found = beam_search(self.model, batch["input_ids"], batch["attention_mask"], settings, decoder)
            sequences, scores = (tensor.tolist() for tensor in found)
            yield self._hypotheses(sequences, scores)

    def score(
        self,
        sources: str | Sequence[str],
        targets: str | Sequence[str],
        *,
        batch_tokens: int = 8192,
        target_language: str | None = None,
        progress: bool = False,
    ) -> list[ForcedDecoding]:
        """Compute the log-probability of every token of given translations (forced decoding); no text is split.

        target_language: as in `find_hypotheses`
        Raises InputError if the numbers of texts differ or a text has more tokens than 5,000 or the model's positions,
        and NotFiniteError naming the translation with a log-probability that is not finite.
        """
        sources, targets = as_texts(sources, "source"), as_texts(targets, "target")
        if len(sources) != len(targets):
            raise InputError(f"{len(sources)} sources and {len(targets)} targets: each source needs its translation")
        with as_input_errors():
            batch_tokens = check_number("batch_tokens", batch_tokens, 1, LARGEST_COUNT)
        if not sources:
            return []
        sources = self.add_language(list(map(self.clean, sources)), target_language, "source")
        source_ids = cast(list[list[int]], self.tokenizer(sources, verbose=False)["input_ids"])
        target_ids = cast(list[list[int]], self.target_tokenizer(text_target=targets, verbose=False)["input_ids"])
        for kind, side in (("source", source_ids), ("target", target_ids)):
            for number, ids in enumerate(side, start=1):
                if self.positions is not None and len(ids) > self.positions:
                    raise InputError(f"{kind} {number} has {len(ids)} tokens; the model has {self.positions} positions")
                if len(ids) > LONGEST_SCORED:
                    raise InputError(
                        f"{kind} {number} has {len(ids):,} tokens; at most {LONGEST_SCORED:,} are scored: split it"
                    )
        logits = max(1, self.target_vocabulary // LOGITS_PER_TOKEN)  # of each target token
        lengths = [
            max(len(source), len(target) * logits) for source, target in zip(source_ids, target_ids, strict=True)
        ]
        decodings: dict[int, ForcedDecoding] = {}
        with show_progress(progress, "scoring", len(sources)) as advance:
            for batch in batches_by_length(lengths, batch_tokens):
                forced = self._log_probabilities([source_ids[i] for i in batch], [target_ids[i] for i in batch])
                for i, log_probabilities in zip(batch, forced, strict=True):
                    if not all(map(math.isfinite, log_probabilities)):
                        raise NotFiniteError(i, "target")
                    decodings[i] = ForcedDecoding(target_ids[i], log_probabilities)
                advance(len(batch))
        return [decodings[i] for i in range(len(sources))]

    @torch.inference_mode()
    def _log_probabilities(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """Return log P of each target token, given the source and the preceding target tokens."""
        labels = self._batch(targets)["input_ids"]
        rows = self.model.target_log_probabilities(labels, **self._batch(sources)).tolist()
        return [row[: len(target)] for row, target in zip(rows, targets, strict=True)]

    def _batch(self, rows: list[list[int]]) -> dict[str, Tensor]:
        """Return input_ids and attention_mask, (batch, longest), on the model's device."""
        ids, mask = (torch.tensor(padded, device=self.model.device) for padded in pad_rows(rows, self.pad))
        return {"input_ids": ids, "attention_mask": mask}


def unwrap_peft(model: Any) -> VaswaniTransformerForConditionalGeneration:
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
