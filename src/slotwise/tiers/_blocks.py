"""The ``with`` block around one acquisition of tiers, for backends with no faster way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slotwise._core.limit import AcquisitionContext
from slotwise._core.results import AcquisitionResult
from slotwise.errors import ContextReused

if TYPE_CHECKING:
    from slotwise._core.paths import Path
    from slotwise.tiers._tiers import Tiers


class Block(AcquisitionContext):
    """Acquires through the verbs of a Tiers object; good for one ``with``."""

    __slots__ = ("_acquired", "_entered", "_path", "_tiers", "_timeout")

    def __init__(self, tiers: Tiers, path: Path, timeout: float | None) -> None:
        self._tiers = tiers
        self._path = path
        self._timeout = timeout
        self._entered = False
        self._acquired: AcquisitionResult | None = None

    async def __aenter__(self) -> AcquisitionResult:
        self._enter()
        self._acquired = await self._tiers.take_path(self._path, self._timeout)
        return self._acquired

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._tiers._release_on_exit(self._leave())

    def __enter__(self) -> AcquisitionResult:
        self._enter()
        self._acquired = self._tiers.take_path_sync(self._path, self._timeout)
        return self._acquired

    def __exit__(self, *exc_info: Any) -> None:
        self._tiers._release_on_exit_sync(self._leave())

    def _enter(self) -> None:
        if self._entered:
            raise ContextReused(
                "this block of tiers was entered before; ask anew for every 'with' block"
            )
        self._entered = True

    def _leave(self) -> AcquisitionResult:
        if self._acquired is None:
            raise ContextReused("this block of tiers was left without being entered")
        return self._acquired
