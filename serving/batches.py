"""Gather the texts of concurrent requests into batches, and translate these in threads, one for each core."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from threading import Barrier
from time import monotonic
from typing import TypeVar

from vaswani_transformer.translator import Hypothesis

Result = TypeVar("Result")
# Translates texts and returns the given number of hypotheses for each, best first; on one CPU thread if True, else all.
Translate = Callable[[list[str], int, bool], list[list[Hypothesis]]]

WAIT = 0.005  # seconds between the arrival of a batch's first text and its translation, at least
LEAST_CHARACTERS = 20  # that a text counts as: each has its overhead
# Of a batch, unless a single text has more. Larger batches are hardly faster and keep other requests waiting; on a GPU,
# they take little longer, because the host is the limit.
BATCH_CHARACTERS, BATCH_CHARACTERS_ON_GPU = 4000, 16_000


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
    """The queue of waiting texts, and the threads that translate them.

    A batch that begins while no other runs uses all CPU threads, and each of the others uses one: a decoder's products
    are small, so that batches side by side are faster than threads inside an operator.

    on_batch: called with the numbers of texts and characters and the seconds of each batch
    most: batches at a time
    batch_characters: the most characters of a batch, unless a single text has more
    """

    def __init__(
        self,
        translate: Translate,
        max_queue: int,
        on_batch: Callable[[int, int, float], object],
        most: int,
        batch_characters: int = BATCH_CHARACTERS,
    ):
        """Use a function that translates texts, and accept at most max_queue waiting characters."""
        self.function, self.max_queue, self.on_batch, self.most = translate, max_queue, on_batch, most
        self.batch_characters = batch_characters
        self.waiting: dict[Job, None] = {}  # in the order of arrival
        self.characters = 0  # of the waiting texts
        self.seconds_per_character = 0.001  # of a batch beside others, as all are while the queue is full; an average
        self.running = 0  # batches
        self.arrival, self.free = asyncio.Event(), asyncio.Semaphore(most)
        self.threads = ThreadPoolExecutor(most, thread_name_prefix="translate")

    @asynccontextmanager
    async def open(self):
        """Translate batches until the block ends."""
        meeting = Barrier(self.most, timeout=60)  # seconds; a thread that cannot be started breaks it
        await asyncio.gather(*(self.in_thread(meeting.wait) for _ in range(self.most)))
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            self.threads.shutdown()

    def refuse_if_full(self) -> None:
        """Raise QueueFullError, which app.py answers with 429, if max_queue characters or more are waiting."""
        if self.characters >= self.max_queue:
            raise QueueFullError(max(1, math.ceil(self.characters * self.seconds_per_character / self.most)))

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
        """Run a function in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, function)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as batches:
            while True:
                await self._wait_for_texts()
                await self.free.acquire()
                if jobs := list(self._take()):
                    one_thread = self.most > 1 and (self.running > 0 or bool(self.waiting))
                    self.running += 1
                    batches.create_task(self._translate(jobs, one_thread))
                else:  # the clients have left
                    self.free.release()

    async def _wait_for_texts(self) -> None:
        while not self.waiting:
            self.arrival.clear()
            await self.arrival.wait()
        first = next(iter(self.waiting))
        await asyncio.sleep(max(0, first.arrived + WAIT - monotonic()))

    def _take(self) -> Iterator[Job]:
        """Remove the jobs of a batch from the queue; leave the other threads that are free their share.

        They ask for the same number of hypotheses: with `early_stopping` false, a search for more may go on and find a
        better one, so that a translation would depend on the requests of others.
        """
        largest = min(self.batch_characters, math.ceil(self.characters / (self.most - self.running)))
        left, count = largest, None
        for job in list(self.waiting):
            if job.count != (count or job.count):
                continue
            left -= job.characters
            if left < 0 and count:  # a batch has at least one text
                return
            count = job.count
            self._remove(job)
            yield job

    def _remove(self, job: Job) -> None:
        if job in self.waiting:
            del self.waiting[job]
            self.characters -= job.characters

    async def _translate(self, jobs: list[Job], one_thread: bool) -> None:
        begun, count, texts = monotonic(), jobs[0].count, [job.text for job in jobs]
        try:
            results = await self.in_thread(lambda: translate_each(self.function, texts, count, one_thread))
        except Exception as error:  # the thread cannot be started
            results = [error] * len(jobs)
        finally:
            self.running -= 1
            self.free.release()
        seconds = monotonic() - begun
        for job, result in zip(jobs, results, strict=True):
            if job.future.done():  # its client has left
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)
        if one_thread or self.most == 1:
            rate = seconds / sum(job.characters for job in jobs)
            self.seconds_per_character += 0.1 * (rate - self.seconds_per_character)
        self.on_batch(len(jobs), sum(len(job.text) for job in jobs), seconds)


def translate_each(
    translate: Translate, texts: list[str], count: int, one_thread: bool
) -> list[list[Hypothesis] | Exception]:
    """Translate a batch; if it fails, translate its halves, so that only a text that fails alone gets an error."""
    try:
        return [*translate(texts, count, one_thread)]
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if len(texts) == 1:
            return [error if isinstance(error, Exception) else RuntimeError(str(error))]
    middle = len(texts) // 2
    halves = (texts[:middle], texts[middle:])
    return [result for half in halves for result in translate_each(translate, half, count, one_thread)]
