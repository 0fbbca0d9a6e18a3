"""Request and ProcessClaim: what is wanted of a limit, and who holds or waits for it.

They are the same in every process that reads the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from slotwise._core.paths import Needs, Path
from slotwise._ledger.path_nodes import PathClaim


class Request(NamedTuple):
    """What is wanted; a semaphore is a path with one tier."""

    path: Path
    needs: Needs | None = None
    # The values of keys where each key has its own: (tier, value).
    values: tuple[tuple[int, int], ...] = ()
    head_start: int = 0  # in microseconds
    weight: float = 1.0  # of its key, where keys take turns

    @property
    def written(self) -> Sequence[Any]:
        """As records have it: most are only a path."""
        return self if self[1:] != _DEFAULTS else self[:1]


_DEFAULTS = Request(())[1:]


class ProcessClaim(PathClaim):
    """The claim of a holder or waiter, or of one whose costs can still be corrected."""

    __slots__ = (
        *("expires_at", "grace", "granted_at", "granted_us", "is_kicked", "label", "owner"),
        *("path", "pid", "requested_us", "token", "until", "values", "weight"),
    )

    path: Path
    owner: str  # the process: the prefix of its acquisition ids
    grace: float  # how long it keeps its slots after a kick, in seconds
    granted_at: float  # set when it is granted, like the next three; not in snapshots
    granted_us: int
    token: int
    expires_at: float | None
    until: float  # when its costs can't be corrected any more; once it has ended

    def __init__(
        self,
        acquisition_id: str,
        wanted: Sequence[Any],
        ttl: float | None,
        pid: int,
        label: str | None,
        requested_us: int,
        grace: float = 0.0,
        is_kicked: bool = False,
    ) -> None:
        path, needs, self.values, self.head_start, self.weight = Request(*wanted)
        self.path = tuple(path)
        self.needs = None if needs is None else tuple(needs)
        self.ranges = ()
        self.key = acquisition_id
        self.ttl = ttl
        self.owner = acquisition_id.partition("-")[0]
        self.pid = pid
        self.label = label
        self.requested_us = requested_us
        self.grace = grace
        self.is_kicked = is_kicked

    def arguments(self) -> tuple[Any, ...]:
        """Return what `__init__` takes, for a snapshot."""
        # Without the values that came with it: they are known by now.
        wanted = Request(self.path, self.needs, (), self.head_start, self.weight)
        return (
            *(self.key, wanted.written, self.ttl, self.pid, self.label),
            *(self.requested_us, self.grace, self.is_kicked),
        )
