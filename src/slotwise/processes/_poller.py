"""Sleep until a descriptor is readable, or one of several processes has ended.

A pidfd reports the end of the process that had the pid when it was opened. If the pid was
reused before that, it is the wrong process: so callers check afterwards who is alive.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

# How many processes stay watched that nobody waits for any more: they may soon be needed again.
_UNUSED = 32


class Poller:
    """A poll object with pidfds. For one thread, except `watches` and `abandon`."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._pidfds: dict[str, int] = {}  # by owner; -1 if none could be opened

    @property
    def misses_exits(self) -> bool:
        """Whether the end of one of the processes will not be reported."""
        return -1 in self._pidfds.values()

    def watches(self, owners: Iterable[str], besides: str) -> bool:
        """Return whether all of them are watched, not counting ``besides``."""
        pidfds = self._pidfds
        return all(owner in pidfds or owner == besides for owner in owners)

    def add(self, fd: int) -> None:
        self._poll.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        """Stop polling a descriptor, and close it."""
        self._poll.unregister(fd)
        os.close(fd)

    def _unwatch(self, owners: AbstractSet[str]) -> None:
        pidfds = self._pidfds
        # Removed from the dict before any is closed: a child that another thread forks in between
        # closes what is in the dict, and by then the number could be another file's.
        self._pidfds = {owner: fd for owner, fd in pidfds.items() if owner not in owners}
        for owner in owners:
            if pidfds[owner] >= 0:
                self.remove(pidfds[owner])

    def watch(self, owners: dict[str, int]) -> bool:
        """Watch these processes, given with their pids; return whether some are new."""
        unused = self._pidfds.keys() - owners.keys()
        if len(unused) > _UNUSED or self.misses_exits:
            self._unwatch(unused)
        new = owners.keys() - self._pidfds.keys()
        for owner in new:
            try:
                fd = os.pidfd_open(owners[owner])
                self.add(fd)
            except (AttributeError, OSError):  # not on this system, not in our namespace, gone
                fd = -1
            self._pidfds[owner] = fd
        return bool(new)

    def wait(self, seconds: float) -> tuple[bool, bool]:
        """Sleep; return whether a descriptor is readable, and whether a process has ended."""
        ready = {fd for fd, _ in self._poll.poll(max(seconds, 0.0) * 1000)}
        ended = {owner: fd for owner, fd in self._pidfds.items() if fd in ready}
        self._unwatch(ended.keys())
        return len(ready) > len(ended), bool(ended)

    def abandon(self) -> None:
        """In a forked child: the pidfds are the parent's."""
        pidfds, self._pidfds = self._pidfds, {}
        for fd in pidfds.values():
            if fd >= 0:
                os.close(fd)
