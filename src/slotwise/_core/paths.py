"""PathBackend: what a driver offers so that tiers can be taken all at one instant.

Nothing here decides who gets a slot: in this process `_ledger.paths` does, on a
Redis server the scripts that mirror it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeAlias

from slotwise._core.results import AcquisitionResult

# One entry for each tier, narrow to wide: its key, or None for a tier without keys.
Path: TypeAlias = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class TierSpec:
    """What a backend needs to know of a tier; a value of 0 is no limit."""

    name: str
    value: int
    keyed: bool


@dataclass(frozen=True, slots=True)
class KeyStats:
    """How full one key of a keyed tier is; ``value`` 0 is no limit."""

    active: int
    waiting: int
    value: int


@dataclass(frozen=True, slots=True)
class TierStats:
    """How full a tier is.

    ``waiting`` counts the requests that wait and whose path goes through the
    tier, whichever tier they wait for. ``value`` is that of the tier, or of each
    of its keys unless it was changed for one; 0 is no limit. ``keys`` has what is held,
    waited for or remembered of a keyed tier.
    """

    active: int
    waiting: int
    value: int
    keys: Mapping[str, KeyStats] = field(default_factory=lambda: MappingProxyType({}))


class PathBackend(Protocol):
    """Slots of several tiers, taken all at once or not at all.

    Paths, names and numbers are checked by the caller. Each coroutine has a twin
    for plain threads.
    """

    async def acquire(
        self, path: Path, *, timeout: float | None, label: str | None = None
    ) -> AcquisitionResult:
        """Wait for one slot of every tier, by the rules of `slotwise._ledger.paths`.

        A wait that is cancelled or times out takes nothing. ``timeout`` 0 does
        not wait, None waits for ever. ``label`` is shown to those who look at
        holders and waiters, where the driver can show them.

        Raises:
            AcquireTimeout: ``timeout`` seconds passed first; it tells which tier was full.
            SemaphoreClosed: closed before or during the wait.
            ValueConflict: a tier is in use with another value (where others share it).
        """
        ...

    def acquire_sync(
        self, path: Path, *, timeout: float | None, label: str | None = None
    ) -> AcquisitionResult:
        """Like `acquire`, blocking this thread."""
        ...

    async def release(self, acquisition_id: str) -> bool:
        """Give all tiers back at once; False if the acquisition had ended before."""
        ...

    def release_sync(self, acquisition_id: str) -> bool: ...

    async def release_on_exit(self, acquisition_id: str) -> None:
        """Release for a block that is left; see `Semaphore._release_on_exit`."""
        ...

    def release_on_exit_sync(self, acquisition_id: str) -> None: ...

    async def stats(self) -> dict[str, TierStats]:
        """How full the tiers are, by name, narrow to wide."""
        ...

    def stats_sync(self) -> dict[str, TierStats]: ...

    async def resize(self, tier: str, value: int, key: str | None = None) -> None:
        """Change the value of a tier, or of one key of it, while it is in use."""
        ...

    def resize_sync(self, tier: str, value: int, key: str | None = None) -> None: ...

    async def close(self) -> None:
        """Close all objects of the name that this process has made so far.

        Their waiters and newcomers fail with SemaphoreClosed; holders may still release.
        An object made afterwards works once the earlier holders of this process have left.
        """
        ...

    def close_sync(self) -> None: ...

    async def close_everywhere(self, reason: str | None = None) -> None:
        """Fail the waiters and newcomers of the name, wherever they are, until `reopen`."""
        ...

    def close_everywhere_sync(self, reason: str | None = None) -> None: ...

    async def reopen(self) -> None:
        """Undo `close_everywhere`; what this process closed by `close` stays closed."""
        ...

    def reopen_sync(self) -> None: ...

    async def forget_idle(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int:
        """Forget keys of a keyed tier that nobody holds or waits for; how many were.

        Those that have been idle for ``older_than`` seconds, and of the others the
        longest idle, until at most ``keep_at_most`` idle ones are left.
        """
        ...

    def forget_idle_sync(
        self, tier: str, older_than: float, keep_at_most: int | None = None
    ) -> int: ...
