"""Read what there is in a directory: names, statistics, locks that are stuck."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, TypeVar

from slotwise._core.arguments import check_count, check_name, check_names
from slotwise.errors import BackendError, UnknownSemaphore
from slotwise.processes import _log, _operations
from slotwise.processes._attachment import Attachment
from slotwise.processes._filenames import SUFFIX, filename_of, name_from
from slotwise.processes._messages import stuck_error, unknown
from slotwise.processes._process import LocalProcess, process_for
from slotwise.processes._views import stats_of_semaphore

if TYPE_CHECKING:
    from slotwise._core.stats import SemaphoreStats

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
        if entry.name.endswith(suffix) and not _is_empty(entry)  # it has no state yet
    ]
    found = (name_from(filename) or process.name_of(filename) for filename in filenames)
    return sorted(name for name in found if name is not None)


def _is_empty(entry: os.DirEntry[str]) -> bool:
    """Whether it is an empty file, or gone; what is not a file is listed, and can't be read."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return True
    return S_ISREG(found.st_mode) and not found.st_size


def get_acquired_stats(
    directory: str, wanted: Iterable[str] | None, limit: int
) -> dict[str, SemaphoreStats]:
    """Return the statistics of semaphores in a directory; see ProcessSemaphore."""
    check_names(wanted)
    check_count("limit", limit)
    from slotwise._core.stats import fullest  # not needed to acquire

    asked = None if wanted is None else list(wanted)
    for name in asked or ():
        check_name(name)
    found, errors = read_each(directory, asked, SUFFIX, stats_of_semaphore)
    for name, error in errors.items():
        _log.unreadable(name, error)
    return fullest(found, limit, idle_too=wanted is not None)


def read_each(
    directory: str, wanted: Iterable[str] | None, suffix: str, read: Callable[[Any], T]
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
            attachment = Attachment(directory, name, suffix)
            found[name] = attachment.call_here(_operations.inspect, read, None)
        except UnknownSemaphore:
            continue
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
    try:
        return process.file(name, suffix).lock_holder()
    except BackendError:
        return None  # whoever reads it gets the error
