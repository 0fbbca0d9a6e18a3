"""The worker threads of a purge, and their bounded stack of directories.

How many workers are wanted, and when they stop, is in `_run`; what they do with a
directory is in `_walk`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from slotwise.purge._ages import Ages
from slotwise.purge._tree import DirectoryNode, Tally
from slotwise.purge._walk import Entry, Walker

if TYPE_CHECKING:
    from slotwise.purge._run import Run

log = logging.getLogger("slotwise.purge")

# Directories that wait for a worker: several for each, so that none of them idles
# while one lists a large directory, and at least as many as one batch of names.
_STACK_PER_WORKER = 8
_SMALLEST_STACK = 1024
# A small stack is enough: the walk doesn't recurse. 1,000 threads should cost megabytes.
_STACK_BYTES = 256 * 1024
# Seconds until another attempt after the machine had no thread left.
_RETRY_START = 0.5


class Workers:
    """The workers of one run."""

    # Between any two steps of any worker:
    #   C1  a directory is on the stack, in some visit's todo, in work, or finished
    #   C2  the run is over when the stack is empty and nobody is busy

    def __init__(self, run: Run, most: int) -> None:
        self._run = run
        self.most = most
        options = run.plan.options
        # With this many workers busy, either limit is fully used. A quarter more, since a reader
        # has to wait while its directory's owner deletes.
        scanning = options.max_concurrency_scanning
        self._most_helped = min(scanning, options.max_concurrency_deletion) * 5 // 4
        self._most_readers = scanning
        self.busy = 0
        self.over = threading.Event()
        self.failure: BaseException | None = None
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._starting = threading.Lock()  # the stack size for new threads is process-wide
        self._stack: list[Entry | None] = [None]
        self._most_stacked = max(_SMALLEST_STACK, _STACK_PER_WORKER * most)
        self._workers = 0
        self._start_again_at = 0.0
        self._idle = 0  # how many of them wait for something to do
        self._waking = 0  # and how many were woken and have not yet run
        self._gone = threading.Condition(self._lock)
        self._readers = 0
        self._readable: deque[Ages] = deque()  # batches that want help with their ages
        self.wanted = 1
        self._tallies: set[Tally] = set()
        self._past = Tally()  # the counts of workers that have ended

    @property
    def wanted(self) -> int:
        """How many workers there should be."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: int) -> None:
        self._wanted = wanted
        # Read for each file, so a plain attribute: whether to continue alone.
        self.one_works = wanted == 1 and not self._run.stopping

    # ----------------------------------------------------------- for the run

    def start_wanted(self) -> None:
        """Start the workers that are wanted and have something to do."""
        if (
            self._workers < self.wanted
            and time.monotonic() >= self._start_again_at
            and self._starting.acquire(blocking=False)
        ):
            try:
                self._start_workers()
            finally:
                self._starting.release()

    def total(self) -> Tally:
        """Return the counts of all workers so far."""
        total = Tally()
        with self._lock:
            for tally in (self._past, *self._tallies):
                total.add(tally)
        return total

    def latencies(self) -> list[float]:
        """Return seconds per operation of each worker that finished any since the last call."""
        with self._lock:
            tallies = list(self._tallies)
        found = []
        for tally in tallies:
            if tally.seconds_per_operation is not None:
                found.append(tally.seconds_per_operation)
                tally.seconds_per_operation = None
        return found

    def wait_until_gone(self) -> None:
        with self._lock:
            self._wake(self._idle)
            while self._workers:
                self._gone.wait()

    # ---------------------------------------------------------- for walkers

    @property
    def may_help(self) -> bool:
        """Whether workers should go on reading ages for others."""
        return not self._stack and self.busy <= self._most_helped

    @property
    def runs_low(self) -> bool:
        """Whether visits should push again what the stack had no room for."""
        return len(self._stack) < self._most_stacked // 2

    def push(self, node: DirectoryNode, names: list[str]) -> list[str]:
        """Push directories for other workers; return those that there is no room for."""
        self._run.counts.expect(node, len(names))
        return self.push_expected(node, names)

    def push_expected(self, node: DirectoryNode, names: list[str]) -> list[str]:
        """Push directories that `push` has returned before."""
        descriptors = self._run.descriptors
        with self._lock:
            room = max(0, self._most_stacked - len(self._stack))
            if room < len(names) and descriptors.open >= descriptors.most:
                # Visiting them from within a listing costs a descriptor per level, and descriptors
                # are scarcer now than memory: the stack grows by this one batch.
                room = len(names)
            self._stack.extend([(node, name, 0) for name in names[:room]])
            self._wake(min(room, len(names)))
        self.start_wanted()
        return names[room:]

    def push_again(self, parent: DirectoryNode, name: str, listings: int) -> None:
        """Push a directory that has to be listed again."""
        self._run.counts.expect(parent, 1)
        with self._lock:
            self._stack.append((parent, name, listings))
            self._wake(1)

    # ------------------------------------------------------------ reading ages

    def call_readers(self, ages: Ages, count: int) -> None:
        """Wake this many idle workers for a batch."""
        if not self.may_help or (
            ages.offered and not (self._idle and self._room_for_readers() > 0)
        ):
            return
        with self._lock:
            if not ages.offered:
                ages.offered = True
                self._readable.append(ages)
            self._wake(min(count, self._room_for_readers()))

    def withdraw(self, ages: Ages) -> None:
        """Note that a batch is finished."""
        if ages.offered:
            with self._lock:
                if ages.offered:
                    self._readable.remove(ages)

    def _room_for_readers(self) -> int:
        least = min(self._most_helped - self.busy, self._most_readers - self._readers)
        return least - self._waking

    def _wake(self, count: int) -> None:
        """Wake idle workers, each of them once; under the lock."""
        count = max(0, min(count, self._idle))
        self._idle -= count
        self._waking += count
        self._work.notify(count)

    def _take_age(self) -> tuple[Ages, str] | None:
        """Return a name of a batch that wants another reader; its owner offers it again later."""
        while (
            self._readable and self.busy < self._most_helped and self._readers < self._most_readers
        ):
            ages = self._readable[0]
            name = ages.take()
            if name is not None:
                # All readers work on one batch until it has enough: while an age is read, nothing
                # can be removed from its directory, so many reads at once cost one wait.
                return ages, name
            self._readable.popleft()
            ages.offered = False
        return None

    # ---------------------------------------------------------------- workers

    def _start_workers(self) -> None:
        with self._lock:
            useful = len(self._stack)
            if not useful:
                useful = min(
                    sum(ages.wanted_readers() for ages in self._readable),
                    self._room_for_readers() - self._idle,
                )
            missing = min(self.wanted - self._workers, useful)
            self._workers += max(0, missing)
        if missing <= 0:
            return
        before = threading.stack_size(_STACK_BYTES)
        try:
            for number in range(missing):
                try:
                    threading.Thread(
                        target=self._worker, name="slotwise-purge", daemon=True
                    ).start()
                except RuntimeError as error:  # the machine allows no more threads
                    with self._lock:
                        self._workers -= missing - number
                        left = self._workers
                    if not left:
                        raise
                    if not self._start_again_at:
                        log.warning("no more than %d workers for now: %s", left, error)
                    # Others may have taken all threads for a moment, so try again later.
                    self._start_again_at = time.monotonic() + _RETRY_START
                    return
        finally:
            threading.stack_size(before)

    def _worker(self) -> None:
        walker = Walker(self._run)
        with self._lock:
            self._tallies.add(walker.tally)
        try:
            while self._take_and_visit(walker):
                pass
        except BaseException as error:  # a bug: nothing is silently left out
            self.failure = error
            self._run.stop("failure")
        finally:
            with self._lock:
                self._past.add(walker.tally)
                self._tallies.discard(walker.tally)
                self._workers -= 1
                self._gone.notify_all()

    def _take_and_visit(self, walker: Walker) -> bool:
        run = self._run
        with self._lock:
            while True:
                if run.stopping or (self.busy and self._workers > self.wanted):
                    if self._stack:
                        self._wake(1)  # the worker that was woken for it may have ended
                    return False
                if self._stack or (reading := self._take_age()) is not None:
                    break
                if not self.busy:  # nobody is left who could push something: this is the end
                    self.over.set()
                    self._wake(self._idle)
                    return False
                self._idle += 1
                self._work.wait()
                self._waking -= 1
            entry, reading = (self._stack.pop(), None) if self._stack else (None, reading)
            self.busy += 1
            self._readers += reading is not None
        try:
            if reading is None:
                walker.visit(entry)
            else:
                walker.read_ages(*reading)
        finally:
            with self._lock:
                self.busy -= 1
                self._readers -= reading is not None
                if not self.busy and not self._stack:
                    self._wake(self._idle)
        return True
