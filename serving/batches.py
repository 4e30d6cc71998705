"""Gather the texts of concurrent requests into batches, and translate these one after the other in a thread."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from vaswani_transformer.translator import Hypothesis

Result = TypeVar("Result")
# Translates texts and returns the given number of hypotheses for each, best first.
Translate = Callable[[list[str], int], list[list[Hypothesis]]]

WAIT = 0.005  # seconds that a text waits for others if no batch is running
LEAST_CHARACTERS = 20  # that a text counts as: each has its overhead
# Of a batch, unless a single text has more. Larger batches are hardly faster and keep other requests waiting.
BATCH_CHARACTERS = 4000


class QueueFullError(Exception):
    """Too many characters are waiting.

    retry_after: seconds until those that wait now have been translated
    """

    def __init__(self, retry_after: int):
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


@dataclass(eq=False)
class Job:
    """A text that waits, how many hypotheses are wanted, and the future of its result."""

    text: str
    count: int
    future: "asyncio.Future[list[Hypothesis]]"
    arrived: float = field(default_factory=monotonic)

    @property
    def characters(self) -> int:
        return max(len(self.text), LEAST_CHARACTERS)


class Batcher:
    """The queue of waiting texts, and the thread that translates them.

    on_batch: called with the numbers of texts and characters and the seconds of each batch
    """

    def __init__(self, translate: Translate, max_queue: int, on_batch: Callable[[int, int, float], object]):
        """Use a function that translates texts, and accept at most max_queue waiting characters."""
        self.function, self.max_queue, self.on_batch = translate, max_queue, on_batch
        self.waiting: dict[Job, None] = {}  # in the order of arrival
        self.characters = 0  # of the waiting texts
        self.seconds_per_character = 0.001  # a moving average
        self.arrival = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="translate")  # no batch shares its cores with another

    @asynccontextmanager
    async def running(self):
        """Translate batches until the block ends."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            self.thread.shutdown()

    def refuse_if_full(self) -> None:
        """Raise QueueFullError if no text can wait."""
        if self.characters >= self.max_queue:
            raise QueueFullError(max(1, math.ceil(self.characters * self.seconds_per_character)))

    async def translate(self, texts: Sequence[str], count: int) -> list[list[Hypothesis]]:
        """Return `count` hypotheses for each text, best first.

        If the caller is cancelled, texts that still wait are dropped. Raises QueueFullError, and the error of the first
        text that cannot be translated.
        """
        self.refuse_if_full()  # one request may exceed the limit: none is too large for an empty queue
        loop = asyncio.get_running_loop()
        jobs = [Job(text, count, loop.create_future()) for text in texts]
        for job in jobs:
            self.waiting[job] = None
            self.characters += job.characters
        self.arrival.set()
        try:
            return await asyncio.gather(*(job.future for job in jobs))
        finally:
            for job in jobs:
                self._remove(job)
                job.future.cancel()

    async def in_thread(self, function: Callable[[], Result]) -> Result:
        """Run something else in the thread of the model, after the batch that is running."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, function)

    async def _run(self) -> None:
        while True:
            await self.arrival.wait()
            if self.waiting:
                first = next(iter(self.waiting))
                await asyncio.sleep(max(0, first.arrived + WAIT - monotonic()))
            self.arrival.clear()
            if jobs := list(self._take()):
                await self._translate(jobs)
            if self.waiting:
                self.arrival.set()

    def _take(self) -> Iterator[Job]:
        """Remove the jobs of the next batch from the queue."""
        left = BATCH_CHARACTERS
        for job in list(self.waiting):
            left -= job.characters
            if left < 0 and left + job.characters < BATCH_CHARACTERS:
                return
            self._remove(job)
            yield job

    def _remove(self, job: Job) -> None:
        if job in self.waiting:
            del self.waiting[job]
            self.characters -= job.characters

    async def _translate(self, jobs: list[Job]) -> None:
        begun, count = monotonic(), max(job.count for job in jobs)
        results = await self.in_thread(lambda: translate_each(self.function, [job.text for job in jobs], count))
        seconds = monotonic() - begun
        for job, result in zip(jobs, results, strict=True):
            if job.future.done():  # its client has left
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result[: job.count])
        rate = seconds / sum(job.characters for job in jobs)
        self.seconds_per_character += 0.1 * (rate - self.seconds_per_character)
        self.on_batch(len(jobs), sum(len(job.text) for job in jobs), seconds)


def translate_each(translate: Translate, texts: list[str], count: int) -> list[list[Hypothesis] | Exception]:
    """Translate a batch; if it fails, translate its halves, so that only a text that fails alone gets an error."""
    try:
        return [*translate(texts, count)]
    except Exception as error:
        if len(texts) == 1:
            return [error]
    middle = len(texts) // 2
    return translate_each(translate, texts[:middle], count) + translate_each(translate, texts[middle:], count)
