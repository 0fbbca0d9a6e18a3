"""Read what there is in a directory: names, statistics, tiers, locks that are stuck."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from slotwise._core.closing import Closure
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.paths import TierSpec
from slotwise.errors import BackendError, UnknownSemaphore
from slotwise.processes._backend import ProcessBackend
from slotwise.processes._file_journal import FileJournal
from slotwise.processes._filenames import SUFFIX, TIERS_SUFFIX, filename_of, locate, name_from
from slotwise.processes._journal import Busy
from slotwise.processes._messages import busy, stuck_error, unknown
from slotwise.processes._operations import look
from slotwise.processes._process import LocalProcess, process_for
from slotwise.processes._state import State

T = TypeVar("T")

_STUCK = 1.0  # seconds: no change takes that long


def check_exists(directory: str, name: str, suffix: str = SUFFIX) -> None:
    if not os.path.lexists(directory) or not process_for(directory).directory.has(
        filename_of(name, suffix)
    ):
        raise unknown(directory, name)


def names(directory: str, suffix: str = SUFFIX) -> list[str]:
    """Return the names of all semaphores, or tiers, in a directory, which may not exist."""
    if not os.path.lexists(directory):
        return []
    process = process_for(directory)
    filenames = [
        entry.name
        for entry in process.directory.entries()
        if entry.name.endswith(suffix) and process.directory.has_content(entry.name)
    ]
    found = (name_from(filename) or process.name_of(filename) for filename in filenames)
    return sorted(name for name in found if name is not None)


def read_each(
    directory: str, wanted: Iterable[str] | None, suffix: str, read: Callable[[State, float], T]
) -> tuple[dict[str, T], dict[str, BackendError]]:
    """Read the state of each name, of all or of those ``wanted``; unknown ones are left out.

    Also return the errors of those that can't be read: the others can.
    """
    found: dict[str, T] = {}
    errors: dict[str, BackendError] = {}
    asked = list(dict.fromkeys(names(directory, suffix) if wanted is None else wanted))
    stuck = stuck_locks(directory, asked, suffix)
    for name in asked:
        try:
            if name in stuck:
                raise stuck_error(name, stuck[name])
            check_exists(directory, name, suffix)
            limit = process_for(directory).limit(name, suffix)
            found[name] = limit.change(look, limit, read, lock_timeout=_STUCK)
        except UnknownSemaphore:
            continue
        except Busy as error:
            errors[name] = busy(limit.journal.place, error)
        except BackendError as error:
            errors[name] = error
    return found, errors


def stuck_locks(directory: str, asked: Iterable[str], suffix: str = SUFFIX) -> dict[str, int]:
    """Return which semaphores, or tiers, can't be changed, with the pid that has the file's lock.

    A change takes microseconds, so a process that holds the lock for a second is stopped or stuck.
    This takes a second if there are such processes, however many, and no time otherwise.
    """
    if not os.path.lexists(directory):
        return {}
    process = process_for(directory)
    stuck = {
        name: pid for name in asked if (pid := _lock_holder(process, name, suffix)) is not None
    }
    deadline = time.monotonic() + _STUCK
    while stuck and time.monotonic() < deadline:
        time.sleep(0.01)
        stuck = {
            name: pid for name, pid in stuck.items() if _lock_holder(process, name, suffix) == pid
        }
    return stuck


def _lock_holder(process: LocalProcess, name: str, suffix: str) -> int | None:
    limit = process.limit(name, suffix)
    assert isinstance(limit.journal, FileJournal)
    return limit.with_journal(limit.journal.lock_holder)


def survey_tiers(
    wanted: Iterable[str] | None, directory: str | os.PathLike[str] | None
) -> tuple[dict[str, FoundTiers], list[BackendError]]:
    """Return tiers by name, all of them or those ``wanted``, and the errors of the others."""
    path = locate(directory)
    read, errors = read_each(path, wanted, TIERS_SUFFIX, _read)
    found = {}
    for name, (specs, holders, waiters, closure, drained) in read.items():
        paths = ProcessBackend(specs, name=name, directory=directory)
        found[name] = FoundTiers(name, specs, paths, holders, waiters, closure, drained)
    return found, list(errors.values())


def _read(state: State, now: float) -> tuple[tuple[TierSpec, ...], int, int, Closure | None, bool]:
    drained = not state.is_full(now) or state.can_be_settled(now)
    return state.specs, len(state.holders), len(state.waiting), state.closure, drained
