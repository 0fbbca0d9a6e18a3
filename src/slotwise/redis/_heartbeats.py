"""HeartbeatSender: send the heartbeats of a process, in calls of bounded size.

It also has the server serve the waiters of a name when time is up for somebody there: a script
replies in how many milliseconds that is. At that moment nobody else may have a reason to call the
server, so the processes of the waiters do. `_heartbeat_thread` decides when anything is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from slotwise.errors import BackendError
from slotwise.redis._diagnosis import Unreachable, logger, refused
from slotwise.redis._protocol import HEARTBEAT, heartbeat_call

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._shared_client import NameRecord, SharedClient

# What one call may cost, in members renewed: the server does nothing else for 2 to 5 ms
# meanwhile. With less, very many waiters would send more than three commands per second. A name
# costs as much as `_COST_OF_A_NAME` members.
COST_PER_CALL = 2_000
_COST_OF_A_NAME = 110
# A live server may take this long to answer, also on a busy machine.
_LEAST_REPLY_TIMEOUT = 0.2

# How often to check a name that is waited for and can't be read: no message tells when it can be.
FAILED_CHECK_MS = 500

# Not the random module's own: its seed belongs to others, and forked children share it.
_jitter = SystemRandom()

# How many seconds after the time that a script states a name is checked: not by all processes
# at once, and never too early.
_LEAST_JITTER, _MOST_JITTER = 0.002, 0.03

# The shortest time between two checks of one name.
_CHECK_GRAIN = 0.02

# Where rates are waited for, the process of the first waiter checks exactly when there is enough
# for it. Other processes check this much later, unless they hear meanwhile of a grant there.
_GRACE = 0.05

# What a script replies while a foreign client holds slots, whose release wakes nobody; and how
# often waiters check for themselves then.
_FOREIGN_HOLDERS = -2
_FOREIGN_CHECK_INTERVAL = 0.1

# At most this many requests for several slots are named in a check; the first are served first.
_WIDE_PER_CHECK = 100

# Names that expire within this many seconds of each other are equally urgent.
_GRAIN = 0.25

Batch = list[tuple["NameRecord", float, list[str], list[str]]]
_Key = tuple["NameRecord", float]  # a name, and an interval
_Entry = tuple[_Key, tuple[list["RedisAcquisition"], list["RedisAcquisition"]]]


class HeartbeatSender:
    """Sends heartbeats for all acquisitions of a process, in the loop of the heartbeat thread."""

    def __init__(self, shared: SharedClient) -> None:
        self._shared = shared
        self.due: dict[NameRecord, float] = {}  # when to check which name that is waited for
        # On a cluster: calls in flight, by name.
        self._under_way: Counter[NameRecord] = Counter()
        self.again = False  # set by other threads: send everything at once, or once more
        # Calls of the current heartbeat that have no reply yet, by name.
        self._unanswered: Counter[NameRecord] = Counter()
        self._warned: set[object] = set()  # problems that were logged and haven't ended

    async def heartbeat(self) -> None:
        """Send heartbeats for every acquisition of this process, and pass the outcomes on.

        The most urgent go first, and the order is determined again when the calls take long. So
        heartbeats with a short interval are on time, however many others there are.
        """
        hurried = self.again
        while True:
            self.again = False
            unfinished = await self._send_due(hurried=hurried)
            if not (self.again or unfinished):
                return
            hurried = self.again

    def _entries(self, before: float) -> list[_Entry]:
        """Return what is due before a time (all if -inf), the first to expire first."""
        by_key: dict[_Key, tuple[list[RedisAcquisition], list[RedisAcquisition]]] = {}
        beats: dict[NameRecord, float] = {}
        ends: dict[NameRecord, float] = {}
        # The waiters first: one that is granted its slots goes from here to the holders.
        waiters = [each for each in list(self._shared.waiters.values()) if each.needs_heartbeat]
        for at, some in enumerate((list(self._shared.holders.values()), waiters)):
            for each in some:
                record = each.record
                by_key.setdefault((record, each.interval), ([], []))[at].append(each)
                beats[record] = min(beats.get(record, math.inf), each.limit._ping_interval)
                ends[record] = min(ends.get(record, math.inf), each.heard_at + each.interval)
        due = [
            (key, both)
            for key, both in by_key.items()
            if before == -math.inf or key[0].heartbeat_at + beats[key[0]] < before
        ]
        # Entries of one name are then neighbours, and share a call.
        return sorted(due, key=lambda e: (ends[e[0][0]] // _GRAIN, e[0][0].keys.all[0]))

    async def _send_due(self, *, hurried: bool) -> bool:
        """Send the heartbeats that are due, or all if hurried; return whether any are left."""
        started = time.monotonic()
        shared, between = self._shared, self._shared.heartbeat_thread.interval
        due = self._entries(-math.inf if hurried else started + between)
        apart = shared.cluster is not None
        late = set(self._under_way)
        batches = list(_batches(due, apart=apart))
        # The heartbeat of a name got through when all its calls have been answered.
        self._unanswered = Counter(record for batch in batches for record, *_ in batch)
        last: NameRecord | None = None
        sent_at = started
        for number, batch in enumerate(batches):
            first = batch[0][0]
            if first is not last:
                sent_at = time.monotonic()
                if not apart and number and sent_at - started > between:
                    return True  # those that were sent first may be due again by now
            if not apart:
                await self._deliver(batch, sent_at)
            elif first not in late:
                self._under_way[first] += 1
                self._shared.heartbeat_thread.spawn(self._deliver_apart(batch, started))
            last = batch[-1][0]
        return False

    async def _deliver(self, batch: Batch, started: float) -> None:
        try:
            await self._send(batch, started)
        except Unreachable:
            pass  # the outage was logged when it began
        except BackendError as error:
            self._warn_once("unheard", "no heartbeat got through: %s", error)
        else:
            self._warned.discard("unheard")

    async def _deliver_apart(self, batch: Batch, started: float) -> None:
        """Each node of a cluster answers in its own time: none delays heartbeats to the others."""
        record = batch[0][0]
        try:
            await self._deliver(batch, started)
        finally:
            self._under_way[record] -= 1
            if not self._under_way[record]:
                del self._under_way[record]

    async def _send(self, batch: Batch, started: float) -> None:
        keys, args = heartbeat_call(self._shared, b"", batch)
        replies = await self._send_until_answered(batch, keys, args)
        cluster, slot = self._shared.cluster, batch[0][0].keys.slot or 0
        address = None if cluster is None else cluster.address_of(slot)
        self._shared.server_answered(started, address)
        self._check_memory(replies[0])
        client = self._shared.client()
        for (record, _, _, waiters), (due, *outcomes) in zip(batch, replies, strict=True):
            if outcomes and outcomes[0].startswith(b"failed "):
                self._failed(record, outcomes[0].removeprefix(b"failed "), waiters)
                continue
            self._warned.discard(record)
            if waiters:
                self.schedule_check(record, due)
            self._shared.dispatch_all(outcomes, record, client)
            # After the outcomes: a waiter that is gone must not take this for a sign of life.
            self._unanswered[record] -= 1
            if self._unanswered[record] <= 0:
                record.heartbeat_at = started

    def _check_memory(self, reply: list[Any]) -> None:
        """Log once that the server is at its maxmemory; heartbeats get through all the same."""
        if reply[-1] != b"full":
            self._warned.discard("full")
            return
        reply.pop()
        self._warn_once(
            "full",
            "%s has no memory left, and refuses new holders and waiters until its maxmemory is"
            " raised; existing ones are not affected",
            self._shared.endpoint,
        )

    def _failed(self, record: NameRecord, why: bytes, waiters: list[str]) -> None:
        """Handle a heartbeat that failed for one name: its holders are lost when time is up."""
        error = refused(self._shared.endpoint, ReplyError(why.decode(errors="replace")))
        self._warn_once(record, "no heartbeat of %r got through: %s", record.name, error)
        if waiters:
            self.schedule_check(record, FAILED_CHECK_MS)
        now = time.monotonic()
        for acquisition_id in waiters:
            waiter = self._shared.waiters.get(acquisition_id)
            if waiter is None or now - waiter.heard_at < waiter.interval:
                continue
            # It has lost its place by now, so it gets the error that a newcomer would get.
            with contextlib.suppress(RuntimeError):  # its loop is closed
                waiter.client.loop.call_soon_threadsafe(waiter.fail, error)

    def _warn_once(self, trouble: object, message: str, *args: object) -> None:
        """Log a problem once while it lasts."""
        if trouble not in self._warned:
            self._warned.add(trouble)
            logger.warning(message, *args)

    async def _send_until_answered(self, batch: Batch, keys: list[bytes], args: list[Any]) -> Any:
        """Return the reply to a heartbeat, over another connection if this one is dead.

        A connection whose other end vanished without a word accepts everything and answers
        nothing. It is given up only once the server has answered over another (`_silence`): a
        server that is merely slow would have to read everything again. A cluster node that
        doesn't answer at all may have been replaced, so its connection is given up while there is
        time left to get a heartbeat through.
        """
        record = batch[0][0]
        client, slot = self._shared.client(), record.keys.slot
        reply = client.run(HEARTBEAT, keys, args, slot)
        if self._shared.cluster is None:
            return await reply
        patience = self._reply_timeout(batch)
        while not reply.done():
            # The silence of the connection that carries it: the time to open that doesn't count.
            silence = client.silence(slot)
            if silence < patience:
                await asyncio.wait([reply], timeout=patience - silence)
            else:
                client.drop_connection(slot)
                # If the next one is silent too, the server is slow rather than gone, and would
                # have to read everything again.
                patience *= 2
        return reply.result()

    def _reply_timeout(self, batch: Batch) -> float:
        """Return how long to wait for the reply to a heartbeat: half of the time that is left."""
        now = time.monotonic()
        ends = (record.heartbeat_at + interval for record, interval, *_ in batch)
        # Those that are over are lost, or began lately.
        first_end = min((end for end in ends if end > now), default=now + batch[0][1])
        patience = min(self._shared.settings.config.reply_timeout, (first_end - now) / 2)
        return max(patience, _LEAST_REPLY_TIMEOUT)

    # ---------------------------------------------------------------- checks

    def schedule_check(self, record: NameRecord, ms: int) -> None:
        """Check a name in ``ms``, from any thread.

        Negative values have the meanings of next_end in lua/rules/ending.lua.
        """
        if ms == _FOREIGN_HOLDERS:
            self.due[record] = min(
                self.due.get(record, math.inf), time.monotonic() + _FOREIGN_CHECK_INTERVAL
            )
            self._shared.heartbeat_thread.wake()
        if ms < 0:
            return
        when = time.monotonic() + ms / 1000
        if record.has_rates and ms:  # 0: something is unfinished
            when += _GRACE
        latest = self.due.get(record, math.inf) - _CHECK_GRAIN
        if when + _LEAST_JITTER >= latest:
            return  # as for most of many requests: the jitter is a system call
        when += _jitter.uniform(_LEAST_JITTER, _MOST_JITTER)
        if when < latest:
            self.due[record] = when
            self._shared.heartbeat_thread.wake()

    def has_check(self, record: NameRecord) -> bool:
        return record in self.due

    def run_checks(self, now: float) -> float:
        """Start the checks that are due; return when the next one is."""
        for record, when in list(self.due.items()):
            if now < when:
                continue
            if now < record.attended_at + _GRACE:  # another process checks in time
                self.due[record] = record.attended_at + _GRACE
                continue
            del self.due[record]
            self._shared.heartbeat_thread.spawn(self._check(record))
        return min(list(self.due.values()), default=math.inf)

    async def _check(self, record: NameRecord) -> None:
        """Let the server end what is over on a name, and serve the next waiters."""
        waiters = [each for each in list(self._shared.waiters.values()) if each.record is record]
        if not waiters:
            return
        interval = waiters[0].interval
        # A foreign client may have granted only one slot to a request for several. Those requests
        # are named, so that they are queued again before anybody behind them is served.
        wide = [each for each in waiters if each.slots > 1 and each.queued]
        ids = [each.acquisition_id for each in wide if each.interval == interval][:_WIDE_PER_CHECK]
        keys, args = heartbeat_call(self._shared, b"", [(record, interval, (), ids)])
        try:
            client = self._shared.client()
            [[due, *outcomes]] = await client.run(HEARTBEAT, keys, args, record.keys.slot)
        except BackendError:
            return  # the next heartbeat asks again
        if outcomes and outcomes[0].startswith(b"failed "):  # heartbeats report that
            self.schedule_check(record, FAILED_CHECK_MS)
            return
        self._shared.dispatch_all(outcomes, record, client)
        self.schedule_check(record, due)


def _batches(entries: list[_Entry], *, apart: bool) -> Iterator[Batch]:
    """Yield calls of bounded cost, each of one namespace; on a cluster of one name."""
    batch: Batch = []
    left = 0
    for (record, interval), (holders, waiters) in entries:
        entry: tuple[list[str], list[str]] | None = None
        # Each slot of a semaphore is a member.
        acquisitions = [(0, each, each.slots) for each in holders]
        acquisitions += [(1, each, 1) for each in waiters]
        for at, each, cost in acquisitions:
            needed = cost if entry else cost + _COST_OF_A_NAME
            is_alone = apart or (batch and batch[0][0].namespace != record.namespace)
            if batch and (needed > left or (is_alone and not entry)):
                yield batch
                batch, entry = [], None
            if not batch:
                left = COST_PER_CALL + _COST_OF_A_NAME
            if entry is None:
                entry = ([], [])
                batch.append((record, interval, *entry))
                left -= _COST_OF_A_NAME
            entry[at].append(each.acquisition_id)
            left -= cost
    if batch:
        yield batch
