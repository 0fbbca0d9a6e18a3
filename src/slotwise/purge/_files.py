"""Delete the old files among the names of a batch.

The worker that deletes a file reads its age right before that. If anything made it wait in
between (a gate, the rate limit, a cap, the audit's disk), an age that is no longer fresh is
read again. Fresh means read within the last millisecond, or within a few times as long as the read
took: a removal takes longer than a read, and with a tighter bound nearly every age was
read twice on a busy machine.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from operator import attrgetter
from stat import S_IFMT, S_IFREG
from typing import TYPE_CHECKING

from slotwise.purge._ages import FRESH_FOR, Ages, DeletionStatistics, OldFile
from slotwise.purge._audit import audited
from slotwise.purge._gates import Gates
from slotwise.purge._identity import DryRunCheck
from slotwise.purge._report import AuditFailed
from slotwise.purge._tree import DirectoryNode, Tally

if TYPE_CHECKING:
    from slotwise._core.results import AcquisitionResult
    from slotwise.purge._run import Run

FRESH = 0.001
_READINGS = 8
_STILL_FRESH = 0.1
_KIND = S_IFMT(0xFFFF)  # the bits of a mode that hold the file type
# How many ages a worker reads between two looks whether others may help.
_IN_A_ROW = 16


class Touched(OSError):
    """A file was modified while its deletion waited. It is kept, which is not an error."""


class Files:
    """Deletes files for one worker."""

    def __init__(self, run: Run, tally: Tally, gates: Gates) -> None:
        options = run.plan.options
        self._run = run
        self._tally = tally
        self._gates = gates
        self._cutoff_ns = run.plan.cutoff_ns
        self._age_of = attrgetter(run.plan.age_field)
        self._min_depth = options.min_depth
        self._dry_run = options.dry_run
        self._plain = run.plain and not run.files.most
        self._slot: AcquisitionResult | None = None
        self._kept = False  # some file of the current batch is kept
        self._statistics = DeletionStatistics()
        self.timed_each = False  # the latest batch noted how long single operations took
        self._deleted = False  # and deleted some file
        self._seconds_read = 0.0  # how long the latest reading took

    def purge(self, node: DirectoryNode, names: list[str]) -> bool:
        """Delete the old ones; return whether any is kept."""
        if node.depth + 1 < self._min_depth:
            self._tally.files_scanned += len(names)
            return True
        self._kept = self._deleted = self.timed_each = False
        if not self._plain:
            self._purge_carefully(node, names)
        else:
            done = self._purge_without_gates(node, names) if self._run.one_is_enough else 0
            if done < len(names) and not self._run.stopping:
                self._purge(node, names[done:])
        return self._kept or self._run.stopping

    def _purge(self, node: DirectoryNode, names: list[str]) -> None:
        run, tally, gates, fd = self._run, self._tally, self._gates, node.fd
        work_gate = run.gates.work
        work_gate.enter()
        try:
            for name, found, fresh_until in self._old_ones(node, names):
                tally.files_to_purge += 1
                try:
                    gates.delete_in()
                    try:
                        now = time.monotonic()
                        if now > fresh_until:
                            found, now = self._read_again(name, fd)[0], time.monotonic()
                        os.unlink(name, dir_fd=fd)
                        self._note_time(time.monotonic() - now, deleted=True)
                    finally:
                        gates.delete_out()
                except OSError as error:
                    self._failed(node, name, error)
                    continue
                self._count(found)
        finally:
            work_gate.leave()

    def _old_ones(self, node: DirectoryNode, names: list[str]) -> Iterator[OldFile]:
        """Yield the old files one by one. Idle workers, if there are any, read ahead."""
        run = self._run
        for start in range(0, len(names), _IN_A_ROW):
            if run.workers.may_help:
                ages = Ages(node, names[start:], self._statistics)
                try:
                    yield from ages.old_ones(self._read_for, run.workers.call_readers, run)
                finally:
                    run.workers.withdraw(ages)
                self._kept = self._kept or ages.kept
                return
            for name in names[start : start + _IN_A_ROW]:
                if run.stopping:
                    return
                old = self._look_at(node, name)
                if old is not None:
                    yield old

    def _look_at(self, node: DirectoryNode, name: str, ahead: float = 0.0) -> OldFile | None:
        """Read one age; return the file if it is old, otherwise note that it is kept.

        What is read ahead counts as fresh for ``ahead`` seconds.
        """
        self._tally.files_scanned += 1
        try:
            found, fresh_until = self._read(name, node.fd)
        except OSError as error:
            self._failed(node, name, error)
            return None
        if self._is_old(found):
            return OldFile(name, found, time.monotonic() + ahead if ahead else fresh_until)
        self._kept = True
        if not self._deleted:
            self._note_time(self._seconds_read)
        return None

    def read_ahead(self, ages: Ages, name: str) -> None:
        """Read ages for another worker's batch, as long as it wants that."""
        run, workers = self._run, self._run.workers
        taken: str | None = name
        while taken is not None:
            more = workers.may_help and not run.stopping
            taken = self._read_for(ages, taken, ahead=FRESH_FOR, more=more)

    def _read_for(
        self, ages: Ages, name: str, *, ahead: float = 0.0, more: bool = False
    ) -> str | None:
        """Read one age for a batch; return another name to read, if ``more`` and it wants that."""
        kept_before, self._kept = self._kept, False
        old = None
        try:
            old = self._look_at(ages.node, name, ahead)
        except BaseException:  # a bug: the batch's owner must not wait for this name
            self._kept, more = True, False
            raise
        finally:
            kept, self._kept = self._kept, kept_before
            taken = ages.put(old, kept=kept, more=more)
        return taken

    def _purge_without_gates(self, node: DirectoryNode, names: list[str]) -> int:
        """Delete the old ones for a worker that is alone: here every microsecond counts.

        It enters the gates once for all names: one worker does one thing at a time, and waits for
        nobody. Returns how many names were processed before others had to help, or the run was
        stopped.
        """
        tally, gates, workers = self._tally, self._gates, self._run.workers
        fd, cutoff, age_of = node.fd, self._cutoff_ns, self._age_of
        read_stat, unlink = os.stat, os.unlink
        kind, regular = _KIND, S_IFREG
        # Those that are kept are counted, since most are deleted.
        before = tally.files_scanned
        not_old = not_deleted = freed = 0
        # In the same order as a re-read of an age: other workers may still be active, and a
        # different order could deadlock.
        gates.delete_in()
        gates.scan_in()
        try:
            for name in names:
                if not workers.one_works:
                    break
                tally.files_scanned += 1  # the other counts can wait: this one shows the speed
                try:
                    found = read_stat(name, dir_fd=fd, follow_symlinks=False)
                except OSError as error:
                    not_old += 1
                    self._failed(node, name, error)
                    continue
                if age_of(found) >= cutoff or found.st_mode & kind != regular:
                    not_old += 1
                    self._kept = True
                    continue
                try:
                    unlink(name, dir_fd=fd)
                except OSError as error:
                    not_deleted += 1
                    self._failed(node, name, error)
                    continue
                if found.st_nlink == 1:
                    freed += found.st_size
        finally:
            gates.scan_out()
            gates.delete_out()
            done = tally.files_scanned - before
            tally.files_to_purge += done - not_old
            tally.files_purged += done - not_old - not_deleted
            tally.bytes_freed += freed
        return done

    # --------------------------------- with a cap, a pace, an audit, a shared limit, or dry

    def _purge_carefully(self, node: DirectoryNode, names: list[str]) -> None:
        run = self._run
        try:
            check = DryRunCheck(node.fd, self._gates) if self._dry_run else None
        except OSError as error:
            run.error("stat", node, None, error)
            self._kept = True
            return
        try:
            for old in self._old_ones(node, names):
                try:
                    # Before the gate: workers that wait for the shared limit must not block those
                    # that hold it.
                    if run.shared_limit is not None and self._slot is None:
                        self._slot = run.shared_slot()
                        if self._slot is None:
                            self._kept = True
                            return
                        old = old._replace(fresh_until=0.0)  # however short the wait was
                    run.gates.work.enter()
                    try:
                        if not self._remove(node, old, check):
                            self._kept = True
                    finally:
                        run.gates.work.leave()
                except OSError as error:
                    self._failed(node, old.name, error)
        finally:
            if self._slot is not None:
                assert run.shared_limit is not None
                run.shared_limit.release(self._slot)
                self._slot = None

    def _remove(self, node: DirectoryNode, old: OldFile, check: DryRunCheck | None) -> bool:
        run = self._run
        name, found, fresh_until = old
        self._tally.files_to_purge += 1
        if not run.files.reserve():
            return False
        done = False
        try:
            if check is not None:
                check.check(name, found)
            else:
                if run.pace is not None and run.pace.wait():
                    if run.stopping:
                        return False
                    fresh_until = 0.0  # however short the wait was
                found = self._remove_audited(node, name, found, fresh_until)
            done = True
        finally:
            run.files.finish(done=done)
        self._count(found)
        run.look_at_caps()
        return True

    def _remove_audited(
        self, node: DirectoryNode, name: str, found: os.stat_result, fresh_until: float
    ) -> os.stat_result:
        gates, fd = self._gates, node.fd
        gates.delete_in()
        try:
            if time.monotonic() > fresh_until:
                found, fresh_until = self._read_again(name, fd)
            with audited(self._run, "unlink", node, name, found.st_size):
                now = time.monotonic()
                if now > fresh_until:  # the audit's disk was slow
                    found, now = self._read_again(name, fd)[0], time.monotonic()
                os.unlink(name, dir_fd=fd)
                self._note_time(time.monotonic() - now, deleted=True)
        finally:
            gates.delete_out()
        return found

    # ------------------------------------------------------------------------ rules

    def _is_old(self, found: os.stat_result) -> bool:
        return self._age_of(found) < self._cutoff_ns and found.st_mode & _KIND == S_IFREG

    def _read(self, name: str, fd: int) -> tuple[os.stat_result, float]:
        """Return the stat result, and until when it counts as fresh."""
        self._gates.scan_in()
        try:
            asked = time.monotonic()
            # Not `DirEntry.stat`, which caches: where listings don't include types (NFS without
            # READDIRPLUS), that would be the age at the time of the listing.
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            answered = time.monotonic()
        finally:
            self._gates.scan_out()
        self._seconds_read = answered - asked
        return found, answered + min(max(_READINGS * (answered - asked), FRESH), _STILL_FRESH)

    def _note_time(self, seconds: float, *, deleted: bool = False) -> None:
        """Note how long an operation took; a reading says little where files are deleted.

        Readings may come from a cache, which removals never do.
        """
        self.timed_each = True
        self._deleted = self._deleted or deleted
        self._tally.seconds_per_operation = seconds

    def _read_again(self, name: str, fd: int) -> tuple[os.stat_result, float]:
        """Read an age again after a wait.

        Raises:
            Touched: it is not old any more.
        """
        found, fresh_until = self._read(name, fd)
        if not self._is_old(found):
            raise Touched
        return found, fresh_until

    def _failed(self, node: DirectoryNode, name: str, error: OSError) -> None:
        """Note that a file is kept, unless it is gone, and count the error if it is one."""
        if error.errno == errno.ENOENT:
            return
        self._kept = True
        if isinstance(error, Touched):
            self._tally.files_to_purge -= 1
        elif not isinstance(error, AuditFailed):  # which is counted already
            self._run.error("unlink", node, name, error)

    def _count(self, found: os.stat_result) -> None:
        self._tally.files_purged += 1
        if found.st_nlink == 1:
            self._tally.bytes_freed += found.st_size
