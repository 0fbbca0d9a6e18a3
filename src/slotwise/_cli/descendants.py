"""Signal all descendants of a process, daemons included.

A process whose parent ends, as when it daemonises, becomes a child of the nearest ancestor that
has called `adopt_orphans`. So no descendant of such an ancestor can escape it. Linux only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator

from slotwise._cli import kernel

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER

# After this many attempts that found no process to kill, the rest belongs to another user. One
# isn't enough: the kernel may leave a process out of a list while others in it end.
IN_VAIN = 5


def adopt_orphans() -> None:
    """Make descendants of this process its children, from now on, when their parent ends."""
    kernel.call("prctl", _SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Return all descendants of ``pid``, parents first; some of them may be zombies."""
    children_of: Callable[[int], Iterable[int]] = _children
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):  # noqa: PTH110
        children_of = _scan()
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in children_of(parent)]
        found += level
    return found


def signal_descendants(pid: int, number: int) -> tuple[bool, set[int]]:
    """Send a signal to all descendants of ``pid``, including those that are started meanwhile.

    Return whether any process got it, and the pids of another user, which can't be sent it.
    """
    tried: set[int] = set()
    forbidden: set[int] = set()
    was_sent = False
    for _ in range(20):  # bounded, in case it starts processes faster than we find them
        new = [child for child in descendants(pid) if child not in tried]
        if not new:
            break
        for child in new:
            try:
                if not _send(pid, child, number):
                    continue
                was_sent = True
            except PermissionError:
                forbidden.add(child)
            except OSError:  # it has ended
                pass
            tried.add(child)
    return was_sent, forbidden


def _send(ancestor: int, pid: int, number: int) -> bool:
    """Send a signal to a descendant of ``ancestor``; ProcessLookupError if it has ended.

    Return False if it isn't a descendant at the moment: the pid was reused, or its parent has
    just ended, perhaps of the same signal, and it will next be found as a child of ``ancestor``.
    """
    fd = os.pidfd_open(pid)
    try:
        state, parent = _status(pid)
        if state == b"Z":
            raise ProcessLookupError
        while parent not in (0, ancestor):
            _, parent = _status(parent)
        if parent == 0:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    finally:
        os.close(fd)


def state_of(pid: int) -> bytes:
    """Return the kernel's letter for the state of a process; Z if that is unknown."""
    return _status(pid)[0]


def _status(pid: int) -> tuple[bytes, int]:
    """Return the kernel's letter for the state of a process, and its parent's pid, or 0."""
    try:
        stat = _read(f"/proc/{pid}/stat")
        state, parent = stat.rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):  # it has ended
        return b"Z", 0
    return state, int(parent)


def _children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return
    for thread in threads:
        try:
            yield from map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
        except OSError:
            pass


def _scan() -> Callable[[int], Iterable[int]]:
    """Return a stand-in for `_children`, for kernels without those files."""
    by_parent: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            by_parent.setdefault(_status(int(name))[1], []).append(int(name))
    return lambda pid: by_parent.get(pid, ())


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib takes longer to import
        return file.read()
