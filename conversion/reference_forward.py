"""What a toolkit itself computes, wherever it can be imported: the proof at the end of a conversion.

`FORWARDS` build the toolkit's own model. Most toolkits would open a checkpoint by running its pickles, so that they get
options and tensors here that unpickle.py and the readers have let through. Marian, which is a program of its own, reads
its file itself. None of them is needed to convert.
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
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import FSMTForConditionalGeneration, MarianMTModel
from transformers.utils import logging

from .converted import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Converted
from .layout import concatenated_sinusoids, interleaved_sinusoids
from .toolkits import (
    annotated,
    fairseq,
    hf_fsmt,
    hf_marian,
    joeynmt,
    marian,
    opennmt_py,
    sockeye,
    tensor2tensor,
    torch_nn,
)
from .unpickle import load_checkpoint

# (source ids, decoder's input ids), both (1, length) -> logits (1, target, vocabulary)
Forward = Callable[[Tensor, Tensor], Tensor]
# source ids, target ids, and the toolkit's log-probability of each of these
Scored = tuple[list[int], list[int], Tensor]

POSITIONS = "model.{}.positional_encoding.table.weight"
LONGEST_TABLE = 1024


class NotComparable(Exception):
    """Why there is nothing to compare with, in words that finish the line "check: "."""


def scored(converted: Converted, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Scored]:
    """The toolkit's scores of pairs of ids; Marian's are of its own translations of the sources.

    Raises NotComparable if it is not installed, or does not run.
    """
    name = converted.toolkit
    if name in (annotated.NAME, tensor2tensor.NAME):
        raise NotComparable(f"{name} cannot be asked from here")
    try:
        with quiet():
            if name == marian.NAME:
                return marians_own(converted, [source for source, _ in pairs])
            forward = FORWARDS[name](converted)
            start = converted.vocabulary.start_id
            found = []
            for source, target in pairs:
                logits = forward(torch.tensor([source]), torch.tensor([[start, *target[:-1]]]))[0].float()
                chosen = logits.log_softmax(-1).gather(-1, torch.tensor(target)[:, None])
                found.append((source, target, chosen[:, 0]))
            return found
    except ImportError as error:
        missing = error.name or name
        raise NotComparable(
            f"{name} is not installed here" if missing in PACKAGES[name] else f"{name} lacks the package {missing}"
        ) from None
    except NotComparable:
        raise
    except Exception as error:  # of another program, of any version
        first = str(error).strip().split("\n")[0][:200]
        raise NotComparable(f"{name} is installed here, but does not run ({type(error).__name__}: {first})") from error


@contextmanager
def quiet() -> Iterator[None]:
    """What a toolkit says of itself is not about the conversion."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def package(name: str) -> ModuleType:
    return importlib.import_module(name)


def loaded(module: nn.Module, tensors: Mapping[str, Any], tables: str = "no table of positions") -> nn.Module:
    """The module with these tensors; `tables`: how the buffers' names end that it has computed itself."""
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(tables)}
    missing, unexpected = nn.Module.load_state_dict(module, tensors, strict=False)  # OpenNMT-py has its own
    if unexpected or any(not name.endswith(tables) for name in missing):
        raise NotComparable(f"its module has other tensors: {', '.join([*missing, *unexpected][:3])}")
    return module.float().eval()


# ---- one function a toolkit, in the order of the readers ---------------------------------------------------------


def fairseqs(converted: Converted) -> Forward:
    transformer, data = package("fairseq.models.transformer"), package("fairseq.data")
    checkpoint = load_checkpoint(converted.path)
    options = argparse.Namespace(**fairseq.options_of(checkpoint))
    options.encoder_embed_path = options.decoder_embed_path = None  # files of who trained it
    transformer.base_architecture(options)
    dictionaries = []
    for tokens in (converted.vocabulary.source, converted.vocabulary.target):
        dictionary = data.Dictionary()
        for token in tokens[len(dictionary) :]:
            dictionary.add_symbol(token, overwrite=True)
        dictionaries.append(dictionary)
    if getattr(options, "share_all_embeddings", False):
        dictionaries[1] = dictionaries[0]
    task = argparse.Namespace(source_dictionary=dictionaries[0], target_dictionary=dictionaries[1])
    model = transformer.TransformerModel.build_model(options, task)
    model.load_state_dict(dict(checkpoint["model"]), strict=True)  # it knows its own older names
    model.float().eval()
    return lambda ids, target: model(ids, torch.tensor([ids.shape[1]]), target)[0]


