"""What a toolkit's file provides: a reader, which describes a checkpoint in terms of our model, a writer, or both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from .folder import OurModel
from .layout import PAPER, SOURCE, TARGET, Sinusoids
from .options import Options, Reasons
from .rename import Rule
from .vocabulary import Vocabulary


@dataclass
class Description:
    """A checkpoint in terms of our model, from which build.py makes our model.

    tensors: by the toolkit's names, with matrices that the toolkit concatenates split
    rules: map each tensor's name to ours
    config: fields of our configuration, except those that follow from the tensors and the vocabulary
    sinusoids: their form, unless the rules read learned tables; saved tables of sinusoids are ignored
    unscaled: the embeddings (SOURCE, TARGET) that the toolkit does not multiply by sqrt(d_model)
    notes: sentences about the model for its users
    assumptions: sentences about properties that the checkpoint does not record, with what to do if they are wrong
    files: files that are copied into the model folder for converting back, besides those of the vocabulary
    search: the checkpoint's own settings of the search, as fields of generation_config.json; the paper's for others
    in_source: whose language's token is in front of sources, "source", "target" or "" for none, if translations begin
        with the target's, so that both are chosen when the model is converted; None for other models
    kept: values that converting it back needs, saved in conversion.json
    reference: computes the logits (rows, target, vocabulary) of the file's own model, if torch or transformers has its
        class, from source ids (rows, source) and the decoder's input ids (rows, target)
    """

    tensors: dict[str, Tensor]
    rules: list[Rule]
    config: dict[str, Any]
    vocabulary: Vocabulary
    sinusoids: Sinusoids = PAPER
    unscaled: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    search: dict[str, Any] = field(default_factory=dict)
    in_source: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    reference: Callable[[Path, "Description", Tensor, Tensor], Tensor] | None = None

    def all_notes(self) -> list[str]:
        return self.assumptions + self.notes + self.vocabulary.notes


Read = Callable[[Path, Reasons], Description]
# Writes a model folder as a checkpoint in a new folder. The options are the fields of our configuration: a writer
# checks that the toolkit supports them, and adds other reasons why it cannot represent the model. If there are reasons,
# convert.py deletes the new folder. It may return notes for the users of the checkpoint, which convert.py prints.
Write = Callable[[OurModel, Path, Options], list[str] | None]


@dataclass(frozen=True)
class Reader:
    """How the checkpoints of a toolkit are recognised and read.

    name: the format that users give with --from
    files: patterns of a checkpoint's file name, the preferred first
    read: describes a checkpoint, and adds to the reasons every option that our model cannot represent
    recognise_file: whether a file is a checkpoint of the toolkit
    recognise_content: instead, whether the dictionary in a file of torch.save is one
    packages: the packages of classes in its pickles, which are replaced by stubs without code

    convert.py raises the reasons. A reader or a writer raises them itself only before a step that would fail because
    of them.
    """

    name: str
    files: Sequence[str]
    read: Read
    recognise_file: Callable[[Path], bool] | None = None
    recognise_content: Callable[[dict[str, Any]], bool] | None = None
    packages: Sequence[str] = ()


READERS: dict[str, Reader] = {}
WRITERS: dict[str, Write] = {}


def register_reader(name: str, files: Sequence[str], **recognition: Any) -> Callable[[Read], Read]:
    """Register the decorated function in READERS. Arguments as in `Reader`."""

    def register(read: Read) -> Read:
        READERS[name] = Reader(name, files, read, **recognition)
        return read

    return register


def register_writer(name: str) -> Callable[[Write], Write]:
    """Register the decorated function in WRITERS, under the format that users give with --to."""

    def register(write: Write) -> Write:
        WRITERS[name] = write
        return write

    return register


def explain_penalty(name: str, ranking: str) -> str:
    """Return the note about a toolkit whose length penalty is not ours. ranking: its formula"""
    return f"{name} ranks hypotheses by {ranking}, generate() by log P / ((5 + L) / 6)^alpha: their order can differ."


def count_embeddings(tensors: dict[str, Tensor], rules: list[Rule]) -> list[int]:
    """Return the numbers of rows of the source's and the target's embedding; 0 if it is missing."""
    names = {rule.ours: rule.theirs for rule in rules}
    return [len(tensors[names[name]]) if names[name] in tensors else 0 for name in (SOURCE, TARGET)]
