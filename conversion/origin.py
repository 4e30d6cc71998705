"""What a converted model's folder remembers of where it came from, and what the writers need of it."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from .converted import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET
from .refuse import Reasons

RECORD, ORIGINALS = "conversion.json", "original"
LANGUAGE = re.compile(r"[\w-]+")


class Origin:
    """toolkit: "" for a model that was trained here; options: what its reader kept; originals: the folder of files"""

    def __init__(self, folder: Path):
        self.folder, self.originals = folder, folder / ORIGINALS
        self.toolkit, self.options = "", {}
        path = folder / RECORD
        if path.exists():
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                self.toolkit, self.options = str(record["toolkit"]), dict(record["options"])
            except (ValueError, KeyError, TypeError) as error:
                raise BrokenFileError(f"{path} is not a record of a conversion ({error})") from None

    def languages(self) -> tuple[str, str]:
        """Codes such as de or de_AT: they become part of the names of files, so nothing else passes."""
        source, target = (str(self.options.get(f"{side}_lang") or "") for side in ("source", "target"))
        return source if LANGUAGE.fullmatch(source) else "src", target if LANGUAGE.fullmatch(target) else "tgt"

    def has_tokenizer(self) -> bool:
        return (self.folder / "tokenizer.json").exists()

    def tokenizer(self, side: str) -> Tokenizer:
        own = self.folder / TARGET_TOKENIZER / "tokenizer.json"
        path = own if side == "target" and own.exists() else self.folder / "tokenizer.json"
        if not path.exists():
            raise InputError(f"{path}: no such file; the vocabulary is written from it")
        return Tokenizer.from_file(str(path))

    def tokens(self) -> tuple[list[str], list[str]]:
        """The tokens of both sides by id, those of the toolkit if there was one."""
        sides = []
        for side in ("source", "target"):
            ids = self.tokenizer(side).get_vocab(with_added_tokens=True)
            count = self.options.get(f"{side}_tokens") or max(ids.values()) + 1
            by_id = {id: token for token, id in ids.items()}
            sides.append([by_id.get(id, f"unused{id}") for id in range(count)])
        return sides[0], sides[1]

    def tensors_with_toolkit_rows(
        self, model: VaswaniTransformerForConditionalGeneration, reasons: Reasons, allow_output_bias: bool
    ) -> dict[str, Tensor]:
        """Our tensors with SOURCE, TARGET and OUTPUT each of its own, without the rows that converting added."""
        tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        tensors.pop("model.shared.weight", None)
        rows = {SOURCE: self.options.get("source_tokens"), TARGET: self.options.get("target_tokens")}
        rows[OUTPUT] = rows[OUTPUT_BIAS] = rows[TARGET]
        for name, count in rows.items():
            if name in tensors and count is not None:
                tensors[name] = tensors[name][:count]
        bias = None if allow_output_bias else tensors.pop(OUTPUT_BIAS, None)
        if bias is not None and bias.any():
            reasons.option("the output layer has a bias (output_bias)")
        return tensors

    def zero_attention_biases(self, model: VaswaniTransformerForConditionalGeneration) -> dict[str, Tensor]:
        """The biases that the paper's projections do not have, as zeros."""
        return {
            name.removesuffix("weight") + "bias": torch.zeros(tensor.shape[0])
            for name, tensor in model.state_dict().items()
            if name.endswith("_proj.weight")
        }

    def in_saved_dtype(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors, each in memory of its own, in the precision that the toolkit's file had."""
        dtype = getattr(torch, self.options.get("dtype", "float32"))
        seen: dict[int, Tensor] = {}  # tied matrices stay one
        return {name: seen.setdefault(t.data_ptr(), t.to(dtype).contiguous()) for name, t in tensors.items()}

    def copy_originals(self, out: Path) -> None:
        """The toolkit's own vocabulary files, byte for byte."""
        if self.originals.is_dir():
            for file in sorted(self.originals.iterdir()):
                shutil.copyfile(file, out / file.name)
