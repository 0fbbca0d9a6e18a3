"""NameNotes: note on the server which names are in use, so that reading all needs no SCAN.

A name is noted soon after its first use, if it is still held or waited for, and again by heartbeats
as long as it is. Names that come and go leave nothing behind. The notes of a namespace are one
sorted set, on Cluster one for each node. They may be lost at any time: `_namespace` then finds the
names by a SCAN.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from slotwise.errors import BackendError
from slotwise.redis._keys import names_key
from slotwise.redis._scripts import load

if TYPE_CHECKING:
    from slotwise.redis._shared_client import NameRecord, SharedClient

REMEMBERED = 120  # seconds that a name stays noted
_AGAIN = 30.0  # seconds after which it is noted again
_LATER = 5.0  # or this many, if that failed, or it was used too briefly
_GATHERING = 0.3  # seconds: the names of a process that starts travel together
_MOST_AT_ONCE = 500  # names in one call

_NOTE = load("names/note")


class NameNotes:
    """What one process has to note. All methods except `add` are for the heartbeat thread."""

    def __init__(
        self, shared: SharedClient, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._shared = shared
        self._spawn = spawn
        self._records: deque[NameRecord] = deque()  # changed by single operations, in any thread
        self.due = math.inf  # when to write what there is

    def add(self, record: NameRecord, now: float) -> bool:
        """Note a name, in any thread; return whether the thread has to be told when it is due."""
        record.noted_until = now + _AGAIN
        self._records.append(record)
        if self.due < math.inf:
            return False
        self.due = now + _GATHERING
        return True

    def write_due(self, now: float) -> None:
        """Write what was noted, if it is time."""
        if now < self.due:
            return
        self.due = math.inf  # before the records are taken: a name added later is due again
        by_key: dict[tuple[bytes, int | None], list[NameRecord]] = {}
        shared = self._shared
        used = {
            each.record for each in [*list(shared.holders.values()), *list(shared.waiters.values())]
        }
        while self._records:
            record = self._records.popleft()
            if record in used:
                by_key.setdefault(self._key_of(record), []).append(record)
            else:
                record.noted_until = now + _LATER
        for (key, slot), some in by_key.items():
            for at in range(0, len(some), _MOST_AT_ONCE):
                self._spawn(self._write(key, slot, some[at : at + _MOST_AT_ONCE]))

    def _key_of(self, record: NameRecord) -> tuple[bytes, int | None]:
        cluster = self._shared.cluster
        if cluster is None:
            return names_key(record.namespace, None)
        slot = record.keys.slot or 0
        shard = cluster.shard_of(slot)
        return names_key(record.namespace, slot if shard is None else shard)

    async def _write(self, key: bytes, slot: int | None, records: list[NameRecord]) -> None:
        members = [member_of(each.dialect.kind, each.name) for each in records]
        try:
            await self._shared.client().run(_NOTE, [key], [b"", REMEMBERED, *members], slot)
        except BackendError:
            for record in records:
                record.noted_until = min(record.noted_until, time.monotonic() + _LATER)


def member_of(kind: str, name: str) -> bytes:
    """Return how a name is noted: its kind, and the name."""
    return f"{kind} {name}".encode()
