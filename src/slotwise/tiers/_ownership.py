"""Ownership: which acquisitions a task or thread has, so that it can release without an id."""

from __future__ import annotations

from collections.abc import Hashable

from slotwise._core import fork
from slotwise._core.limit import caller
from slotwise._core.results import AcquisitionResult

# What was acquired: ("download",) or ("upload", username).
What = tuple[Hashable, ...]


class Ownership:
    """The acquisitions of each task and thread, by kind of slot, the latest last."""

    def __init__(self) -> None:
        self._lock = fork.new_lock()
        self._stacks: dict[tuple[object, What], list[str]] = {}
        self._owners: dict[str, tuple[AcquisitionResult, tuple[object, What]]] = {}

    def add(self, acquired: AcquisitionResult, what: What) -> None:
        """Note that the calling task or thread has it from now on."""
        owner = caller(), what
        acquisition_id = acquired.acquisition_id
        with self._lock:
            self._stacks.setdefault(owner, []).append(acquisition_id)
            self._owners[acquisition_id] = acquired, owner

    def latest(self, what: What) -> str | None:
        """Return the id of the latest that the calling task or thread has."""
        with self._lock:
            stack = self._stacks.get((caller(), what))
            return stack[-1] if stack else None

    def remove(self, acquisition_id: str, kind: Hashable) -> None:
        """Forget it, since it was released; leave it alone if it is of another kind."""
        with self._lock:
            found = self._owners.get(acquisition_id)
            if found is not None and found[1][1][0] == kind:
                self._remove(acquisition_id)

    def forget_lost(self) -> None:
        """Forget what was lost or has expired, and may never be released."""
        with self._lock:
            for acquisition_id, (acquired, _) in list(self._owners.items()):
                if acquired.lost.is_set():
                    self._remove(acquisition_id)

    def _remove(self, acquisition_id: str) -> None:
        found = self._owners.pop(acquisition_id, None)
        if found is None:
            return
        _, place = found
        stack = self._stacks[place]
        stack.remove(acquisition_id)
        if not stack:
            del self._stacks[place]
