"""Workers: batches that are searched side by side give the same translations, in order, and stop at once."""

import os
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import wait_until
from saved_model import ENGLISH, GERMAN

from vaswani_transformer import Translator
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.onnx_translator import OnnxSearch, OnnxTranslator

TEXTS = [*ENGLISH, "", *GERMAN, " ".join(ENGLISH), "a", "日本語 🙂 1"]
SMALL = 120  # as batch_tokens: several batches


@pytest.fixture(params=["torch", "onnx"])
def either(request: pytest.FixtureRequest, exported: Any) -> Translator:
    """A Translator with either backend."""
    folder = exported / ("model" if request.param == "torch" else "onnx")
    return Translator.from_pretrained(folder, device="cpu", backend=request.param)


@pytest.fixture
def before_each_batch(either: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """before_each_batch(action): call it in the thread that searches a batch, when it begins."""

    def add(action: Callable[[], object]) -> None:
        if isinstance(either, OnnxTranslator):
            run = OnnxSearch.run
            monkeypatch.setattr(OnnxSearch, "run", lambda *arguments: (action(), run(*arguments))[1])
        else:
            either.model.get_encoder().register_forward_pre_hook(lambda *_: (action(), None)[1])

    return add


def test_translations_and_scores_do_not_depend_on_the_workers(either: Any) -> None:
    expected = either.find_hypotheses(TEXTS, batch_tokens=SMALL, num_return_sequences=2, workers=1)
    for workers in (2, 5):
        found = either.find_hypotheses(TEXTS, batch_tokens=SMALL, num_return_sequences=2, workers=workers)
        for ours, theirs in zip(found, expected, strict=True):
            assert [(h.text, h.tokens) for h in ours] == [(h.text, h.tokens) for h in theirs]
            # Float32: operators add in another order with another number of threads.
            assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], rel=1e-6, abs=1e-6)


def test_threads_of_the_caller_translate_side_by_side(either: Any, before_each_batch: Any) -> None:
    expected = either.translate(TEXTS)
    meeting = threading.Barrier(2, timeout=120)
    before_each_batch(meeting.wait)  # raises BrokenBarrierError if no other batch begins
    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(lambda texts: either.translate(texts, one_thread=True), [TEXTS, TEXTS])]
    assert found == [expected, expected]


