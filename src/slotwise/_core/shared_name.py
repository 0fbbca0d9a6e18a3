"""SharedName: what is done to a whole name, and so the same for every kind of limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise._core.arguments import check_reason
from slotwise._core.control import WHOLE
from slotwise._core.twins import twin

if TYPE_CHECKING:
    from slotwise._core.path_backend import PathBackend
    from slotwise._core.stats import Claimant


class SharedName:
    """The verbs of a name, or of a private limit, whatever its tiers."""

    __slots__ = ()

    _backend: PathBackend

    async def waiters(self) -> list[Claimant]:
        """Return who waits now, in the order of arrival."""
        return await self._backend.waiters()

    waiters_sync = twin(waiters)

    async def close(self) -> None:
        """Close every object of the name that this process has made so far.

        Their waiters and newcomers fail with SemaphoreClosed; holders may still release.
        One made afterwards works once the earlier holders of this process have left.
        Other processes don't notice. Closing again does no harm.
        """
        await self._backend.close()

    close_sync = twin(close)

    async def close_everywhere(self, reason: str | None = None) -> None:
        """Close the name for everybody who shares it, until `reopen`.

        Waiters and newcomers fail with SemaphoreClosed, which carries ``reason``, in
        objects made later too; holders may still release. It outlives the last holder.
        """
        await self._backend.control("close_everywhere", WHOLE, check_reason(reason))

    close_everywhere_sync = twin(close_everywhere)

    async def reopen(self) -> None:
        """Undo `close_everywhere`, and end all pauses; an open one is left alone.

        What this process closed by `close` stays closed.
        """
        await self._backend.control("reopen")

    reopen_sync = twin(reopen)
