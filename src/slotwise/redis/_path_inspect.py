"""Read the replies of inspect_path.lua: how full one path is, and who holds or waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from slotwise._core.paths import (
    NodeStats,
    Path,
    PathStats,
    TierSpec,
    most_of,
    needs_by_name,
    slots_needed,
)
from slotwise._core.results import Claimant
from slotwise.redis._closing import read_closed
from slotwise.redis._inspect import read_first_number, read_owner, unreadable_claimant
from slotwise.redis._path_keys import read_needs, read_node


def read_path_stats(
    reply: list[Any], tiers: Sequence[TierSpec], path: Path, *, closed_here: bool
) -> PathStats:
    """``closed_here``: whether this process has closed its instances."""
    closed, reason, _, _, *numbers = reply
    if len(numbers) == 5 * len(path):
        nodes = tuple(
            NodeStats(active, waiting, value, kept, paused_ms / 1000)
            for active, waiting, value, kept, paused_ms in _by_node(numbers)
        )
    else:  # nobody is there
        nodes = tuple(NodeStats(0, 0, most_of(tier.value)) for tier in tiers)
    return PathStats(nodes, closed_here, read_closed(closed, reason))


def _by_node(numbers: Sequence[int]) -> Iterable[Sequence[int]]:
    return (numbers[at : at + 5] for at in range(0, len(numbers), 5))


def read_path_claimants(
    claims: Mapping[bytes, tuple[bytes, bytes]], tiers: Sequence[TierSpec]
) -> list[Claimant]:
    """Return holders in the order of their grants, or waiters in that of their tickets.

    ``claims`` has the claim by id, and the node that it lacks, or what it has after corrections.
    """
    found = [_read(each, claim, more, tiers) for each, (claim, more) in claims.items()]
    return [claimant for _, claimant in sorted(found, key=lambda pair: pair[0])]


def _read(
    raw_id: bytes, claim: bytes, more: bytes, tiers: Sequence[TierSpec]
) -> tuple[tuple[float, int], Claimant]:
    """Return a claimant and its sort key; an unreadable one has only its id, and comes last."""
    try:
        _, ttl, ticket, granted, numbers, _, path, owner = claim.decode().split(" ", 7)
        holds = granted != "0" and not granted.startswith("-")
        # For a waiter this is when it began to wait, with a sign; older clients wrote 0.
        began = abs(float(granted))
        since = datetime.fromtimestamp(began, UTC) if began else None
        settled, lacking = (f"*{more.decode()}", b"") if holds and more else ("", more)
        needs = read_needs(settled or raw_id.decode(), len(tiers))
        claimant = Claimant(
            raw_id.decode(),
            slots_needed(tiers, needs),
            since,
            *read_owner(owner),
            read_first_number(numbers) if holds else None,
            keys=_keys(path, tiers),
            needs=needs_by_name(tiers, needs),
            lacks=tiers[read_node(lacking)[0]].name if lacking else None,
            ttl=None if ttl == "-" else float(ttl),
        )
        return (began if holds else 0.0, int(ticket)), claimant
    except (ValueError, OverflowError, OSError, IndexError):
        return (float("inf"), 0), unreadable_claimant(raw_id)


def _keys(path: str, tiers: Sequence[TierSpec]) -> dict[str, str]:
    nodes = (read_node(node.encode()) for node in path.split(","))
    return {tiers[index].name: key for index, key in nodes if tiers[index].keyed}
