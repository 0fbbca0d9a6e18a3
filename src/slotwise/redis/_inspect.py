"""Read who holds and who waits from what the server lists."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from slotwise._core.results import Claimant


def read_claimants(flat: list[Any]) -> list[Claimant]:
    """What semaphore/inspect.lua listed: id, since, claim; id, since, claim; ..."""
    return [
        _read_or_name(acquisition_id, since, claim)
        for acquisition_id, since, claim in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    ]


def _read_or_name(acquisition_id: bytes, since: bytes, claim: bytes) -> Claimant:
    """One that can't be read is named, so that the others can be listed."""
    try:
        return _read(acquisition_id.decode(), since.decode(), claim.decode())
    except (ValueError, OverflowError, OSError):
        name = acquisition_id.decode(errors="backslashreplace")
        return Claimant(name, 1, None, unreadable=True)


def _read(acquisition_id: str, since: str, claim: str) -> Claimant:
    several = re.search(r"^sw-.*\*(\d+)$", acquisition_id)
    slots = int(several[1]) if several else 1
    if not claim:
        return Claimant(acquisition_id, slots, _time(since))
    _, ttl, ticket, granted, number, _, owner = claim.split(" ", 6)
    # The secret at the beginning (lua/base/proof.lua) must not be shown.
    host, pid, label = re.sub("^!\\S* ", "", owner).split(" ", 2)
    holds = granted != "0"
    return Claimant(
        acquisition_id,
        slots,
        _time(granted if holds else ticket),
        host,
        int(pid.partition("/")[0]),  # after the slash: what a kick does
        label or None,
        int(re.split("[,-]", number)[0]) if holds else None,
        ttl=None if ttl == "-" else float(ttl),
    )


def _time(seconds: str) -> datetime | None:
    return datetime.fromtimestamp(float(seconds), UTC) if seconds else None
