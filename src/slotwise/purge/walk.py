"""Walk: one directory after the other, listed, checked and emptied by one worker.

A directory is the unit of work: the kernel locks it for every removal in it, so a
second thread in the same directory would only wait. Its entries are handled in
batches; its directories go to the stack for other workers, or are visited right
here when the stack is full. Whoever finishes the last thing below a directory
removes it, if nothing is left in it, and goes on with its parent.

How many workers there are, and when they stop, is in `run`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from slotwise.purge.errors import AuditFailed
from slotwise.purge.identity import identity_of, same_mount
from slotwise.purge.plan import OPEN_DIRECTORY
from slotwise.purge.tree import Node

if TYPE_CHECKING:
    from slotwise.purge.run import Run

# Names read before they are worked on: enough to make the listing cheap, few enough
# to keep a directory with a million files out of memory.
BATCH = 1000
# A directory that was listed in several batches while it was changed may not have
# shown everything; it is listed again this often before it is believed to be in use.
_LISTINGS = 3
_SWAPPED = (errno.ELOOP, errno.ENOTDIR)
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)

Entry = tuple[Node, str, int]  # parent, name, how often it was listed before


class Tally:
    """What one worker has counted; written by that worker alone, read by everyone."""

    __slots__ = (
        "bytes_freed",
        "dirs_deleted",
        "dirs_scanned",
        "files_purged",
        "files_scanned",
        "files_to_purge",
        "seconds_per_operation",
        "special_files",
        "symlinks",
    )

    def __init__(self) -> None:
        self.files_scanned = 0
        self.files_to_purge = 0
        self.files_purged = 0
        self.dirs_scanned = 0
        self.dirs_deleted = 0
        self.symlinks = 0
        self.special_files = 0
        self.bytes_freed = 0
        self.seconds_per_operation: float | None = None

    @property
    def operations(self) -> int:
        return self.files_scanned + self.files_purged + 2 * self.dirs_scanned + self.dirs_deleted


class Visit:
    """A directory that is being listed."""

    __slots__ = ("below", "listing", "listings", "node", "todo")

    def __init__(self, node: Node, listing: Any, listings: int) -> None:
        self.node = node
        self.listing = listing
        self.listings = listings
        self.todo: list[str] = []  # directories that the stack had no room for
        self.below: str | None = None


class Walker:
    """One worker's hands."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.tally = Tally()
        plan = run.plan
        self._plan = plan
        self._descriptors = run.descriptors
        self._below_root = plan.root.rstrip("/") + "/"
        self._dry_run = plan.options.dry_run
        self._plain = (
            not self._dry_run
            and run.pace is None
            and run.audit is None
            and run.fleet is None
            and not run.files.most
        )
        self._filtered = bool(plan.include) or bool(plan.exclude)
        self._scan_in, self._scan_out = _ends(run.scan_gate)
        self._delete_in, self._delete_out = _ends(run.delete_gate)

    def visit(self, entry: Entry | None) -> None:
        """Visit a directory (None: the root), and those below that nobody else has room for."""
        # A list and not a recursion: trees are deeper than Python's stack.
        visits: list[Visit] = []
        visit = self._list(self.run.root, 0) if entry is None else self._enter(*entry)
        while visit is not None or visits:
            if visit is not None:
                visits.append(visit)
            latest = visits[-1]
            visit = None
            if latest.todo and not self.run.stopping:
                visit = self._enter(latest.node, latest.todo.pop(), 0)
            elif not self._batch(latest):
                visits.pop()
                self._leave(latest)

    # ------------------------------------------------------------ into, out of

    def _enter(self, parent: Node, name: str, listings: int) -> Visit | None:
        """Open a directory and begin to list it; None if that is not to be."""
        run = self.run
        if run.stopping:
            return None
        try:
            parent_fd = self._descriptors.pin(parent)
            try:
                fd = self._open(name, parent_fd)
            finally:
                self._descriptors.unpin(parent)
        except OSError as error:
            self._not_entered(error, parent, name)
            return None
        identity = identity_of(fd)
        if self._plan.options.one_file_system and not same_mount(identity, run.root.identity):
            os.close(fd)
            run.done(parent, kept=True, walker=self)
            return None
        node = Node(parent, name, fd, identity, parent.depth + 1)
        self._descriptors.adopted()
        if not self._is_below_root(node):
            self._descriptors.close(node)
            run.error("open", node, None, OSError(errno.ESTALE, "moved away during the walk"))
            run.done(parent, kept=True, walker=self)
            return None
        return self._list(node, listings)

    def _open(self, name: str, parent_fd: int) -> int:
        while True:
            self._scan_in()
            try:
                return os.open(name, OPEN_DIRECTORY, dir_fd=parent_fd)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                if not self._descriptors.give_room():
                    raise
            finally:
                self._scan_out()

    def _not_entered(self, error: OSError, parent: Node, name: str) -> None:
        run = self.run
        if error.errno == errno.ENOENT:
            run.done(parent, kept=False, walker=self)
            return
        if error.errno in _SWAPPED:  # it was a directory when it was listed
            self.tally.symlinks += 1
        else:
            run.error("open", parent, name, error)
        run.done(parent, kept=True, walker=self)

    def _is_below_root(self, node: Node) -> bool:
        """Whether a directory that was just opened is where it should be, and not moved away."""
        try:
            path = os.readlink(f"/proc/self/fd/{node.fd}")  # noqa: PTH115
            if path.startswith(self._below_root):
                return True
            # Moved away, or the root itself was: where is that now?
            root = os.readlink(f"/proc/self/fd/{self.run.root.fd}")  # noqa: PTH115
        except OSError as error:
            if error.errno not in (errno.ENAMETOOLONG, errno.ENOENT):
                return False
            # Too deep for a path, or no /proc: the parent at least has to be the parent.
            assert node.parent is not None
            try:
                above = os.stat("..", dir_fd=node.fd)
            except OSError:
                return False
            return above.st_ino == node.parent.identity.inode
        self._below_root = root.rstrip("/") + "/"
        return path.startswith(self._below_root)

    def _list(self, node: Node, listings: int) -> Visit | None:
        self.tally.dirs_scanned += 1
        try:
            self._scan_in()
            try:
                listing = os.scandir(node.fd)
            finally:
                self._scan_out()
        except OSError as error:
            self.run.error("list", node, None, error)
            self._descriptors.unpin(node)
            self.run.done(node, kept=True, walker=self)
            return None
        return Visit(node, listing, listings)

    def _leave(self, visit: Visit) -> None:
        visit.listing.close()
        # Unpinned only now: entries are looked at through the node's descriptor.
        self._descriptors.unpin(visit.node)
        self.run.done(visit.node, kept=False, walker=self, listings=visit.listings)

    # ------------------------------------------------------------- one batch

    def _batch(self, visit: Visit) -> bool:
        """Work on the next names of a directory; False when there are none."""
        run, node, tally = self.run, visit.node, self.tally
        if run.stopping:
            return False
        files: list[os.DirEntry[str]] = []
        directories: list[str] = []
        kept = False
        count = 0
        self._scan_in()
        try:
            for entry in islice(visit.listing, BATCH):
                count += 1
                try:
                    if entry.is_file(follow_symlinks=False):
                        files.append(entry)
                    elif entry.is_dir(follow_symlinks=False):
                        directories.append(entry.name)
                    elif entry.is_symlink():
                        tally.symlinks += 1
                        kept = True
                    else:
                        tally.special_files += 1
                        kept = True
                except OSError as error:  # a file system that keeps no types had to be asked
                    if error.errno != errno.ENOENT:
                        run.error("stat", node, entry.name, error)
                        kept = True
        except OSError as error:
            run.error("list", node, None, error)
            run.keep(node)
            return False
        finally:
            self._scan_out()
        node.batches += 1
        if self._filtered and (files or directories):
            files, directories, left_out = self._select(visit, files, directories)
            kept = kept or left_out
        if directories:
            visit.todo = run.push(node, directories)
        if files:
            started, before = time.perf_counter(), tally.operations
            if self._purge_files(visit, files):
                kept = True
            if operations := tally.operations - before:
                tally.seconds_per_operation = (time.perf_counter() - started) / operations
        if kept:
            run.keep(node)
        return count == BATCH or bool(visit.todo)

    def _select(
        self, visit: Visit, files: list[os.DirEntry[str]], directories: list[str]
    ) -> tuple[list[os.DirEntry[str]], list[str], bool]:
        """What is meant by the patterns, and whether anything is not."""
        include, exclude = self._plan.include, self._plan.exclude
        if visit.below is None:
            path = visit.node.path()
            visit.below = f"{path}/" if path else ""
        below = visit.below
        wanted = [d for d in directories if not exclude.match(d, below + d)]
        chosen = [
            entry
            for entry in files
            if not exclude.match(entry.name, below + entry.name)
            and (not include or include.match(entry.name, below + entry.name))
        ]
        self.tally.files_scanned += len(files) - len(chosen)
        return chosen, wanted, len(wanted) < len(directories) or len(chosen) < len(files)

    # ------------------------------------------------------------------ files

    def _purge_files(self, visit: Visit, files: list[os.DirEntry[str]]) -> bool:
        """Delete the old ones; tells whether any of them stays."""
        run, node, tally, plan = self.run, visit.node, self.tally, self._plan
        if self._plain and run.alone and node.depth + 1 >= plan.options.min_depth:
            return self._purge_alone(node, files)
        fd, cutoff, field = node.fd, plan.cutoff_ns, plan.age_field
        scan_in, scan_out = self._scan_in, self._scan_out
        delete_in, delete_out = self._delete_in, self._delete_out
        # Not `entry.stat`, which remembers: where listings tell no types (NFS without
        # READDIRPLUS), that would be the age at the time of the listing.
        read_stat, unlink, is_regular = os.stat, os.unlink, stat.S_ISREG
        plain = self._plain
        deep_enough = node.depth + 1 >= plan.options.min_depth
        slot = None
        kept = False
        try:
            for entry in files:
                if run.stopping:
                    return True
                tally.files_scanned += 1
                if not deep_enough:
                    kept = True
                    continue
                try:
                    scan_in()
                    try:
                        found = read_stat(entry.name, dir_fd=fd, follow_symlinks=False)
                    finally:
                        scan_out()
                    if getattr(found, field) >= cutoff or not is_regular(found.st_mode):
                        kept = True
                        continue
                    if run.fleet is not None and slot is None and not self._dry_run:
                        slot = run.fleet_slot()
                        if slot is None:
                            return True
                        found = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                        if getattr(found, field) >= cutoff or not is_regular(found.st_mode):
                            kept = True
                            continue
                    if not plain:
                        if not self._purge_carefully(node, entry, found):
                            kept = True
                        continue
                    tally.files_to_purge += 1
                    delete_in()
                    try:
                        unlink(entry.name, dir_fd=fd)
                    finally:
                        delete_out()
                except OSError as error:
                    if error.errno != errno.ENOENT:
                        run.error("unlink", node, entry.name, error)
                        kept = True
                    continue
                tally.files_purged += 1
                if found.st_nlink == 1:
                    tally.bytes_freed += found.st_size
        finally:
            if slot is not None:
                assert run.fleet is not None
                run.fleet.release(slot)
        return kept

    def _purge_alone(self, node: Node, files: list[os.DirEntry[str]]) -> bool:
        """The same for a worker that is alone, which is when every microsecond counts.

        It goes through both gates once for all: one worker does one thing at a time.
        """
        run, tally = self.run, self.tally
        fd, cutoff, field = node.fd, self._plan.cutoff_ns, self._plan.age_field
        read_stat, unlink, is_regular = os.stat, os.unlink, stat.S_ISREG
        kept = False
        self._scan_in()
        self._delete_in()
        try:
            for entry in files:
                if run.stopping:
                    return True
                tally.files_scanned += 1
                try:
                    found = read_stat(entry.name, dir_fd=fd, follow_symlinks=False)
                    if getattr(found, field) >= cutoff or not is_regular(found.st_mode):
                        kept = True
                        continue
                    tally.files_to_purge += 1
                    unlink(entry.name, dir_fd=fd)
                except OSError as error:
                    if error.errno != errno.ENOENT:
                        run.error("unlink", node, entry.name, error)
                        kept = True
                    continue
                tally.files_purged += 1
                if found.st_nlink == 1:
                    tally.bytes_freed += found.st_size
        finally:
            self._delete_out()
            self._scan_out()
        return kept

    def _purge_carefully(self, node: Node, entry: os.DirEntry[str], found: os.stat_result) -> bool:
        """Delete one old file with a cap, a pace, an audit, or not really."""
        run, tally, plan, name = self.run, self.tally, self._plan, entry.name
        tally.files_to_purge += 1
        if not run.files.reserve():
            return False
        done = False
        try:
            if not self._dry_run:
                if run.pace is not None and run.pace.wait():
                    if run.stopping:
                        return False
                    # Its turn came later, so its age is another one by now.
                    found = os.stat(name, dir_fd=node.fd, follow_symlinks=False)
                    if getattr(found, plan.age_field) >= plan.cutoff_ns or not stat.S_ISREG(
                        found.st_mode
                    ):
                        tally.files_to_purge -= 1
                        return False
                if not self._removed("unlink", node, name, found.st_size):
                    return False
            elif not self._could_remove(node):
                run.error("unlink", node, name, PermissionError(errno.EACCES, "not writable"))
                return False
            done = True
        finally:
            run.files.settle(done=done)
        tally.files_purged += 1
        if found.st_nlink == 1:
            tally.bytes_freed += found.st_size
        run.look_at_caps()
        return True

    def _could_remove(self, node: Node) -> bool:
        """For a dry run: whether this user may remove names from the directory at all."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=node.fd, effective_ids=True)

    def _removed(self, op: str, node: Node, name: str, size: int) -> bool:
        """Remove a name, audited; False if the audit forbids it. Raises OSError if it fails."""
        run = self.run
        audit = run.audit
        path = ""
        if audit is not None:
            path = run.full_path(node, name)
            try:
                audit.before(op, path, size)
            except AuditFailed as error:
                run.error("audit", node, name, error)
                run.stop("audit")
                return False
        try:
            self._delete_in()
            try:
                if op == "rmdir":
                    os.rmdir(name, dir_fd=node.fd)
                else:
                    os.unlink(name, dir_fd=node.fd)
            finally:
                self._delete_out()
        except OSError as error:
            if audit is not None:
                try:
                    audit.failed(op, path, size, _kind(error))
                except AuditFailed:
                    run.stop("audit")
            raise
        return True

    # ------------------------------------------------------------ directories

    def remove_empty(self, node: Node, listings: int) -> bool:
        """Remove a finished directory if it is empty by now; tells whether it is gone."""
        run, parent = self.run, node.parent
        options = self._plan.options
        if (
            parent is None
            or node.kept
            or not options.remove_empty_dirs
            or node.depth < options.min_depth
            or run.stopping
            or not run.directories.reserve()
        ):
            return False
        done = False
        slot = None
        try:
            if self._dry_run:
                self._descriptors.pin(parent, node.fd)
                try:
                    done = self._could_remove(parent)
                finally:
                    self._descriptors.unpin(parent)
                if not done:
                    run.error("rmdir", node, None, PermissionError(errno.EACCES, "not writable"))
            else:
                if run.pace is not None:
                    run.pace.wait()
                if run.fleet is not None:
                    slot = run.fleet_slot()
                    if slot is None:
                        return False
                if run.stopping:
                    return False
                self._descriptors.pin(parent, node.fd)
                try:
                    done = self._removed("rmdir", parent, node.name, 0)
                finally:
                    self._descriptors.unpin(parent)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return True  # somebody else removed it
            if error.errno in _NOT_EMPTY:
                if (node.batches > 1 or listings) and listings < _LISTINGS:
                    run.list_again(parent, node.name, listings + 1)
                    return True
            else:
                run.error("rmdir", node, None, error)
            return False
        finally:
            if slot is not None:
                assert run.fleet is not None
                run.fleet.release(slot)
            run.directories.settle(done=done)
        if done:
            self.tally.dirs_deleted += 1
            run.look_at_caps()
        return done


def _kind(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def _nothing() -> None:
    pass


def _ends(tokens: Any) -> tuple[Any, Any]:
    if tokens is None:
        return _nothing, _nothing
    return tokens.get, partial(tokens.put, None)
