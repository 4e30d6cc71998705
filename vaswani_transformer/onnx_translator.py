"""The Translator on ONNX Runtime: onnxruntime, tokenizers and numpy, without torch and without transformers.

>>> translator = OnnxTranslator.from_pretrained("demo-onnx")
>>> translator.translate(["The house is small."])
['Das Haus ist klein.']
"""

import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from tokenizers import Tokenizer

from .errors import BrokenFileError, InputError, UnavailableError, one_line, out_of_memory
from .model_folder import read_json_object
from .text_translator import MAX_BEAMS, Hypothesis, TextTranslator, check_length_penalty, check_number
from .text_vaswani_transformer import TARGET_TOKENIZER

GRAPH = "model.onnx"
INPUTS = {
    "input_ids",
    "attention_mask",
    "num_beams",
    "max_length",
    "length_penalty",
    "min_length",
    "num_return_sequences",
}
NO_HYPOTHESIS = -1e8  # a score below is that of an empty slot
NO_MAXIMUM = 1_000_000


class OnnxTranslator(TextTranslator):
    """A graph with the search in it, and its tokenizer."""

    def __init__(
        self,
        session: Any,
        tokenizer: Tokenizer,
        config: dict[str, Any],
        target_tokenizer: Tokenizer | None = None,
        search: tuple[int, float] = (4, 0.6),
    ):
        """session: an onnxruntime.InferenceSession;  config: the model's config.json

        target_tokenizer: of the decoder's vocabulary, where it is not the encoder's
        search: beam size and alpha where a call names none
        """
        self.session, self.tokenizer, self.config, self.search = session, tokenizer, config, search
        self.loaded: tuple[Path, str | None, int | None] | None = None  # from_pretrained's folder, device and threads
        self.target_tokenizer = target_tokenizer or tokenizer
        self.vocabulary: int = config["vocab_size"]
        self.pad: int = config["pad_token_id"]
        self.positions: int | None = config.get("max_position_embeddings")

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, device: str | None = None, threads: int | None = None
    ) -> "OnnxTranslator":
        """An OnnxTranslator from the folder that `vaswani-transformer export onnx` wrote.

        device: "cpu", "cuda" or "cuda:1"; None for CUDA where ONNX Runtime has it.
        threads: of one operator on the CPU; None for as many as there are cores.
        Raises InputError, BrokenFileError or UnavailableError naming the file that cannot be used, and why.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder")
        config = checked_config(folder / "config.json")
        tokenizer = checked_tokenizer(folder, config["vocab_size"])
        target = config.get("decoder_vocab_size") or config["vocab_size"]
        second = None
        if (folder / TARGET_TOKENIZER).is_dir():
            second = checked_tokenizer(folder / TARGET_TOKENIZER, target, "decoder_vocab_size")
        elif target != config["vocab_size"]:
            raise InputError(
                f"the model has {config['vocab_size']} source and {target} target tokens; it needs a second tokenizer, "
                f"for its translations: {folder / TARGET_TOKENIZER / 'tokenizer.json'}"
            )
        if second is None:
            check_end(folder, tokenizer, config["eos_token_id"])
        else:  # OpenNMT-py's sources have no </s>
            check_end(folder / TARGET_TOKENIZER, second, config["eos_token_id"])
        session = load_session(folder / GRAPH, device, threads)
        sizes = session.get_modelmeta().custom_metadata_map  # a file that we did not write has none
        for field, size in (("vocab_size", config["vocab_size"]), ("decoder_vocab_size", target)):
            if sizes.get(field, str(size)) != str(size):
                raise BrokenFileError(
                    f"{folder / GRAPH} has {field} {sizes[field]}, but {folder / 'config.json'} has {size}: "
                    "graph and config do not belong together"
                )
        translator = cls(session, tokenizer, config, second, checked_search(folder / "generation_config.json"))
        translator.loaded = (folder.absolute(), device, threads)
        # The first call allocates memory and, on a GPU, chooses kernels.
        translator.generate(np.full((1, 2), translator.pad), np.ones((1, 2), np.int64), max_length=2)
        return translator

    def generate(
        self,
        input_ids: np.ndarray,
        attention_mask: np.ndarray | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
        min_length: int = 0,
        num_return_sequences: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Token ids in, token ids out.

        input_ids, attention_mask: (batch, source), each sentence ending in </s> and padded on the right; without a
            mask, what is not padding counts
        num_beams, length_penalty: beam size and alpha of the GNMT penalty; default: the model's own (`own_search`)
        max_length: output tokens, beside the limit that every sentence has, its source tokens + 50
        min_length: tokens before </s>
        num_return_sequences: how many of the best hypotheses are wanted, None for num_beams; fewer are sooner certain
        returns sequences (batch, num_return_sequences, length), best first, padded, and their scores, (batch,
            num_return_sequences)
        Raises InputError naming the row of ids that the graph would misread: ONNX Runtime takes -1 for the last one.
        """
        input_ids = checked_ids(input_ids, self.vocabulary)
        mask = (input_ids != self.pad) if attention_mask is None else as_array(attention_mask, "attention_mask")
        if mask.shape != input_ids.shape:
            raise InputError(f"attention_mask has shape {mask.shape} and input_ids {input_ids.shape}; they must agree")
        if mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
            raise InputError("attention_mask must hold integers, 1 at tokens and 0 at padding")
        empty = np.flatnonzero(mask.sum(axis=1) == 0)
        if empty.size:
            raise InputError(f"source row {empty[0]} is empty: all of it is padding")
        if self.positions is not None and input_ids.shape[1] > self.positions:
            raise InputError(f"input_ids has {input_ids.shape[1]} columns; the model has {self.positions} positions")
        num_beams, length_penalty = self.search_settings(num_beams, length_penalty)
        num_beams = check_number("num_beams", num_beams, 1, MAX_BEAMS)
        check_length_penalty(length_penalty)
        check_number("max_length", NO_MAXIMUM if max_length is None else max_length, 1, NO_MAXIMUM)
        check_number("min_length", min_length, 0, NO_MAXIMUM)
        wanted = num_beams if num_return_sequences is None else num_return_sequences
        check_number("num_return_sequences", wanted, 1, num_beams)
        inputs = {
            "input_ids": input_ids.astype(np.int64),
            "attention_mask": mask.astype(np.int64),
            "num_beams": np.array(num_beams, np.int64),
            "max_length": np.array(NO_MAXIMUM if max_length is None else max_length, np.int64),
            "length_penalty": np.array(length_penalty, np.float32),
            "min_length": np.array(min_length, np.int64),
            "num_return_sequences": np.array(wanted, np.int64),
        }
        return self._run(inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process (datasets.map, multiprocessing) loads the folder again: no session can be handed over."""
        if self.loaded is None:
            raise TypeError("an OnnxTranslator of a session, and not of a folder, cannot be pickled")
        return type(self).from_pretrained, self.loaded

    def score(self, *_: object, **__: object) -> NoReturn:
        """Raises InputError: the file holds the search alone."""
        raise InputError('an ONNX file holds the search alone: translations are scored with backend="torch"')

    def _run(self, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """One call a batch; ids go straight to the device that the graph runs on, what shapes are made of does not."""
        import onnxruntime

        binding = self.session.io_binding()
        on_cuda = self.session.get_providers()[0] == "CUDAExecutionProvider"
        device = int(self.session.get_provider_options()["CUDAExecutionProvider"]["device_id"]) if on_cuda else 0
        for name, array in inputs.items():
            place = ("cuda", device) if on_cuda and array.ndim else ("cpu", 0)
            value = onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"), *place)
            binding.bind_ortvalue_input(name, value)
        for name in ("sequences", "scores"):
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        sequences, scores = binding.copy_outputs_to_cpu()
        return sequences, scores

    @property
    def own_search(self) -> tuple[int, float]:
        return self.search

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        encoding = self.tokenizer.encode(text)
        return encoding.ids, [start for start, _ in encoding.offsets]

    def _decode(self, tokens: list[int]) -> str:
        return self.target_tokenizer.decode(tokens, skip_special_tokens=True)

    def _search(
        self, sources: list[list[int]], num_beams: int, length_penalty: float, n_best: int
    ) -> list[list[Hypothesis]]:
        longest = max(map(len, sources))
        input_ids = np.array([source + [self.pad] * (longest - len(source)) for source in sources])
        mask = np.array([[1] * len(source) + [0] * (longest - len(source)) for source in sources])
        sequences, scores = self.generate(input_ids, mask, num_beams, length_penalty, num_return_sequences=n_best)
        return self._hypotheses(sequences.tolist(), scores.tolist())


def as_array(rows: np.ndarray, name: str) -> np.ndarray:
    """Raises InputError if the rows are lists of unequal length."""
    try:
        return np.asarray(rows)
    except ValueError:
        raise InputError(f"{name} has rows of unequal length; they must be padded on the right") from None


def checked_ids(input_ids: np.ndarray, vocabulary: int) -> np.ndarray:
    """Integer ids (batch, source), neither 0, all of them in the vocabulary. Raises InputError naming the row."""
    input_ids = as_array(input_ids, "input_ids")
    if input_ids.ndim != 2 or 0 in input_ids.shape:
        raise InputError(f"input_ids has shape {input_ids.shape}; it must be (batch, source), neither 0")
    if input_ids.dtype.kind not in "iu":
        raise InputError(f"input_ids holds {input_ids.dtype}; token ids are integers")
    wrong = np.flatnonzero(((input_ids < 0) | (input_ids >= vocabulary)).any(axis=1))
    if wrong.size:
        row = wrong[0]
        raise InputError(
            f"input_ids row {row} has ids from {input_ids[row].min()} to {input_ids[row].max()}; "
            f"the vocabulary goes from 0 to {vocabulary - 1}"
        )
    return input_ids


def load_session(path: Path, device: str | None = None, threads: int | None = None) -> Any:
    """The graph on a device; None: on the CPU where CUDA does not work.

    Raises BrokenFileError naming a file that is missing, truncated or another kind of graph, UnavailableError if the
    device that was asked for cannot be used: ONNX Runtime itself would go on with the CPU.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise UnavailableError('onnxruntime is not installed: pip install "vaswani-transformer[onnx]"') from None
    if not path.is_file():
        raise BrokenFileError(f"{path}: no such file; `vaswani-transformer export onnx MODEL NEW_FOLDER` writes one")
    providers = checked_providers(onnxruntime, device)
    on_cuda = len(providers) > 1
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it warns of inputs with defaults, and prints what is raised below
    if threads is not None:
        options.intra_op_num_threads = check_number("threads", threads, 1, 1024)
    try:
        # Its own way to go on with the CPU prints on stdout.
        session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    except Exception as error:  # its exceptions have no common base
        if out_of_memory(error):
            raise
        check_external_data(path)
        if on_cuda and device is None:
            return load_session(path, "cpu", threads)
        if on_cuda:
            raise UnavailableError(f"device {device!r}: {one_line(str(error))[:200]}") from None
        raise BrokenFileError(
            f"{path} is not a whole ONNX file ({path.stat().st_size:,} bytes: {one_line(str(error))[:200]}); "
            "copy or export it again"
        ) from None
    if on_cuda and device is not None and session.get_providers()[0] != "CUDAExecutionProvider":
        raise UnavailableError(f"device {device!r}: ONNX Runtime cannot load CUDA here; its libraries may be missing")
    missing = INPUTS - {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}
    if missing:
        raise BrokenFileError(f"{path} is another kind of graph: it has no input {', '.join(sorted(missing))}")
    return session


def check_external_data(path: Path) -> None:
    """Raises BrokenFileError naming a file of weights beside a graph that is missing or shorter than the graph says.

    What we export is one file up to 2 GB; other tools divide it. ONNX names such a file in entries (key, value) of a
    tensor.
    """
    content = path.read_bytes()

    def value(key: bytes, start: int, end: int) -> bytes:
        found = content.find(b"\x0a" + bytes([len(key)]) + key + b"\x12", start, end) + len(key) + 3
        return content[found + 1 : found + 1 + content[found]] if found >= start + len(key) + 3 else b"0"

    needed: dict[bytes, int] = {}
    try:
        for entry in re.finditer(rb"\x0a\x08location\x12", content):
            name = value(b"location", entry.start(), entry.end())
            end = entry.end() + len(name) + 80
            size = int(value(b"offset", entry.end(), end)) + int(value(b"length", entry.end(), end))
            needed[name] = max(needed.get(name, 0), size)
    except (IndexError, ValueError):  # the graph itself ends, or is damaged, within an entry
        return
    for name, size in needed.items():
        data = path.parent / os.fsdecode(name)
        if not data.is_file():
            raise BrokenFileError(f"{data}: no such file; {path} keeps weights in it: copy it, too, or export again")
        if data.stat().st_size < size:
            raise BrokenFileError(
                f"{data} has {data.stat().st_size:,} of {size:,} bytes; copy it again, or export again"
            )


def checked_providers(onnxruntime: Any, device: str | None) -> list[Any]:
    """ONNX Runtime's execution providers for a device. Raises InputError or UnavailableError."""
    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    if device is None:
        device = "cuda" if has_cuda else "cpu"
    kind, colon, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not index.isdecimal()):
        raise InputError(f"device {device!r} is not one that the ONNX backend knows: cpu, cuda, cuda:1")
    if kind == "cpu":
        return ["CPUExecutionProvider"]
    if not has_cuda:
        raise UnavailableError(
            f"device {device!r}: this onnxruntime has no CUDA; pip uninstall onnxruntime, then "
            'pip install "vaswani-transformer[onnx-gpu]"'
        )
    with redirect_stdout(sys.stderr):  # It prints which libraries it did not find; stdout is for translations.
        onnxruntime.preload_dlls()
    # TensorFloat-32 is on by default there, which is not the float32 of torch and of the CPU.
    return [("CUDAExecutionProvider", {"device_id": int(index or 0), "use_tf32": 0}), "CPUExecutionProvider"]


