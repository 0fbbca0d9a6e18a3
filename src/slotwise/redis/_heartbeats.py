"""HeartbeatSender: send the heartbeats of a process, in bounded calls spread over time.

`_heartbeat_thread` decides when heartbeats are sent, and acts on the replies.
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
from slotwise.redis._endpoint import Address

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._shared_client import NameRecord, SharedClient

# What one call may cost, in members renewed: the server does nothing else for 2 to 5 ms
# meanwhile. With less, very many waiters would send more than three commands per second. A name
# costs as much as `_COST_OF_A_NAME` members.
COST_PER_CALL = 1_500
_COST_OF_A_NAME = 110
# A holder of more slots is renewed in parts: each of its slots is a member.
_SLOTS_PER_CALL = 1_000
# The fraction of the heartbeat interval over which the calls of one heartbeat are spread.
_SPREAD = 0.5
# The shortest pause between calls that is worth sleeping for, and the longest before checking
# whether the rest has become urgent.
_LEAST_PAUSE, _MOST_PAUSE = 0.005, 0.05
# A live server may take this long to answer, also on a busy machine.
_LEAST_REPLY_TIMEOUT = 0.2

# How often to check a damaged name that is waited for: no message tells when it is in order again.
DAMAGED_CHECK_MS = 500

# Names that expire within this many seconds of each other are equally urgent.
_GRAIN = 0.25

Batch = list[tuple["NameRecord", float, list[str], list[str]]]
_Key = tuple["NameRecord", float]  # a name, and an interval
_Entry = tuple[_Key, tuple[list[str], list[str]]]


class HeartbeatSender:
    """Sends heartbeats for all acquisitions of a process, in the loop of the heartbeat thread."""

    def __init__(
        self,
        shared: SharedClient,
        dispatch: Callable[[bytes], object],
        schedule_check: Callable[[NameRecord, int], object],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        note_name: Callable[[NameRecord, float], object],
    ) -> None:
        self._shared = shared
        self._note_name = note_name
        self._on_outcome = dispatch
        self._schedule_check = schedule_check
        self._spawn = spawn
        # On a cluster: calls in flight, by name.
        self._under_way: Counter[NameRecord] = Counter()
        self.again = False  # set by other threads: send everything at once, or once more
        # Calls of the current heartbeat that have no reply yet, by name.
        self._unanswered: Counter[NameRecord] = Counter()
        # Names whose heartbeats are sent out of turn, and whether to do so once more.
        self._hurried: dict[NameRecord, bool] = {}
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

    def hurry(self, record: NameRecord) -> None:
        """Send the heartbeats of one name at once, beside those of others; one call at a time."""
        if record in self._hurried:
            self._hurried[record] = True
        else:
            self._hurried[record] = False
            self._spawn(self._send_hurried(record))

    async def _send_hurried(self, record: NameRecord) -> None:
        try:
            is_wanted = True
            while is_wanted:
                self._hurried[record] = False
                entries = self._entries(record)
                for batch in _batches(entries.sorted(-math.inf), apart=False):
                    await self._deliver(batch, time.monotonic(), is_regular=False)
                is_wanted = self._hurried[record]
        finally:
            del self._hurried[record]

    def _entries(self, only: NameRecord | None = None) -> _Entries:
        """Return the acquisitions to be renewed, of all names or of one."""
        entries = _Entries()
        # First, before the holders: one that is granted its slots goes from here to there.
        waiters = list(self._shared.waiters.values())
        for holder in list(self._shared.holders.values()):
            if only is None or holder.record is only:
                entries.add_holder(holder)
        for waiter in waiters:
            if waiter.needs_heartbeat and (only is None or waiter.record is only):
                entries.add(waiter, 1)
        return entries

    async def _send_due(self, *, hurried: bool) -> bool:
        """Send the heartbeats that are due, or all if hurried; return whether any are left."""
        started = time.monotonic()
        shared, between = self._shared, self._shared.heartbeat_thread.interval
        entries = self._entries()
        for record in entries.records:  # a name is noted for as long as it is in use
            if started >= record.noted_until:
                self._note_name(record, started)
        due = entries.sorted(-math.inf if hurried else started + between)
        apart = shared.cluster is not None
        late = set(self._under_way)
        batches = list(_batches(due, apart=apart))
        # The heartbeat of a name got through when all its calls have been answered.
        self._unanswered = Counter(
            record for batch in batches for record, _, holders, _ in batch if not _is_part(holders)
        )
        spread = 0.0 if hurried else self._time_left(key for key, _ in due)
        last: NameRecord | None = None
        sent_at = started
        for number, batch in enumerate(batches):
            first = batch[0][0]
            if first is not last:
                sent_at = time.monotonic()
                if not apart and number and sent_at - started > between:
                    return True  # those that were sent first may be due again by now
            await self._pause_until(started + spread * number / len(batches))
            if not apart:
                await self._deliver(batch, min(sent_at, time.monotonic()))
            # Each node of a cluster answers in its own time: one that is down must not
            # delay the heartbeats to the others.
            elif first not in late:
                self._under_way[first] += 1
                self._spawn(self._deliver_apart(batch, started))
            last = batch[-1][0]
        return False

    def _time_left(self, by_record: Iterable[tuple[NameRecord, float]]) -> float:
        """Return the number of seconds over which to spread the calls of a heartbeat."""
        between = self._shared.heartbeat_thread.interval
        spare = min((interval for _, interval in by_record), default=0.0) - between
        return max(min(between, spare) * _SPREAD, 0.0) if spare > -math.inf else 0.0

    async def _pause_until(self, when: float) -> None:
        """Let the server serve other clients, unless heartbeats have become urgent."""
        # Polled, since other threads set `again`, and must not touch an event of this loop.
        while not self.again and when - time.monotonic() > _LEAST_PAUSE:  # noqa: ASYNC110
            await asyncio.sleep(min(when - time.monotonic(), _MOST_PAUSE))

    async def _deliver(self, batch: Batch, started: float, *, is_regular: bool = True) -> None:
        try:
            await self._send(batch, started, is_regular=is_regular)
        except Unreachable:
            pass  # the outage was logged when it began
        except BackendError as error:
            self._warn_once("unheard", "no heartbeat got through: %s", error)
        else:
            self._warned.discard("unheard")

    async def _deliver_apart(self, batch: Batch, started: float) -> None:
        record = batch[0][0]
        try:
            await self._deliver(batch, started)
        finally:
            self._under_way[record] -= 1
            if not self._under_way[record]:
                del self._under_way[record]

    async def _send(self, batch: Batch, started: float, *, is_regular: bool) -> None:
        keys: list[bytes] = []
        args: list[Any] = [b"", b""]
        for record, interval, holders, waiters in batch:
            keys += record.keys.all
            args += (interval, record.keys.notification, len(holders), len(waiters))
            args += holders
            args += waiters
        sent_at = time.monotonic()
        replies = await self._send_until_answered(batch, keys, args)
        self._shared.server_answered(started, self._address_of(batch))
        self._check_memory(replies[0])
        for (record, _, holders, waiters), (due, *outcomes) in zip(batch, replies, strict=True):
            if outcomes and outcomes[0].startswith(b"failed "):
                self._failed(record, outcomes[0].removeprefix(b"failed "), waiters)
                continue
            self._warned.discard(record)
            if outcomes == [b"repairing"]:  # the call did a part of the repair, and nothing else
                self.hurry(record)
                continue
            if waiters:
                self._schedule_check(record, due)
            for outcome in outcomes:
                if outcome.startswith(b"adapted "):
                    record.on_adapted(outcome)
                else:
                    self._on_outcome(outcome)
            # After the outcomes: a waiter that is gone must not take this for a sign of life.
            if _is_part(holders):
                self._renewed_part(holders[0], sent_at)
                continue
            if is_regular:  # otherwise some of its calls may still be in flight
                self._unanswered[record] -= 1
                if self._unanswered[record] <= 0:
                    record.heartbeat_at = started

    def _address_of(self, batch: Batch) -> Address | None:
        """Return the cluster node that has answered; None for a plain server."""
        cluster = self._shared.cluster
        return None if cluster is None else cluster.address_of(batch[0][0].keys.slot or 0)

    def _renewed_part(self, part: str, sent_at: float) -> None:
        holder = self._shared.holders.get(part.partition("#")[0])
        if holder is not None and holder.parts is not None:
            holder.parts[part] = sent_at

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
            self._schedule_check(record, DAMAGED_CHECK_MS)
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
        nothing. It is given up only once the server has answered over another (`_server_probe`): a
        server that is merely slow would have to read everything again. A cluster node that
        doesn't answer at all may have been replaced, so its connection is given up while there is
        time left to get a heartbeat through.
        """
        record = batch[0][0]
        client, slot = self._shared.client(), record.keys.slot
        reply = client.run(record.dialect.heartbeat, keys, args, slot)
        if self._shared.cluster is None:
            return await reply
        patience = self._reply_timeout(batch, time.monotonic())
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

    def _reply_timeout(self, batch: Batch, now: float) -> float:
        """Return how long to wait for the reply to a heartbeat: half of the time that is left."""
        ends = [each.heard_at + each.interval for each in self._named_in(batch)]
        first_end = min((end for end in ends if end > now), default=math.inf)  # the others are lost
        patience = min(self._shared.settings.config.reply_timeout, (first_end - now) / 2)
        return max(patience, _LEAST_REPLY_TIMEOUT)

    def _named_in(self, batch: Batch) -> list[RedisAcquisition]:
        holders, waiters = self._shared.holders, self._shared.waiters
        entries = [each for _, _, *both in batch for some in both for each in some]
        ids = {entry.partition("#")[0] for entry in entries}
        found = [holders.get(each) or waiters.get(each) for each in ids]
        return [each for each in found if each is not None]


