"""PathLimit: one path through tiers, as a Limit.

Nothing here waits or decides: the backend of the tiers does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core.arguments import UNSET, Unset, check_pause
from slotwise._core.copying import Recipe
from slotwise._core.limit import AcquisitionContext, Limit
from slotwise._core.results import AcquisitionResult
from slotwise._core.twins import Wider
from slotwise.tiers._explain import explain

if TYPE_CHECKING:
    from slotwise._core.explain import Explanation
    from slotwise._core.paths import Needs, Path
    from slotwise.tiers._tiers import Tiers

T = TypeVar("T")


class PathLimit(Limit):
    """A path through tiers, for fixed keys; made by `Tiers.at` alone."""

    __slots__ = ("_backend", "_needs", "_path", "_tiers")

    def __init__(self, tiers: Tiers, path: Path, needs: Needs | None = None) -> None:
        """``needs``: what it takes of rates, where there are any."""
        super().__init__()
        self._tiers = tiers
        self._path = path
        self._needs = needs
        self._backend = tiers._backend

    @property
    def tiers(self) -> Tiers:
        """What it is a path through."""
        return self._tiers

    @property
    def keys(self) -> dict[str, str]:
        """The key of every keyed tier, by the tier's name."""
        return self._tiers._arguments.keys_of(self._path)

    def __repr__(self) -> str:
        keys = ", ".join(f"{name}={key!r}" for name, key in self.keys.items())
        return f"<{keys or 'no keys'} of {self._tiers!r}>"

    def _recipe(self) -> Recipe | None:
        if self._tiers._recipe() is None:
            return None
        return Recipe(PathLimit, (self._tiers, self._path, self._needs), {})

    def _fixed_value(self) -> int:
        tiers = self._tiers.tiers
        fixed = [tier.value for tier in tiers if isinstance(tier.value, int) and tier.value]
        if not fixed:
            names = " or ".join(repr(tier.name) for tier in tiers)
            raise TypeError(f"bounded work needs limit=: no fixed value for {names}")
        return min(fixed)

    def _needs_of(self, slots: Any) -> Any:
        if self._needs is None:
            return slots
        return self._tiers._arguments.with_costs(
            slots, self._tiers._arguments.costs_in(self._needs)
        )

    def _ranked(self, slots: Any, priority: float) -> Any:
        """What it takes of each tier, with a head start if there is one."""
        return self._tiers._arguments.with_priority(self._needs_of(slots), priority)

    # ------------------------------------------------------------- acquiring

    async def acquire(
        self,
        slots: int | Mapping[str, int] = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        priority: float = 0,
    ) -> AcquisitionResult:
        return await self._tiers._begin(self._path, self._ranked(slots, priority), timeout, label)

    acquire_sync = Wider(acquire, waits=True).twin

    async def try_acquire(
        self, slots: int | Mapping[str, int] = 1, *, label: str | None = None, priority: float = 0
    ) -> AcquisitionResult | None:
        return await self._tiers._try(self._path, self._ranked(slots, priority), label)

    try_acquire_sync = Wider(try_acquire).twin

    def cm(
        self,
        slots: int | Mapping[str, int] = 1,
        *,
        timeout: float | Unset | None = UNSET,
        label: str | None = None,
        priority: float = 0,
    ) -> AcquisitionContext:
        return self._tiers._cm(self._path, self._ranked(slots, priority), timeout, label)

    hold = cm

    # ------------------------------------------------------------ inspecting

    async def estimate(self, slots: int | Mapping[str, int] = 1) -> float | None:
        needs = self._tiers._arguments.needs(self._needs_of(slots))
        return await self._backend.estimate(self._path, needs)

    estimate_sync = Wider(estimate).twin

    async def explain(
        self, acquisition_or_id: str | AcquisitionResult | None = None
    ) -> Explanation:
        """Explain why an acquisition of any process waits; None: a newcomer here."""
        return await explain(self._tiers, self._path, acquisition_or_id)

    # ----------------------------------------------------------- controlling

    async def pause(self, seconds: float) -> None:
        """Grant nothing for ``seconds`` to paths with the same narrowest key.

        That is the key of the first tier that has one: for ``tiers.at(host=…)`` only the host is
        paused, not the wider tiers. Without keys everything is paused, as by `Tiers.pause`.
        """
        where = self._tiers._arguments.narrowest_key(self._path)
        await self._backend.control("pause", where, check_pause(seconds))