def checked_config(path: Path) -> dict[str, Any]:
    """config.json, as far as a runtime needs it. Raises BrokenFileError naming file and field."""
    config = read_json_object(path)
    if config.get("model_type") != "vaswani_transformer":
        raise InputError(
            f"{path}: model_type is {config.get('model_type')!r}; this program reads 'vaswani_transformer'"
        )
    vocabulary = config.get("vocab_size")
    if type(vocabulary) is not int or not 1 <= vocabulary <= 10_000_000:
        raise BrokenFileError(f"{path}: vocab_size is {vocabulary!r}; it must lie between 1 and 10000000")
    target = config.get("decoder_vocab_size")
    if target is not None and (type(target) is not int or not 1 <= target <= 10_000_000):
        raise BrokenFileError(f"{path}: decoder_vocab_size is {target!r}; it must be a positive number or null")
    pad = config.get("pad_token_id")
    if type(pad) is not int or not 0 <= pad < vocabulary:
        raise BrokenFileError(f"{path}: pad_token_id is {pad!r}; ids go from 0 to {vocabulary - 1} (vocab_size)")
    end = config.get("eos_token_id")
    if type(end) is not int or not 0 <= end < vocabulary:
        raise BrokenFileError(f"{path}: eos_token_id is {end!r}; ids go from 0 to {vocabulary - 1} (vocab_size)")
    if config.get("position_embedding_type") != "learned":
        config["max_position_embeddings"] = None  # sinusoids have none; torch, too, ignores what ported files say
    positions = config.get("max_position_embeddings")
    if positions is not None and (type(positions) is not int or positions < 1):
        raise BrokenFileError(f"{path}: max_position_embeddings is {positions!r}; it must be a positive number or null")
    return config