def _parts(acquisition_id: str, slots: int) -> list[str]:
    """Return what represents a holder of very many slots in heartbeats: ranges of its slots."""
    return [
        f"{acquisition_id}#{first}-{min(first + _SLOTS_PER_CALL - 1, slots)}"
        for first in range(1, slots + 1, _SLOTS_PER_CALL)
    ]


def _is_part(holders: list[str]) -> bool:
    """Whether an entry is for a part of a holder; such an entry has no other holders."""
    return len(holders) == 1 and "#" in holders[0]


def _cost(holder: str) -> int:
    """Return how many members a holder, or a part of it, has on the server."""
    _, _, slots = holder.partition("*")
    count, _, part = slots.partition("#")
    if part:
        first, _, last = part.partition("-")
        return int(last) - int(first) + 1
    if not count or "." in count:  # the needs of a path, by tier: one member all the same
        return 1
    return int(count)


class _Entries:
    """The acquisitions to be renewed: by name and interval, and parts of very large holders."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, tuple[list[str], list[str]]] = {}
        self._ping_intervals: dict[NameRecord, float] = {}
        self._ends: dict[NameRecord, float] = {}
        self._parts: list[tuple[float, float, _Entry]] = []  # when it is due, and its end

    def add_holder(self, holder: RedisAcquisition) -> None:
        """Add a holder; one of very many slots in parts, each with a time of its own.

        Otherwise all parts would have to be renewed again whenever one of them is due.
        """
        if holder.slots <= _SLOTS_PER_CALL:
            self.add(holder, 0)
            return
        if holder.parts is None:
            parts = _parts(holder.acquisition_id, holder.slots)
            holder.parts = dict.fromkeys(parts, holder.heard_at)
        key = holder.record, holder.interval
        for part, heard_at in holder.parts.items():
            due, end = heard_at + holder.ping_interval, heard_at + holder.interval
            self._parts.append((due, end, (key, ([part], []))))

    def add(self, acquisition: RedisAcquisition, at: int) -> None:
        record = acquisition.record
        key = (record, acquisition.interval)
        self._by_key.setdefault(key, ([], []))[at].append(acquisition.acquisition_id)
        ping_interval = self._ping_intervals.get(record, math.inf)
        self._ping_intervals[record] = min(ping_interval, acquisition.ping_interval)
        end = acquisition.heard_at + acquisition.interval
        self._ends[record] = min(self._ends.get(record, math.inf), end)

    @property
    def records(self) -> set[NameRecord]:
        parts = {key[0] for _, _, (key, _) in self._parts}
        return {*self._ping_intervals, *parts}

    def sorted(self, before: float) -> list[_Entry]:
        """Return what is due before a time (all if -inf), the first to expire first."""
        every = before == -math.inf
        due = [
            (self._ends[key[0]], (key, ids))
            for key, ids in self._by_key.items()
            if every or key[0].heartbeat_at + self._ping_intervals[key[0]] < before
        ]
        due += [(end, entry) for due_at, end, entry in self._parts if every or due_at < before]
        return [entry for _, entry in sorted(due, key=_urgency)]


def _urgency(ended: tuple[float, _Entry]) -> tuple[float, str, bytes]:
    """Return a sort key: roughly when an entry expires, then its script and name.

    Entries of one script and name are then neighbours, and share a call.
    """
    end, ((record, _), _) = ended
    return end // _GRAIN, record.dialect.heartbeat.name, record.keys.all[0]


def _batches(entries: list[_Entry], *, apart: bool) -> Iterator[Batch]:
    """Yield calls of bounded cost and of one script each; on a cluster also of one name."""
    batch: Batch = []
    left = 0.0

    for (record, interval), (holders, waiters) in entries:
        each_costs = record.dialect.heartbeat_cost
        waiting = [(each, each_costs) for each in waiters]
        acquisitions = [(each, each_costs * _cost(each)) for each in holders] + waiting
        entry: tuple[list[str], list[str]] | None = None
        for number, (each, cost) in enumerate(acquisitions):
            needed = cost if entry else cost + _COST_OF_A_NAME
            other = (
                bool(batch) and (apart or batch[-1][0].dialect is not record.dialect) and not entry
            )
            if batch and (needed > left or other):
                yield batch
                batch, entry = [], None
            if not batch:
                left = COST_PER_CALL + _COST_OF_A_NAME
            if entry is None:
                entry = ([], [])
                batch.append((record, interval, *entry))
                left -= _COST_OF_A_NAME
            entry[number >= len(holders)].append(each)
            left -= cost
    if batch:
        yield batch
