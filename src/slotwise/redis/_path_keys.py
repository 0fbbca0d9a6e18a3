"""The names of the keys of a Tiers object, and how its paths are written in them.

A node is written ``tier:key``, the tier as its number and the key percent-encoded; a path is
its nodes with commas between. So no key, whatever it is, contains a character that the scripts
split records at, or changes a hash tag. Nothing here talks to a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from slotwise._core.paths import Path, RankedNeeds, TierSpec
from slotwise._core.rates import Rate
from slotwise.redis._keys import KeySet

# In the order in which the scripts want them; see lua/tiers/state.lua.
KINDS = (
    *("state", "holders", "waiters", "ttls", "queue", "parked", "unfinished", "numbers"),
    *("refills", "cleanup", "passed", "shares"),
)


# How many written paths are kept, those used last, of a few hundred bytes each: writing one takes
# a twentieth of the client's time for a block.
_REMEMBERED_PATHS = 2_000


class PathKeys(KeySet):
    """The keys of one Tiers object: one hash slot, and so one shard, on Cluster."""

    __slots__ = ()

    def __init__(self, namespace: str, name: str, *, cluster: bool = False) -> None:
        super().__init__(namespace, "tiers", KINDS, name, cluster=cluster)


def write_node(tier: int, key: str | None) -> str:
    # A str may hold lone surrogates, which UTF-8 proper has no bytes for.
    written = "" if key is None else quote(key.encode("utf-8", "surrogatepass"), safe="")
    return f"{tier}:{written}"


def read_node(node: bytes) -> tuple[int, str]:
    tier, _, written = node.partition(b":")
    return int(tier), unquote_to_bytes(written).decode("utf-8", "surrogatepass")


def write_needs(needs: Sequence[int]) -> str:
    """Return the suffix of an id whose request needs anything but one slot of each tier.

    It is followed by its head start in microseconds, if it has one.
    """
    head_start = needs.head_start if isinstance(needs, RankedNeeds) else 0
    return "*" + ".".join(map(str, needs)) + (f"^{head_start}" if head_start else "")


def read_needs(acquisition_id: str, tiers: int) -> tuple[int, ...] | None:
    """Return what a request needs of each of its tiers, by its id; None for one slot of each."""
    _, star, written = acquisition_id.rpartition("*")
    if not star:
        return None
    needs = tuple(map(int, written.partition("^")[0].split(".")))
    if len(needs) != tiers:
        raise ValueError(f"not what {tiers} tiers need: {written!r}")
    return needs


def write_value(value: int | Rate) -> str:
    """Return a value, or a rate, as lua/tiers/state.lua has it."""
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
