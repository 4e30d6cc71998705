"""Translate with ONNX Runtime, tokenizers and numpy, without torch and transformers.

>>> translator = OnnxTranslator.from_pretrained("demo-onnx")
>>> translator.translate(["The house is small."])
['Das Haus ist klein.']
"""

import glob
import json
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from .alignment_heads import attention_of_heads, default_heads
from .alignments import Span, token_spans
from .errors import BrokenFileError, InputError, UnavailableError, as_input_errors, one_line, out_of_memory
from .files import check_readable
from .hub_files import find_folder
from .model_folder import ADAPTER, FIXED_ENTRIES, ONNX, ModelFolder, check_graph, refuse_adapter
from .search_vaswani_transformer import BEAM_SEARCHES, REPETITION, SearchSettings, as_numbers, check_number
from .translator import Translator, pad_rows
from .workers import BatchSearch, Found, Sources, count_cores

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime 1.31 collects and sends usage data by default

PRECISIONS = ("fp16", "int8", "int8-weights")
RESULTS, ATTENTION = ("sequences", "scores"), "cross_attentions"  # outputs of a graph; the last one is optional


class OnnxTranslator(Translator):
    """Translates with an ONNX graph that contains the beam search."""

    def __init__(
        self, session: Any, folder: ModelFolder, device: str | None, threads: int | None, precision: str | None
    ):
        """Use an onnxruntime.InferenceSession of a graph in a folder; other arguments as in `from_pretrained`."""
        self.tokenizer, self.target_tokenizer = folder.tokenizer, folder.target_tokenizer
        super().__init__(folder.config, folder.generation_config, folder.search, self.tokenizer)
        self.session, self.folder = session, folder.path
        self.load_arguments = folder.path.absolute(), device, threads, precision
        self.graph = (folder.path / onnx_file_name(precision)).absolute()
        self.version = file_version(self.graph)
        self._session_of_workers: Any = None
        self._lock = Lock()  # for its loading
        self.has_repetition, self.vocabulary = has_repetition(session), folder.config["vocab_size"]
        self.change_search()  # refuses defaults that the graph has no input for

    @classmethod
    def from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        folder_or_repo: str | Path,
        device: str | None = None,
        threads: int | None = None,
        precision: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> "OnnxTranslator":
        """Load a folder that `vaswani-transformer export onnx` wrote, or `onnx/` in a model folder or repository.

        device: "cpu", "cuda" or "cuda:1"; None for CUDA if ONNX Runtime has it.
        threads: for each operator on the CPU; None for as many as there are cores.
        precision: "int8" for model_int8.onnx, and so on; None for model.onnx.
        revision: branch, tag or commit of the repository.
        local_files_only: do not use the network; a repository must have been downloaded before.
        Raises InputError, BrokenFileError or UnavailableError naming the file that cannot be used, and why.
        """
        name = onnx_file_name(precision)
        path = find_folder(folder_or_repo, revision, local_files_only, files_of_export(precision))
        if (path / ONNX).is_dir() and not (path / name).exists():
            refuse_adapter(path)  # which torch would not leave out either
            path /= ONNX
        folder, graph = ModelFolder(path), path / name
        session = load_session(graph, device, threads)
        translator = cls(session, folder, device, threads, precision)
        check_graph(graph)
        check_interface(session, graph, folder)
        # Warm up: the first call allocates memory and, on a GPU, selects kernels.
        try:
            OnnxSearch(translator, translator.change_search(max_new_tokens=2), session).run([[translator.pad] * 2])
        except Exception as error:  # as in `load_session`
            if out_of_memory(error):
                raise
            raise BrokenFileError(f"{graph} cannot be run: {one_line(str(error))[-300:]}; export it again") from None
        return translator

    def change_search(self, **settings: Any) -> SearchSettings:
        changed = super().change_search(**settings)
        if changed.repetition and not self.has_repetition:
            found = ", ".join(f"{name} is {value}" for name, value in changed.repetition.items())
            off = ", ".join(f"{name} {REPETITION[name]}" for name in changed.repetition)
            raise InputError(
                f"{found}, but {self.folder or 'the graph'} was exported without inputs for repetitions; export it "
                f"again with --repetition, or set {off}"
            )
        return changed

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of from_pretrained, because a session cannot be pickled."""
        return type(self).from_pretrained, self.load_arguments

    def description(self) -> str:
        return f"{self.vocabulary:,} source tokens, {self.session.get_providers()[0]}"

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        encoding = self.tokenizer.encode(text)
        return encoding.ids, [start for start, _ in encoding.offsets]

    def _decode(self, tokens: list[int]) -> str:
        return self.target_tokenizer.decode(tokens, skip_special_tokens=True)

    def count_cores(self) -> int | None:
        if "CUDAExecutionProvider" in self.session.get_providers():
            return None
        return self.session.get_session_options().intra_op_num_threads or count_cores()

    def _source_spans(self, text: str, prefix: str) -> list[Span | None]:
        return token_spans(self.tokenizer.encode(prefix + text), prefix)

    def _open_search(self, settings: SearchSettings, alignments: bool, one_thread: bool) -> BatchSearch:
        if alignments:
            self._check_attention(settings)
        session = self._one_thread_session() if one_thread else self.session
        return OnnxSearch(self, settings, session, alignments)

    def _check_attention(self, settings: SearchSettings) -> None:
        """Raise InputError unless the graph returns the attention of the translations."""
        if ATTENTION not in {output.name for output in self.session.get_outputs()}:
            raise InputError(
                "the ONNX graph has no output cross_attentions, which alignments need; export the model with "
                "`vaswani-transformer export onnx MODEL NEW_FOLDER --attention`, or use the torch backend"
            )
        if settings.num_return_sequences > 1:
            raise InputError(
                f"num_return_sequences is {settings.num_return_sequences}, but an ONNX graph returns the attention of "
                "the best translation only; use the torch backend to align other translations"
            )

    def _one_thread_session(self) -> Any:
        """Return a session whose operators use one thread, which the workers share.

        It is the session itself if that has one thread or is on a GPU. Raises BrokenFileError if the graph has been
        replaced since: some texts would be translated by another model.
        """
        with self._lock:
            if self._session_of_workers is None:
                is_one = self.count_cores() in (None, 1)
                session = self.session if is_one else load_session(self.graph, "cpu", 1)
                if not is_one and file_version(self.graph) != self.version:
                    raise BrokenFileError(f"{self.graph} was replaced after it had been loaded; load the model again")
                self._session_of_workers = session
        return self._session_of_workers


class OnnxSearch(BatchSearch):
    """Runs an OnnxTranslator's search in one session."""

    blocks_signals = True

    def __init__(self, translator: OnnxTranslator, settings: SearchSettings, session: Any, alignments: bool = False):
        import onnxruntime

        self.translator, self.session, self.settings = translator, session, settings
        self.outputs = (*RESULTS, ATTENTION) if alignments else RESULTS
        self.options = onnxruntime.RunOptions()
        self.options.log_severity_level = 4  # stop() is no error

    def run(self, sources: Sources) -> Found:
        import onnxruntime

        names, rows = ("input_ids", "attention_mask"), pad_rows(sources, self.translator.pad)
        # They must outlive the run: ONNX Runtime reads their memory, and 1.24's binding holds no reference to them.
        inputs = dict(zip(names, (np.array(each, np.int64) for each in rows), strict=True))
        inputs |= graph_inputs(self.settings, self.translator.has_repetition)
        binding = self.session.io_binding()
        # Token ids are copied to the GPU if there is one; scalars determine shapes and stay on the CPU.
        cuda = self.session.get_provider_options().get("CUDAExecutionProvider")
        for name, array in inputs.items():
            place = ("cuda", int(cuda["device_id"])) if cuda is not None and array.ndim else ("cpu", 0)
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, *place))
        for name in self.outputs:
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding, self.options)
        sequences, scores, *attention = binding.copy_outputs_to_cpu()
        found = sequences.tolist()
        return Found(found, scores.tolist(), self._attend(sources, found, *attention) if attention else None)

    def _attend(self, sources: Sources, sequences: list[list[list[int]]], attention: np.ndarray) -> list[list[Any]]:
        """Return the attention of the tokens, as in `Found`.  attention: (batch, layers, heads, length, source)"""
        pad, heads = self.translator.pad, self.translator.alignment_heads or default_heads(*attention.shape[1:3])
        lengths = [sum(token != pad for token in row) for (row,) in sequences]
        return [
            [attention_of_heads(weights[:, :, : max(length, 1), : len(source)], heads)]
            for weights, length, source in zip(attention, lengths, sources, strict=True)
        ]

    def stop(self) -> None:
        self.options.terminate = True


