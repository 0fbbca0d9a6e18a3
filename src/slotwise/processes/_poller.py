"""Watch: sleeping until a descriptor has something to read, or one of some processes has ended.

A pidfd tells of the end of the process that had the pid when it was opened. That
this was the right one is seen to by who looks, afterwards, whether it lives.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

_FEW = 32  # watched processes that nobody waits for any more; they may soon be again


class Poller:
    """A poll, and the processes in it. For one thread, but for `knows` and `abandon`."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._pidfds: dict[str, int] = {}  # by owner; -1 where there is none to be had

    @property
    def is_blind(self) -> bool:
        """Whether one of the processes may end without a sign."""
        return -1 in self._pidfds.values()

    def knows(self, owners: Iterable[str], besides: str) -> bool:
        """Whether all of them are watched, but for one that need not be."""
        pidfds = self._pidfds
        return all(owner in pidfds or owner == besides for owner in owners)

    def add(self, fd: int) -> None:
        self._poll.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        """Forget a descriptor, and close it."""
        self._poll.unregister(fd)
        os.close(fd)

    def _drop(self, unwanted: AbstractSet[str]) -> None:
        """Watch these no more."""
        pidfds = self._pidfds
        # Out of the mapping before any is closed: a child forked in between by another
        # thread closes what is in it, and that number may be somebody else's by then.
        self._pidfds = {who: fd for who, fd in pidfds.items() if who not in unwanted}
        for owner in unwanted:
            if pidfds[owner] >= 0:
                self.remove(pidfds[owner])

    def extend(self, owners: dict[str, int]) -> bool:
        """Watch these processes, by their pids, too; True if there are new ones."""
        unwanted = self._pidfds.keys() - owners.keys()
        if len(unwanted) > _FEW or self.is_blind:
            self._drop(unwanted)
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
        """Sleep; whether a descriptor is ready, and whether a process has ended."""
        found = {fd for fd, _ in self._poll.poll(max(seconds, 0.0) * 1000)}
        ended = {who: fd for who, fd in self._pidfds.items() if fd in found}
        self._drop(ended.keys())
        return len(found) > len(ended), bool(ended)

    def abandon(self) -> None:
        """In a forked child: they are the parent's."""
        pidfds, self._pidfds = self._pidfds, {}
        for fd in pidfds.values():
            if fd >= 0:
                os.close(fd)
