"""One file per toolkit; hugging_face.py and tutorials.py have two. Importing this package fills READERS and WRITERS."""
# ruff: noqa: F401

from ..toolkit import READERS, WRITERS
from . import (
    ctranslate2,
    eole,
    fairseq,
    hugging_face,
    joeynmt,
    marian,
    opennmt_py,
    sockeye,
    tensor2tensor,
    torch_nn_transformer,
    tutorials,
)
