"""Heart: the signs of life of a process, in calls of bounded cost that are spread over time.

When it beats is the keeper's business, and so is what follows from the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from slotwise.errors import BackendError
from slotwise.redis._diagnosis import Unreachable, logger, refused

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._shared_client import NameRecord, SharedClient

# What one call may cost, in members renewed: the server does nothing else meanwhile, and this is
# some 5 ms of it. A name costs as much as so many members.
_COST_PER_CALL = 2_000
_COST_OF_A_NAME = 80
# Over which part of the time between two heartbeats the calls of one are spread.
_SPREAD = 0.5
# Pauses shorter than this are not worth it; and how often to look whether there is a hurry.
_LEAST_PAUSE, _MOST_PAUSE = 0.005, 0.05
# A server that is alive may take so long to answer.
_LEAST_PATIENCE = 0.05

Batch = list[tuple["NameRecord", float, list[str], list[str]]]


class HeartbeatSender:
    """Beats for all acquisitions of a process, in the keeper's loop."""

    def __init__(
        self,
        process: SharedClient,
        hear: Callable[[bytes], object],
        watch: Callable[[NameRecord, int], object],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._process = process
        self._hear = hear
        self._watch = watch
        self._spawn = spawn
        # On a cluster: how many heartbeats of a name are not answered yet.
        self._under_way: Counter[NameRecord] = Counter()
        self.again = False  # asked, while it beats, to beat once more
        # Of the heartbeat that is under way: calls without an answer, by name.
        self._unanswered: Counter[NameRecord] = Counter()
        # When the first one's time is up if nothing is heard, and when that was found out.
        self._first_end, self._looked_at = math.inf, -math.inf
        self._complaints: set[object] = set()  # troubles that were told, and last

    async def beat(self) -> None:
        """Show that all live who hold, wait or have asked, and pass on what became of them."""
        hurried = self.again
        while True:
            self.again = False
            started = time.monotonic()
            process = self._process
            parties: dict[tuple[NameRecord, float], tuple[list[str], list[str]]] = {}
            for holder in list(process.holders.values()):
                party = parties.setdefault((holder.room, holder.interval), ([], []))
                party[0].extend(_parts(holder))
            for waiter in list(process.waiters.values()):
                if waiter.needs_heartbeat:
                    party = parties.setdefault((waiter.room, waiter.interval), ([], []))
                    party[1].append(waiter.acquisition_id)
            apart = process.cluster is not None
            late = set(self._under_way)
            batches = list(_batches(parties, apart=apart))
            # A name is heard when all its calls have been answered.
            self._unanswered = Counter(room for batch in batches for room, *_ in batch)
            spread = 0.0 if hurried else self._time_left(parties)
            for number, batch in enumerate(batches):
                await self._pause_until(started + spread * number / len(batches))
                if not apart:
                    await self._deliver(batch, started)
                # Each node of a cluster answers in its own time: one that is gone must
                # not silence those who hold something of the others.
                elif batch[0][0] not in late:
                    self._under_way[batch[0][0]] += 1
                    self._spawn(self._deliver_apart(batch, started))
            if not self.again:
                return
            hurried = True

    def _time_left(self, parties: Iterable[tuple[NameRecord, float]]) -> float:
        """Over how many seconds to spread the calls of a heartbeat."""
        between = self._process.keeper.interval
        spare = min((interval for _, interval in parties), default=0.0) - between
        return max(min(between, spare) * _SPREAD, 0.0) if spare > -math.inf else 0.0

    async def _pause_until(self, when: float) -> None:
        """Let the server serve others, unless there is a hurry."""
        # Other threads are in a hurry, and have no business with an event of this loop.
        while not self.again and when - time.monotonic() > _LEAST_PAUSE:  # noqa: ASYNC110
            await asyncio.sleep(min(when - time.monotonic(), _MOST_PAUSE))

    async def _deliver(self, batch: Batch, started: float) -> None:
        try:
            await self._send(batch, started)
        except Unreachable:
            pass  # the outage was logged when it began
        except BackendError as error:
            self._complain("unheard", "no heartbeat got through: %s", error)
        else:
            self._complaints.discard("unheard")

    async def _deliver_apart(self, batch: Batch, started: float) -> None:
        room = batch[0][0]
        try:
            await self._deliver(batch, started)
        finally:
            self._under_way[room] -= 1
            if not self._under_way[room]:
                del self._under_way[room]

    async def _send(self, batch: Batch, started: float) -> None:
        keys: list[bytes] = []
        args: list[Any] = [b"", b""]
        for room, interval, holders, waiters in batch:
            keys += room.keys.all
            args += (interval, room.keys.notification, len(holders), len(waiters))
            args += holders
            args += waiters
        replies = await self._insist(batch, keys, args)
        self._process.server_answered(started)
        self._hear_of_memory(replies[0])
        for (room, _, _, waiters), (due, *outcomes) in zip(batch, replies, strict=True):
            if outcomes and outcomes[0].startswith(b"failed "):
                self._failed(room, outcomes[0].removeprefix(b"failed "), waiters)
                continue
            self._complaints.discard(room)
            if waiters:
                self._watch(room, due)
            for outcome in outcomes:
                self._hear(outcome)
            # Last: a waiter that is gone must not take this for a sign of its own life.
            self._unanswered[room] -= 1
            if self._unanswered[room] <= 0:
                room.heard_at = started

    def _hear_of_memory(self, reply: list[Any]) -> None:
        """Say once that the server is at its maxmemory: heartbeats pass all the same."""
        if reply[-1] != b"full":
            self._complaints.discard("full")
            return
        reply.pop()
        self._complain(
            "full",
            "%s has no memory left, and refuses new holders and waiters until its maxmemory is"
            " raised; those that it has go on",
            self._process.config.endpoint,
        )

    def _failed(self, room: NameRecord, why: bytes, waiters: list[str]) -> None:
        """Bear with the trouble of one name: its holders are lost when their interval is over."""
        error = refused(self._process.config.endpoint, ReplyError(why.decode(errors="replace")))
        self._complain(room, "no heartbeat of %r got through: %s", room.name, error)
        now = time.monotonic()
        for acquisition_id in waiters:
            waiter = self._process.waiters.get(acquisition_id)
            if waiter is None or now - max(waiter.alive_at, room.heard_at) < waiter.interval:
                continue
            # It has lost its place by now, and is told what a newcomer would be.
            with contextlib.suppress(RuntimeError):  # its loop is closed
                waiter.seat.loop.call_soon_threadsafe(waiter._fail, error)

    def _complain(self, trouble: object, message: str, *args: object) -> None:
        """Log a trouble once while it lasts."""
        if trouble not in self._complaints:
            self._complaints.add(trouble)
            logger.warning(message, *args)

    async def _insist(self, batch: Batch, keys: list[bytes], args: list[Any]) -> Any:
        """The reply to a heartbeat, over another connection if this one has gone dead.

        One whose other end vanished without a word takes everything and answers
        nothing. It is given up while there is time left to be heard over a new one.
        """
        room = batch[0][0]
        seat, slot = self._process.seat(), room.keys.slot
        reply = seat.run(room.beat, keys, args, slot)
        while not reply.done():
            await asyncio.wait([reply], timeout=self._patience(batch, time.monotonic()))
            if not reply.done():
                seat.doubt(slot)
        return reply.result()

    def _patience(self, batch: Batch, now: float) -> float:
        """How long to wait for the reply to a heartbeat: half of the time that is left."""
        if self._process.cluster is not None or now > self._looked_at + _LEAST_PATIENCE:
            self._looked_at, self._first_end = now, math.inf
            for each in self._those_behind(batch):
                end = max(each.alive_at, each.room.heard_at) + each.interval
                if end > now:  # else it is too late for this one
                    self._first_end = min(self._first_end, end)
        patience = min(self._process.config.reply_timeout, (self._first_end - now) / 2)
        return max(patience, _LEAST_PATIENCE)

    def _those_behind(self, batch: Batch) -> list[RedisAcquisition]:
        """Whose time runs while this is not answered: everyone's, or on a cluster just its own."""
        holders, waiters = self._process.holders, self._process.waiters
        if self._process.cluster is None:
            return [*list(holders.values()), *list(waiters.values())]
        entries = [each for _, _, *both in batch for some in both for each in some]
        ids = {entry.partition("#")[0] for entry in entries}
        found = [holders.get(each) or waiters.get(each) for each in ids]
        return [each for each in found if each is not None]


def _parts(holder: RedisAcquisition) -> list[str]:
    """What stands for a holder in heartbeats: its id, or ranges of its slots if they are many."""
    if holder.slots <= _COST_PER_CALL:
        return [holder.acquisition_id]
    return [
        f"{holder.acquisition_id}#{first}-{min(first + _COST_PER_CALL - 1, holder.slots)}"
        for first in range(1, holder.slots + 1, _COST_PER_CALL)
    ]


def _cost(holder: str) -> int:
    """How many members a holder, or a part of it, stands for."""
    _, _, slots = holder.partition("*")
    count, _, part = slots.partition("#")
    if part:
        first, _, last = part.partition("-")
        return int(last) - int(first) + 1
    return int(count or 1)


def _batches(
    parties: dict[tuple[NameRecord, float], tuple[list[str], list[str]]], *, apart: bool
) -> Iterator[Batch]:
    """Heartbeats in calls of bounded cost and of one script; on a cluster also of one name."""
    batch: Batch = []
    left = 0

    for (room, interval), (holders, waiters) in sorted(parties.items(), key=_by_script):
        waiting = [(each, 1) for each in waiters]
        everyone = [(each, _cost(each)) for each in holders] + waiting
        entry: tuple[list[str], list[str]] | None = None
        for number, (each, cost) in enumerate(everyone):
            needed = cost if entry else cost + _COST_OF_A_NAME
            other = bool(batch) and (apart or batch[-1][0].beat is not room.beat) and not entry
            if batch and (needed > left or other):
                yield batch
                batch, entry = [], None
            if not batch:
                left = _COST_PER_CALL + _COST_OF_A_NAME
            if entry is None:
                entry = ([], [])
                batch.append((room, interval, *entry))
                left -= _COST_OF_A_NAME
            entry[number >= len(holders)].append(each)
            left -= cost
    if batch:
        yield batch


def _by_script(party: tuple[tuple[NameRecord, float], object]) -> str:
    return party[0][0].beat.name