def opennmts(converted: Converted) -> Forward:
    builder, inputter = package("onmt.model_builder"), package("onmt.inputters.inputter")
    parser = package("onmt.utils.parse").ArgumentParser
    checkpoint = load_checkpoint(converted.path)
    options = parser.ckpt_model_opts(checkpoint["opt"])
    parser.update_model_opts(options)
    model = builder.build_base_model(options, inputter.dict_to_vocabs(checkpoint["vocab"]))
    weights, generator = opennmt_py.weights_of(checkpoint, converted.path)
    loaded(model, {**weights, **{f"generator.{name}": tensor for name, tensor in generator.items()}}, "pe.pe")

    def forward(ids: Tensor, target: Tensor) -> Tensor:
        target = torch.cat((target, target[:, :1]), dim=1)  # it leaves the last token out
        return model.generator(model(ids[:, :, None], target[:, :, None], torch.tensor([ids.shape[1]]))[0])

    return forward


def joeynmts(converted: Converted) -> Forward:
    models, vocabularies = package("joeynmt.model"), package("joeynmt.vocabulary")
    file = next(file for file in converted.originals if file.suffix == ".yaml")
    vocabulary = converted.vocabulary
    ids = {"unk": vocabulary.unknown, "pad": vocabulary.pad, "bos": vocabulary.bos, "eos": vocabulary.eos}
    symbols: dict[str, Any] = {f"{name}_id": id for name, id in ids.items()}
    symbols |= {f"{name}_token": vocabulary.source[id] for name, id in ids.items() if id is not None}
    special = SimpleNamespace(**symbols, lang_tags=[], sep_token=None)
    sides = [
        vocabularies.Vocabulary([token for id, token in enumerate(tokens) if id not in ids.values()], special)
        for tokens in (vocabulary.source, vocabulary.target)
    ]
    model = models.build_model(joeynmt.read_yaml(file)["model"], *sides)
    loaded(model, load_checkpoint(converted.path)["model_state"], "pe.pe")

    def forward(ids: Tensor, target: Tensor) -> Tensor:
        sizes: dict[str, Any] = {"src_length": torch.tensor([ids.shape[1]]), "src_mask": torch.ones_like(ids) > 0}
        sizes["src_mask"] = sizes["src_mask"][:, None]
        mask = torch.ones_like(target)[:, None] > 0
        return model._encode_decode(src=ids, **sizes, trg_input=target, trg_mask=mask)[0]

    return forward


def sockeyes(converted: Converted) -> Forward:
    model_type = package("sockeye.model").SockeyeModel
    model = model_type(model_type.load_config(str(converted.path.with_name("config"))))
    model.eval()  # fuses keys and values by head, as they are saved
    weights = load_checkpoint(converted.path)
    loaded(model, {name: tensor for name, tensor in weights.items() if not name.startswith("traced_")})

    def forward(ids: Tensor, target: Tensor) -> Tensor:
        lengths = [torch.tensor([[side.shape[1]]]) for side in (ids, target)]
        return model(ids[:, :, None], lengths[0], target[:, :, None], lengths[1])["logits"]

    return forward


