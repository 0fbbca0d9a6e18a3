"""Run: workers on a stack of directories, until all are visited or it is stopped.

The stack, the counters of what is pending below each directory, and the watch over
memory, speed and the number of workers. What is done with a directory is in `walk`.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

from slotwise.pipeline.guard import MB, MemoryGuard, Pressure
from slotwise.purge.adapt import Adapter
from slotwise.purge.audit import Audit
from slotwise.purge.fleet import FleetSlots, semaphore_of
from slotwise.purge.limits import Cap, Pace, gate
from slotwise.purge.plan import Plan, printable
from slotwise.purge.report import SAMPLES_KEPT, PurgeReport
from slotwise.purge.tree import Descriptors, Node
from slotwise.purge.walk import Entry, Tally, Walker
from slotwise.values import AcquisitionResult

log = logging.getLogger("slotwise.purge")

# Directories that wait for a worker: several for each, so that none of them idles
# while one lists a large directory, and at least as many as one batch of names.
_STACK_PER_WORKER = 8
_SMALLEST_STACK = 1024
# Descriptors that the rest of the process may need in the meantime.
_SPARE_DESCRIPTORS = 12
# A worker has a directory open, its listing, and for a moment one more.
_DESCRIPTORS_PER_WORKER = 3
# From this limit on, it makes no difference that one worker keeps a token for a batch.
_ROOMY = 16
# Looks at speed, memory and signals; five slow ones bring all workers within 100 ms.
_TICK = 0.01
# Threads need little: the walk is no recursion. 1,000 of them should cost megabytes.
_STACK_BYTES = 256 * 1024


class Run:
    """One purge, from the first directory to the report."""

    # Between any two steps of any worker:
    #   R1  node.pending = directories below it that are pushed or being visited and not
    #       finished, plus 1 while it is listed itself
    #   R2  a directory is on the stack, in some visit's todo, in work, or finished
    #   R3  the run is over when the stack is empty and nobody is busy

    def __init__(self, plan: Plan, progress: Callable[[PurgeReport], object] | None = None) -> None:
        options = plan.options
        self.plan = plan
        self.stopping = False
        self._stopped_by: str | None = None
        self._progress = progress
        per_second = options.max_delete_per_second
        workers, directories = _room(
            options.max_concurrency_scanning
            if per_second is not None  # more of them would only wait for their turn
            # With just as many workers as operations may be in flight, an uneven moment
            # would leave one of the gates without a queue.
            else options.max_concurrency_scanning
            + options.max_concurrency_deletion
            + min(options.max_concurrency_scanning, options.max_concurrency_deletion)
        )
        self.scan_gate = gate(options.max_concurrency_scanning, workers)
        self.delete_gate = gate(options.max_concurrency_deletion, workers)
        self.files = Cap(options.max_files_to_delete)
        self.directories = Cap(options.max_empty_dirs_to_delete)
        self.pace = None if per_second is None else Pace(per_second)
        self.audit: Audit | None = None
        self.fleet: FleetSlots | None = None
        self.descriptors = Descriptors(directories)
        self.root = Node(None, "", plan.root_fd, plan.identity, 0)
        # One pin for the run and one for the visit: the root's descriptor stays open.
        self.root.pins = 2
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._hiring = threading.Lock()  # the stack size for new threads is the process's
        self._over = threading.Event()
        self._stack: list[Entry | None] = [None]
        self._most_stacked = max(_SMALLEST_STACK, _STACK_PER_WORKER * workers)
        self._adapter = Adapter(workers)
        self._wanted = 1
        self._workers = 0
        self._busy = 0
        self._tallies: set[Tally] = set()
        self._past = Tally()  # what workers that have gone home had counted
        self._errors: dict[str, int] = {}
        self._samples: list[dict[str, str]] = []
        self._guard = MemoryGuard(options.memory_limit_mb)
        self._started = time.monotonic()
        self._failure: BaseException | None = None

    # ---------------------------------------------------------------- running

    def run(self) -> PurgeReport:
        """Do it, blocking; `stop` from a signal handler or another thread ends it early."""
        options = self.plan.options
        if self.plan.audit_path is not None and not options.dry_run:
            self.audit = Audit(self.plan.audit_path)
        try:
            if options.fleet is not None and not options.dry_run:
                self.fleet = FleetSlots(
                    semaphore_of(options.fleet, options.name, options.max_concurrency_deletion)
                )
            log.info("purging %s", printable(self.plan.root))
            self._watch()
        finally:
            self.stop(None)
            self._wait_for_workers()
            self.descriptors.close_all()
            if self.audit is not None:
                self.audit.close()
            if self.fleet is not None:
                self.fleet.close()
        if self._failure is not None:
            raise self._failure
        report = self.report()
        log.info(
            "purged %d files and %d directories in %.1f s, %d errors",
            report.files_purged,
            report.empty_dirs_deleted,
            report.duration_seconds,
            report.failures,
        )
        return report

    def stop(self, reason: str | None) -> None:
        """Begin nothing any more; what is in flight finishes. The first reason is kept."""
        if self._stopped_by is None and not self._over.is_set():
            self._stopped_by = reason
        self.stopping = True
        if self.pace is not None:
            self.pace.stop()
        self._over.set()

    def interrupt(self, reason: str) -> None:
        """Like `stop`, for signal handlers: takes no lock, which this thread may hold already."""
        if self._stopped_by is None and not self.stopping:
            self._stopped_by = reason
        self.stopping = True  # the watch sees it at its next look

    def _watch(self) -> None:
        """Look after memory, workers and the progress until the end."""
        looked = shown = time.monotonic()
        while not self._over.is_set() and not self.stopping:
            self._look_at_memory()
            self._hire()
            if self._over.wait(_TICK) or self.stopping:
                break
            now = time.monotonic()
            with self._lock:
                tallies = list(self._tallies)
                busy = self._busy
            latencies = []
            operations = self._past.operations
            for tally in tallies:
                operations += tally.operations
                if tally.seconds_per_operation is not None:
                    latencies.append(tally.seconds_per_operation)
                    tally.seconds_per_operation = None
            self._wanted = self._adapter.look(now - looked, operations, busy, latencies)
            looked = now
            if self._progress is not None and now - shown >= 0.1:
                shown = now
                self._progress(self.report())

    def _look_at_memory(self) -> None:
        pressure = self._guard.check()
        if pressure is Pressure.STOP:
            log.error("stopped: %s", self._guard.describe())
            self.stop("memory")
        elif pressure is Pressure.SLOW:
            self._wanted = 1

    def _hire(self) -> None:
        """Start the workers that are wanted and have something to do."""
        if self._workers < self._wanted and self._hiring.acquire(blocking=False):
            try:
                self._start_workers()
            finally:
                self._hiring.release()

    def _start_workers(self) -> None:
        with self._lock:
            missing = min(self._wanted - self._workers, len(self._stack))
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
                except RuntimeError as error:  # as many threads as the machine allows
                    with self._lock:
                        self._workers -= missing - number
                        alone = not self._workers
                    if alone:
                        raise
                    log.warning("no more than %d workers: %s", self._workers, error)
                    self._adapter.most = max(1, self._workers)
                    return
        finally:
            threading.stack_size(before)

    def _wait_for_workers(self) -> None:
        if self.fleet is not None:
            self.fleet.stop()
        with self._work:
            self._work.notify_all()
            while self._workers:
                self._work.wait()

    # ---------------------------------------------------------------- workers

    def _worker(self) -> None:
        walker = Walker(self)
        with self._lock:
            self._tallies.add(walker.tally)
        try:
            while self._take_and_visit(walker):
                pass
        except BaseException as error:  # a bug: nothing is silently left out
            self._failure = error
            self.stop("failure")
        finally:
            with self._work:
                _add(self._past, walker.tally)
                self._tallies.discard(walker.tally)
                self._workers -= 1
                self._work.notify_all()

    def _take_and_visit(self, walker: Walker) -> bool:
        with self._work:
            while not self._stack and self._busy and not self.stopping:
                if self._workers > self._wanted:
                    return False
                self._work.wait()
            if self.stopping:
                return False
            if not self._stack:  # and nobody is busy who could push something: the end
                self._over.set()
                self._work.notify_all()
                return False
            if self._busy and self._workers > self._wanted:
                return False
            entry = self._stack.pop()
            self._busy += 1
        try:
            walker.visit(entry)
        finally:
            with self._work:
                self._busy -= 1
                if not self._busy and not self._stack:
                    self._work.notify_all()
        return True

    # ------------------------------------------------- called by the walkers

    def push(self, node: Node, names: list[str]) -> list[str]:
        """Leave directories to others; gives back those that there is no room for."""
        with self._work:
            node.pending += len(names)
            room = self._most_stacked - len(self._stack)
            if room < len(names) and self.descriptors.open >= self.descriptors.most:
                # Visiting them from within a listing costs a descriptor for each level, and
                # those are scarcer now than memory: the stack grows by this one batch.
                room = len(names)
            room = max(0, room)
            self._stack.extend([(node, name, 0) for name in names[:room]])
            self._work.notify(min(room, len(names)))
        self._hire()
        return names[room:]

    def fleet_slot(self) -> AcquisitionResult | None:
        """A slot of the limit that the fleet shares; without one there is no going on."""
        assert self.fleet is not None
        slot = self.fleet.acquire()
        if slot is None and self.fleet.error is not None and not self.stopping:
            log.error("the fleet's limit can't be used: %s", self.fleet.error)
            self.stop("fleet")
        return slot

    def list_again(self, parent: Node, name: str, listings: int) -> None:
        with self._work:
            parent.pending += 1
            self._stack.append((parent, name, listings))
            self._work.notify()

    def keep(self, node: Node) -> None:
        with self._lock:  # `done` reads it and writes it back
            node.kept = True

    def done(self, node: Node, *, kept: bool, walker: Walker, listings: int = 0) -> None:
        """Something in ``node`` is finished: its listing, or a directory below it.

        Whoever finishes the last of it removes the directory, if it is empty, and
        goes on upwards.
        """
        at: Node | None = node
        while at is not None:
            with self._lock:
                at.pending -= 1
                at.kept = at.kept or kept
                if at.pending:
                    return
            kept = not walker.remove_empty(at, listings)
            listings = 0
            if at.parent is not None:
                self.descriptors.close(at)
            at = at.parent

    def error(self, op: str, node: Node, name: str | None, error: OSError) -> None:
        """Count an error; the first ones are kept as samples."""
        kind = errno.errorcode.get(error.errno or 0, type(error).__name__)
        with self._lock:
            self._errors[kind] = self._errors.get(kind, 0) + 1
            wanted = len(self._samples) < SAMPLES_KEPT
        if wanted:
            path = self.full_path(node, name)
            words = error.strerror or str(error)
            log.warning("%s %s: %s", op, printable(path), words)
            with self._lock:
                self._samples.append({"op": op, "path": path, "error": words, "kind": kind})

    def full_path(self, node: Node, name: str | None) -> str:
        below = node.path()
        parts = [part for part in (below, name) if part]
        return os.path.join(self.plan.root, *parts)  # noqa: PTH118  # names need not be UTF-8

    def look_at_caps(self) -> None:
        """Stop when everything that may be deleted was deleted."""
        options = self.plan.options
        if self.files.reached and (not options.remove_empty_dirs or self.directories.reached):
            self.stop("max_files_to_delete")

    # ----------------------------------------------------------------- report

    def report(self) -> PurgeReport:
        """The numbers as they are now."""
        total = Tally()
        with self._lock:
            for tally in (self._past, *self._tallies):
                _add(total, tally)
            errors, samples = dict(self._errors), list(self._samples)
        elapsed = time.monotonic() - self._started
        stopped_by = self._stopped_by
        if stopped_by is None and self.files.reached:
            stopped_by = "max_files_to_delete"
        if stopped_by is None and self.directories.reached:
            stopped_by = "max_empty_dirs_to_delete"
        return PurgeReport(
            root=self.plan.root,
            files_scanned=total.files_scanned,
            files_to_purge=total.files_to_purge,
            files_purged=total.files_purged,
            dirs_scanned=total.dirs_scanned,
            empty_dirs_deleted=total.dirs_deleted,
            symlinks_skipped=total.symlinks,
            special_files_skipped=total.special_files,
            errors=errors,
            error_samples=samples,
            bytes_freed=total.bytes_freed,
            duration_seconds=elapsed,
            files_per_second=total.files_purged / elapsed if elapsed else 0.0,
            peak_memory_mb=self._guard.peak_memory / MB,
            dry_run=self.plan.options.dry_run,
            stopped_by=stopped_by,
        )

    @property
    def alone(self) -> bool:
        """Whether one worker is enough; tight limits need it to go through their gates."""
        options = self.plan.options
        return (
            self._wanted == 1
            and options.max_concurrency_scanning >= _ROOMY
            and options.max_concurrency_deletion >= _ROOMY
        )

    @property
    def in_flight(self) -> int:
        return self._busy

    @property
    def memory_mb(self) -> float:
        return self._guard.memory / MB


def _add(total: Tally, part: Tally) -> None:
    total.files_scanned += part.files_scanned
    total.files_to_purge += part.files_to_purge
    total.files_purged += part.files_purged
    total.dirs_scanned += part.dirs_scanned
    total.dirs_deleted += part.dirs_deleted
    total.symlinks += part.symlinks
    total.special_files += part.special_files
    total.bytes_freed += part.bytes_freed


def _room(workers: int) -> tuple[int, int]:
    """How many workers, and directories kept open, the limit of descriptors has room for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 20
    try:
        used = len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        used = 16
    free = max(12, limit - used - _SPARE_DESCRIPTORS)
    workers = max(1, min(workers, free // (2 * _DESCRIPTORS_PER_WORKER)))
    return workers, max(4, min(8192, free - workers * _DESCRIPTORS_PER_WORKER))
