"""Collect the statistics of tiers: what the server counts, and the idle keys of this process."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from slotwise._core.idle_keys import IdleKeys
from slotwise._core.paths import KeyStats, TierSpec, TierStats, title_of
from slotwise.redis._diagnosis import GARBAGE, not_ours
from slotwise.redis._path_keys import read_node, read_value, write_node, write_rule
from slotwise.redis._reply_limits import INSPECT, reply_within
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise.redis._call_limits import CallLimits
    from slotwise.redis._shared_client import NameRecord, SharedClient

_INSPECT = load("tiers/inspect")


async def collect(
    shared: SharedClient,
    record: NameRecord,
    tiers: tuple[TierSpec, ...],
    idle: IdleKeys,
    limits: CallLimits,
) -> dict[str, TierStats]:
    """Return statistics by tier, in one call, or in several if there are thousands of keys."""
    client = shared.client()
    records: dict[bytes, bytes] = {}
    frozen: set[bytes] = set()
    cursor = b"0"
    while True:
        args = [b"", cursor]
        looking = client.run(_INSPECT, record.keys.all, args, record.keys.slot, limits)
        reply = await reply_within(INSPECT, looking, client, record.keys.slot)
        cursor, _, waiting, unfinished, texts, now_us, pauses, some_frozen, *found = reply
        frozen.update(some_frozen)
        records.update(zip(found[::2], found[1::2], strict=True))
        if unfinished:
            shared.continue_serving(record, client)
        if cursor == b"0":
            break
    try:
        return read_tier_stats(tiers, texts, int(now_us), waiting, records, idle, pauses, frozen)
    except GARBAGE as error:
        raise not_ours(title_of(tiers, record.name)) from error


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
            own = _value_of(rules[index] if value == b"-" else value.lstrip(b"~"))
            level = _level(rules[index], record, now_us)
            keys[index][key] = KeyStats(
                *(int(held), int(waited), own),
                *level,
                paused_for=pause_of(index, key),
                frozen=node in frozen,
            )
    return keys