def graph_inputs(settings: SearchSettings, repetition: bool = False) -> dict[str, np.ndarray]:
    """Return the scalar inputs of a graph, in its order, see `as_numbers`.

    repetition: whether the graph has inputs for the settings against repetitions
    """
    types = {float: np.float32, int: np.int64}
    return {name: np.asarray(value, types[type(value)]) for name, value in as_numbers(settings, repetition).items()}


def built_in_values(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what a graph cannot change, as JSON: an export writes it into the metadata of the graph.

    config, settings: the contents of config.json and generation_config.json, {} for those of a new model
    """
    values = {name: config[name] for name in FIXED_ENTRIES if config.get(name) is not None}
    special = {config["pad_token_id"], config["decoder_start_token_id"]} - {config["eos_token_id"]}
    suppressed = settings.get("suppress_tokens") if settings else special
    values["suppress_tokens"] = sorted(set(suppressed or ()))
    values["forced_bos_token_id"] = settings.get("forced_bos_token_id")
    values["beam_search"] = settings.get("beam_search") or BEAM_SEARCHES[0]
    return {name: json.dumps(value) for name, value in values.items()}


def input_names(session: Any) -> set[str]:
    return {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}


def has_repetition(session: Any) -> bool:
    """Return whether a graph has inputs for the settings against repetitions."""
    return input_names(session) >= REPETITION.keys()


def check_interface(session: Any, graph: Path, folder: ModelFolder) -> None:
    """Raise BrokenFileError unless a graph has the inputs and outputs of an export, and the folder's settings."""
    expected = {"input_ids", "attention_mask", "sequences", "scores", *graph_inputs(SearchSettings())}
    found = input_names(session) | {value.name for value in session.get_outputs()}
    if missing := sorted(expected - found):
        raise BrokenFileError(
            f"{graph} is not a graph that `export onnx` writes for translation: it has no {', '.join(missing)}"
        )
    check_built_in(graph, session.get_modelmeta().custom_metadata_map, folder)


def check_built_in(graph: Path, metadata: Mapping[str, str], folder: ModelFolder) -> None:
    """Raise BrokenFileError if the folder has another value for what the graph cannot change.

    metadata: of the graph; empty unless this package exported it
    """
    for field, value in built_in_values(folder.config, folder.generation_config).items():
        if (built_in := metadata.get(field, value)) != value:
            is_setting = field in ("suppress_tokens", "forced_bos_token_id", "beam_search")
            file = "generation_config.json" if is_setting else "config.json"
            raise BrokenFileError(
                f"{graph} was exported with {field} {built_in:.80}, but {folder.path / file} has {value:.80}; "
                "export the model again, or set the graph's value"
            )


def onnx_file_name(precision: str | None = None) -> str:
    """Return the name of a published graph; `export onnx` writes model.onnx, `push` adds the precision.

    Raises InputError.
    """
    if precision not in (None, *PRECISIONS):
        raise InputError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}, or none for model.onnx")
    return "model.onnx" if precision is None else f"model_{precision}.onnx"


def files_of_export(precision: str | None) -> list[str]:
    """Return glob patterns of the files of a repository that ONNX Runtime needs."""
    name = onnx_file_name(precision)
    return [*(f"{ONNX}/{pattern}" for pattern in (name, f"{name}.data", "*.json")), ADAPTER]


def graph_files(graph: Path) -> list[Path]:
    """Return the files of a graph: its own, and that of its weights if they do not fit into it."""
    return [graph, *graph.parent.glob(f"{glob.escape(graph.name)}.data")]


def file_version(graph: Path) -> list[tuple[int, int, int]]:
    """Return what changes when a file of a graph is replaced or overwritten."""
    return [(found.st_ino, found.st_size, found.st_mtime_ns) for found in map(os.stat, graph_files(graph))]


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
    for file in graph_files(path):
        check_readable(file)
    providers = execution_providers(device)
    on_cuda = len(providers) > 1
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # no warnings about inputs with defaults; errors are raised, not logged
    if threads is not None:
        with as_input_errors():
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
