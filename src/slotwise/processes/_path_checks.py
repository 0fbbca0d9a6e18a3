"""Validate what was read from the file of tiers; `_checks` says why, and how far that goes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from slotwise._core.adaptive import Adaptive
from slotwise._core.rates import Rate
from slotwise.processes._adaptations import read_adaptation
from slotwise.processes._checks import (
    are_common_fields,
    check_record_by,
    is_claim,
    is_count,
    is_drop_dead,
    is_natural,
    is_reason,
    is_release,
    is_request,
    is_time,
    is_time_or_none,
    short,
)
from slotwise.processes._path_values import read_value


def check_path_record(record: Any) -> None:
    """Raise ValueError if this is not a record of tiers."""
    check_record_by(_ARGUMENTS, record)


def check_path_snapshot(snapshot: Any) -> None:
    """Raise ValueError if this is not a snapshot."""
    tiers = snapshot["tiers"]
    keyed = [tier[2] for tier in tiers]
    valid = (
        are_common_fields(snapshot)
        and is_natural(snapshot["ticket"])
        and _are_specs(tiers)
        and len(snapshot["values"]) == len(tiers)
    )
    with_slots = [index for index, tier in enumerate(tiers) if not isinstance(tier[1], list)]
    valid = valid and _are_adapted(tiers, snapshot.get("adapted", []))
    valid = valid and is_time(snapshot["at"]) and is_time(snapshot["settle_for"])
    for (_, first, _, by_key, *_), (value, former, own) in zip(
        tiers, snapshot["values"], strict=True
    ):
        is_valid = _is_rate if isinstance(first, list) else is_natural
        valid = valid and (value is None if by_key else is_valid(value))
        valid = valid and isinstance(own, dict) and all(map(is_valid, own.values()))
        valid = valid and isinstance(former, list) and all(map(is_valid, former))
    for index, key, value in snapshot["learnt"]:
        valid = valid and is_natural(index) and tiers[index][3] and isinstance(key, str)
        valid = valid and is_natural(value)
    for index, key, until in snapshot["pauses"]:
        valid = valid and _pause(index, until, key) and index < len(tiers)
    for index, key, level, at in snapshot["buckets"]:
        valid = valid and is_natural(index) and index not in with_slots
        valid = valid and (isinstance(key, str) if keyed[index] else key is None)
        valid = valid and type(level) is int and is_natural(at)
    ids: list[str] = []
    for *fields, granted_us, token, until in snapshot["recent"]:
        valid = valid and _is_path_claim(keyed, *fields) and is_natural(granted_us)
        valid = valid and is_natural(token) and is_time(until)
        ids.append(fields[0])
    numbers: dict[Any, list[tuple[int, int]]] = {}
    for *fields, granted_us, token, expires_at, ranges in snapshot["holders"]:
        valid = valid and _is_path_claim(keyed, *fields) and is_natural(granted_us)
        valid = valid and is_natural(token) and is_time_or_none(expires_at)
        path, needs, *_ = fields[1]
        widest = with_slots[-1]  # of rates alone nothing is held
        for start, stop in ranges:
            valid = valid and is_count(start) and is_count(stop) and start < stop
            numbers.setdefault(path[widest], []).append((start, stop))
        needed = 1 if needs is None else needs[widest]
        valid = valid and sum(stop - start for start, stop in ranges) == needed
        ids.append(fields[0])
    for ranges in numbers.values():
        ranges.sort()
        following = pairwise(ranges)
        valid = valid and all(one[1] <= other[0] for one, other in following)
    paths: dict[str, tuple[Any, ...]] = {}
    before = 0
    for *fields, ticket, wait_until in snapshot["waiting"]:
        valid = valid and _is_path_claim(keyed, *fields) and is_time_or_none(wait_until)
        valid = valid and is_count(ticket) and before < ticket <= snapshot["ticket"]
        before = ticket
        ids.append(fields[0])
        paths[fields[0]] = tuple(fields[1][0])
    parked = [paths[head] for head, *_ in snapshot["parked"]]
    valid = valid and len({*parked}) == len(parked) and {*parked} == {*paths.values()}
    valid = valid and _are_turns(**snapshot["turns"])
    for _, tier, keeps in snapshot["parked"]:
        valid = valid and all(is_natural(each) and each < len(tiers) for each in (tier, *keeps))
    if snapshot["closure"] is not None and snapshot["waiting"]:
        valid = False
    if not valid or len({*ids}) != len(ids):
        raise ValueError(f"not a snapshot: {short(snapshot)}")


def _are_turns(passing: Any, time: Any, tags: Any, shares: Any) -> bool:
    return (
        all(map(is_count, passing))
        and is_time(time)
        and all(map(is_time, tags.values()))
        and all(is_time(tag) and is_time(weight) and weight for tag, weight in shares.values())
    )


def _are_specs(specs: Any) -> bool:
    return (
        isinstance(specs, list)
        and bool(specs)
        and all(
            isinstance(name, str)
            and (_is_rate(value) if isinstance(value, list) else is_natural(value))
            and isinstance(keyed, bool)
            and isinstance(by_key, bool)
            and (key_of is None or isinstance(key_of, str))
            and fair in ("", "by", "cost", "by cost")
            and (_are_rules(*rules) if any(rules) else len(rules) < 2)
            and not (any(rules) and (by_key or isinstance(value, list)))
            for name, value, keyed, by_key, key_of, fair, *rules in specs
        )
    )


def _are_rules(written: Any) -> bool:
    return isinstance(written, str) and Adaptive.read(written).written == written


def _are_adapted(tiers: Any, adapted: Any) -> bool:
    """Whether these are the values that adaptive tiers have found."""
    adaptive = {index: tier[6] for index, tier in enumerate(tiers) if any(tier[6:])}
    if [index for index, *_ in adapted] != [*adaptive]:
        return False
    for index, is_frozen, frozen_at, frozen_keys, nodes in adapted:
        keyed, least, most = tiers[index][2], *map(int, adaptive[index].split(" ")[:2])
        if not isinstance(is_frozen, bool) or not all(isinstance(key, str) for key in frozen_keys):
            return False
        if frozen_at is not None and not (is_count(frozen_at) and least <= frozen_at <= most):
            return False
        for key, *written in nodes:
            known = read_adaptation(written)
            if known is None or known.options.written != adaptive[index]:
                return False
            if isinstance(key, str) is not keyed or not (keyed or key is None):
                return False
        if len({key for key, *_ in nodes}) != len(nodes):
            return False
    return True


def _freeze(tier: Any, value: Any, key: Any) -> bool:
    return (value is None or is_count(value)) and _refill(tier, key)


def _is_rate(written: Any) -> bool:
    return isinstance(read_value(written), Rate)


def _is_path_claim(
    keyed: list[bool] | None, acquisition_id: Any, wanted: Any, *fields: Any
) -> bool:
    return is_claim(acquisition_id, 1, *fields) and _is_wanted(keyed, *wanted)


def _is_wanted(
    keyed: list[bool] | None, path: Any, needs: Any, values: Any, head_start: Any, weight: Any
) -> bool:
    return (
        isinstance(path, list)
        and all(key is None or isinstance(key, str) for key in path)
        and (keyed is None or [key is not None for key in path] == keyed)
        and (needs is None or (len(needs) == len(path) and all(map(is_natural, needs))))
        and all(is_natural(tier) and is_natural(value) for tier, value in values)
        and type(head_start) is int
        and is_time(weight)
        and weight > 0
    )


def _request(
    acquisition_id: Any, wanted: Any, ttl: Any, wait_until: Any, value: Any, *by: Any
) -> bool:
    needs = wanted[1]
    return (
        is_request(acquisition_id, 1, ttl, wait_until, value, *by)
        and value is None
        and _is_wanted(None, *wanted)
        and (needs is None or all(map(is_count, needs)))
    )


def _resize(tier: Any, value: Any, key: Any) -> bool:
    is_valid = _is_rate(value) if isinstance(value, list) else is_natural(value)
    return is_valid and _refill(tier, key)


def _refill(tier: Any, key: Any) -> bool:
    return is_natural(tier) and (key is None or isinstance(key, str))


def _pause(tier: Any, until: Any, key: Any) -> bool:
    return is_time(until) and _refill(tier, key)


def _charge(acquisition_id: Any, costs: Any) -> bool:
    return isinstance(acquisition_id, str) and all(
        is_natural(tier) and is_natural(cost) for tier, cost in costs
    )


_ARGUMENTS: dict[str, Callable[..., bool]] = {
    "request": _request,
    "charge": _charge,
    "drop dead": is_drop_dead,
    "declare": _are_specs,
    "freeze": _freeze,
    "refill": _refill,
    "release": is_release,
    "resize": _resize,
    "thaw": _refill,
    "pause": _pause,
    "close everywhere": is_reason,
}
