"""A checkpoint that has been read: configuration, tensors under our names, vocabulary; and what is made of it.

Readers leave ties, special rows and the order of d_model to `finish`, the same for every toolkit.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import one_line

from .layout import NEVER, extended, interleaved
from .refuse import Reasons
from .vocabulary import Vocabulary

SOURCE, TARGET, OUTPUT = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
SHARED, OUTPUT_BIAS = "model.shared.weight", "lm_head.bias"


@dataclass
class Converted:
    """
    toolkit, path: where it comes from
    config: fields of our configuration, without sizes of vocabularies, ties and ids
    tensors: our names; SOURCE, TARGET, OUTPUT each of its own, with the toolkit's rows
    concatenated: d_model is in the order [sine | cosine]
    notes: what the user has to know, one sentence each
    originals: files of the toolkit that are kept beside the model, for the way back
    options: what the way back needs to know
    """

    toolkit: str
    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    vocabulary: Vocabulary
    concatenated: bool = False
    notes: list[str] = field(default_factory=list)
    originals: list[Path] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def finish(self, reasons: Reasons) -> VaswaniTransformerForConditionalGeneration:
        """The model. Raises all reasons against it at once."""
        vocabulary, tensors = self.vocabulary, self.tensors
        for name, tokens, rows in (
            ("source vocabulary", vocabulary.source, _rows(tensors, SOURCE)),
            ("target vocabulary", vocabulary.target, _rows(tensors, TARGET)),
            ("target vocabulary", vocabulary.target, _rows(tensors, OUTPUT)),
        ):
            if rows is not None and len(tokens) != rows:
                reasons.fault(f"the {name} has {len(tokens)} entries, its matrix {rows} rows")
        reasons.refuse_if_any()

        dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
        self.options["dtype"] = dtypes.pop() if len(dtypes) == 1 else "float32"
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
        share = torch.equal(tensors[SOURCE], tensors[TARGET]) and vocabulary.is_joint
        tie = torch.equal(tensors[TARGET], tensors[OUTPUT])
        if not tie and share and OUTPUT_BIAS not in tensors and torch.equal(tensors[SOURCE], tensors[OUTPUT]):
            tie = True
        source_size, target_size = vocabulary.sizes()
        added = target_size - len(vocabulary.target)
        if added and OUTPUT_BIAS not in tensors:
            tensors[OUTPUT_BIAS] = tensors[OUTPUT].new_zeros(len(vocabulary.target))
        if added:
            tensors[OUTPUT_BIAS] = torch.cat((tensors[OUTPUT_BIAS], torch.full((added,), NEVER)))
        new_rows = vocabulary.new_special_rows()
        for name, size, tokens in (
            (SOURCE, source_size, vocabulary.source),
            (TARGET, target_size, vocabulary.target),
            (OUTPUT, target_size, vocabulary.target),
        ):
            table = tensors[name]
            zeros = min(size, new_rows) - len(tokens)
            unknown = None if vocabulary.unknown is None else table[vocabulary.unknown]
            tensors[name] = extended(extended(table, zeros), size - len(tokens) - max(zeros, 0), unknown)
        if share:
            tensors[SHARED] = tensors.pop(SOURCE)
            del tensors[TARGET]
        if tie:
            del tensors[OUTPUT]
        d_model = self.config["d_model"]
        if self.concatenated:
            tensors = interleaved(tensors, d_model)
        seen: set[int] = set()
        for name, tensor in tensors.items():  # one table for both stacks: each gets its own
            if tensor.data_ptr() in seen:
                tensors[name] = tensor.clone()
            seen.add(tensors[name].data_ptr())
        fields = self.config | {
            "vocab_size": source_size,
            "decoder_vocab_size": target_size,
            "share_encoder_decoder_embeddings": share,
            "tie_word_embeddings": tie,
            "output_bias": OUTPUT_BIAS in tensors,
            "bos_token_id": vocabulary.bos if vocabulary.bos is not None else vocabulary.start_id,
            "eos_token_id": vocabulary.eos,
            "pad_token_id": vocabulary.pad_id,
            "decoder_start_token_id": vocabulary.start_id,
        }
        try:
            config = VaswaniTransformerConfig(**fields)
            with torch.device("meta"):
                model = VaswaniTransformerForConditionalGeneration(config)
        except Exception as error:  # strict dataclasses raise several kinds, each naming the field
            reasons.option(one_line(str(error)))
            reasons.refuse()
        self._check(model, tensors, reasons)
        model.load_state_dict(tensors, strict=False, assign=True)
        model.tie_weights()
        self.options |= {"source_tokens": len(vocabulary.source), "target_tokens": len(vocabulary.target)}
        return model.eval()

    def _check(
        self, model: VaswaniTransformerForConditionalGeneration, tensors: dict[str, Tensor], reasons: Reasons
    ) -> None:
        """Every tensor of the model there, none beyond, all of the right shape."""
        expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
        twins = model.all_tied_weights_keys
        for name in expected:
            if name not in tensors and twins.get(name) not in tensors:
                reasons.fault(f"{name} has no tensor")
        for name, tensor in tensors.items():
            if name not in expected:
                reasons.fault(f"{name} is more than the options say")
            elif expected[name] != tensor.shape:
                reasons.fault(f"{name} has shape {tuple(tensor.shape)}, the options say {tuple(expected[name])}")
            elif not torch.isfinite(tensor).all():
                reasons.fault(f"{name} has values that are not finite")
        reasons.refuse_if_any()


def _rows(tensors: dict[str, Tensor], name: str) -> int | None:
    return tensors[name].shape[0] if name in tensors else None
