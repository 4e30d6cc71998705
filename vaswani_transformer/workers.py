"""Search several batches at the same time, on threads that share one model.

A decoder multiplies small matrices, so that further threads inside an operator soon gain nothing. Batches that are
searched side by side, with one thread each, use all cores.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

Sources = list[list[int]]  # of a batch, as token ids


class Found(NamedTuple):
    """The hypotheses of each source in a batch, best first."""

    sequences: list[list[list[int]]]  # token ids, (batch, n, length)
    scores: list[list[float]]  # (batch, n)
    attention: list[list[Any]] | None = None  # of the tokens of each: (target, source), if it was requested


class BatchSearch(ABC):
    """A search with a model; several threads may run it at the same time, each with its own batch."""

    blocks_signals = False  # whether Python handles Ctrl-C only after `run` has returned, if the main thread calls it

    @abstractmethod
    def run(self, sources: Sources) -> Found:
        """Search one batch."""

    @abstractmethod
    def stop(self) -> None:
        """Make every running `run` raise an exception soon."""


class Workers:
    """Runs searches of batches, on several threads if there are several batches; its threads end with the `with` block.

    >>> with Workers(partial(translator._open_search, settings, False), 2) as workers:
    ...     for found in workers.start(batches): ...
    """

    def __init__(self, open_search: Callable[[bool], BatchSearch], count: int, one_thread: bool = False):
        """open_search: returns a search whose batches use all CPU threads (False) or one each (True)

        one_thread: whether a batch uses one CPU thread even if it is alone, because the caller has other threads
        """
        self.count, self.one_thread, self._open_search = count, one_thread, open_search
        self._searches: dict[bool, BatchSearch] = {}

    def __enter__(self) -> "Workers":
        self._executor = ThreadPoolExecutor(self.count, "search")
        return self

    def __exit__(self, *_: Any) -> None:
        for search in self._searches.values():
            search.stop()  # nothing is running, except after an error or Ctrl-C
        self._executor.shutdown(cancel_futures=True)

    def start(self, batches: Sequence[Sources]) -> Iterator[Found]:
        """Begin to search the batches in their order; return an iterator over the results, in the same order."""
        one_thread = self.one_thread or (self.count > 1 and len(batches) > 1)
        if one_thread not in self._searches:
            self._searches[one_thread] = self._open_search(one_thread)
        search = self._searches[one_thread]
        if one_thread or search.blocks_signals:  # torch's number of threads is set in a thread of its own
            futures = [self._executor.submit(search.run, batch) for batch in batches]
            return (future.result() for future in futures)
        return map(search.run, batches)


def count_cores() -> int:
    """Return the number of CPU cores that this process may use; processes that torchrun started share them."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
