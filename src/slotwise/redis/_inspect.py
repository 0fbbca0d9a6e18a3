"""Read who holds and who waits from what the server lists.

For tiers `_path_inspect` does that; what their records have in common with these is here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from slotwise._core.results import Claimant


def read_claimants(flat: list[Any]) -> list[Claimant]:
    """Read what semaphore/inspect.lua listed: id, since, claim; id, since, claim; ..."""
    return [
        _read_or_name(acquisition_id, since, claim)
        for acquisition_id, since, claim in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    ]


def _read_or_name(acquisition_id: bytes, since: bytes, claim: bytes) -> Claimant:
    """Return a claimant; one that can't be read is named, so that the others can be listed."""
    try:
        return _read(acquisition_id.decode(), since.decode(), claim.decode())
    except (ValueError, OverflowError, OSError):
        return unreadable_claimant(acquisition_id)


def _read(acquisition_id: str, since: str, claim: str) -> Claimant:
    several = re.search(r"^sw-.*\*(\d+)$", acquisition_id)
    slots = int(several[1]) if several else 1
    if not claim:
        return Claimant(acquisition_id, slots, _time(since))
    _, ttl, ticket, granted, number, _, owner = claim.split(" ", 6)
    holds = granted != "0"
    return Claimant(
        acquisition_id,
        slots,
        _time(granted if holds else ticket),
        *read_owner(owner),
        read_first_number(number) if holds else None,
        ttl=None if ttl == "-" else float(ttl),
    )


def unreadable_claimant(acquisition_id: bytes) -> Claimant:
    """Return what is known of one whose record none of our code wrote."""
    return Claimant(acquisition_id.decode(errors="backslashreplace"), 1, None, unreadable=True)


def read_owner(owner: str) -> tuple[str, int, str | None]:
    """Return the host, the pid and the label in the last field of a claim."""
    # The secret at the beginning (lua/base/proof.lua) must not be shown.
    host, pid, label = re.sub("^!\\S* ", "", owner).split(" ", 2)
    return host, int(pid.partition("/")[0]), label or None  # after the slash: what a kick does


def read_first_number(numbers: str) -> int:
    """Return the lowest of the slot numbers of a claim, such as ``2-4,7``."""
    return int(re.split("[,-]", numbers)[0])


def _time(seconds: str) -> datetime | None:
    return datetime.fromtimestamp(float(seconds), UTC) if seconds else None