@pytest.mark.parametrize("workers", [2, None])
def test_two_batches_are_searched_at_the_same_time(
    either: Any, before_each_batch: Any, workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, on as many cores as there are."""
    monkeypatch.setattr(either, "count_cores", lambda: 2)
    meeting = threading.Barrier(2, timeout=120)
    before_each_batch(meeting.wait)  # raises BrokenBarrierError if no other batch begins
    assert len(either.translate(["a"] * 4, batch_tokens=1, workers=workers)) == 4


def test_one_worker_searches_one_batch_after_another(either: Any, before_each_batch: Any) -> None:
    threads: list[threading.Thread] = []
    before_each_batch(lambda: threads.append(threading.current_thread()))
    either.translate(["a"] * 4, batch_tokens=1, workers=1)
    assert len(threads) == 4 and len(set(threads)) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interruption_ends_all_searches(
    either: Any, before_each_batch: Any, workers: int, request: pytest.FixtureRequest
) -> None:
    """These searches would take hours."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))
    sent: list[int] = []
    before_each_batch(lambda: sent or (sent.append(1), os.kill(os.getpid(), signal.SIGINT)))
    running = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        either.translate(["a"] * 4, batch_tokens=1, workers=workers, min_new_tokens=10**5, max_new_tokens=10**5)
    wait_until(lambda: threading.active_count() == running)
    assert either.translate(ENGLISH)  # a new call is not stopped


def test_an_error_in_one_search_ends_the_others(either: Any, before_each_batch: Any) -> None:
    begun = []

    def fail_in_the_second() -> None:
        begun.append(1)
        if len(begun) == 2:
            raise MemoryError("out of memory")

    before_each_batch(fail_in_the_second)
    with pytest.raises(MemoryError):
        either.translate(["a", "b c d"] * 20, batch_tokens=1, workers=2, min_new_tokens=300, max_new_tokens=300)
    assert len(begun) < 40


def test_only_the_threads_of_a_search_have_one_thread_in_torch(translator: Any) -> None:
    """A thread in which torch runs for the first time meanwhile, as in a server, is no exception."""
    own: list[int] = []
    others: list[int] = []

    def record(*_: Any) -> None:
        own.append(torch.get_num_threads())
        other = threading.Thread(target=lambda: others.append(translator.count_cores()))
        other.start()
        other.join()

    translator.model.get_encoder().register_forward_pre_hook(record)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        translator.translate(TEXTS, batch_tokens=SMALL, workers=2)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert len(own) > 2 and set(own) == {1} and set(others) == {3}


def test_a_forked_process_translates(translator: Any) -> None:
    """As those of `datasets.map(..., num_proc=2)`, which would wait for the threads of their parent."""
    results = get_context("fork").SimpleQueue()

    def translate() -> None:
        torch.ones(1 << 21).sum()  # on all threads, as the products of a larger model
        results.put(translator.translate(TEXTS))

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        translate()
        child = get_context("fork").Process(target=translate)
        child.start()
        child.join(60)
        child.kill()
        assert child.exitcode == 0 and results.get() == results.get()
    finally:
        torch.set_num_threads(before)


def test_workers_share_one_session_with_one_thread(exported: Any) -> None:
    several, one = (OnnxTranslator.from_pretrained(exported / "onnx", "cpu", threads) for threads in (2, 1))
    assert several.count_cores() == 2
    several.translate(ENGLISH)
    assert several._session_of_workers is None  # one batch: its operators use all threads
    several.translate(TEXTS, batch_tokens=SMALL)
    shared: Any = several._session_of_workers
    assert shared.get_session_options().intra_op_num_threads == 1
    several.translate(TEXTS, batch_tokens=SMALL)
    assert several._session_of_workers is shared
    one.translate(TEXTS, batch_tokens=SMALL, workers=2)
    assert one._session_of_workers is one.session


def overwrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())


def replace(path: Path) -> None:
    os.replace(shutil.copy2(path, f"{path}.new"), path)


@pytest.mark.parametrize("change", [overwrite, replace])
def test_workers_do_not_load_a_graph_that_was_replaced(
    exported: Any, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    folder = Path(shutil.copytree(exported / "onnx", tmp_path / "onnx"))
    translator = OnnxTranslator.from_pretrained(folder, "cpu", 2)
    change(folder / "model.onnx")
    with pytest.raises(BrokenFileError, match=r"model.onnx was replaced after it had been loaded"):
        translator.translate(TEXTS, batch_tokens=SMALL)
    assert translator.translate(ENGLISH[0])  # in the session that was loaded before


@pytest.mark.parametrize("look_ahead", [False, True])
def test_chunks_are_translated_in_order_and_at_most_one_ahead(either: Any, look_ahead: bool) -> None:
    chunks, taken = [TEXTS[i : i + 2] for i in range(0, len(TEXTS), 2)], []

    def read() -> Any:
        for chunk in chunks:
            taken.append(chunk)
            yield chunk

    done = 0
    with closing(either.find_in_chunks(read(), look_ahead=look_ahead, workers=2, batch_tokens=SMALL)) as found:
        for hypotheses in found:
            assert hypotheses == either.find_hypotheses(chunks[done], workers=2, batch_tokens=SMALL)
            done += 1
            assert len(taken) == min(done + look_ahead, len(chunks))
    assert done == len(chunks)


def test_an_error_in_a_later_chunk_comes_after_the_translations_before_it(either: Any) -> None:
    found = either.find_in_chunks([["a"], ["b"], [None]], look_ahead=True)
    assert [next(found), next(found)] == [either.find_hypotheses("a"), either.find_hypotheses("b")]
    with pytest.raises(InputError, match="text 1 is a NoneType"):
        next(found)
