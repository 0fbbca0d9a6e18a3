"""Adaptive values on Redis: the samples sent with releases, and the changes the server reports.

How a value moves is in lua/base/adaptation.lua. A sample needs no command of its own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from slotwise._core import messages
from slotwise._core.adaptive import Adaptive, Change, Outcome
from slotwise._core.results import AcquisitionResult, acquisition_id_of
from slotwise.errors import ValueConflict
from slotwise.redis._acquisition import RedisAcquisition
from slotwise.redis._shared_client import has_issued


def sample_of_other_process(acquired: str | AcquisitionResult, outcome: Outcome | None) -> str:
    """Return the sample of another process's acquisition: only the server knows since when it is
    held.

    One of this process has ended before, and the server may not know it yet.
    """
    if isinstance(acquired, RedisAcquisition):
        return acquired.sample()
    if has_issued(acquisition_id_of(acquired)):
        return ""
    return f" {(outcome or 'ok')[0]}-"


def read_changes(text: bytes) -> list[Change]:
    """Return the changes in lines "at_us old new reason"; damaged ones are left out."""
    changes = []
    for line in text.decode(errors="replace").splitlines():
        with suppress(ValueError):
            at_us, old, new, reason = line.split(" ", 3)
            changes.append(Change(int(at_us) / 1_000_000, int(old), int(new), reason))
    return changes


def read_conflict(name: str, declared: int | str, reply: list[Any]) -> ValueConflict:
    """Return why a name can't be used, from {value, held, waiting, the rules if it adapts}."""
    value, held, waiting, *more = reply
    known = _read_rules(more[0].decode(errors="replace")) if more else None
    given = _read_rules(declared) if isinstance(declared, str) else None
    if known is not None or given is not None:
        return messages.rules_conflict(name, given, known, value)
    fixed = declared if isinstance(declared, int) else None
    return messages.value_conflict(name, fixed, value=value, held=held, waiting=waiting)


def _read_rules(written: str) -> Adaptive | None:
    try:
        return Adaptive.read(written)
    except (TypeError, ValueError):
        return None
