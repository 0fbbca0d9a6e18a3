"""NamespaceReader: how full everything on a server is, by one read-only script and no SCAN.

The names are those that processes note while they use them (`_names`). Clients of the documented
protocol note nothing, and nobody uses what is closed: a SCAN looks for those once a minute.
What the script can't read is asked for by the scripts of `_statistics` and `_path_survey`, which
also say what is wrong with it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slotwise._core.found_tiers import FoundTiers
from slotwise._core.idle_keys import IdleKeys
from slotwise._core.results import SemaphoreStats
from slotwise.errors import BackendError
from slotwise.redis import _path_survey, _statistics
from slotwise.redis._diagnosis import GARBAGE, not_ours
from slotwise.redis._keys import SemaphoreKeys, names_key
from slotwise.redis._names import member_of
from slotwise.redis._path_keys import PathKeys
from slotwise.redis._path_stats import read_tier_stats
from slotwise.redis._reply_limits import INSPECT, reply_within
from slotwise.redis._scan import scan_names
from slotwise.redis._scripts import load
from slotwise.redis._shared_client import shared_client_for

if TYPE_CHECKING:
    from slotwise.redis._config import RedisConfig
    from slotwise.redis._shared_client import SharedClient

_SCAN_EVERY = 60.0  # seconds
_MOST_AT_ONCE = 150  # names in one call; lua/names/survey.lua looks at no more

_SURVEY = load("names/survey")
_KEYS: dict[str, type[SemaphoreKeys | PathKeys]] = {"semaphore": SemaphoreKeys, "tiers": PathKeys}


@dataclass(slots=True)
class NamespaceContents:
    """Everything in a namespace, by name; and what is wrong with what can't be read."""

    semaphores: dict[str, SemaphoreStats] = field(default_factory=dict)
    tiers: dict[str, FoundTiers] = field(default_factory=dict)
    errors: list[BackendError] = field(default_factory=list)


class NamespaceReader:
    """Reads all names of a namespace again and again; one thread at a time."""

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._scanned_at = -math.inf
        self._scanned: list[bytes] = []  # as members of the notes
        self._unreadable: list[BackendError] = []  # names that are not text

    def read(self) -> NamespaceContents:
        """Return how full everything is: all that is in use or closed, and some idle names.

        Raises:
            BackendError: the server can't be asked.
        """
        shared = shared_client_for(self._config)
        return shared.heartbeat_thread.run(self._read_all(shared))

    async def _read_all(self, shared: SharedClient) -> NamespaceContents:
        if time.monotonic() - self._scanned_at >= _SCAN_EVERY:
            await self._scan(shared)
        found = NamespaceContents(errors=[*self._unreadable])
        to_ask: dict[str, list[str]] = {"semaphore": [], "tiers": []}
        nodes = await self._nodes(shared)
        surveys = [self._survey(shared, *node) for node in nodes]
        for now_us, entries in itertools.chain(*await asyncio.gather(*surveys)):
            for entry in entries:
                self._read(entry, now_us, found, to_ask)
        if to_ask["semaphore"]:
            names = to_ask["semaphore"]
            stats, errors = await _statistics.collect(shared, self._config, names, len(names))
            found.semaphores |= stats
            found.errors += errors
        if to_ask["tiers"]:
            tiers, errors = await _path_survey.survey(shared, to_ask["tiers"], self._config)
            found.tiers |= tiers
            found.errors += errors
        return found

    async def _scan(self, shared: SharedClient) -> None:
        (semaphores, errors), (tiers, errors_of_tiers) = [
            await scan_names(shared, self._config, kind)
            for kind in (_statistics.SEMAPHORES, _path_survey.TIERS)
        ]
        self._scanned = [
            *[member_of("semaphore", name) for name in semaphores],
            *[member_of("tiers", name) for name in tiers],
        ]
        self._unreadable = errors + errors_of_tiers
        self._scanned_at = time.monotonic()

    async def _nodes(self, shared: SharedClient) -> list[tuple[bytes, int | None, list[bytes]]]:
        """For each node the key of its notes, a hash slot of it, and the scanned names there."""
        namespace, cluster = self._config.namespace, shared.cluster
        if cluster is None:
            return [(*names_key(namespace, None), self._scanned)]
        await shared.client().primaries()  # so that they are known
        shards = cluster.shards()
        if b"{" in namespace.encode():  # all names are in one hash slot
            return [(*names_key(namespace, 0), self._scanned)]
        by_shard: dict[int, list[bytes]] = {shard: [] for shard in shards.values()}
        for member in self._scanned:
            kind, _, name = member.decode().partition(" ")
            try:
                keys = _KEYS[kind](namespace, name, cluster=True)
            except ValueError:  # not a name on a cluster
                continue
            shard = cluster.shard_of(keys.slot or 0)
            by_shard.setdefault(0 if shard is None else shard, []).append(member)
        return [(*names_key(namespace, shard), some) for shard, some in by_shard.items()]

    async def _survey(
        self, shared: SharedClient, key: bytes, slot: int | None, scanned: list[bytes]
    ) -> list[tuple[int, list[Any]]]:
        """What the script says, in one call, or in more if there are many names."""
        client, braces = shared.client(), b"1" if shared.cluster is not None else b"0"
        replies = []
        go_on, to_read = b"", deque(scanned)
        while True:
            members = [*itertools.islice(to_read, _MOST_AT_ONCE)]
            args = [b"", self._config.namespace, braces, go_on, *members]
            reply = client.run(_SURVEY, [key], args, slot, self._config.limits)
            cursor, now_us, looked_at, left, *entries = await reply_within(
                INSPECT, reply, client, slot
            )
            replies.append((int(now_us), entries))
            for _ in range(looked_at):
                to_read.popleft()
            to_read.extend(left)
            go_on = cursor or b"-"
            if not cursor and not to_read:
                return replies

    def _read(
        self, entry: list[Any], now_us: int, found: NamespaceContents, to_ask: dict[str, list[str]]
    ) -> None:
        kind, written, *rest = entry
        if kind == b"ask":
            try:
                to_ask[written.decode()].append(rest[0].decode())
            except UnicodeDecodeError:
                pass  # the next SCAN names it
            return
        name = written.decode(errors="backslashreplace")
        if kind == b"semaphore":
            found.semaphores[name] = _statistics.read_stats(rest, rest[0])
            return
        shape, declared, values, holders, waiters, drained, closed, reason, *more = rest
        pauses, frozen, *records = more
        reply = [shape, declared, holders, waiters, drained, closed, reason, 0]
        try:
            tiers = _path_survey.read(name, reply, self._config)
            stats = read_tier_stats(
                *(tiers.specs, values, now_us, waiters),
                *(dict(zip(records[::2], records[1::2], strict=True)), IdleKeys(tiers.specs)),
                *(pauses, frozen),
            )
        except GARBAGE:
            found.errors.append(not_ours(f"the tiers {name!r}"))
            return
        found.tiers[name] = replace(tiers, stats=stats)
