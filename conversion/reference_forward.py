"""The toolkits' own models, if they are installed, for the comparison at the end of a conversion.

Most toolkits would open a checkpoint by running its pickles, so they get options and tensors here that unpickle.py and
the readers have checked. Marian, a separate program, reads its file itself. No toolkit is needed for converting.
"""

import argparse
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import FSMTForConditionalGeneration, MarianMTModel
from transformers.utils import logging

from .description import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Description
from .layout import DECODER_POSITIONS, ENCODER_POSITIONS
from .toolkits import fairseq, hf_fsmt, hf_marian, joeynmt, marian, opennmt_py, sockeye, torch_nn
from .unpickle import load_checkpoint
from .vocabulary import SIDES
from .yaml_files import read_yaml

# (source ids, decoder's input ids), both (1, length) -> logits (1, target, vocabulary)
Forward = Callable[[Tensor, Tensor], Tensor]
# source ids, target ids, and the toolkit's log-probability of each token of the target
Scored = tuple[list[int], list[int], Tensor]

TABLE_ROWS = 1024


class NotComparable(Exception):
    """Why a comparison is not possible, as the rest of the line "check: "."""


def toolkit_scores(description: Description, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Scored]:
    """Return the toolkit's scores of pairs of ids; Marian's are of its own translations of the sources.

    Raises NotComparable if the toolkit is not installed or does not run.
    """
    name = description.toolkit
    if name != marian.NAME and name not in FORWARDS:
        raise NotComparable(f"{name} cannot be run from here")
    try:
        with silence():
            if name == marian.NAME:
                return marian_scores(description, [source for source, _ in pairs])
            forward = FORWARDS[name](description)
            start = description.vocabulary.start_id
            scored = []
            for source, target in pairs:
                logits = forward(torch.tensor([source]), torch.tensor([[start, *target[:-1]]]))[0].float()
                chosen = logits.log_softmax(-1).gather(-1, torch.tensor(target)[:, None])
                scored.append((source, target, chosen[:, 0]))
            return scored
    except ImportError as error:
        missing = error.name or name
        if missing.split(".")[0] == PACKAGES.get(name):
            raise NotComparable(f"{name} is not installed here") from None
        raise NotComparable(f"{name} lacks the package {missing}") from None
    except NotComparable:
        raise
    except Exception as error:  # of another program, of any version
        first = str(error).strip().split("\n")[0][:200]
        raise NotComparable(f"{name} is installed here, but does not run ({type(error).__name__}: {first})") from error


