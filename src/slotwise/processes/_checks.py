"""Checks of what stands in a file: a valid checksum says nothing about what was summed up.

Records and snapshots that pass can be applied: what comes of them may be refused by the
ledger, but takes no more time or memory than a change of ours, and leads to no exception
later on. Only what is read from a file goes through here, not what this process writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

# An owner is the number of its locked byte, which has to be a place in a file.
_OWNER = re.compile(r"p[0-9a-f]{1,15}")
_ID = re.compile(rf"{_OWNER.pattern}-.+", re.DOTALL)
_MOST = 1 << 62  # what fits wherever a number of ours goes


def check_record(record: Any) -> None:
    """Raise ValueError if ``record`` can't be one."""
    verb, now, wall_us, *args = record
    check = _ARGUMENTS.get(verb)
    if not (_is_time(now) and _is_natural(wall_us) and (check is None or check(*args))):
        raise ValueError(f"not a record: {_short(record)}")


def check_snapshot(snapshot: Any) -> None:
    """Raise ValueError if ``snapshot`` can't be one."""
    values = [snapshot["value"], *snapshot["former"]]
    held: list[int] = []
    ids: list[str] = []
    good = (
        isinstance(snapshot["name"], str)
        and isinstance(snapshot["boot"], str)
        and (snapshot["closure"] is None or _is_reason(*snapshot["closure"]))
        and _is_natural(snapshot["fence"])
        and all(_is_count(value) for value in values)
    )
    for *basics, granted_us, token, expires_at, numbers in snapshot["holders"]:
        good = good and _is_entry(*basics) and _is_natural(granted_us) and _is_natural(token)
        good = good and _is_perhaps_time(expires_at) and len(numbers) == basics[1]
        held += numbers
        ids.append(basics[0])
    for *basics, wait_until in snapshot["waiting"]:
        good = good and _is_entry(*basics) and _is_perhaps_time(wait_until)
        ids.append(basics[0])
    # No larger than a value it has had: the numbers up to it are made when it is restored.
    good = good and all(_is_count(number) and number <= max(values) for number in held)
    if not good or len({*held}) != len(held) or len({*ids}) != len(ids):
        raise ValueError(f"not a snapshot: {_short(snapshot)}")


def _ask(
    acquisition_id: Any, slots: Any, ttl: Any, wait_until: Any, value: Any, pid: Any, label: Any
) -> bool:
    return (
        _is_entry(acquisition_id, slots, ttl, pid, label, 0)
        and _is_perhaps_time(wait_until)
        and (value is None or _is_count(value))
    )


def _bury(owners: Any) -> bool:
    return isinstance(owners, list) and all(isinstance(owner, str) for owner in owners)


def _resize(value: Any, declared: Any) -> bool:
    return _is_count(value) and (declared is None or _is_count(declared))


def _is_reason(given: object) -> bool:
    return given is None or isinstance(given, str)


def _is_entry(
    acquisition_id: Any, slots: Any, ttl: Any, pid: Any, label: Any, asked_us: Any
) -> bool:
    return (
        isinstance(acquisition_id, str)
        and _ID.fullmatch(acquisition_id) is not None
        and _is_count(slots)
        and _is_perhaps_time(ttl)
        and _is_natural(pid)
        and (label is None or isinstance(label, str))
        and _is_natural(asked_us)
    )


def _is_count(given: object) -> bool:
    return type(given) is int and 0 < given < _MOST


def _is_natural(given: object) -> bool:
    return type(given) is int and 0 <= given < _MOST


def _is_time(given: object) -> bool:
    return isinstance(given, int | float) and abs(given) < _MOST


def _is_perhaps_time(given: object) -> bool:
    return given is None or _is_time(given)


def _short(given: Iterable[object]) -> str:
    text = repr(given)
    return text if len(text) < 100 else f"{text[:100]}..."


# Those of the other verbs are ids, which are there or not, or such as raise when applied.
_ARGUMENTS: dict[str, Callable[..., bool]] = {
    "ask": _ask,
    "bury": _bury,
    "resize": _resize,
    "close everywhere": _is_reason,
}
