"""Convert tiers and their values to what records and snapshots have, or back: a rate is a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotwise._core.adaptive import Adaptive
from slotwise._core.paths import TierSpec
from slotwise._core.rates import Rate


def write_value(value: int | Rate | None) -> Any:
    return [value.count, value.per, value.burst] if isinstance(value, Rate) else value


def read_value(written: Any) -> Any:
    """Return an int, None, or a Rate."""
    if not isinstance(written, list):
        return written
    count, per, burst = written
    return Rate(count, per=per, burst=burst)


def write_specs(specs: Sequence[TierSpec]) -> list[list[Any]]:
    return [
        [s.name, write_value(s.value), s.keyed, s.by_key, s.key_of, s.fair, s.rules] for s in specs
    ]


def read_specs(written: Sequence[Sequence[Any]]) -> list[TierSpec]:
    return [_read_spec(*fields) for fields in written]


def _read_spec(
    name: str,
    value: Any,
    keyed: bool,
    by_key: bool,
    key_of: str | None,
    fair: str,
    rules: str = "",  # earlier releases wrote none
) -> TierSpec:
    adaptive = Adaptive.read(rules) if rules else None
    return TierSpec(
        *(name, read_value(value), keyed, by_key, key_of, fair), adaptive=adaptive, rules=rules
    )
