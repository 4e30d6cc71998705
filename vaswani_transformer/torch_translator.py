"""Translate texts with torch, and compute the probability of given translations."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedTokenizerFast

from .alignment_heads import (
    HeadScores,
    Reference,
    attention_by_step,
    attention_of_heads,
    choose_heads,
    default_heads,
)
from .alignments import AlignedPart, Alignment, Span, align_text, token_spans, word_probabilities
from .beam_search import beam_search
from .cached_decoder import CachedDecoder, memory_keys_and_values
from .errors import InputError, as_input_errors
from .files import read_json_object, write_json
from .hub_files import find_folder
from .loading import load_model, wrap_tokenizer
from .model_folder import AlignmentHead, ModelFolder, refuse_other_ids
from .modeling_vaswani_transformer import VaswaniTransformerForConditionalGeneration
from .search_vaswani_transformer import SearchSettings, check_number, refuse_settings_of_generate
from .sentences_vaswani_transformer import TARGET_TOKENIZER
from .tokenizer_files import panics_as_errors
from .translator import (
    LARGEST_COUNT,
    LOGITS_PER_TOKEN,
    Item,
    NotFiniteError,
    Translator,
    as_texts,
    batches_by_length,
    pad_rows,
    show_progress,
)
from .workers import BatchSearch, Found, Sources

if TYPE_CHECKING:
    from peft import PeftMixedModel, PeftModel

# PEFT methods that, like prompt learning, do more than change layers one by one. Lily averages over all tokens of a
# batch; the others have task ids (Poly) or a part that runs before or beside the layers (Shadow, X-LoRA).
NOT_IN_LAYERS = ("LILY", "POLY", "SHADOW", "XLORA")
# Methods that generate() does not apply either: prefixes take the place of its cache, and PEFT wrote the other two for
# decoders without an encoder.
NOT_IN_GENERATE = ("CARTRIDGE", "PREFIX_TUNING", "SHADOW", "XLORA")

# A forked process lacks its parent's threads of GNU OpenMP, and would wait for them forever if it used more than one.
os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))

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
        if target_tokenizer is None and model.config.has_two_vocabularies:
            raise InputError(
                "the languages of the model have separate vocabularies; it needs a second tokenizer for its "
                f"translations (in a folder: {TARGET_TOKENIZER}/tokenizer.json)"
            )
        self.model, self.tokenizer, self.target_tokenizer = model, tokenizer, target_tokenizer or tokenizer
        config, settings = vars(model.config), model.generation_config.to_dict()
        with as_input_errors():
            refuse_other_ids(settings, config)
            refuse_settings_of_generate(settings)
            search = SearchSettings.from_generation_config(settings)
            super().__init__(config, settings, search, tokenizer.backend_tokenizer)

    @classmethod
    def from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        folder_or_repo: str | Path,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> TorchTranslator:
        """Load a model folder, or the repository `owner/name` on the Hub.

        device: None for a GPU if there is one.
        dtype: None for the saved one.
        revision: branch, tag or commit of the repository.
        local_files_only: do not use the network; a repository must have been downloaded before.
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
        # As in ONNX: transformers would remove spaces in front of punctuation if tokenizer_config.json says so.
        options: Any = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return cast(str, self.target_tokenizer.decode(tokens, **options))

    def count_cores(self) -> int | None:
        with THREADS_LOCK:
            return torch.get_num_threads() if self.model.device.type == "cpu" else None

    def _source_spans(self, text: str, prefix: str) -> list[Span | None]:
        return self._spans(self.tokenizer, text, prefix)

    def _spans(self, tokenizer: PreTrainedTokenizerFast, text: str, prefix: str = "") -> list[Span | None]:
        (encoding,) = cast(Any, tokenizer([prefix + text], verbose=False)).encodings
        return token_spans(encoding, prefix)

    def _alignment_heads(self) -> Sequence[AlignmentHead]:
        config = self.model.config
        return self.alignment_heads or default_heads(config.decoder_layers, config.decoder_attention_heads)

    def _open_search(self, settings: SearchSettings, alignments: bool, one_thread: bool) -> BatchSearch:
        return TorchSearch(self, settings, alignments, one_thread)

    def score(
        self,
        sources: str | Sequence[str],
        targets: str | Sequence[str],
        *,
        batch_tokens: int | None = None,
        target_language: str | None = None,
        progress: bool = False,
    ) -> list[ForcedDecoding]:
        """Compute the log-probability of every token of given translations (forced decoding); no text is split.

        target_language: as in `find_hypotheses`
        Raises InputError if the numbers of texts differ or a text has more tokens than 5,000 or the model's positions,
        and NotFiniteError naming the translation with a log-probability that is not finite.
        """
        _, tokens, forced = self._run_pairs(
            sources, targets, self._log_probabilities, "scoring", batch_tokens, target_language, progress
        )
        for i, log_probabilities in enumerate(forced):
            if not all(map(math.isfinite, log_probabilities)):
                raise NotFiniteError(i, f"target {i + 1}")
        return [ForcedDecoding(*pair) for pair in zip(tokens, forced, strict=True)]

    def align(self, sources: str | Sequence[str], targets: str | Sequence[str], **options: Any) -> list[Alignment]:
        """Align the words of given translations, as `find_hypotheses` aligns its own; no text is split.

        options: those of `score`
        Returns for each pair and each word of `target.split()` the probabilities of the words of `source.split()`, best
        first. Raises InputError as `score` does.
        """
        sources, targets = as_texts(sources, "source"), as_texts(targets, "target")
        heads, parts = self._alignment_heads(), self.attend(sources, targets, **options)
        return [
            align_text(source, target, [part._replace(attention=attention_of_heads(part.attention, heads))])
            for source, target, part in zip(sources, targets, parts, strict=True)
        ]

    def choose_heads(
        self, sources: list[str], targets: list[str], references: list[Reference], **options: Any
    ) -> HeadScores:
        """Choose the heads that align pairs most like the references, and use them for alignments from now on.

        options: those of `score`
        `record_alignment_heads` writes them to the model's folder, and so does `model.save_pretrained`. Raises
        InputError as `score` does, and if the references have no links.
        """
        parts = self.attend(sources, targets, **options)
        found = choose_heads(
            (
                word_probabilities(source, target, part._replace(attention=attention_by_step(part.attention)))
                for source, target, part in zip(sources, targets, parts, strict=True)
            ),
            references,
            (self.model.config.decoder_layers, self.model.config.decoder_attention_heads),
        )
        self.alignment_heads = found.heads
        generation_config: Any = self.model.generation_config  # save_pretrained() writes its further attributes, too
        generation_config.alignment_heads = [list(head) for head in found.heads]
        return found

    def record_alignment_heads(self) -> Path:
        """Write the chosen heads to generation_config.json of the folder that the model was loaded from."""
        assert self.folder is not None, "the model was not loaded from a folder; call model.save_pretrained()"
        path, generation_config = self.folder / "generation_config.json", cast(Any, self.model.generation_config)
        # Of a file, nothing else changes; without one, the defaults would change if it held only the heads.
        content = read_json_object(path) if path.exists() else json.loads(generation_config.to_json_string())
        write_json(path, content | {"alignment_heads": generation_config.alignment_heads})
        return path

    def attend(self, sources: list[str], targets: list[str], **options: Any) -> list[AlignedPart]:
        """Return each pair with its tokens and the attention of every head, (layers, heads, target, source).

        options: those of `score`
        """
        attend = partial(self._attention, CachedDecoder(self.model))
        with_language, _, found = self._run_pairs(sources, targets, attend, "aligning", **options)
        cleaned, parts = map(self.clean, sources), []
        for source, prefixed, target, attention in zip(cleaned, with_language, targets, found, strict=True):
            source_spans = self._source_spans(source, prefixed.removesuffix(source))
            target_spans = self._spans(self.target_tokenizer, target)
            parts.append(AlignedPart("", source, target, source_spans, target_spans, attention))
        return parts

    def _attention(
        self, decoder: CachedDecoder, sources: list[list[int]], targets: list[list[int]]
    ) -> list[np.ndarray]:
        """Return the cross-attention of each pair, (layers, heads, target, source)."""
        model, batch, tokens = self.model, self._batch(sources), self._batch(targets)["input_ids"]
        with inference(model.device):
            states = model.model.encoder(**batch).last_hidden_state
            memory, may_attend = memory_keys_and_values(model.model.decoder, states), batch["attention_mask"].bool()
            encoding = model.model.decoder.positional_encoding(0, tokens.shape[1], tokens.device)
            decoded = decoder.decode_whole(tokens, encoding, *memory, may_attend[:, None, None])
        attention = torch.stack(decoded.cross_attentions, dim=1).float().cpu().numpy()
        return [
            weights[:, :, : len(target), : len(source)]
            for weights, source, target in zip(attention, sources, targets, strict=True)
        ]

    def _run_pairs(
        self,
        sources: str | Sequence[str],
        targets: str | Sequence[str],
        run: Callable[[list[list[int]], list[list[int]]], list[Item]],
        title: str,
        batch_tokens: int | None = None,
        target_language: str | None = None,
        progress: bool = False,
    ) -> tuple[list[str], list[list[int]], list[Item]]:
        """Tokenise pairs, and run them batch by batch.

        run: called with the token ids of the sources and targets of a batch.  title: of the progress bar
        Returns the sources, cleaned and with their language tokens, the ids of the targets, and what `run` returns, in
        the order of the pairs. Raises InputError if the numbers of texts differ or one is too long.
        """
        sources, targets = as_texts(sources, "source"), as_texts(targets, "target")
        if len(sources) != len(targets):
            raise InputError(f"{len(sources)} sources and {len(targets)} targets: each source needs its translation")
        batch_tokens = self._default_batch_tokens() if batch_tokens is None else batch_tokens
        with as_input_errors():
            check_number("batch_tokens", batch_tokens, 1, LARGEST_COUNT)
        if not sources:
            return [], [], []
        sources = self.add_language(list(map(self.clean, sources)), target_language, "source")
        with panics_as_errors(self.folder):
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
        pairs = [*zip(source_ids, target_ids, strict=True)]
        lengths = [max(len(source), len(target) * logits) for source, target in pairs]
        found: dict[int, Item] = {}
        with show_progress(progress, title, len(pairs)) as advance:
            for batch in batches_by_length(lengths, batch_tokens):
                in_batch = zip(*(pairs[i] for i in batch), strict=True)
                found |= zip(batch, run(*map(list, in_batch)), strict=True)
                advance(len(batch))
        return sources, target_ids, [found[i] for i in range(len(found))]

    def _log_probabilities(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """Return log P of each target token, given the source and the preceding target tokens."""
        labels = self._batch(targets)["input_ids"]
        source: dict[str, Any] = {**self._batch(sources)}
        with inference(self.model.device):
            rows = self.model.target_log_probabilities(labels, **source).tolist()
        return [row[: len(target)] for row, target in zip(rows, targets, strict=True)]

    def _batch(self, rows: list[list[int]]) -> dict[str, Tensor]:
        """Return input_ids and attention_mask, (batch, longest), on the model's device."""
        ids, mask = (torch.tensor(padded, device=self.model.device) for padded in pad_rows(rows, self.pad))
        return {"input_ids": ids, "attention_mask": mask}


class TorchSearch(BatchSearch):
    """Runs a TorchTranslator's search."""

    def __init__(self, translator: TorchTranslator, settings: SearchSettings, alignments: bool, one_thread: bool):
        self.translator, self.settings, self.alignments = translator, settings, alignments
        self.one_thread, self.is_stopped = one_thread, False
        # It copies weights, which the model may change before the next call.
        self.decoder = CachedDecoder(translator.model)
        self.decoder.register_forward_pre_hook(self._check)

    def run(self, sources: Sources) -> Found:
        if self.one_thread:
            use_one_thread()
        model, batch = self.translator.model, self.translator._batch(sources)
        with inference(model.device):
            found = beam_search(model, batch["input_ids"], batch["attention_mask"], self.settings, self.decoder)
        sequences, scores = (tensor.tolist() for tensor in found)
        return Found(sequences, scores, self._attend(sources, sequences) if self.alignments else None)

    def _attend(self, sources: Sources, sequences: list[list[list[int]]]) -> list[list[Any]]:
        """Return the attention of the tokens of each hypothesis, as in `Found`."""
        translator, slots = self.translator, len(sequences[0])
        pairs = [(source, row) for source, rows in zip(sources, sequences, strict=True) for row in rows]
        tokens = [[token for token in row if token != translator.pad] or row[:1] for _, row in pairs]
        heads = translator._alignment_heads()
        found = translator._attention(self.decoder, [source for source, _ in pairs], tokens)
        attention = [attention_of_heads(weights, heads) for weights in found]
        return [attention[i : i + slots] for i in range(0, len(attention), slots)]

    def _check(self, *_: Any) -> None:
        if self.is_stopped:
            raise InterruptedError

    def stop(self) -> None:
        self.is_stopped = True


@contextmanager
def inference(device: torch.device) -> Iterator[None]:
    """Compute without gradients, and on a GPU without cuDNN's attention.

    For half precision, torch 2.11 prefers it on an H100. It builds a plan for every new shape, and nearly all batches
    have a new shape.
    """
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    # Not on a CPU, where several threads would set and restore the kernels of the process.
    with torch.inference_mode(), sdpa_kernel(kernels) if device.type == "cuda" else nullcontext():
        yield


THREADS_LOCK = Lock()


def use_one_thread() -> None:
    """Make torch use one CPU thread in the thread that calls this.

    `torch.set_num_threads` also sets the number for every thread in which torch has not run yet, so that a further
    thread has to restore it. Nothing reads the number in between.
    """
    with THREADS_LOCK:
        before = torch.get_num_threads()
        if before > 1:
            torch.set_num_threads(1)
            restoring = Thread(target=torch.set_num_threads, args=(before,))
            restoring.start()
            restoring.join()


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
