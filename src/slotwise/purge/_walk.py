"""Walk the tree: open, list and empty one directory after the other.

A directory is the unit of work: the kernel locks it for every removal in it, so a
second thread in the same directory would only wait. Its entries are handled in
batches; its directories go to the stack for other workers, or are visited right
here when the stack is full.

Files are handled in `_files`, finished directories in `_directories`; the workers are in
`_workers`.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from slotwise.purge._ages import Ages
from slotwise.purge._descriptors import Containment
from slotwise.purge._directories import Directories
from slotwise.purge._files import Files
from slotwise.purge._identity import identity_of, same_mount
from slotwise.purge._plan import OPEN_DIRECTORY
from slotwise.purge._tree import DirectoryNode, Tally

if TYPE_CHECKING:
    from slotwise.purge._run import Run

# Names read before they are worked on: enough to make the listing cheap, few enough
# to keep a directory with a million files out of memory.
BATCH = 1000
_SWAPPED = (errno.ELOOP, errno.ENOTDIR)

Entry = tuple[DirectoryNode, str, int]  # parent, name, how often it was listed before


@dataclass(slots=True)
class Visit:
    """A directory that is being listed."""

    node: DirectoryNode
    listing: Any
    listings: int
    todo: list[str] = field(default_factory=list)  # directories that the stack had no room for
    below: str | None = None


class Walker:
    """One worker's walk through the directories."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.tally = Tally()
        self._descriptors = run.descriptors
        self._containment = Containment(run.root, run.descriptors)
        self._gates = run.gates
        self._files = Files(run, self.tally, self._gates)
        self._directories = Directories(run, self.tally, self._gates)
        self._one_file_system = run.plan.options.one_file_system
        self._include, self._exclude = run.plan.include, run.plan.exclude
        self._filtered = bool(self._include) or bool(self._exclude)
        self._kept_back = 0  # names in the todo of all visits

    def visit(self, entry: Entry | None) -> None:
        """Visit a directory (None: the root), and those below it that the stack has no room for."""
        # A list and not a recursion: trees are deeper than Python's stack.
        visits: list[Visit] = []
        visit = self._list(self._run.root, 0) if entry is None else self._enter(*entry)
        while visit is not None or visits:
            if visit is not None:
                visits.append(visit)
            latest = visits[-1]
            visit = None
            if self._kept_back and self._run.workers.runs_low:
                self._share(visits)
            if latest.todo and not self._run.stopping:
                self._kept_back -= 1
                visit = self._enter(latest.node, latest.todo.pop(), 0)
            elif not self._batch(latest):
                visits.pop()
                self._leave(latest)

    def read_ages(self, ages: Ages, name: str) -> None:
        """Help another worker to read the ages of its batch, as long as it wants help."""
        started, before = time.perf_counter(), self.tally.files_scanned
        self._files.read_ahead(ages, name)
        read = self.tally.files_scanned - before
        self.tally.seconds_per_operation = (time.perf_counter() - started) / max(read, 1)

    def _share(self, visits: list[Visit]) -> None:
        """Push what the stack had no room for before other workers run out of work."""
        for visit in visits:
            if visit.todo:
                before = len(visit.todo)
                visit.todo = self._run.workers.push_expected(visit.node, visit.todo)
                self._kept_back -= before - len(visit.todo)
                if visit.todo:
                    return

    # ------------------------------------------------------------ into, out of

    def _enter(self, parent: DirectoryNode, name: str, listings: int) -> Visit | None:
        """Open a directory and start to list it; None if it can't or must not be entered."""
        run = self._run
        if run.stopping:
            return None
        started = time.perf_counter()
        try:
            parent_fd = self._descriptors.pin(parent)
            try:
                fd = self._descriptors.attempt(self._open, name, parent_fd)
            finally:
                self._descriptors.unpin(parent)
            try:
                identity = identity_of(fd)
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            self._not_entered(error, parent, name)
            return None
        if self._one_file_system and not same_mount(identity, run.root.identity):
            os.close(fd)
            self._directories.finished(parent, kept=True)
            return None
        node = DirectoryNode(parent, name, fd, identity, parent.depth + 1)
        self._descriptors.adopted()
        if not self._containment.contains(node):
            self._descriptors.close(node)
            run.error("open", node, None, OSError(errno.ESTALE, "moved away during the walk"))
            self._directories.finished(parent, kept=True)
            return None
        visit = self._list(node, listings)
        self.tally.seconds_per_operation = (time.perf_counter() - started) / 2
        return visit

    def _open(self, name: str, parent_fd: int) -> int:
        self._gates.scan_in()
        try:
            return os.open(name, OPEN_DIRECTORY, dir_fd=parent_fd)
        finally:
            self._gates.scan_out()

    def _not_entered(self, error: OSError, parent: DirectoryNode, name: str) -> None:
        if error.errno == errno.ENOENT:
            self._directories.finished(parent, kept=False)
            return
        if error.errno in _SWAPPED:  # it was a directory when it was listed
            self.tally.symlinks += 1
        else:
            self._run.error("open", parent, name, error)
        self._directories.finished(parent, kept=True)

    def _list(self, node: DirectoryNode, listings: int) -> Visit | None:
        if not listings:
            self.tally.dirs_scanned += 1
        try:
            listing = self._descriptors.attempt(self._scandir, node.fd)
        except OSError as error:
            self._run.error("list", node, None, error)
            self._descriptors.unpin(node)
            self._directories.finished(node, kept=True)
            return None
        return Visit(node, listing, listings)

    def _scandir(self, fd: int) -> Any:
        self._gates.scan_in()
        try:
            return os.scandir(fd)
        finally:
            self._gates.scan_out()

    def _leave(self, visit: Visit) -> None:
        visit.listing.close()
        # Unpinned only now: entries are looked at through the node's descriptor.
        self._descriptors.unpin(visit.node)
        self._directories.finished(visit.node, kept=False, listings=visit.listings)

    # ------------------------------------------------------------- one batch

    def _batch(self, visit: Visit) -> bool:
        """Process the next names of a directory; False when there are none."""
        run, node, tally = self._run, visit.node, self.tally
        if run.stopping:
            return False
        files, directories, more, kept = self._read(visit)
        node.batches += 1
        if self._filtered and (files or directories):
            files, directories, left_out = self._select(visit, files, directories)
            kept = kept or left_out
        started, before = time.perf_counter(), tally.operations
        if directories:
            visit.todo = run.workers.push(node, directories)
            self._kept_back += len(visit.todo)
        if files and self._files.purge(node, files):
            kept = True
        operations = tally.operations - before
        if operations and not self._files.timed_each:
            tally.seconds_per_operation = (time.perf_counter() - started) / operations
        if kept:
            run.counts.keep(node)
        return more or bool(visit.todo)

    def _read(self, visit: Visit) -> tuple[list[str], list[str], bool, bool]:
        """Return the next files and directories, whether there are more, and whether some stay."""
        entries: list[os.DirEntry[str]] = []
        failed = False
        self._gates.scan_in()
        try:
            try:
                entries += islice(visit.listing, BATCH)
            except OSError as error:  # what was read so far is processed
                self._run.error("list", visit.node, None, error)
                failed = True
            more = len(entries) == BATCH and not failed
            files, directories, kept = self._sort(visit.node, entries)
        finally:
            self._gates.scan_out()
        return files, directories, more, kept or failed

    def _sort(
        self, node: DirectoryNode, entries: list[os.DirEntry[str]]
    ) -> tuple[list[str], list[str], bool]:
        """Return the files, the directories, and whether there is anything else, which stays."""
        files: list[str] = []
        directories: list[str] = []
        tally = self.tally
        kept = False
        for entry in entries:
            try:
                if entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                else:
                    kept = True
                    if entry.is_symlink():
                        tally.symlinks += 1
                    else:
                        tally.special_files += 1
            except OSError as error:  # the file system lists no types and had to be asked
                if error.errno != errno.ENOENT:
                    self._run.error("stat", node, entry.name, error)
                    kept = True
        return files, directories, kept

    def _select(
        self, visit: Visit, files: list[str], directories: list[str]
    ) -> tuple[list[str], list[str], bool]:
        """Return what the patterns select, and whether they leave anything out."""
        include, exclude = self._include, self._exclude
        if visit.below is None:
            path = visit.node.path()
            visit.below = f"{path}/" if path else ""
        below = visit.below
        wanted = [name for name in directories if not exclude.match(name, below + name)]
        chosen = [
            name
            for name in files
            if not exclude.match(name, below + name)
            and (not include or include.match(name, below + name))
        ]
        self.tally.files_scanned += len(files) - len(chosen)
        return chosen, wanted, len(wanted) < len(directories) or len(chosen) < len(files)
