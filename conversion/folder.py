"""Read a model folder, to convert its model to another toolkit's format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.files import read_json_object
from vaswani_transformer.loading import as_dtype, load_model
from vaswani_transformer.model_folder import CONVERSION_RECORD, NEVER, ORIGINALS, ModelFolder

from .layout import OUTPUT, OUTPUT_BIAS, SHARED, SOURCE, TARGET, Sinusoids, concatenate
from .vocabulary import SIDES

# In CONVERSION_RECORD: "toolkit", its name; "file", the checkpoint's name; "options", what converting it back needs:
# `Description.kept`, the numbers of the toolkit's tokens (source_tokens, target_tokens) and the checkpoint's dtype.


class OurModel:
    """A model of this package that is to be written in a toolkit's format.

    toolkit: the toolkit that the model came from; "" for a model that was trained with this project
    kept: the values that converting back needs, see above
    originals: the folder of the toolkit's vocabulary files
    rows: by side, the number of embeddings that are written: the toolkit's, or all
    """

    def __init__(self, path: Path):
        self.path = path
        self.originals = path / ORIGINALS
        self.folder = ModelFolder(path)
        self.model = load_model(self.folder, device="cpu")
        self.config: Any = self.model.config
        self.toolkit, self.kept = "", {}
        self.keep_all_rows()
        file = path / CONVERSION_RECORD
        if file.exists():
            try:
                content = read_json_object(file, "options")
                self.toolkit, self.kept = str(content["toolkit"]), {**content["options"]}
                rows = {side: self.kept.get(f"{side}_tokens", largest) for side, largest in self.rows.items()}
                fit = [type(count) is int and 0 < count <= self.rows[side] for side, count in rows.items()]
                if not all(fit) or (self.config.share_encoder_decoder_embeddings and len({*rows.values()}) > 1):
                    raise ValueError(f"source_tokens and target_tokens are {rows}; the model has {self.rows}")
                self.rows = rows
                as_dtype(self.kept.get("dtype"))
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise BrokenFileError(f"{file} is not a record of a conversion ({error})") from None

    def keep_all_rows(self) -> None:
        """Treat the special tokens and aliases that were added for our model as part of the vocabulary."""
        self.rows: dict[str, int] = {"source": self.config.vocab_size, "target": self.config.decoder_vocab_size}

    def check_excluded(self) -> None:
        """Raise InputError if target tokens that are not written can be generated.

        Conversion excludes those that it adds; users may add further ones to the converted model.
        """
        rows, bias = self.rows["target"], self.model.lm_head.bias
        generated = torch.zeros(self.config.decoder_vocab_size) if bias is None else bias.detach()
        lost = (generated[rows:] > NEVER / 2).nonzero().flatten()
        if len(lost):
            raise InputError(
                f"{self.path / CONVERSION_RECORD} counts {rows} target tokens; {len(lost)} more that the model can "
                f"generate, from id {rows + int(lost[0])} on, would be lost; remove this file to write all tokens, "
                "which marian and hf-prenorm cannot"
            )

    def has_tokenizer(self) -> bool:
        return (self.path / "tokenizer.json").exists()

    def tokenizer(self, side: str) -> Tokenizer:
        return self.folder.target_tokenizer if side == "target" else self.folder.tokenizer

    def tokens(self) -> tuple[list[str], list[str]]:
        """Return the first `rows` tokens of both sides by id."""
        sides = []
        for side in SIDES:
            by_id = {id: token for token, id in self.tokenizer(side).get_vocab(with_added_tokens=True).items()}
            sides.append([by_id.get(id, f"unused{id}") for id in range(self.rows[side])])
        return sides[0], sides[1]

    def tensors(self, sinusoids: Sinusoids | None) -> dict[str, Tensor]:
        """Return our tensors in the layout of a toolkit, with SOURCE, TARGET and OUTPUT separate and cut to `rows`.

        Projections without biases get zeros.

        sinusoids: the toolkit's; None if the model's positions are learned
        """
        self.check_excluded()
        tensors = {name: tensor.detach() for name, tensor in self.model.state_dict().items()}
        tensors.pop(SHARED, None)
        for name, side in ((SOURCE, "source"), (TARGET, "target"), (OUTPUT, "target"), (OUTPUT_BIAS, "target")):
            if name in tensors:
                tensors[name] = tensors[name][: self.rows[side]]
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            tensors.setdefault(name.removesuffix("weight") + "bias", torch.zeros(len(tensors[name])))
        if sinusoids is not None and sinusoids.concatenated:
            tensors = concatenate(tensors, self.config.d_model)
        return tensors

    def in_saved_dtype(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors in the precision of the toolkit's file, contiguous; tied matrices stay tied."""
        dtype = getattr(torch, self.kept.get("dtype", "float32"))
        seen: dict[int, Tensor] = {}
        return {name: seen.setdefault(t.data_ptr(), t.to(dtype).contiguous()) for name, t in tensors.items()}
