"""Translate with ONNX Runtime, tokenizers and numpy, without torch and transformers.

>>> translator = OnnxTranslator.from_pretrained("demo-onnx")
>>> translator.translate(["The house is small."])
['Das Haus ist klein.']
"""

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from tokenizers import Tokenizer

from .errors import BrokenFileError, InputError, UnavailableError, one_line, out_of_memory
from .model_folder import (
    ONNX,
    check_readable,
    check_special_tokens,
    local_folder,
    read_config,
    read_generation_config,
    read_json_object,
    read_tokenizer,
)
from .search_settings import (
    DEFAULT_SEARCH,
    NO_MAXIMUM,
    SearchSettings,
    check_number,
    lookahead_of,
    search_settings_of,
)
from .text_translator import Hypothesis, TextTranslator
from .text_vaswani_transformer import TARGET_TOKENIZER

PRECISIONS = ("fp16", "int8", "int8-weights")
# The scalar inputs of the graph. conversion/onnx/search_inputs.py adds their defaults.
SEARCH_INPUT_DTYPES = {
    "num_beams": np.int64,
    "max_length": np.int64,
    "length_penalty": np.float32,
    "min_length": np.int64,
    "num_return_sequences": np.int64,
    "early_stopping": np.int64,  # a lookahead, see `lookahead_of`
}


