"""One file per toolkit; hugging_face.py has two. Importing this package fills READERS and WRITERS."""
# ruff: noqa: F401

from ..toolkit import READERS, WRITERS
from . import (
    annotated_transformer,
    ctranslate2,
    eole,
    fairseq,
    hugging_face,
    joeynmt,
    marian,
    opennmt_py,
    pytorch_seq2seq,
    sockeye,
    tensor2tensor,
    torch_nn_transformer,
)
