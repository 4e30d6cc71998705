"""`pipeline("translation", model=...)`, which transformers 5 no longer has, for the models of this package.

>>> from transformers import pipeline
>>> translate = pipeline("translation", model="folder-or-repository")
>>> translate("The house is small.")
[{'translation_text': 'Das Haus ist klein.'}]

Importing the package registers the pipeline. Without the package, `trust_remote_code=True` loads this file from the
model's repository; it imports only torch, transformers and what transformers needs.
"""

from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any, cast

import torch
from huggingface_hub.errors import RepositoryNotFoundError
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import ChunkPipeline
from transformers.utils.hub import cached_file

from .modeling_vaswani_transformer import score_divisor, searches_as_transformers
from .sentences_vaswani_transformer import (
    TARGET_TOKENIZER,
    LanguageTokens,
    MissingLanguage,
    check_sentences,
    choose_cleaning,
    join_texts,
    source_limit,
    split_text,
)

TASK = "translation"


class VaswaniTransformerTranslationPipeline(ChunkPipeline):
    """Translate texts, with the output format of transformers 4's translation pipeline.

    Arguments of a call, or of `pipeline(...)` for all calls:

    batch_size: number of texts, or parts of long texts, translated together (default 1)
    num_return_sequences: n, to return a list of the n best translations of each text, best first
    return_scores: add to each translation its `score`, log P(Y | X) / length penalty
    return_tensors: return `translation_token_ids` instead of `translation_text`, or beside it with `return_text=True`
    clean_up_tokenization_spaces: as in the tokenizer's `decode()`, which ignores it for a BPE; by default False, as in
        Translator, whatever the tokenizer is saved with
    truncation: accepted as in transformers 4 and without effect, since long sentences are cut and no part is dropped
    max_source_length: cut sentences of more tokens (default: the length that 99% of the training sentences do not
        exceed, else 128)
    target_language, or tgt_lang: of a model with language tokens such as >>deu<<, "de", "deu" or the token; it is
        put in front of every sentence of a text that does not begin with a token
    split_sentences: translate the sentences of a text one by one, as models are trained, and copy what stands between
        them (default); False cuts only lines that are longer than max_source_length

    `src_lang` is refused. Other arguments go to `generate()`, whose defaults are the paper's search. A text without a
    letter is copied. Translations do not depend on the other texts in the batch.
    """

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False

    def __init__(self, *args: Any, target_tokenizer: PreTrainedTokenizerFast | None = None, **kwargs: Any):
        """target_tokenizer: tokenizer of the decoder, if the languages have separate vocabularies

        By default it is loaded from the model's folder, or from the commit of the model's repository.
        """
        super().__init__(*args, **kwargs)
        config = self.model.config
        if config.model_type != "vaswani_transformer":
            raise ValueError(
                f"this translation pipeline supports vaswani_transformer models, not {config.model_type}; "
                "call the model's generate()"
            )
        if self.tokenizer is None:
            raise ValueError("a translation pipeline needs a tokenizer; pass tokenizer=")
        self.source_tokenizer = cast(Any, self.tokenizer)
        self.clean = choose_cleaning(self.source_tokenizer.backend_tokenizer.normalizer)
        self.languages = LanguageTokens(self.source_tokenizer.backend_tokenizer)
        target_tokenizer = target_tokenizer or load_target_tokenizer(config)
        if target_tokenizer is None and config.has_two_vocabularies:
            raise ValueError(
                "the languages of the model have separate vocabularies; it needs a second tokenizer for its "
                "translations: pass target_tokenizer="
            )
        self.target_tokenizer = cast(Any, target_tokenizer or self.tokenizer)
        if len(self.target_tokenizer) > config.decoder_vocab_size:
            raise ValueError(
                f"the target tokenizer has {len(self.target_tokenizer)} tokens and the model's decoder "
                f"{config.decoder_vocab_size}; pass target_tokenizer="
            )

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, tuple):
            inputs = list(inputs)
        if isinstance(inputs, list) and not inputs:
            return []
        result: Any = super().__call__(inputs, **kwargs)
        # As in transformers 4: a list of texts gives a flat list, unless several translations per text are requested.
        if isinstance(inputs, list) and all(len(translations) == 1 for translations in result):
            return [translations[0] for translations in result]
        return result

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        super().save_pretrained(save_directory, **kwargs)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(f"{save_directory}/{TARGET_TOKENIZER}")

    def _sanitize_parameters(
        self,
        truncation: Any = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **arguments: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if src_lang is not None:
            raise ValueError(f"src_lang is {src_lang!r}; leave it out: the model needs no language of the source")
        if tgt_lang is not None and arguments.setdefault("target_language", tgt_lang) != tgt_lang:
            raise ValueError(f"tgt_lang is {tgt_lang!r}, target_language {arguments['target_language']!r}; give one")
        if arguments.get("return_text") is False and not arguments.get("return_tensors"):
            raise ValueError("return_text is False; return_tensors=True returns the tokens instead")

        def take(*names: str) -> dict[str, Any]:
            return {name: arguments.pop(name) for name in names if arguments.get(name) is not None}

        before = take("max_source_length", "split_sentences", "target_language")
        scoring = take("return_scores")  # computed with the model, and added to the output
        after = take("return_tensors", "return_text", "clean_up_tokenization_spaces")
        return before, arguments | scoring, after | scoring

    # Pipeline types every stage as dict to dict with any keyword arguments.
    def preprocess(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        text: Any,
        max_source_length: int | None = None,
        split_sentences: bool = True,
        target_language: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the encoded sentences of a text, or parts of them."""
        if not isinstance(text, str):
            raise ValueError(f"the text to translate is a str or a list of str, not {type(text).__name__}")
        check_sentences(text)
        trained_length = getattr(self.model.generation_config, "max_source_length", None)
        limit = source_limit(max_source_length, trained_length, self.model.config.learned_positions, split_sentences)
        cut = (limit, self._encode, split_sentences, self.clean, self.languages, target_language)
        try:
            parts = list(split_text(text, *cut))
        except MissingLanguage as error:
            raise ValueError(f"the text {text[:40]!r} has {error}") from None
        for number, part in enumerate(parts, start=1):
            # transformers needs ids of each part, also of what is only copied.
            input_ids = torch.tensor([part.ids or self._encode("")[0]])
            yield {
                "input_ids": input_ids,
                "attention_mask": torch.ones_like(input_ids),
                "separator": part.copied,
                "is_blank": not part.ids,
                "is_last": number == len(parts),
            }

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """Return token ids, ending in </s>, and the index of each token's first character."""
        encoding = self.source_tokenizer(text, return_offsets_mapping=True, verbose=False)
        return encoding["input_ids"], [start for start, _ in encoding["offset_mapping"]]

    def _forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, inputs: dict[str, Any], return_scores: bool = False, **generate: Any
    ) -> dict[str, Any]:
        """Return sequences: (batch, n, length), without the start token;  scores: (batch, n), if requested."""
        source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        generated = cast(Any, self.model).generate(**source, **generate)
        sequences = generated if isinstance(generated, Tensor) else generated.sequences
        shape = (len(source["input_ids"]), len(sequences) // len(source["input_ids"]))
        outputs: dict[str, Any] = {"sequences": sequences[:, 1:].unflatten(0, shape)}
        if return_scores:
            configs = (generate.get("generation_config"), self.model.generation_config)

            def setting(name: str) -> float:
                given = [generate.get(name), *(getattr(config, name, None) for config in configs)]
                return next((value for value in given if value is not None), 1)  # the default of generate()

            repetition = {"repetition_penalty": setting("repetition_penalty"), "is_greedy": setting("num_beams") == 1}
            scores = self._scores(source, sequences, setting("length_penalty"), **repetition)
            outputs["scores"] = scores.unflatten(0, shape)
        return outputs | {key: inputs[key] for key in ("separator", "is_blank", "is_last")}

    def _scores(self, source: dict[str, Tensor], sequences: Tensor, alpha: float, **repetition: Any) -> Tensor:
        """Return (batch x n,): the scores of sequences (batch x n, 1 + length), as the search ranks them."""
        copies = len(sequences) // len(source["input_ids"])
        repeated = {name: tensor.repeat_interleave(copies, dim=0) for name, tensor in source.items()}
        labels = sequences[:, 1:]
        log_probabilities = cast(Any, self.model).target_log_probabilities(labels, **repeated, **repetition)
        is_token = torch.arange(labels.shape[1], device=labels.device) < self._lengths(labels)[:, None]
        divisors = score_divisor(is_token.sum(dim=1), alpha, searches_as_transformers(cast(Any, self.model)))
        return (log_probabilities * is_token).sum(dim=1) / divisors

    def _lengths(self, sequences: Tensor) -> Tensor:
        """Return (rows,): number of tokens of each sequence up to and including </s>, without padding."""
        config = self.model.config
        is_end = (sequences == config.eos_token_id).long()
        ended_before = is_end.cumsum(dim=1) - is_end > 0
        return (~ended_before & (sequences != config.pad_token_id)).sum(dim=1)

    def postprocess(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        parts: list[dict[str, Any]],
        return_tensors: bool = False,
        return_text: bool = False,
        return_scores: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the translations of a text, best first, joining the k-th best translations of its parts."""
        decoding = {"skip_special_tokens": True, "clean_up_tokenization_spaces": clean_up_tokenization_spaces}
        of_parts = [self._hypotheses(part, decoding) for part in parts if not part["is_blank"]]
        separators = [part["separator"] for part in parts]
        translations = []
        for hypotheses in zip(*(of_parts or [[("", 0.0, [])]]), strict=False):  # a part may have fewer translations
            texts, scores, tokens = zip(*hypotheses, strict=True)
            translation: dict[str, Any] = {}
            if return_text or not return_tensors:
                text = ""
                for separator, next_text in zip_longest(separators, texts if of_parts else [], fillvalue=""):
                    text = join_texts(text, separator, next_text)
                translation[f"{TASK}_text"] = text
            if return_tensors:
                translation[f"{TASK}_token_ids"] = torch.tensor(list(chain(*tokens)), dtype=torch.long)
            if return_scores:
                translation["score"] = sum(scores)
            translations.append(translation)
        return translations

    def _hypotheses(self, part: dict[str, Any], decoding: dict[str, Any]) -> list[tuple[str, float, list[int]]]:
        """Return text, score (0 if unknown) and tokens of each translation of a part, best first."""
        lengths = self._lengths(part["sequences"][0]).tolist()
        hypotheses = []
        ranks = [rank for rank, length in enumerate(lengths) if length] or [0]  # skip empty slots
        for rank in ranks:
            tokens = part["sequences"][0, rank, : lengths[rank]].tolist()
            text = str(self.target_tokenizer.decode(tokens, **decoding))
            score = float(part["scores"][0, rank]) if "scores" in part else 0.0
            hypotheses.append((text, score, tokens))
        return hypotheses


def load_target_tokenizer(config: Any) -> PreTrainedTokenizerFast | None:
    """Return the target tokenizer in the model's folder or repository, or None if there is none.

    Raises OSError if the repository cannot be reached: the tokenizer of the sources would decode to another text.
    """
    if config.share_encoder_decoder_embeddings or not config._name_or_path:
        return None
    place = {"revision": getattr(config, "_commit_hash", None), "subfolder": TARGET_TOKENIZER}
    try:
        cached_file(config._name_or_path, "tokenizer.json", **place)
    except OSError as error:
        if isinstance(error.__cause__, RepositoryNotFoundError):  # the `token` of `pipeline()` does not come here
            raise OSError(
                f"{config._name_or_path}: the target tokenizer of a private repository is read with the saved login "
                "only; log in (`hf auth login`), or pass target_tokenizer=AutoTokenizer.from_pretrained("
                f'"{config._name_or_path}", revision={place["revision"]!r}, subfolder="{TARGET_TOKENIZER}", token=...)'
            ) from error
        if error.__cause__ is not None:  # without this error, transformers takes a lost connection for a missing file
            raise
        return None
    return PreTrainedTokenizerFast.from_pretrained(config._name_or_path, **place)


def register_pipeline() -> None:
    """Register `pipeline("translation", ...)` with transformers."""
    from transformers import pipelines

    # transformers 5.23 refuses the names of removed tasks before it looks up registered ones.
    getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(
            TASK, VaswaniTransformerTranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
        )


__all__ = ["VaswaniTransformerTranslationPipeline", "register_pipeline"]
