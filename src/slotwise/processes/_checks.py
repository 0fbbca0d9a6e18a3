"""Validate what was read from a file: a valid checksum doesn't make its contents valid.

Records and snapshots that pass can be applied. The ledger may refuse them, but they take no
more time or memory than a change of ours, and cause no exception later. What this process
writes itself isn't validated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slotwise._core.adaptive import OUTCOMES
from slotwise.processes._adaptations import read_adaptation

# An owner is the number of its liveness byte, which has to be a valid file offset.
_OWNER = re.compile(r"p[0-9a-f]{1,15}")
_ID = re.compile(rf"{_OWNER.pattern}-.+", re.DOTALL)
_LIMIT = 1 << 62  # fits wherever a number is used


def check_record(record: Any) -> None:
    """Raise ValueError if this is not a record of a semaphore."""
    check_record_by(_ARGUMENTS, record)


def check_record_by(arguments: Mapping[str, Callable[..., bool]], record: Any) -> None:
    """Raise ValueError if this is not a record; ``arguments`` has the checks, by verb."""
    verb, now, wall_us, *args = record
    check = arguments.get(verb)
    if not (is_time(now) and is_natural(wall_us) and (check is None or check(*args))):
        raise ValueError(f"not a record: {short(record)}")


def check_snapshot(snapshot: Any) -> None:
    """Raise ValueError if this is not a snapshot."""
    values = [snapshot["value"], *snapshot["former"]]
    adaptation = read_adaptation(snapshot.get("adaptation"))
    if adaptation is not None:
        values.append(adaptation.options.max)
    held: list[int] = []
    ids: list[str] = []
    valid = (
        are_common_fields(snapshot)
        and is_time_or_none(snapshot["paused"])
        and all(is_count(value) for value in values)
    )
    for *fields, granted_us, token, expires_at, numbers in snapshot["holders"]:
        valid = valid and is_claim(*fields) and is_natural(granted_us) and is_natural(token)
        valid = valid and is_time_or_none(expires_at) and len(numbers) == _slots_in(fields[1])
        held += numbers
        ids.append(fields[0])
    for *fields, wait_until in snapshot["waiting"]:
        valid = valid and is_claim(*fields) and is_time_or_none(wait_until)
        ids.append(fields[0])
    arrived, tickets = snapshot["arrived"], snapshot["tickets"]
    valid = valid and len(arrived) == len(snapshot["waiting"]) and all(map(is_time, arrived))
    if tickets is not None:
        valid = valid and len(tickets) == len(arrived) + 1 and all(map(is_natural, tickets))
    # At most the largest value it ever had: restoring creates all numbers up to there.
    valid = valid and all(is_count(number) and number <= max(values) for number in held)
    if not valid or len({*held}) != len(held) or len({*ids}) != len(ids):
        raise ValueError(f"not a snapshot: {short(snapshot)}")


def are_common_fields(snapshot: Any) -> bool:
    """Whether the fields are valid that every snapshot has."""
    return (
        isinstance(snapshot["name"], str)
        and isinstance(snapshot["boot"], str)
        and (snapshot["closure"] is None or is_reason(*snapshot["closure"]))
        and is_natural(snapshot["fence"])
        and _are_hold_times(*snapshot.get("holds", ()))
    )


def is_request(
    acquisition_id: Any,
    slots: Any,
    ttl: Any,
    wait_until: Any,
    value: Any,
    pid: Any,
    label: Any,
    grace: Any = 0.0,
) -> bool:
    return (
        is_claim(acquisition_id, slots, ttl, pid, label, 0, grace)
        and is_time_or_none(wait_until)
        and (value is None or is_count(value))
    )


def is_drop_dead(owners: Any, undelivered: Any = ()) -> bool:
    texts = [*owners, *undelivered]
    return isinstance(owners, list) and all(isinstance(text, str) for text in texts)


def _resize(value: Any, declared: Any) -> bool:
    return is_count(value) and (declared is None or is_count(declared))


def is_reason(given: object) -> bool:
    return given is None or isinstance(given, str)


def is_claim(
    acquisition_id: Any,
    slots: Any,
    ttl: Any,
    pid: Any,
    label: Any,
    requested_us: Any,
    grace: Any = 0.0,
    is_kicked: Any = False,
) -> bool:
    return (
        isinstance(acquisition_id, str)
        and _ID.fullmatch(acquisition_id) is not None
        and (is_count(slots) or _is_ranked(slots))
        and is_time_or_none(ttl)
        and is_natural(pid)
        and (label is None or isinstance(label, str))
        and is_natural(requested_us)
        and is_time(grace)
        and isinstance(is_kicked, bool)
    )


def _is_ranked(wanted: Any) -> bool:
    """Whether these are slots with a head start."""
    if not isinstance(wanted, list) or len(wanted) != 2:
        return False
    slots, head_start = wanted
    return is_count(slots) and type(head_start) is int and abs(head_start) < _LIMIT


def _slots_in(wanted: Any) -> int:
    slots: int = wanted[0] if isinstance(wanted, list) else wanted
    return slots


def _are_hold_times(busy: Any = 0.0, ended: Any = 0.0) -> bool:
    return is_time(busy) and is_time(ended) and busy >= 0 and ended >= 0


def is_count(given: object) -> bool:
    return type(given) is int and 0 < given < _LIMIT


def is_natural(given: object) -> bool:
    return type(given) is int and 0 <= given < _LIMIT


def is_time(given: object) -> bool:
    return isinstance(given, int | float) and abs(given) < _LIMIT


def is_time_or_none(given: object) -> bool:
    return given is None or is_time(given)


def short(given: Iterable[object]) -> str:
    text = repr(given)
    return text if len(text) < 100 else f"{text[:100]}..."


def is_release(
    acquisition_id: Any, outcome: Any = "ok", held_us: Any = None, retry_after_us: Any = 0
) -> bool:
    return (
        isinstance(acquisition_id, str)
        and outcome in OUTCOMES
        and (held_us is None or is_natural(held_us))
        and is_natural(retry_after_us)
    )


def _freeze(value: Any) -> bool:
    return value is None or is_count(value)


def _declare(written: Any) -> bool:
    return isinstance(written, str)


# Other verbs take ids, known or not, or raise when they are applied.
_ARGUMENTS: dict[str, Callable[..., bool]] = {
    "request": is_request,
    "replace": is_request,
    "drop dead": is_drop_dead,
    "release": is_release,
    "resize": _resize,
    "freeze": _freeze,
    "declare": _declare,
    "pause": is_time,
    "close everywhere": is_reason,
}