@contextmanager
def silence() -> Iterator[None]:
    """Drop the output and the warnings of a toolkit, which do not concern the conversion."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def loaded(module: nn.Module, tensors: Mapping[str, Any], tables: str = "no table of positions") -> nn.Module:
    """Return the module with these tensors. tables: the end of the names of buffers that the module computes itself"""
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(tables)}
    missing, unexpected = nn.Module.load_state_dict(module, tensors, strict=False)  # OpenNMT-py overrides it
    if unexpected or any(not name.endswith(tables) for name in missing):
        raise NotComparable(f"its module has other tensors: {', '.join([*missing, *unexpected][:3])}")
    return module.float().eval()


# ---- one function per toolkit ------------------------------------------------------------------------------------


def fairseq_forward(description: Description) -> Forward:
    """fairseq's TransformerModel with the checkpoint's options."""
    transformer, data = import_module("fairseq.models.transformer"), import_module("fairseq.data")
    checkpoint = load_checkpoint(description.path)
    options = argparse.Namespace(**fairseq.options_of(checkpoint))
    options.encoder_embed_path = options.decoder_embed_path = None  # files on the machine of the training
    transformer.base_architecture(options)
    dictionaries = []
    for side in SIDES:
        dictionary = data.Dictionary()
        for token in description.vocabulary.tokens(side)[len(dictionary) :]:
            dictionary.add_symbol(token, overwrite=True)
        dictionaries.append(dictionary)
    if getattr(options, "share_all_embeddings", False):
        dictionaries[1] = dictionaries[0]
    task = argparse.Namespace(source_dictionary=dictionaries[0], target_dictionary=dictionaries[1])
    model = transformer.TransformerModel.build_model(options, task)
    model.load_state_dict(dict(checkpoint["model"]), strict=True)  # it knows the names of its older versions
    model.float().eval()
    return lambda ids, target: model(ids, torch.tensor([ids.shape[1]]), target)[0]


def opennmt_forward(description: Description) -> Forward:
    """OpenNMT-py's model with the checkpoint's options and vocabularies."""
    builder, inputter = import_module("onmt.model_builder"), import_module("onmt.inputters.inputter")
    parser = import_module("onmt.utils.parse").ArgumentParser
    checkpoint = load_checkpoint(description.path)
    options = parser.ckpt_model_opts(checkpoint["opt"])
    parser.update_model_opts(options)
    model = builder.build_base_model(options, inputter.dict_to_vocabs(checkpoint["vocab"]))
    loaded(model, opennmt_py.weights_of(checkpoint, description.path), "pe.pe")

    def forward(ids: Tensor, target: Tensor) -> Tensor:
        target = torch.cat((target, target[:, :1]), dim=1)  # it leaves the last token out
        return model.generator(model(ids[:, :, None], target[:, :, None], torch.tensor([ids.shape[1]]))[0])

    return forward


def joeynmt_forward(description: Description) -> Forward:
    """JoeyNMT's model with the configuration beside the checkpoint."""
    models, vocabularies = import_module("joeynmt.model"), import_module("joeynmt.vocabulary")
    vocabulary = description.vocabulary
    ids = {"unk": vocabulary.unknown, "pad": vocabulary.pad, "bos": vocabulary.bos, "eos": vocabulary.eos}
    symbols: dict[str, Any] = {f"{name}_id": id for name, id in ids.items()}
    symbols |= {f"{name}_token": vocabulary.source[id] for name, id in ids.items() if id is not None}
    special = SimpleNamespace(**symbols, lang_tags=[], sep_token=None)
    sides = [
        vocabularies.Vocabulary(
            [token for id, token in enumerate(vocabulary.tokens(side)) if id not in ids.values()], special
        )
        for side in SIDES
    ]
    model = models.build_model(read_yaml(description.files[0])["model"], *sides)
    loaded(model, load_checkpoint(description.path)["model_state"], "pe.pe")

    def forward(ids: Tensor, target: Tensor) -> Tensor:
        lengths, masks = torch.tensor([ids.shape[1]]), [torch.ones_like(side)[:, None] > 0 for side in (ids, target)]
        return model._encode_decode(
            src=ids, src_length=lengths, src_mask=masks[0], trg_input=target, trg_mask=masks[1]
        )[0]

    return forward


def sockeye_forward(description: Description) -> Forward:
    """Sockeye's model with the `config` beside the parameters."""
    model_type = import_module("sockeye.model").SockeyeModel
    model = model_type(model_type.load_config(str(description.path.with_name("config"))))
    model.eval()  # fuses keys and values by head, as they are saved
    weights = load_checkpoint(description.path)
    loaded(model, {name: tensor for name, tensor in weights.items() if not name.startswith("traced_")})

    def forward(ids: Tensor, target: Tensor) -> Tensor:
        lengths = [torch.tensor([[side.shape[1]]]) for side in (ids, target)]
        return model(ids[:, :, None], lengths[0], target[:, :, None], lengths[1])["logits"]

    return forward


def torch_forward(description: Description) -> Forward:
    """nn.Transformer with the file's tensors; embeddings, positions and output around it as the reader found them."""
    config, tensors = description.config, description.tensors
    around = {rule.ours: tensors[rule.theirs].float() for rule in description.rules if rule.theirs in tensors}
    with torch.device("meta"):
        module = nn.Transformer(
            d_model=config["d_model"],
            nhead=config["encoder_attention_heads"],
            num_encoder_layers=config["encoder_layers"],
            num_decoder_layers=config["decoder_layers"],
            dim_feedforward=config["encoder_ffn_dim"],
            activation=config["activation_function"],
            norm_first=config["norm_position"] == "pre",
            layer_norm_eps=config["layer_norm_eps"],
            bias=config["attention_bias"],
            batch_first=True,
        )
    for stack in ("encoder", "decoder"):
        if not config[f"{stack}_final_norm"]:
            getattr(module, stack).norm = None
    weights = torch_nn.without_prefix(torch_nn.state_dict_of(load_checkpoint(description.path)))
    module.load_state_dict({name: weights[name] for name in module.state_dict()}, assign=True)
    module.float().eval()
    table = description.positions.table(TABLE_ROWS, config["d_model"]).float()

    def embedded(ids: Tensor, embedding: str, positions: str) -> Tensor:
        return around[embedding][ids] * config["d_model"] ** 0.5 + around.get(positions, table)[: ids.shape[1]]

    def forward(ids: Tensor, target: Tensor) -> Tensor:
        source, target = embedded(ids, SOURCE, ENCODER_POSITIONS), embedded(target, TARGET, DECODER_POSITIONS)
        states = module(source, target, tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]))
        return states @ around[OUTPUT].T + around.get(OUTPUT_BIAS, torch.zeros(()))

    return forward


