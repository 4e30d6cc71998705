"""One file per toolkit; hugging_face.py and tutorials.py have several. Importing them fills READERS and WRITERS.

conversion/__init__.py says how to add one.
"""
# ruff: noqa: F401

from ..toolkit import READERS, WRITERS
from . import (
    ctranslate2,
    eole,
    fairseq,
    hugging_face,
    hugging_face_prenorm,
    joeynmt,
    marian,
    opennmt_py,
    sockeye,
    tensor2tensor,
    torch_nn_transformer,
    tutorials,
)
