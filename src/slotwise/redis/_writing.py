"""How tiers, paths through them, needs and values are written for the scripts, and read.

A node is written ``tier:key``, the tier as its number and the key percent-encoded; a path is
its nodes with commas between. So no key, whatever it is, contains a character that the scripts
split records at, or changes a hash tag. A *shape* is the names of the tiers; all objects of a name
must agree about it, and code that knows only the name reads it. Nothing here talks to a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from slotwise._core.adaptive import Adaptive
from slotwise._core.paths import Path, RankedNeeds, TierSpec
from slotwise._core.rates import Rate

# How many written paths are kept, those used last, of a few hundred bytes each: writing one takes
# a twentieth of the client's time for a block.
_REMEMBERED_PATHS = 2_000


def write_node(tier: int, key: str | None) -> str:
    # A str may hold lone surrogates, which UTF-8 proper has no bytes for.
    written = "" if key is None else quote(key.encode("utf-8", "surrogatepass"), safe="")
    return f"{tier}:{written}"


def read_node(node: bytes) -> tuple[int, str]:
    tier, _, written = node.partition(b":")
    return int(tier), unquote_to_bytes(written).decode("utf-8", "surrogatepass")


def write_needs(needs: Sequence[int]) -> str:
    """Return the suffix of an id whose request needs anything but one slot of each tier.

    Its head start in microseconds comes before that, if it has one.
    """
    head_start = needs.head_start if isinstance(needs, RankedNeeds) else 0
    if not head_start and max(needs) == 1:
        return ""
    return (f"^{head_start}" if head_start else "") + "*" + ".".join(map(str, needs))


def read_needs(acquisition_id: str, tiers: int) -> tuple[int, ...] | None:
    """Return what a request needs of each of its tiers, by its id; None for one slot of each."""
    _, star, written = acquisition_id.rpartition("*")
    if not star:
        return None
    needs = tuple(map(int, written.split(".")))
    if len(needs) != tiers:
        raise ValueError(f"not what {tiers} tiers need: {written!r}")
    return needs


def write_value(value: int | Rate) -> str:
    """Return a value, or a rate, as lua/rules/state.lua has it."""
    if isinstance(value, int):
        return str(value)
    return f"{value.gain}/{value.unit}/{value.burst}/{round(value.per * 1_000_000)}"


def write_rule(tier: TierSpec) -> str:
    """Return the value of a tier, its rate, or how it adapts: "min_max_start_window_samples"."""
    return tier.rules.replace(" ", "_") if tier.adaptive is not None else write_value(tier.value)


def read_value(written: str) -> int | Rate:
    """Read what `write_value` has written."""
    if "/" not in written:
        return int(written)
    gain, unit, burst, per_us = map(int, written.split("/"))
    return Rate(gain * per_us // unit, per=per_us / 1_000_000, burst=burst)


@lru_cache(_REMEMBERED_PATHS)
def write_path(keys: Path) -> str:
    return ",".join([write_node(tier, key) for tier, key in enumerate(keys)])


# ------------------------------------------------------------------------- shapes

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