def transformers_forward(description: Description) -> Forward:
    kinds = {hf_marian.NAME: MarianMTModel, hf_fsmt.NAME: FSMTForConditionalGeneration}
    kind: Any = kinds[description.toolkit]
    logging.disable_progress_bar()
    model = kind.from_pretrained(description.path.parent, dtype=torch.float32, local_files_only=True).eval()
    # With its cache FSMT is not causal for several target tokens.
    return lambda ids, target: model(input_ids=ids, decoder_input_ids=target, use_cache=False).logits


FORWARDS: dict[str, Callable[[Description], Forward]] = {
    fairseq.NAME: fairseq_forward,
    opennmt_py.NAME: opennmt_forward,
    joeynmt.NAME: joeynmt_forward,
    torch_nn.NAME: torch_forward,
    hf_marian.NAME: transformers_forward,
    hf_fsmt.NAME: transformers_forward,
    sockeye.NAME: sockeye_forward,
}
PACKAGES = {fairseq.NAME: "fairseq", opennmt_py.NAME: "onmt", joeynmt.NAME: "joeynmt", sockeye.NAME: "sockeye"}

# ---- Marian ------------------------------------------------------------------------------------------------------

# In a separate process: Marian ends the process when it refuses an option.
TRANSLATE = """
import json, sys, _pymarian
options, text = json.load(sys.stdin)
json.dump(_pymarian.Translator(options).translate(text), sys.stdout)
"""
OPTIONS = "--beam-size 4 --n-best --word-scores --normalize 0 --cpu-threads 1 --quiet --quiet-translation"


def marian_scores(description: Description, sources: Sequence[list[int]]) -> list[Scored]:
    """Return Marian's four best translations of each source, with the scores as printed, to five digits."""
    if importlib.util.find_spec("_pymarian") is None:
        raise NotComparable("marian (pymarian) is not installed here")
    vocabulary = description.vocabulary
    if description.config["norm_position"] == "pre":
        raise NotComparable("the step-wise decoder of a pre-norm Marian is another function than the one it trained")
    if not vocabulary.tokenizers:
        raise NotComparable("Marian needs its vocabularies to translate")
    texts = [" ".join(vocabulary.source[id] for id in source if id != vocabulary.eos) for source in sources]
    files = [file for file in vocabulary.files if not file.name.endswith(".decoder.yml")]
    if any(file.suffix == ".spm" for file in files):
        texts = [text.replace(" ", "").replace("\u2581", " ").strip() for text in texts]
    printed = marian_translations(description.path, files, texts, max_length=2 * max(map(len, sources)) + 10)

    target_ids = {token: id for id, token in enumerate(vocabulary.target)}
    encoded = [vocabulary.tokenizers["source"].encode(text).ids for text in texts]
    scored = []
    for line in printed:
        row, words, scores, *_ = line.split(" ||| ")
        values = torch.tensor([float(score) for score in scores.removeprefix("WordScores=").split()])
        target = [*(target_ids[word] for word in words.split()), vocabulary.eos][: len(values)]
        scored.append((encoded[int(row)], target, values))
    return scored


def marian_translations(path: Path, vocabularies: list[Path], texts: list[str], max_length: int) -> list[str]:
    """Return the lines that Marian prints: row ||| words ||| WordScores=... ||| ..."""
    with tempfile.TemporaryDirectory() as place:
        names = []
        for file in [*vocabularies, *vocabularies][:2]:  # a joint one is both
            names.append(f"{len(names)}{file.suffix}")
            (Path(place) / names[-1]).symlink_to(file.absolute())
        (Path(place) / "model.npz").symlink_to(path.absolute())
        pieces = " --no-spm-decode" if any(name.endswith(".spm") for name in names) else ""
        options = f"--models model.npz --vocabs {' '.join(names)} --max-length {max_length} {OPTIONS}{pieces}"
        child = subprocess.run(
            [sys.executable, "-c", TRANSLATE],
            input=json.dumps([options, "\n".join(texts)]),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
    if child.returncode:
        lines = [line for line in child.stderr.splitlines() if "rror" in line] or [f"exit code {child.returncode}"]
        raise NotComparable(f"marian is installed here, but does not run ({lines[0][:200]})")
    return json.loads(child.stdout).splitlines()
