"""Collect the statistics of tiers: what the server counts, and the idle keys of this process."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from slotwise._core.paths import KeyStats, TierSpec, TierStats
from slotwise.redis._path_idle import IdleKeys
from slotwise.redis._path_keys import read_node
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
    """Statistics by tier, in one look, or in several if there are thousands of keys."""
    client = shared.client()
    records: dict[bytes, bytes] = {}
    cursor = b"0"
    while True:
        args = [b"", cursor]
        looking = client.run(_INSPECT, record.keys.all, args, record.keys.slot, limits)
        reply = await reply_within(INSPECT, looking, client, record.keys.slot)
        cursor, _, waiting, unfinished, texts, *found = reply
        records.update(zip(found[::2], found[1::2], strict=True))
        if unfinished:
            shared.continue_serving(record, client)
        if cursor == b"0":
            break
    values = [tier.slots for tier in tiers]
    if texts and texts.count(b",") == len(values) - 1:  # not somebody else's tiers
        values = [int(each) for each in texts.split(b",")]
    keys = _by_key(tiers, values, records, idle)
    active = [0] * len(tiers)
    for node, text in records.items():
        index = read_node(node)[0]
        if index < len(tiers):
            active[index] += int(text.split()[0])
    # Every path goes through every tier.
    return {
        tier.name: TierStats(held, waiting, value, MappingProxyType(those))
        for tier, held, value, those in zip(tiers, active, values, keys, strict=True)
    }


def _by_key(
    tiers: tuple[TierSpec, ...], values: list[int], records: dict[bytes, bytes], idle: IdleKeys
) -> list[dict[str, KeyStats]]:
    """For each tier what is remembered here of keys, and over it what the server knows."""
    keys: list[dict[str, KeyStats]] = [{} for _ in tiers]
    for index, tier in enumerate(tiers):
        if tier.keyed:
            keys[index] = {
                key: KeyStats(0, 0, idle.value_of(index, key) or values[index])
                for key in idle.keys(index)
            }
    for node, record in records.items():
        index, key = read_node(node)
        if index < len(tiers) and tiers[index].keyed:
            held, waited, value, *_ = record.split()
            own = values[index] if value == b"-" else int(value.lstrip(b"~"))
            keys[index][key] = KeyStats(int(held), int(waited), own)
    return keys
