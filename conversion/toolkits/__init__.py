"""One module per toolkit (hf-marian is hf_marian.py): it reads checkpoints, writes them, or both.

Users give a toolkit's name as the format, with --from and --to. hugging_face.py is not a toolkit: hf_marian.py and
hf_fsmt.py share it.

A module that reads has

    FILES                                 patterns of the checkpoint's file name, the preferred first
    recognise(path) -> bool               whether the file is a checkpoint (RECOGNISED_BY_FILE)
    recognise_content(content) -> bool    whether the dictionary in a file of torch.save is one (RECOGNISED_BY_CONTENT)
    read(path, reasons) -> Description    adds to the reasons every option that our model cannot represent

A module that writes has

    requirements(config)                    fields of our configuration -> the values that the toolkit supports
    write_checkpoint(folder, out, reasons)  adds other reasons why the toolkit cannot represent the model

run.py raises the reasons, and what was written is deleted. A module raises them itself only before a step that would
fail because of them.
"""

from importlib import import_module
from types import ModuleType

# In the order in which they are tried: torch-nn-transformer also recognises the state dict of old fairseq files.
RECOGNISED_BY_CONTENT = ("fairseq", "opennmt-py", "joeynmt", "torch-nn-transformer", "annotated-transformer")
RECOGNISED_BY_FILE = ("marian", "hf-marian", "hf-fsmt", "sockeye", "tensor2tensor")
READERS = RECOGNISED_BY_CONTENT + RECOGNISED_BY_FILE
WRITERS = ("ctranslate2", "fairseq", "marian", "hf-marian", "opennmt-py")


def load_toolkit(toolkit: str) -> ModuleType:
    """Import the module of a toolkit. This takes seconds, because it imports torch and transformers."""
    return import_module("." + toolkit.replace("-", "_"), __name__)
