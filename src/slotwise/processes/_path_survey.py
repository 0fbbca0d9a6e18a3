"""Find the tiers in a directory, and read from their files what they are."""

from __future__ import annotations

import os
from collections.abc import Iterable

from slotwise._core.closing import Closure
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.paths import TierSpec
from slotwise._wait import clock
from slotwise.errors import BackendError, UnknownSemaphore
from slotwise.processes import _inspect, _operations
from slotwise.processes._attachment import Attachment
from slotwise.processes._filenames import TIERS_SUFFIX, locate
from slotwise.processes._messages import stuck_error
from slotwise.processes._path_state import PathState
from slotwise.processes._paths import ProcessPaths


def survey_tiers(
    names: Iterable[str] | None, directory: str | os.PathLike[str] | None
) -> tuple[dict[str, FoundTiers], list[BackendError]]:
    """Return tiers by name, all of them or those of ``names``, and the errors of the others."""
    path = locate(directory)
    found: dict[str, FoundTiers] = {}
    errors: list[BackendError] = []
    asked = _inspect.names(path, TIERS_SUFFIX) if names is None else list(dict.fromkeys(names))
    stuck = _inspect.stuck_locks(path, asked, TIERS_SUFFIX)
    for name in asked:
        try:
            if name in stuck:
                raise stuck_error(name, stuck[name])
            _inspect.check_exists(path, name, TIERS_SUFFIX)
            attachment = Attachment(path, name, TIERS_SUFFIX)
            read = attachment.call(_operations.inspect, _read, None)
        except UnknownSemaphore:
            continue
        except BackendError as error:  # the others can still be read
            errors.append(error)
            continue
        specs, holders, waiters, closure, drained = read
        paths = ProcessPaths(specs, name=name, directory=directory)
        found[name] = FoundTiers(name, specs, paths, holders, waiters, closure, drained)
    return found, errors


def _read(state: PathState) -> tuple[tuple[TierSpec, ...], int, int, Closure | None, bool]:
    now = clock.now()
    drained = not state.is_full(now) or state.can_be_settled(now)
    return state.specs, len(state.holders), len(state.waiting), state.closure, drained