def torchs(converted: Converted) -> Forward:
    """nn.Transformer with the file's tensors; embeddings, positions and output around it are as they were read."""
    config, tensors = converted.config, converted.tensors
    weights = torch_nn.state_dict_of(load_checkpoint(converted.path))
    prefix = next(name for name in weights if name.endswith(torch_nn.MARK)).removesuffix(torch_nn.MARK)
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
    names = module.state_dict().keys()
    module.load_state_dict({name: weights[prefix + name] for name in names}, assign=True)
    module.float().eval()
    table = interleaved_sinusoids(LONGEST_TABLE, config["d_model"])
    if converted.concatenated:
        shifted = "position_base" in config
        table = concatenated_sinusoids(LONGEST_TABLE, config["d_model"], shifted=shifted)

    def embedded(ids: Tensor, name: str, stack: str) -> Tensor:
        rows = tensors.get(POSITIONS.format(stack), table)[: ids.shape[1]]
        return tensors[name].float()[ids] * config["d_model"] ** 0.5 + rows.float()

    def forward(ids: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = module(embedded(ids, SOURCE, "encoder"), embedded(target, TARGET, "decoder"), tgt_mask=causal)
        logits = states @ tensors[OUTPUT].float().T
        return logits + tensors[OUTPUT_BIAS].float() if OUTPUT_BIAS in tensors else logits

    return forward


def transformers_own(converted: Converted) -> Forward:
    kinds = {hf_marian.NAME: MarianMTModel, hf_fsmt.NAME: FSMTForConditionalGeneration}
    kind: Any = kinds[converted.toolkit]
    logging.disable_progress_bar()
    model = kind.from_pretrained(converted.path.parent, dtype=torch.float32, local_files_only=True).eval()
    # With its cache FSMT is not causal for several target tokens.
    return lambda ids, target: model(input_ids=ids, decoder_input_ids=target, use_cache=False).logits


FORWARDS: dict[str, Callable[[Converted], Forward]] = {
    fairseq.NAME: fairseqs,
    opennmt_py.NAME: opennmts,
    joeynmt.NAME: joeynmts,
    torch_nn.NAME: torchs,
    hf_marian.NAME: transformers_own,
    hf_fsmt.NAME: transformers_own,
    sockeye.NAME: sockeyes,
}
PACKAGES = {
    fairseq.NAME: ("fairseq", "fairseq.models", "fairseq.data"),
    opennmt_py.NAME: ("onmt",),
    joeynmt.NAME: ("joeynmt",),
    sockeye.NAME: ("sockeye",),
    torch_nn.NAME: (),
    hf_marian.NAME: (),
    hf_fsmt.NAME: (),
}

# ---- Marian ------------------------------------------------------------------------------------------------------

# In a process of its own: Marian ends the process when it does not like an option.
TRANSLATE = """
import json, sys, _pymarian
options, text = json.load(sys.stdin)
json.dump(_pymarian.Translator(options).translate(text), sys.stdout)
"""
OPTIONS = "--beam-size 4 --n-best --word-scores --normalize 0 --cpu-threads 1 --quiet --quiet-translation"


def marians_own(converted: Converted, sources: Sequence[list[int]]) -> list[Scored]:
    """The four best translations that Marian finds for each source, with the scores that it prints, of five digits."""
    if importlib.util.find_spec("_pymarian") is None:
        raise NotComparable("marian (pymarian) is not installed here")
    vocabulary = converted.vocabulary
    if converted.config["norm_position"] == "pre":
        raise NotComparable("the step-wise decoder of a pre-norm Marian is another function than the one it trained")
    if vocabulary.source_tokenizer is None or not converted.originals:
        raise NotComparable("Marian needs its vocabularies to translate")
    texts = [" ".join(vocabulary.source[id] for id in source if id != vocabulary.eos) for source in sources]
    with tempfile.TemporaryDirectory() as place:
        names = []
        files = [file for file in converted.originals if not file.name.endswith(".decoder.yml")]
        for file in [*files, *files][:2]:  # a joint one is both
            names.append(f"{len(names)}{file.suffix}")
            (Path(place) / names[-1]).symlink_to(file.absolute())
            if file.suffix == ".spm":
                texts = [text.replace(" ", "").replace("\u2581", " ").strip() for text in texts]
        (Path(place) / "model.npz").symlink_to(converted.path.absolute())
        pieces = " --no-spm-decode" if any(name.endswith(".spm") for name in names) else ""
        longest = 2 * max(map(len, sources)) + 10
        options = f"--models model.npz --vocabs {' '.join(names)} --max-length {longest} {OPTIONS}{pieces}"
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
    target_ids = {token: id for id, token in enumerate(vocabulary.target)}
    encoded = [vocabulary.source_tokenizer.encode(text).ids for text in texts]
    found = []
    for line in json.loads(child.stdout).splitlines():
        row, words, scores, *_ = line.split(" ||| ")
        values = torch.tensor([float(score) for score in scores.removeprefix("WordScores=").split()])
        target = [*(target_ids[word] for word in words.split()), vocabulary.eos][: len(values)]
        found.append((encoded[int(row)], target, values))
    return found
