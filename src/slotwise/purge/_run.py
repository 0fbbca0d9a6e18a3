"""Run one purge from its first directory to its report.

The watch monitors memory, speed and signals, and decides how many workers there should
be. The workers are in `_workers`, and what they do is in `_walk`.
"""

from __future__ import annotations

import logging
import math
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slotwise._bounded.memory_guard import MB, MemoryGuard, Pressure
from slotwise.purge._audit import Audit
from slotwise.purge._descriptors import Descriptors
from slotwise.purge._gates import Cap, Gates, Pace
from slotwise.purge._options import PurgeOptions
from slotwise.purge._plan import Plan
from slotwise.purge._report import Failures, PurgeReport, printable
from slotwise.purge._scaling import WorkerScaler
from slotwise.purge._tree import Counts, DirectoryNode
from slotwise.purge._workers import Workers

if TYPE_CHECKING:
    from slotwise._core.results import AcquisitionResult
    from slotwise.purge._shared_limit import SharedLimit

log = logging.getLogger("slotwise.purge")

# Descriptors reserved for the rest of the process.
_SPARE_DESCRIPTORS = 12
# A worker has a directory open, its listing, and for a moment one more.
_DESCRIPTORS_PER_WORKER = 3
# From this limit on, it doesn't matter that one worker keeps a token for a batch.
_ROOMY = 16
# Seconds between checks of speed, memory and signals; five slow checks start all workers, within
# 100 ms. While one worker is enough, checks are rarer: each one interrupts it.
_TICK = 0.01
_LONG_TICK = 0.04
_CALM_CHECKS = 8