def checked_search(path: Path) -> tuple[int, float]:
    """Beam size and alpha of generation_config.json, as generate() reads it (`own_search`). Raises BrokenFileError."""
    settings = read_json_object(path) if path.exists() else {"num_beams": 4, "length_penalty": 0.6}
    beams, alpha = settings.get("num_beams"), settings.get("length_penalty")
    try:
        beams = check_number("num_beams", 1 if beams is None else beams, 1, MAX_BEAMS)
        alpha = 1.0 if alpha is None else alpha
        check_length_penalty(alpha)
    except InputError as error:
        raise BrokenFileError(f"{path}: {error}") from None
    return beams, alpha


def checked_tokenizer(folder: Path, vocabulary: int, field: str = "vocab_size") -> Tokenizer:
    """tokenizer.json; its ids lie in the model's vocabulary. Raises BrokenFileError.

    field: of config.json, that says how large the vocabulary is
    """
    path = folder / "tokenizer.json"
    read_json_object(path)
    str(path).encode()  # UnicodeEncodeError for a name that tokenizers does not take: errors.py says it better
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises bare Exceptions
        raise BrokenFileError(f"{path} is not a tokenizer ({error}); copy or fetch it again") from None
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocabulary:
        raise BrokenFileError(
            f"{path} has ids up to {largest}, but config.json has {field} {vocabulary}: "
            "tokenizer and model do not belong together"
        )
    settings_path = folder / "tokenizer_config.json"
    settings = read_json_object(settings_path) if settings_path.exists() else {}
    # Control tokens that somebody types are text.
    tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def check_end(folder: Path, tokenizer: Tokenizer, end: int) -> None:
    """Raises BrokenFileError unless the tokenizer ends a sentence as the model expects it: </s>."""
    if tokenizer.encode("a").ids[-1:] != [end]:
        raise BrokenFileError(
            f"{folder / 'tokenizer.json'} does not end a sentence in the token {end} (eos_token_id of config.json)"
        )
