"""Explain why a request for a path through tiers waits: ask the backend for what is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise._core.explain import Explanation, explain_path, path_of
from slotwise._core.paths import Path, PathStats
from slotwise._core.results import AcquisitionResult, acquisition_id_of

if TYPE_CHECKING:
    from slotwise.tiers._tiers import Tiers

Which = str | AcquisitionResult | None


async def explain(tiers: Tiers, path: Path | None, which: Which) -> Explanation:
    """Explain a wait; ``path`` is that of a newcomer."""
    backend = tiers._backend
    specs, name = backend._specs, backend.reported_name
    title = tiers._title if name is None else repr(name)
    acquisition_id = None if which is None else acquisition_id_of(which)
    # Waiters first: one granted in between is then seen twice instead of missed.
    waiters = await backend.waiters()
    holders = await backend.holders()
    if acquisition_id is not None:
        own = [each for each in waiters if each.acquisition_id == acquisition_id]
        path = path_of(own[0], specs) if own else None
    found: tuple[PathStats, float | None] = (PathStats(()), None)
    if path is not None:
        stats = await backend.stats_of(path)
        found = stats, await backend.estimate(path)
    return explain_path(title, which, waiters, holders, specs, lambda _: found, path)
