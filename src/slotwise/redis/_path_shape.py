"""How the tiers of an object are written on the server: their names, and what they were made with.

All objects of a name must agree about that, and code that knows only the name reads it. Nothing
here talks to a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from slotwise._core.adaptive import Adaptive
from slotwise._core.paths import TierSpec, tiers_conflict
from slotwise.errors import ValueConflict
from slotwise.redis._path_keys import read_value

_KEYED, _BY_KEY, _FAIR_BY, _FAIR_COST = "*", "?", "=", "+"
_MARKS = _KEYED + _BY_KEY + _FAIR_BY + _FAIR_COST
_KEY_OF = "@"  # before the name of the tier whose key it uses


def write_shape(tiers: Sequence[TierSpec]) -> str:
    """Return the names of the tiers, narrow to wide, and which have keys, or values by key."""
    return ",".join(
        _quoted(tier.name)
        + _KEYED * tier.keyed
        + _BY_KEY * tier.by_key
        + _FAIR_BY * ("by" in tier.fair.split())
        + _FAIR_COST * ("cost" in tier.fair.split())
        + ("" if tier.key_of is None else _KEY_OF + _quoted(tier.key_of))
        for tier in tiers
    )


def read_shape(shape: str, declared: str) -> tuple[TierSpec, ...]:
    """Return the tiers of a shape and the values they were declared with; none for an empty one.

    Raises:
        ValueError: none of our code wrote that.
    """
    if not shape:
        return ()
    pairs = zip(shape.split(","), declared.split(","), strict=True)
    return tuple(_read_tier(written, value) for written, value in pairs)


def read_tiers_conflict(name: str, tiers: Sequence[TierSpec], reply: list[Any]) -> ValueConflict:
    """Return the error of an object whose ``tiers`` are not those in use, by a script's reply."""
    index, value = reply
    if isinstance(value, bytes) and not value.startswith(b"rate "):
        shape, _, declared = value.decode().partition(" ")
        return tiers_conflict(name, read_shape(shape, declared), tiers)
    in_use = read_value(value.decode().partition(" ")[2]) if isinstance(value, bytes) else value
    used = [*tiers]
    used[index] = replace(used[index], value=in_use, adaptive=None, rules="")
    return tiers_conflict(name, used, tiers)


def _read_tier(written: str, value: str) -> TierSpec:
    written, _, other = written.partition(_KEY_OF)
    encoded = written.rstrip(_MARKS)
    name, key_of = _unquoted(encoded), _unquoted(other) or None
    marks = written[len(encoded) :]
    fair = "by " * (_FAIR_BY in marks) + "cost" * (_FAIR_COST in marks)
    if "_" in value:
        adaptive = Adaptive.read(value.replace("_", " "))
        return TierSpec(
            *(name, adaptive.start, _KEYED in marks),
            key_of=key_of,
            fair=fair.strip(),
            adaptive=adaptive,
            rules=adaptive.written,
        )
    return TierSpec(
        *(name, read_value(value), _KEYED in marks),
        by_key=_BY_KEY in marks,
        key_of=key_of,
        fair=fair.strip(),
    )


def _quoted(name: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe="")


def _unquoted(name: str) -> str:
    return unquote_to_bytes(name).decode("utf-8", "surrogatepass")
