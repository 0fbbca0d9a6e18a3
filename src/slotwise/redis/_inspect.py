"""Read what the server tells of a limit: how full it is, who holds and who waits.

The replies are those of lua/inspect.lua, without the first four things, which say whether the
limit is closed, and where to continue.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from slotwise._core.adaptive import Change
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.paths import (
    KeyStats,
    NodeStats,
    TierSpec,
    TierStats,
    is_semaphore,
    most_of,
    needs_by_name,
    slots_needed,
)
from slotwise._core.stats import Claimant
from slotwise.redis._writing import read_needs, read_node, read_value, write_node, write_rule

# --------------------------------------------------------------------------- one path


def read_nodes(numbers: Sequence[int], tiers: Sequence[TierSpec]) -> tuple[list[NodeStats], bool]:
    """Return how full the tiers of a path are, and whether a value on it is frozen."""
    if not numbers:  # nobody is there
        return [NodeStats(0, 0, most_of(tier.value)) for tier in tiers], False
    nodes, is_frozen = [], False
    for at in range(0, len(numbers), 6):
        active, waiting, value, kept, paused_ms, frozen = numbers[at : at + 6]
        nodes.append(NodeStats(active, waiting, value, kept, paused_ms / 1000))
        is_frozen = is_frozen or bool(frozen)
    return nodes, is_frozen


def read_changes(text: bytes) -> list[Change]:
    """Return the changes in lines "at_us old new reason"; damaged ones are left out."""
    changes = []
    for line in text.decode(errors="replace").splitlines():
        with suppress(ValueError):
            at_us, old, new, reason = line.split(" ", 3)
            changes.append(Change(int(at_us) / 1_000_000, int(old), int(new), reason))
    return changes


# --------------------------------------------------------------- holders and waiters


def read_claimants(
    claims: Mapping[bytes, tuple[bytes, bytes]], tiers: Sequence[TierSpec]
) -> list[Claimant]:
    """Return holders in the order of their grants, or waiters in that of their turns.

    ``claims`` has by id the claim, and the node that a waiter lacks; of a waiter for a semaphore
    when its turn began.
    """
    found = [_read_claimant(each, claim, more, tiers) for each, (claim, more) in claims.items()]
    return [claimant for _, claimant in sorted(found, key=lambda pair: pair[0])]


_UNKNOWN = float("inf")


def _read_claimant(
    raw_id: bytes, claim: bytes, more: bytes, tiers: Sequence[TierSpec]
) -> tuple[tuple[float, float], Claimant]:
    """Return a claimant and its sort key; an unreadable one has only its id, and comes last."""
    turn = more if is_semaphore(tiers) else b""
    try:
        if not claim:  # of a client that speaks only the document
            place = float(turn) if turn else _UNKNOWN
            since = datetime.fromtimestamp(place, UTC) if turn else None
            return (0.0 if turn else _UNKNOWN, place), Claimant(raw_id.decode(), 1, since)
        _, ttl, ticket, granted, numbers, _, path, owner = claim.decode().split(" ", 7)
        holds = not granted.startswith("-")  # else it says since when it waits
        path, star, settled = path.partition("*")
        needs = read_needs(f"{star}{settled}" if star else raw_id.decode(), len(tiers))
        claimant = Claimant(
            raw_id.decode(),
            slots_needed(tiers, needs),
            datetime.fromtimestamp(abs(float(granted)), UTC),
            *read_owner(owner),
            int(re.split("[,-]", numbers)[0]) if holds else None,
            keys=_keys(path, tiers),
            needs=needs_by_name(tiers, needs),
            lacks=tiers[read_node(more)[0]].name if more and not turn else None,
            ttl=None if ttl == "-" else float(ttl),
        )
        place = float(turn) if turn and not holds else int(ticket) / 1_000_000
        return (float(granted) if holds else 0.0, place), claimant
    except (ValueError, OverflowError, OSError, IndexError):
        name = raw_id.decode(errors="backslashreplace")
        return (_UNKNOWN, _UNKNOWN), Claimant(name, 1, None, unreadable=True)


def _keys(path: str, tiers: Sequence[TierSpec]) -> dict[str, str]:
    nodes = (read_node(node.encode()) for node in path.split(","))
    return {tiers[index].name: key for index, key in nodes if tiers[index].keyed}


def read_owner(owner: str) -> tuple[str, int, str | None]:
    """Return the host, the pid and the label in the last field of a claim."""
    # The secret at the beginning must not be shown.
    host, pid, label = re.sub("^!\\S* ", "", owner).split(" ", 2)
    return host, int(pid.partition("/")[0]), label or None  # after the slash: what a kick does


# ---------------------------------------------------------------------------- tiers


def read_tier_stats(
    tiers: tuple[TierSpec, ...],
    texts: bytes,
    now_us: int,
    waiting: int,
    records: dict[bytes, bytes],
    idle: IdleKeys,
    pauses: bytes = b"",
    frozen: Collection[bytes] = (),
) -> dict[str, TierStats]:
    """Return statistics by tier, from the tiers' values, and their nodes' records and pauses.

    ``frozen`` has the numbers of tiers that are frozen, and nodes.
    """
    rules = [write_rule(tier).encode() for tier in tiers]
    if texts and texts.count(b",") == len(rules) - 1:  # not somebody else's tiers
        rules = texts.split(b",")
    values = [
        _value_of(rule) if tier.keyed else _own_value(rule, records.get(b"%d:" % index))
        for index, (tier, rule) in enumerate(zip(tiers, rules, strict=True))
    ]
    paused_for = _read_pauses(pauses, now_us)
    keys = _by_key(tiers, rules, records, idle, now_us, paused_for, frozen)
    levels: list[tuple[Any, ...]] = [
        (None, None, _rate_of(rule))
        if tier.keyed
        else _level(rule, records.get(write_node(index, None).encode()), now_us)
        for index, (tier, rule) in enumerate(zip(tiers, rules, strict=True))
    ]
    active = [0] * len(tiers)
    for node, text in records.items():
        index = read_node(node)[0]
        if index < len(tiers):
            active[index] += int(text.split()[0])
    # Every path goes through every tier.
    return {
        tier.name: TierStats(
            held,
            waiting,
            value,
            those,
            *level,
            paused_for=paused_for.get((index, None), 0.0),
            frozen=b"%d" % index in frozen or (not tier.keyed and b"%d:" % index in frozen),
        )
        for index, (tier, held, value, those, level) in enumerate(
            zip(tiers, active, values, keys, levels, strict=True)
        )
    }


def _read_pauses(text: bytes, now_us: int) -> dict[tuple[int, str | None], float]:
    """Return in how many seconds the pauses of keys end; those of whole tiers are under None."""
    paused_for: dict[tuple[int, str | None], float] = {}
    for pause in text.split():
        name, _, until_us = pause.rpartition(b"=")
        node = read_node(name) if b":" in name else (int(name), None)
        paused_for[node] = max(int(until_us) - now_us, 0) / 1_000_000
    return paused_for


def _value_of(rule: bytes) -> int:
    """A value, the burst of a rate, or where an adaptive one starts."""
    if b"_" in rule:
        return int(rule.split(b"_")[2])
    return int(rule.split(b"/")[2] if b"/" in rule else rule)


def _own_value(rule: bytes, record: bytes | None) -> int:
    """Return the value of a tier without keys; an adaptive one has it in its record."""
    if b"_" in rule and record is not None and record.split()[2] != b"-":
        return int(record.split()[2])
    return _value_of(rule)


_rate = lru_cache(100)(read_value)  # most keys have the same one


def _rate_of(rule: bytes) -> Any:
    """The rate of each key; None for slots."""
    return _rate(rule.decode()) if b"/" in rule else None


def _level(rule: bytes, record: bytes | None, now_us: int) -> tuple[Any, ...]:
    """What is left of a rate, in how many seconds it is full, and it; nothing for slots."""
    if b"/" not in rule:
        return ()
    if record is not None and b"/" in record.split()[2]:
        rule = record.split()[2].lstrip(b"~")
    gain, unit, burst, _ = map(int, rule.split(b"/"))
    rate = _rate(rule.decode())
    if record is None:
        return float(burst), 0.0, rate
    own, _, _ = record.partition(b"=")  # a share of fair order may follow
    *_, level, at = own.split()
    parts = min(int(level) + max(now_us - int(at), 0) * gain, burst * unit)
    return parts / unit, (burst * unit - parts) / gain / 1_000_000, rate


def _by_key(
    tiers: tuple[TierSpec, ...],
    rules: list[bytes],
    records: dict[bytes, bytes],
    idle: IdleKeys,
    now_us: int,
    paused_for: dict[tuple[int, str | None], float],
    frozen: Collection[bytes],
) -> list[dict[str, KeyStats]]:
    """Return for each tier what is remembered here of keys, overridden by what the server knows."""

    def pause_of(index: int, key: str | None) -> float:
        return max(paused_for.get((index, each), 0.0) for each in (key, None))

    keys: list[dict[str, KeyStats]] = [{} for _ in tiers]
    for index, tier in enumerate(tiers):
        if tier.keyed:
            paused = [key for of, key in paused_for if of == index and key is not None]
            keys[index] = {
                key: KeyStats(
                    *(0, 0, idle.value_of(index, key) or _value_of(rules[index])),
                    *_level(rules[index], None, now_us),
                    paused_for=pause_of(index, key),
                    frozen=b"%d" % index in frozen,
                )
                for key in (*idle.keys(index), *paused)
            }
    for node, record in records.items():
        index, key = read_node(node)
        if index < len(tiers) and tiers[index].keyed:
            held, waited, value, *_ = record.split()
            # Of a rate, "~2" says how often it had been resized when the record was written.
            is_own = value != b"-" and (b"/" in value or b"/" not in rules[index])
            own = _value_of(value.lstrip(b"~") if is_own else rules[index])
            level = _level(rules[index], record, now_us)
            keys[index][key] = KeyStats(
                *(int(held), int(waited), own),
                *level,
                paused_for=pause_of(index, key),
                frozen=node in frozen,
            )
    return keys
