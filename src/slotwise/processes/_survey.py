"""Find the tiers in a directory by their files."""

from __future__ import annotations

import os
from collections.abc import Iterable

from slotwise._core.closing import Closure
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.paths import TierSpec
from slotwise._wait import clock
from slotwise.errors import BackendError
from slotwise.processes._backend import ProcessBackend
from slotwise.processes._filenames import TIERS_SUFFIX, locate
from slotwise.processes._inspect import read_each
from slotwise.processes._state import State


def survey_tiers(
    names: Iterable[str] | None, directory: str | os.PathLike[str] | None
) -> tuple[dict[str, FoundTiers], list[BackendError]]:
    """Return tiers by name, all of them or those of ``names``, and the errors of the others."""
    path = locate(directory)
    read, errors = read_each(path, names, TIERS_SUFFIX, _read)
    found = {}
    for name, (specs, holders, waiters, closure, drained) in read.items():
        paths = ProcessBackend(specs, name=name, directory=directory)
        found[name] = FoundTiers(name, specs, paths, holders, waiters, closure, drained)
    return found, list(errors.values())


def _read(state: State) -> tuple[tuple[TierSpec, ...], int, int, Closure | None, bool]:
    now = clock.now()
    drained = not state.is_full(now) or state.can_be_settled(now)
    return state.specs, len(state.holders), len(state.waiting), state.closure, drained
