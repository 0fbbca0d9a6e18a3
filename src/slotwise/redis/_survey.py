"""Survey: how full everything in a namespace is, or some names of it.

The names are those that the scripts note (lua/rules/state.lua). Each is read by lua/inspect.lua,
several in one call; the names of a cluster have a call each, since their keys are on several nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slotwise._core.found_tiers import FoundTiers
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.stats import SemaphoreStats
from slotwise.errors import BackendError
from slotwise.redis import _inspect, _log
from slotwise.redis._backend import RedisBackend
from slotwise.redis._diagnosis import GARBAGE, Refused, is_of_one_name, not_ours, refused
from slotwise.redis._keys import KINDS, KeySet, hash_slot, names_key
from slotwise.redis._loop_client import look_limit
from slotwise.redis._protocol import INSPECT, read_closed
from slotwise.redis._shared_client import SharedClient, shared_client_for
from slotwise.redis._writing import read_shape

if TYPE_CHECKING:
    from slotwise.redis._config import RedisConfig

# How many names one call looks at: the server does nothing else meanwhile, for about 2 ms.
_MOST_AT_ONCE = 20
_CALLS_AT_ONCE = 10  # under way together
_NAMES_A_PAGE = 500

Name = tuple[str, str]  # "semaphore" or "tiers", and the name


@dataclass(slots=True)
class Contents:
    """What was found, by name, and what is wrong with what can't be read."""

    semaphores: dict[str, SemaphoreStats] = field(default_factory=dict)
    tiers: dict[str, FoundTiers] = field(default_factory=dict)
    errors: list[BackendError] = field(default_factory=list)


def survey_sync(
    config: RedisConfig,
    names: Iterable[Name] | None = None,
    *,
    kinds: Collection[str] = (*KINDS,),
    at_most: float | None = None,
) -> Contents:
    """Like `survey`, for a plain thread."""
    shared = shared_client_for(config)
    found = survey(shared, config, names, kinds=kinds, at_most=at_most)
    return shared.heartbeat_thread.run(found)


async def survey(
    shared: SharedClient,
    config: RedisConfig,
    names: Iterable[Name] | None = None,
    *,
    kinds: Collection[str] = (*KINDS,),
    at_most: float | None = None,
) -> Contents:
    """Return how full these are, as far as the server knows them; or all that are noted.

    ``at_most`` is how long to wait for a reply, if not as long as usual.

    Raises:
        BackendError: the server can't be asked.
    """
    found = Contents()
    if names is None:
        noted = await _noted(shared, config, found)
        names = [each for each in noted if each[0] in kinds]
    on_cluster = shared.cluster is not None
    keys: list[tuple[Name, KeySet]] = []
    for kind, name in dict.fromkeys(names):
        try:
            keys.append(((kind, name), KeySet(config.namespace, kind, name, cluster=on_cluster)))
        except ValueError as error:  # not a name on a cluster
            found.errors.append(Refused(str(error)))
    size = 1 if on_cluster else _MOST_AT_ONCE
    calls = [keys[at : at + size] for at in range(0, len(keys), size)]
    for at in range(0, len(calls), _CALLS_AT_ONCE):
        some = calls[at : at + _CALLS_AT_ONCE]
        asked = [_ask(shared, [key for _, key in each], at_most) for each in some]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        for each, reply in zip(some, replies, strict=True):
            if isinstance(reply, BaseException):
                if len(each) > 1 or not is_of_one_name(reply):
                    raise reply
                reply = [[b"failed", str(reply).encode()]]
            for (which, _), entry in zip(each, reply, strict=True):
                await _read(shared, config, which, entry, found)
    return found


