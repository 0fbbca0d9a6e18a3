"""How tiers and their values are written in records and snapshots: a rate is a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotwise._core.paths import TierSpec
from slotwise._core.rates import Rate


def write_value(value: int | Rate | None) -> Any:
    return [value.count, value.per, value.burst] if isinstance(value, Rate) else value


def read_value(written: Any) -> Any:
    """An int, None, or a Rate; raises what `Rate` raises if it is not a valid one."""
    if not isinstance(written, list):
        return written
    count, per, burst = written
    return Rate(count, per=per, burst=burst)


def write_specs(specs: Sequence[TierSpec]) -> list[list[Any]]:
    return [[s.name, write_value(s.value), s.keyed, s.by_key, s.key_of, s.fair] for s in specs]


def read_specs(written: Sequence[Sequence[Any]]) -> list[TierSpec]:
    return [TierSpec(name, read_value(value), *fields) for name, value, *fields in written]