class OnnxTranslator(TextTranslator):
    """Translates with an ONNX graph that contains the beam search."""

    def __init__(
        self,
        session: Any,
        tokenizer: Tokenizer,
        config: dict[str, Any],
        target_tokenizer: Tokenizer | None = None,
        search: SearchSettings = DEFAULT_SEARCH,
        trained_length: int | None = None,
    ):
        """Use an open session.

        session: an onnxruntime.InferenceSession;  config: the content of config.json
        target_tokenizer: the tokenizer of the decoder's vocabulary, if it has its own
        search: default settings of the search
        trained_length: number of tokens of the longest source sentence in training, if known
        """
        self.session, self.tokenizer, self.config = session, tokenizer, config
        # Release 0.1.0 exported files without this input; they search as with early_stopping="never".
        optional_inputs = {value.name for value in session.get_overridable_initializers()}
        self.has_early_stopping_input = "early_stopping" in optional_inputs
        self.search = search if self.has_early_stopping_input else search._replace(early_stopping="never")
        self.load_arguments: tuple[Path, str | None, int | None, str | None] | None = None  # of from_pretrained
        self.target_tokenizer = target_tokenizer or tokenizer
        self.vocabulary: int = config["vocab_size"]
        self.pad: int = config["pad_token_id"]
        self.trained_length = trained_length
        self.positions: int | None = config.get("max_position_embeddings")

    @classmethod
    def from_pretrained(
        cls,
        folder_or_repo: str | Path,
        device: str | None = None,
        threads: int | None = None,
        precision: str | None = None,
        revision: str | None = None,
    ) -> "OnnxTranslator":
        """Load a folder that `vaswani-transformer export onnx` wrote, or `onnx/` in a model folder or repository.

        device: "cpu", "cuda" or "cuda:1"; None for CUDA if ONNX Runtime has it.
        threads: for each operator on the CPU; None for as many as there are cores.
        precision: "int8" for model_int8.onnx, and so on; None for model.onnx.
        Raises InputError, BrokenFileError or UnavailableError naming the file that cannot be used, and why.
        """
        name = onnx_file_name(precision)
        needed = [f"{ONNX}/{pattern}" for pattern in (name, f"{name}.data", "*.json")]
        folder = local_folder(folder_or_repo, revision, needed)
        if (folder / ONNX).is_dir() and not (folder / name).exists():
            folder /= ONNX
        graph = folder / name
        config = load_runtime_config(folder / "config.json")
        target_vocabulary = config.get("decoder_vocab_size") or config["vocab_size"]
        tokenizer, target_tokenizer = load_runtime_tokenizers(folder, config, target_vocabulary)
        settings = read_generation_config(folder / "generation_config.json", target_vocabulary)
        session = load_session(graph, device, threads)
        sizes = session.get_modelmeta().custom_metadata_map  # empty unless this package exported the file
        for field, size in (("vocab_size", config["vocab_size"]), ("decoder_vocab_size", target_vocabulary)):
            if sizes.get(field, str(size)) != str(size):
                raise BrokenFileError(
                    f"{graph} has {field} {sizes[field]}, but {folder / 'config.json'} has {size}: "
                    "graph and config do not belong together"
                )
        trained_length = (settings or {}).get("max_source_length")
        translator = cls(session, tokenizer, config, target_tokenizer, search_settings_of(settings), trained_length)
        translator.load_arguments = (folder.absolute(), device, threads, precision)
        # Warm up: the first call allocates memory and, on a GPU, selects kernels.
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
        early_stopping: bool | int | str | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Translate token ids.

        input_ids, attention_mask: (batch, source), each sentence ending in </s> and padded on the right; the default
            mask covers all tokens that are not padding
        num_beams, length_penalty: beam size and alpha of the GNMT penalty; default: `default_search`
        max_length: maximum number of output tokens; the limit set at export (a sentence's source tokens +
            max_source_length_offset, default 50) also applies
        min_length: minimum number of tokens before </s>
        num_return_sequences: hypotheses per sentence, None for num_beams; fewer let the search stop sooner
        early_stopping: when a sentence is done, see `lookahead_of`; files without this input support only "never"
        Returns sequences (batch, num_return_sequences, length), best first, padded, and their scores (batch,
        num_return_sequences). Raises InputError naming the row with invalid ids: ONNX Runtime would read -1 as the last
        row of the embedding.
        """
        input_ids, mask = self._checked_batch(input_ids, attention_mask)
        search = self.search_settings(num_beams, length_penalty, early_stopping)
        max_length = NO_MAXIMUM if max_length is None else max_length
        n_best = search.num_beams if num_return_sequences is None else num_return_sequences
        settings = {
            "num_beams": search.num_beams,
            "length_penalty": search.length_penalty,
            "max_length": check_number("max_length", max_length, 1, NO_MAXIMUM),
            "min_length": check_number("min_length", min_length, 0, NO_MAXIMUM),
            "num_return_sequences": check_number("num_return_sequences", n_best, 1, search.num_beams, "num_beams"),
        }
        if self.has_early_stopping_input:
            settings["early_stopping"] = lookahead_of(search.early_stopping)
        elif search.early_stopping != "never":
            raise InputError('the file has no input early_stopping and supports only "never"; export the model again')
        ids_and_mask = {"input_ids": input_ids.astype(np.int64), "attention_mask": mask.astype(np.int64)}
        return self._run(ids_and_mask | as_search_inputs(settings))

    def _checked_batch(self, input_ids: Any, attention_mask: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and mask as arrays. Raises InputError naming an invalid row."""
        ids = np.asarray(input_ids)
        if ids.ndim != 2 or 0 in ids.shape:
            raise InputError(f"input_ids has shape {ids.shape}; it must be 2-D (batch, source) and non-empty")
        if ids.dtype.kind not in "iu":
            raise InputError(f"input_ids holds {ids.dtype}; token ids are integers")
        is_wrong = ((ids < 0) | (ids >= self.vocabulary)).any(axis=1)
        if is_wrong.any():
            row = is_wrong.argmax()
            raise InputError(
                f"input_ids row {row} has ids from {ids[row].min()} to {ids[row].max()}; "
                f"the vocabulary goes from 0 to {self.vocabulary - 1}"
            )
        mask = (ids != self.pad) if attention_mask is None else np.asarray(attention_mask)
        if mask.shape != ids.shape:
            raise InputError(f"attention_mask has shape {mask.shape}, input_ids {ids.shape}; they must be equal")
        if mask.dtype.kind not in "biu" or mask.min() < 0 or mask.max() > 1:
            raise InputError("attention_mask must hold integers, 1 at tokens and 0 at padding")
        is_empty = mask.sum(axis=1) == 0
        if is_empty.any():
            raise InputError(f"input_ids row {is_empty.argmax()} is empty: it holds only padding")
        if self.positions is not None and ids.shape[1] > self.positions:
            raise InputError(f"input_ids has {ids.shape[1]} columns; the model has {self.positions} positions")
        return ids, mask

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of from_pretrained, because a session cannot be pickled."""
        if self.load_arguments is None:
            raise TypeError("an OnnxTranslator can be pickled only if from_pretrained loaded it")
        return type(self).from_pretrained, self.load_arguments

    def score(self, *_: object, **__: object) -> NoReturn:
        """Raise InputError: the graph contains only the search."""
        raise InputError('an ONNX file contains only the search; score translations with backend="torch"')

    def _run(self, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Run one batch. Ids are copied to the GPU if there is one; scalars determine shapes and stay on the CPU."""
        import onnxruntime

        binding = self.session.io_binding()
        cuda = self.session.get_provider_options().get("CUDAExecutionProvider")
        for name, array in inputs.items():
            place = ("cuda", int(cuda["device_id"])) if cuda is not None and array.ndim else ("cpu", 0)
            value = onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"), *place)
            binding.bind_ortvalue_input(name, value)
        for name in ("sequences", "scores"):
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        sequences, scores = binding.copy_outputs_to_cpu()
        return sequences, scores

    @property
    def default_search(self) -> SearchSettings:
        return self.search

    def description(self) -> str:
        return f"{self.vocabulary:,} source tokens, {self.session.get_providers()[0]}"

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        encoding = self.tokenizer.encode(text)
        return encoding.ids, [start for start, _ in encoding.offsets]

    def _decode(self, tokens: list[int]) -> str:
        return self.target_tokenizer.decode(tokens, skip_special_tokens=True)

    def _search(self, sources: list[list[int]], settings: SearchSettings, n_best: int) -> list[list[Hypothesis]]:
        input_ids, mask = map(np.array, self._padded(sources))
        options = settings._asdict() | {"num_return_sequences": n_best}
        sequences, scores = self.generate(input_ids, mask, **options)
        return self._hypotheses(sequences.tolist(), scores.tolist())