class Run:
    """One purge."""

    def __init__(self, plan: Plan, progress: Callable[[PurgeReport], object] | None = None) -> None:
        options = plan.options
        self.plan = plan
        self.stopping = False
        self._stopped_by: str | None = None
        self._progress = progress
        workers, directories = _room(_workers_for(options))
        self.gates = Gates(
            options.max_concurrency_scanning, options.max_concurrency_deletion, workers
        )
        self.files = Cap(options.max_files_to_delete)
        self.directories = Cap(options.max_empty_dirs_to_delete)
        per_second = options.max_delete_per_second
        self.pace = None if per_second is None else Pace(per_second)
        self.audit: Audit | None = None
        self.shared_limit: SharedLimit | None = None
        self.descriptors = Descriptors(directories)
        self.root = DirectoryNode(None, "", plan.root_fd, plan.identity, 0)
        # One pin for the run and one for the visit: the root's descriptor stays open.
        self.root.pins = 2
        self.counts = Counts()
        self.workers = Workers(self, workers)
        self._scaler = WorkerScaler(workers)
        self._failures = Failures()
        self._guard = MemoryGuard(options.memory_limit_mb or math.inf)
        self._started = time.monotonic()
        self._deadline = math.inf if options.deadline is None else self._started + options.deadline
        self._within_limits = (
            min(options.max_concurrency_scanning, options.max_concurrency_deletion) >= _ROOMY
        )

    # ---------------------------------------------------------------- running

    def run(self) -> PurgeReport:
        """Purge, blocking; `stop` from another thread, or `interrupt`, ends it early."""
        options = self.plan.options
        if self.plan.audit_path is not None and not options.dry_run:
            self.audit = Audit.open(self.plan.audit_path, self._is_stopping)
        try:
            if not options.dry_run and (options.url or options.semaphore) is not None:
                from slotwise.purge._shared_limit import SharedLimit  # needs asyncio

                self.shared_limit = SharedLimit.of(options)
            log.info("purging %s", printable(self.plan.root))
            self._watch()
        finally:
            self.stop(None)
            if self.shared_limit is not None:
                self.shared_limit.stop()
            self.workers.wait_until_gone()
            self.descriptors.close_all()
            if self.audit is not None:
                self.audit.close()
            if self.shared_limit is not None:
                self.shared_limit.close()
        if self.workers.failure is not None:
            raise self.workers.failure
        report = self.report()
        log.info(
            "purged %d files and %d directories in %.1f s, %d errors",
            report.files_purged,
            report.empty_dirs_deleted,
            report.duration_seconds,
            report.failures,
        )
        if self._progress is not None:
            self._progress(report)
        return report

    def stop(self, reason: str | None) -> None:
        """Start nothing more; what is in flight finishes. The first reason is kept."""
        if self._stopped_by is None and not self.workers.over.is_set():
            self._stopped_by = reason
        self.stopping = True
        self.workers.one_works = False
        if self.pace is not None:
            self.pace.stop()
        self.workers.over.set()

    def interrupt(self, reason: str) -> None:
        """Like `stop`, for signal handlers: takes no lock, which this thread may hold already."""
        if self._stopped_by is None and not self.stopping:
            self._stopped_by = reason
        self.stopping = True  # the watch sees it at its next check
        self.workers.one_works = False

    def _is_stopping(self) -> bool:
        if time.monotonic() >= self._deadline:
            self.stop("deadline")
        return self.stopping

    def _watch(self) -> None:
        """Supervise memory, workers and progress until the end."""
        workers = self.workers
        looked = shown = time.monotonic()
        cpu = time.process_time()
        calm_checks = 0
        while not workers.over.is_set() and not self.stopping:
            short = self._is_memory_short()
            if short:
                workers.wanted = 1
            workers.start_wanted()
            calm = calm_checks >= _CALM_CHECKS
            if workers.over.wait(_LONG_TICK if calm else _TICK) or self._is_stopping():
                break
            now, cpu_now = time.monotonic(), time.process_time()
            wanted = self._scaler.look(
                now - looked,
                workers.total().operations,
                workers.busy,
                workers.latencies(),
                cpu=cpu_now - cpu,
            )
            workers.wanted = 1 if short else wanted
            calm_checks = calm_checks + 1 if wanted == 1 else 0
            looked, cpu = now, cpu_now
            if self._progress is not None and now - shown >= 0.1:
                shown = now
                self._progress(self.report())

    def _is_memory_short(self) -> bool:
        """Whether memory allows only one worker; stop the run if even that is too much."""
        pressure = self._guard.check()
        if pressure is Pressure.STOP:
            log.error("stopped: %s", self._guard.describe())
            self.stop("memory")
        return pressure is Pressure.SLOW

    # ------------------------------------------------- called by the walkers

    @property
    def plain(self) -> bool:
        """Whether removals need no cap, pace, audit, shared limit or dry-run check."""
        return not (
            self.plan.options.dry_run
            or self.pace is not None
            or self.audit is not None
            or self.shared_limit is not None
        )

    @property
    def one_is_enough(self) -> bool:
        """Whether one worker is enough; tight limits need it to go through their gates."""
        return self.workers.wanted == 1 and self._within_limits

    def shared_slot(self) -> AcquisitionResult | None:
        """Return a slot of the shared limit; None stops the run: nothing may be deleted."""
        assert self.shared_limit is not None
        slot = self.shared_limit.acquire()
        if slot is None and self.shared_limit.error is not None and not self.stopping:
            log.error("the shared limit can't be used: %s", self.shared_limit.error)
            self.stop("shared_limit")
        return slot

    def error(self, op: str, node: DirectoryNode, name: str | None, error: OSError) -> None:
        self._failures.add(op, lambda: self.full_path(node, name), error)

    def full_path(self, node: DirectoryNode, name: str | None) -> str:
        below = node.path()
        parts = [part for part in (below, name) if part]
        return os.path.join(self.plan.root, *parts)  # noqa: PTH118  # names need not be UTF-8

    def look_at_caps(self) -> None:
        """Stop when the caps allow no further deletion."""
        options = self.plan.options
        if self.files.reached and (not options.remove_empty_dirs or self.directories.reached):
            self.stop("max_files_to_delete")

    # ----------------------------------------------------------------- report

    def report(self) -> PurgeReport:
        """Return the counts so far."""
        total = self.workers.total()
        errors, samples = self._failures.read()
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
    def is_over(self) -> bool:
        """Whether nothing more is started: it is finished, or stopped."""
        return self.workers.over.is_set()

    @property
    def in_flight(self) -> int:
        """How many operations the file system is doing for us right now."""
        # One worker alone goes through both gates at once.
        return min(self.gates.in_flight, self.workers.busy)

    @property
    def memory_mb(self) -> float:
        return self._guard.memory / MB


def _workers_for(options: PurgeOptions) -> int:
    scanning, deletion = options.max_concurrency_scanning, options.max_concurrency_deletion
    if options.max_delete_per_second is not None:
        return scanning  # more would only wait
    # With only as many workers as operations in flight, the last directories would be started when
    # most workers have nothing left to do. So there are twice as many, for the end
    # (`Files._purge`), and meanwhile to keep a queue at the gates.
    return scanning + deletion + 2 * min(scanning, deletion)


def _room(workers: int) -> tuple[int, int]:
    """Return how many workers and open directories the limit on descriptors allows."""
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
