"""Explain why a request for a path through tiers waits: ask the backend for what is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise._core.explain import Explanation, explain_path, path_of
from slotwise._core.paths import Path, PathStats, TierSpec
from slotwise._core.results import AcquisitionResult, acquisition_id_of

if TYPE_CHECKING:
    from slotwise.tiers._tiers import Tiers

Which = str | AcquisitionResult | None


async def explain(tiers: Tiers, path: Path | None, which: Which) -> Explanation:
    """``path`` is that of a newcomer."""
    backend, specs = tiers._backend, _specs(tiers)
    acquisition_id = None if which is None else acquisition_id_of(which)
    # Waiters first: one granted in between is then seen twice instead of missed.
    waiters, holders = await backend.waiters(), await backend.holders()
    if acquisition_id is not None:
        own = [each for each in waiters if each.acquisition_id == acquisition_id]
        path = path_of(own[0], specs) if own else None
    found: tuple[PathStats, float | None] = (PathStats(()), None)
    if path is not None:
        found = await backend.stats_of(path), await backend.estimate(path)
    return explain_path(_title(tiers), which, waiters, holders, specs, lambda _: found, path)


def explain_sync(tiers: Tiers, path: Path | None, which: Which) -> Explanation:
    """Like `explain`."""
    backend = tiers._backend
    if which is not None:
        acquisition_id_of(which)
    waiters, holders = backend.waiters_sync(), backend.holders_sync()

    def look(of: Path) -> tuple[PathStats, float | None]:
        return backend.stats_of_sync(of), backend.estimate_sync(of)

    return explain_path(_title(tiers), which, waiters, holders, _specs(tiers), look, path)


def _specs(tiers: Tiers) -> tuple[TierSpec, ...]:
    return tuple(tier.spec for tier in tiers._tiers.values())


def _title(tiers: Tiers) -> str:
    name = tiers._backend.reported_name
    return tiers._title if name is None else repr(name)