def onnx_file_name(precision: str | None = None) -> str:
    """Return the name of a published graph; `export onnx` writes model.onnx, `push` adds the precision.

    Raises InputError.
    """
    if precision not in (None, *PRECISIONS):
        raise InputError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}, or none for model.onnx")
    return "model.onnx" if precision is None else f"model_{precision}.onnx"


def as_search_inputs(settings: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Convert settings of the search to the types of the graph's inputs."""
    return {name: np.asarray(value, SEARCH_INPUT_DTYPES[name]) for name, value in settings.items()}


def load_runtime_config(path: Path) -> dict[str, Any]:
    """Read config.json and check the fields that a runtime needs. Raises InputError, BrokenFileError."""
    config = read_config(path)
    if config.get("position_embedding_type") != "learned":
        config["max_position_embeddings"] = None  # sinusoids have no maximum; converted files may still name one
    for field in ("vocab_size", "decoder_vocab_size", "max_position_embeddings"):
        value = config.get(field)
        is_missing = value is None and field != "vocab_size"
        if not is_missing and (type(value) is not int or not 1 <= value <= 10_000_000):
            raise BrokenFileError(f"{path}: {field} is {value!r}; it must be an integer between 1 and 10000000")
    check_special_tokens(path, config, ("pad_token_id", "eos_token_id"))
    return config


def load_runtime_tokenizers(
    folder: Path, config: dict[str, Any], target_vocabulary: int
) -> tuple[Tokenizer, Tokenizer | None]:
    """Load the tokenizer, and that of the decoder's vocabulary if it has its own.

    Raises BrokenFileError unless target sentences end in the model's </s>, InputError if a tokenizer is missing.
    """
    tokenizer = load_runtime_tokenizer(folder, config["vocab_size"])
    target, second = None, folder / TARGET_TOKENIZER
    if second.is_dir():
        target = load_runtime_tokenizer(second, target_vocabulary, "decoder_vocab_size")
    elif target_vocabulary != config["vocab_size"]:
        raise InputError(
            f"the model has {config['vocab_size']} source and {target_vocabulary} target tokens; it needs a second "
            f"tokenizer for its translations: {second / 'tokenizer.json'}"
        )
    # OpenNMT-py sources have no </s>; only targets do.
    if (target or tokenizer).encode("a").ids[-1:] != [config["eos_token_id"]]:
        path = (second if target else folder) / "tokenizer.json"
        raise BrokenFileError(
            f"{path} does not end a sentence with token {config['eos_token_id']} (eos_token_id of config.json)"
        )
    return tokenizer, target


def load_runtime_tokenizer(folder: Path, vocabulary: int, size_field: str = "vocab_size") -> Tokenizer:
    """Load tokenizer.json and set it up as transformers does. Arguments and errors: see `read_tokenizer`."""
    tokenizer = read_tokenizer(folder, vocabulary, size_field)
    settings_path = folder / "tokenizer_config.json"
    settings = read_json_object(settings_path) if settings_path.exists() else {}
    # Special tokens in a user's text are plain text.
    tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def plain_tokenizer(path: Path) -> bytes:
    """Return the content of tokenizer.json without truncation and padding.

    transformers saves both as its last call set them, and `Tokenizer.from_file` applies them to every text.
    """
    content = read_json_object(path) | {"truncation": None, "padding": None}
    return json.dumps(content, indent=2, ensure_ascii=False).encode()  # formatted as tokenizers does


def load_session(path: Path, device: str | None, threads: int | None) -> Any:
    """Load the graph on a device; None: CUDA if it works, else the CPU.

    Raises BrokenFileError naming a file that is missing or truncated. Raises UnavailableError if the requested device
    cannot be used, where ONNX Runtime would silently use the CPU. ONNX Runtime refuses external weights outside the
    graph's folder.
    """
    import onnxruntime

    if not path.is_file():
        others = ", ".join(sorted(file.name for file in path.parent.glob("model*.onnx")))
        remedy = (
            f"there is {others}" if others else "`vaswani-transformer export onnx MODEL NEW_FOLDER` writes model.onnx"
        )
        raise BrokenFileError(f"{path}: no such file; {remedy}")
    check_readable(path)
    providers = execution_providers(device)
    on_cuda = len(providers) > 1
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # no warnings about inputs with defaults; errors are raised, not logged
    if threads is not None:
        options.intra_op_num_threads = check_number("threads", threads, 1, 1024)
    try:
        # Without fallback: ONNX Runtime announces it on stdout.
        session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    except Exception as error:  # its exceptions have no common base class
        if out_of_memory(error):
            raise
        if on_cuda and device is None:
            return load_session(path, "cpu", threads)
        if on_cuda:
            raise UnavailableError(f"device {device!r}: {one_line(str(error))[:200]}") from None
        raise BrokenFileError(
            f"{path} is not a complete ONNX file, or a file of its weights is missing or truncated "
            f"({path.stat().st_size:,} bytes: {one_line(str(error))[-300:]}); copy or export it again"
        ) from None
    if on_cuda and device is not None and session.get_providers()[0] != "CUDAExecutionProvider":
        raise UnavailableError(f"device {device!r}: ONNX Runtime cannot load CUDA here; its libraries may be missing")
    return session


def execution_providers(device: str | None) -> list[Any]:
    """Return ONNX Runtime's execution providers for a device. Raises InputError or UnavailableError."""
    import onnxruntime

    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    if device is None:
        device = "cuda" if has_cuda else "cpu"
    kind, colon, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not index.isdecimal()):
        raise InputError(f"device {device!r} is unknown to the ONNX backend; use cpu, cuda or cuda:1")
    if kind == "cpu":
        return ["CPUExecutionProvider"]
    if not has_cuda:
        raise UnavailableError(
            f"device {device!r}: this onnxruntime has no CUDA; pip uninstall onnxruntime, then "
            'pip install "vaswani-transformer[onnx-gpu]"'
        )
    with redirect_stdout(sys.stderr):  # missing libraries are printed on stdout, which is reserved for translations
        onnxruntime.preload_dlls()
    # By default CUDA multiplies in TensorFloat-32, which differs from float32 in torch and on the CPU.
    return [("CUDAExecutionProvider", {"device_id": int(index or 0), "use_tf32": 0}), "CPUExecutionProvider"]
