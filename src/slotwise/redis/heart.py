"""Heart: the signs of life of a process, sent in as few calls as can be.

When it beats is the keeper's business, and so is what follows from the answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from slotwise.errors import BackendError
from slotwise.redis.weather import logger

if TYPE_CHECKING:
    from slotwise.redis.process import Process, Room

# The ids in one call: the server does nothing else meanwhile, and this is some 10 ms of it.
_IDS_PER_CALL = 10_000
# A server that is alive may take so long to answer.
_LEAST_PATIENCE = 0.05


class Heart:
    """Beats for all acquisitions of a process, in the keeper's loop."""

    def __init__(
        self,
        process: Process,
        hear: Callable[[bytes], object],
        watch: Callable[[Room, int], object],
    ) -> None:
        self._process = process
        self._hear = hear
        self._watch = watch
        self.again = False  # asked, while it beats, to beat once more

    async def beat(self) -> None:
        """Show that all live who hold or stand in line, and pass on what became of them."""
        while True:
            self.again = False
            started = time.monotonic()
            process = self._process
            parties: dict[tuple[Room, float], tuple[list[str], list[str]]] = {}
            for holder in list(process.holders.values()):
                party = parties.setdefault((holder.room, holder.interval), ([], []))
                party[0].append(holder.acquisition_id)
            for waiter in list(process.waiters.values()):
                if waiter.queued:
                    party = parties.setdefault((waiter.room, waiter.interval), ([], []))
                    party[1].append(waiter.acquisition_id)
            for batch in _batches(parties, apart=process.cluster is not None):
                try:
                    await self._send(batch)
                except BackendError as error:
                    logger.warning("no heartbeat got through: %s", error)
                else:
                    for room, *_ in batch:
                        room.heard_at = started
            if not self.again:
                return

    async def _send(self, batch: list[tuple[Room, float, list[str], list[str]]]) -> None:
        keys: list[bytes] = []
        args: list[Any] = [b"", b""]
        for room, interval, holders, waiters in batch:
            keys += room.keys.all
            args += (interval, room.keys.notification, len(holders), len(waiters))
            args += holders
            args += waiters
        replies = await self._insist(batch[0][0], keys, args)
        for (room, _, _, waiters), (due, *outcomes) in zip(batch, replies, strict=True):
            if waiters:
                self._watch(room, due)
            for outcome in outcomes:
                self._hear(outcome)

    async def _insist(self, room: Room, keys: list[bytes], args: list[Any]) -> Any:
        """The reply to a heartbeat, over another connection if this one has gone dead.

        One whose other end vanished without a word takes everything and answers
        nothing. It is given up while there is time left to be heard over a new one.
        """
        seat, slot = self._process.seat(), room.keys.slot
        reply = seat.run(room.beat, keys, args, slot)
        while not reply.done():
            await asyncio.wait([reply], timeout=self._patience(time.monotonic()))
            if not reply.done():
                seat.doubt(slot)
        return reply.result()

    def _patience(self, now: float) -> float:
        """How long to wait for the reply to a heartbeat: half of the time that is left."""
        patience = self._process.config.reply_timeout
        process = self._process
        for each in (*list(process.holders.values()), *list(process.waiters.values())):
            left = max(each.alive_at, each.room.heard_at) + each.interval - now
            if left > 0:  # else it is too late for this one
                patience = min(patience, left / 2)
        return max(patience, _LEAST_PATIENCE)


def _batches(
    parties: dict[tuple[Room, float], tuple[list[str], list[str]]], *, apart: bool
) -> Iterator[list[tuple[Room, float, list[str], list[str]]]]:
    """Heartbeats in calls of bounded size and of one script; on a cluster also of one name."""
    batch: list[tuple[Room, float, list[str], list[str]]] = []
    size = 0
    for (room, interval), (holders, waiters) in sorted(parties.items(), key=_by_script):
        while holders or waiters:
            some_holders = holders[:_IDS_PER_CALL]
            some_waiters = waiters[: _IDS_PER_CALL - len(some_holders)]
            count = len(some_holders) + len(some_waiters)
            other = bool(batch) and batch[-1][0].beat is not room.beat
            if batch and (apart or other or size + count > _IDS_PER_CALL):
                yield batch
                batch, size = [], 0
            batch.append((room, interval, some_holders, some_waiters))
            size += count
            holders, waiters = holders[len(some_holders) :], waiters[len(some_waiters) :]
    if batch:
        yield batch


def _by_script(party: tuple[tuple[Room, float], object]) -> str:
    return party[0][0].beat.name