async def _noted(shared: SharedClient, config: RedisConfig, found: Contents) -> list[Name]:
    """Return the names that are noted on all nodes."""
    client, on_cluster = shared.client(), shared.cluster is not None
    names: list[Name] = []
    for address in await client.primaries():
        cursor, key = b"0", _notes_on(shared, config.namespace, address)
        while key is not None:  # not by rank: ranks change all the time, and names would be missed
            words = ("ZSCAN", key, cursor, "COUNT", _NAMES_A_PAGE)
            try:
                page = await client.command(*words, address=address)
            except Refused as error:  # the next heartbeat of a limit begins them anew
                if not is_of_one_name(error):
                    raise
                found.errors.append(Refused(f"the notes of names can't be read: {error}"))
                break
            cursor, members = page
            for member in members[::2]:
                kind, name = _name_in(member, config.namespace, on_cluster=on_cluster)
                try:
                    names += [(kind, name.decode())] if kind else []
                except UnicodeDecodeError:
                    why = f"{shared.endpoint} has a name that is not text: {name!r}"
                    found.errors.append(Refused(why))
            if cursor == b"0":
                break
    return names


def _name_in(member: bytes, namespace: str, *, on_cluster: bool) -> tuple[str, bytes]:
    """Return the kind and the name of a limit whose first key this is; no kind if it is none's."""
    for kind in KINDS:
        prefix = f"{namespace}:{kind}_state:".encode()
        if member.startswith(prefix):
            written = member.removeprefix(prefix)
            return kind, written[1:-1] if on_cluster else written
    return "", member


def _notes_on(shared: SharedClient, namespace: str, address: Any) -> bytes | None:
    """Return the key of the notes on one node."""
    cluster = shared.cluster
    if cluster is None:
        return names_key(namespace, None)
    shard = cluster.shards().get(address)
    key = names_key(namespace, shard or 0)
    if "{" in namespace:  # all names are in one hash slot
        return key if cluster.address_of(hash_slot(key)) == address else None
    return None if shard is None else key


async def _ask(shared: SharedClient, keys: list[KeySet], at_most: float | None) -> list[list[Any]]:
    client, slot = shared.client(), keys[0].slot
    flat = [key for each in keys for key in each.all]
    patterns = [each.notification if each.kind == "semaphore" else b"" for each in keys]
    args = [b"", b"", b"", b"survey", *patterns]
    reply = client.run(INSPECT, flat, args, slot)
    found: list[list[Any]] = await client.reply_within(look_limit(at_most), reply, slot)
    return found


async def _read(
    shared: SharedClient,
    config: RedisConfig,
    which: Name,
    entry: list[Any],
    found: Contents,
) -> None:
    kind, name = which
    title = repr(name) if kind == "semaphore" else f"the tiers {name!r}"
    if not entry:
        return  # the server knows nothing of it
    if entry[0] == b"failed":
        why = refused(shared.endpoint, Exception(entry[1].decode(errors="replace")))
        found.errors.append(Refused(f"{title} can't be read: {why}"))
        return
    closed, reason, unfinished, go_on, *rest = entry
    if unfinished:
        record = shared.record(kind, config.namespace, name)
        if isinstance(unfinished, bytes):
            _log.reset(record, unfinished)
        shared.continue_serving(record, shared.client())
    closure = read_closed(closed, reason)
    if kind == "semaphore":
        active, waiting, value, _, paused_ms, frozen = rest
        found.semaphores[name] = SemaphoreStats(
            *(active, value, waiting),
            *(closure is not None, None if closure is None else closure.reason),
            scope="redis",
            paused_for=paused_ms / 1000,
            frozen=bool(frozen),
        )
        return
    shape, declared, holders, waiters, drained, *nodes = rest
    try:
        specs = read_shape(shape.decode(), declared.decode())
        paths = RedisBackend(specs, name=name, config=config)
        if go_on:
            stats = await paths.stats()
        else:
            texts, now_us, pauses, _, frozen, *records = nodes
            stats = _inspect.read_tier_stats(
                *(specs, texts, int(now_us), waiters),
                *(dict(zip(records[::2], records[1::2], strict=True)), IdleKeys(specs)),
                *(pauses, frozen),
            )
    except GARBAGE:
        found.errors.append(not_ours(title))
        return
    found.tiers[name] = FoundTiers(
        *(name, specs, paths, holders, waiters, closure), drained=bool(drained), stats=stats
    )
