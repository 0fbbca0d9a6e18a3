"""Remove directories that are or become empty: post-order, without a second scan.

The worker that finishes the last thing below a directory removes it, if nothing is left in
it, and continues with its parent.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from slotwise.purge._audit import audited
from slotwise.purge._gates import Gates
from slotwise.purge._identity import DryRunCheck
from slotwise.purge._report import AuditFailed
from slotwise.purge._tree import DirectoryNode, Tally

if TYPE_CHECKING:
    from slotwise.purge._run import Run

# A directory that changed while it was listed in several batches may not have shown everything. It
# is listed again this often before it counts as in use.
_LISTINGS = 3
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)


class Directories:
    """Removes directories for one worker."""

    def __init__(self, run: Run, tally: Tally, gates: Gates) -> None:
        options = run.plan.options
        self._run = run
        self._tally = tally
        self._gates = gates
        self._remove = options.remove_empty_dirs
        self._min_depth = options.min_depth
        self._dry_run = options.dry_run

    def finished(self, node: DirectoryNode, *, kept: bool, listings: int = 0) -> None:
        """Note that the listing of ``node``, or a directory in it, is finished."""
        run = self._run
        at: DirectoryNode | None = node
        while at is not None and run.counts.finish(at, kept=kept):
            kept = not self._is_gone(at, listings)
            listings = 0
            if at.parent is not None:
                run.descriptors.close(at)
            at = at.parent

    def _is_gone(self, node: DirectoryNode, listings: int) -> bool:
        """Remove a finished directory if it is empty now; return whether it is gone."""
        run, parent = self._run, node.parent
        if (
            parent is None
            or node.kept
            or not self._remove
            or node.depth < self._min_depth
            or run.stopping
            or not run.directories.reserve()
        ):
            return False
        done = False
        try:
            done = self._check_rmdir(node, parent) if self._dry_run else self._rmdir(node, parent)
        except AuditFailed:  # counted already
            return False
        except OSError as error:
            if error.errno == errno.ENOENT:
                return True  # somebody else removed it
            if error.errno not in _NOT_EMPTY:
                run.error("rmdir", node, None, error)
            elif (node.batches > 1 or listings) and listings < _LISTINGS:
                run.workers.push_again(parent, node.name, listings + 1)
                return True
            return False
        finally:
            run.directories.finish(done=done)
        if done:
            self._tally.dirs_deleted += 1
            run.look_at_caps()
        return done

    def _check_rmdir(self, node: DirectoryNode, parent: DirectoryNode) -> bool:
        fd = self._run.descriptors.pin(parent)
        try:
            self._gates.scan_in()
            try:
                found = os.stat(node.name, dir_fd=fd, follow_symlinks=False)
            finally:
                self._gates.scan_out()
            DryRunCheck(fd, self._gates).check(node.name, found)
        finally:
            self._run.descriptors.unpin(parent)
        return True

    def _rmdir(self, node: DirectoryNode, parent: DirectoryNode) -> bool:
        run = self._run
        if run.pace is not None:
            run.pace.wait()
        slot = None
        if run.shared_limit is not None:
            slot = run.shared_slot()
            if slot is None:
                return False
        try:
            if run.stopping:
                return False
            fd = run.descriptors.pin(parent)
            try:
                self._gates.delete_in()
                try:
                    with audited(run, "rmdir", parent, node.name, 0):
                        os.rmdir(node.name, dir_fd=fd)
                finally:
                    self._gates.delete_out()
            finally:
                run.descriptors.unpin(parent)
        finally:
            if slot is not None:
                assert run.shared_limit is not None
                run.shared_limit.release(slot)
        return True
