"""What a converted model's folder records about its origin, for writing a checkpoint of a toolkit again."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from .description import OUTPUT, OUTPUT_BIAS, SHARED, SOURCE, TARGET
from .layout import Sinusoids, concatenate
from .vocabulary import SIDES

RECORD, ORIGINALS = "conversion.json", "original"
LANGUAGE = re.compile(r"[\w-]+")


class Origin:
    """The record in a model folder.

    toolkit: "" for a model that was trained with this project
    options: values that the toolkit's reader kept
    originals: the folder of the toolkit's vocabulary files
    """

    def __init__(self, folder: Path):
        self.folder, self.originals = folder, folder / ORIGINALS
        self.toolkit, self.options = "", {}
        path = folder / RECORD
        if path.exists():
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                self.toolkit, self.options = str(record["toolkit"]), {**record["options"]}
            except (ValueError, KeyError, TypeError) as error:
                raise BrokenFileError(f"{path} is not a record of a conversion ({error})") from None

    def keep_added_rows(self) -> None:
        """Treat the symbols and aliases that were added for our model as part of the vocabulary."""
        self.options.pop("source_tokens", None)
        self.options.pop("target_tokens", None)

    def languages(self) -> tuple[str, str]:
        """Codes such as de or de_AT. They become parts of file names, so anything else is replaced."""
        source, target = (str(self.options.get(f"{side}_lang") or "") for side in SIDES)
        return source if LANGUAGE.fullmatch(source) else "src", target if LANGUAGE.fullmatch(target) else "tgt"

    def has_tokenizer(self) -> bool:
        return (self.folder / "tokenizer.json").exists()

    def tokenizer(self, side: str) -> Tokenizer:
        separate = self.folder / TARGET_TOKENIZER / "tokenizer.json"
        path = separate if side == "target" and separate.exists() else self.folder / "tokenizer.json"
        return Tokenizer.from_file(str(path))

    def tokens(self) -> tuple[list[str], list[str]]:
        """Return the tokens of both sides by id; for a converted model, only those of the toolkit."""
        sides = []
        for side in SIDES:
            ids = self.tokenizer(side).get_vocab(with_added_tokens=True)
            count = self.options.get(f"{side}_tokens") or max(ids.values()) + 1
            by_id = {id: token for token, id in ids.items()}
            sides.append([by_id.get(id, f"unused{id}") for id in range(count)])
        return sides[0], sides[1]

    def tensors(self, model: Model, positions: Sinusoids | None) -> dict[str, Tensor]:
        """Return our tensors in the layout of a toolkit, with SOURCE, TARGET and OUTPUT, without the added rows.

        Projections without biases get zeros.

        positions: the toolkit's sinusoids; None if the model's positions are learned
        """
        tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        tensors.pop(SHARED, None)
        rows = {SOURCE: self.options.get("source_tokens"), TARGET: self.options.get("target_tokens")}
        rows[OUTPUT] = rows[OUTPUT_BIAS] = rows[TARGET]
        for name, count in rows.items():
            if name in tensors and count is not None:
                tensors[name] = tensors[name][:count]
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            tensors.setdefault(name.removesuffix("weight") + "bias", torch.zeros(len(tensors[name])))
        if positions is not None and positions.concatenated:
            tensors = concatenate(tensors, model.config.d_model)
        return tensors

    def in_saved_dtype(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors in the precision of the toolkit's file, contiguous; tied matrices stay one."""
        dtype = getattr(torch, self.options.get("dtype", "float32"))
        seen: dict[int, Tensor] = {}
        return {name: seen.setdefault(t.data_ptr(), t.to(dtype).contiguous()) for name, t in tensors.items()}


def save_pickle(content: Mapping[str, Any], path: Path) -> None:
    """torch.save through an open file: given a path, torch does not say why it cannot be written."""
    with path.open("wb") as file:
        torch.save(content, file)
