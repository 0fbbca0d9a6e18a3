"""What a limit does while its server is away: no limit at all, or one of this process.

A server is away at once when connections to it are refused or cut, and after a silence if it is
stuck. `_outages` knows which servers are; here a server's silence is noticed while nobody else
calls it, and waiters are told. An acquisition that was made instead is not known to the server,
and its release never goes there.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from slotwise._core import events, fork
from slotwise._core.at_once import DONE
from slotwise._core.lost import Lost
from slotwise._core.messages import unknown_acquisition
from slotwise._core.results import AcquisitionResult
from slotwise.redis import _outages
from slotwise.redis._diagnosis import ServerAway, Unreachable
from slotwise.redis._net.call import Call

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._backend import RedisBackend
    from slotwise.redis._loop_client import LoopClient
    from slotwise.redis._shared_client import NameRecord

# Which part of ``unreachable_after`` is enough for a caller whose own time is up: trying has a
# limit a little below the default.
_ALMOST = 0.8

_lock = fork.new_lock()
_next_number = itertools.count(1).__next__
_token = secrets.token_hex(6)

# The acquisitions that were made instead, by id. Changed by single dict operations.
_held: dict[str, FallbackAcquisition] = {}


class FallbackAcquisition(AcquisitionResult):
    """An acquisition that the server doesn't know: unlimited, or from a limit of this process."""

    __slots__ = ("_local", "inner", "record")

    def __init__(
        self,
        scope: str,
        record: NameRecord,
        inner: AcquisitionResult | None = None,
        local: Any = None,
        *,
        waited: float = 0.0,
        holds: bool = True,
    ) -> None:
        """``inner`` is that of the ``local`` limit.

        An acquisition of rates alone holds nothing, and releases nothing.
        """
        number = 0 if inner is None else inner.slot_number
        super().__init__(f"{scope}-{_token}-{_next_number()}", number, waited=waited)
        self._elsewhere = scope
        self.record = record
        self.inner = inner
        self._local = local
        if holds:
            _held[self._acquisition_id] = self

    @property
    def lost(self) -> Lost:
        return super().lost if self.inner is None else self.inner.lost

    def settle(self, **costs: int) -> Awaitable[None]:
        return DONE if self.inner is None else self.inner.settle(**costs)

    def tell_acquired(self, name: str | None, waited: float) -> None:
        """Tell the hooks about an acquisition that no limit reports: in memory, without a value."""
        acquisition_id, now = self._acquisition_id, time.monotonic()
        events.requested(acquisition_id, name, "memory", now - waited)
        events.acquired(acquisition_id, now)
        if acquisition_id not in _held:
            events.ended(acquisition_id, "released", now)

    def end(self) -> bool:
        """Release it; False if it had ended before."""
        if _held.pop(self._acquisition_id, None) is None:
            return False
        if events.hooks:
            events.ended(self._acquisition_id, "released", time.monotonic())
        inner = self.inner
        return inner is None or bool(self._local.release_sync(inner.acquisition_id))


def release_fallback(acquisition_id: str, record: NameRecord) -> bool:
    """Release what was acquired of ``record`` while the server was away; False if it had ended."""
    found = _held.get(acquisition_id)
    return found is not None and found.record is record and found.end()


def settle_fallback(acquisition_id: str, record: NameRecord, costs: Mapping[str, int]) -> None:
    """Settle what was acquired of ``record`` while the server was away.

    Raises:
        LookupError: it has ended.
    """
    found = _held.get(acquisition_id)
    if found is None or found.record is not record:
        raise unknown_acquisition(repr(record.name), acquisition_id)
    found.settle(**costs)


def close_local(record: NameRecord) -> None:
    """Close what objects of this process use instead; later ones get another."""
    with _lock:
        limits = [*record.local_limits.values()]
        record.local_limits.clear()
    for each in limits:
        each.close_sync()


def open_count(record: NameRecord) -> int:
    """Return how many acquisitions of ``record`` were made instead, and are held."""
    return sum(each.record is record for each in list(_held.values()))


def is_fallback_id(acquisition_id: str) -> bool:
    return acquisition_id.startswith(("open-", "local-"))


def is_used(limit: RedisBackend) -> bool:
    """Whether the server is away for a limit with a policy; to be called in an event loop."""
    shared, record = limit._attached()
    return is_away(shared.client().server(record.keys.slot), limit._unreachable.after)


def local_limit(limit: RedisBackend) -> Any:
    """The limit of this process that "local" stands for; all objects of the name share it."""
    key, record = repr(limit._unreachable.local_value), limit._attached()[1]
    with _lock:
        if key not in record.local_limits:
            record.local_limits[key] = limit._make_local()
        return record.local_limits[key]


async def acquire(
    limit: RedisBackend,
    send: Callable[[], RedisAcquisition],
    timeout: float | None,
    instead: Callable[[Any, float | None], Awaitable[AcquisitionResult]],
    *,
    at_once: float | None = None,
) -> AcquisitionResult:
    """Request slots by ``send``, or ``instead`` of a local limit while the server is away.

    Callers that wait when it goes away are served by the policy too, with what is left of
    their time.
    """
    shared, record = limit._attached()
    client, slot = shared.client(), record.keys.slot
    started, after = client.loop.time(), limit._unreachable.after
    watch = client.watches.get((slot, after))
    if watch is None:
        watch = client.watches[slot, after] = AwayWatch(client, slot, after)
    if not is_away(client.server(slot), after):
        acquisition = send()
        watch.add(acquisition)
        try:
            await acquisition.wait(at_once=at_once)
        except ServerAway:
            pass
        except Unreachable as error:
            # Its own time was up too early to tell.
            away = is_away(client.server(slot), _ALMOST * after)
            if isinstance(error, TimeoutError) and not away:
                raise
        else:
            return acquisition
        finally:
            watch.remove(acquisition)
    if not limit._generation.admits(shared.has):
        raise limit._closed_error()
    watch.start()  # it finds out when the server is back
    if limit._unreachable.policy == "open":
        waited = client.loop.time() - started
        holds = not limit._holds_nothing
        opened = FallbackAcquisition("open", record, waited=waited, holds=holds)
        if events.hooks:
            opened.tell_acquired(limit.name, waited)
        return opened
    left = None if timeout is None else max(timeout - (client.loop.time() - started), 0.0)
    local = local_limit(limit)
    inner = await instead(local, left)
    return FallbackAcquisition(
        *("local", record, inner, local),
        waited=client.loop.time() - started,
        holds=not limit._holds_nothing,
    )


# --------------------------------------------------------------- is it away?

# The longest time between two looks, in seconds, and two attempts to find out whether it is back.
_ASK_EVERY = 0.25
# How long it may take to read a reply that waits in the socket.
_LOOK_AGAIN = 0.02


def is_away(server: str, after: float) -> bool:
    """Whether a server is away for somebody who tolerates a silence of ``after`` seconds."""
    outage = _outages.ongoing.get(server)
    return outage is not None and (outage.broken or time.monotonic() - outage.since >= after)


class AwayWatch:
    """Watches a server for the waiters of one loop; all methods are for the loop."""

    def __init__(self, client: LoopClient, slot: int | None, after: float) -> None:
        self._client = client
        self._slot = slot
        self._after = after
        self._server = client.server(slot)
        # In the order of their requests, so that they continue in that order.
        self._waiting: dict[RedisAcquisition, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unconnected_since: float | None = None
        self._is_overdue = False  # whether it was silent for too long at the last check
        self._is_asking = False

    def add(self, acquisition: RedisAcquisition) -> None:
        self._waiting[acquisition] = None
        self.start()

    def start(self) -> None:
        """Watch while anybody waits, or the server is away."""
        if self._timer is None:
            _outages.listeners.setdefault(self._server, set()).add(self._on_outage)
            self._tick()

    def remove(self, acquisition: RedisAcquisition) -> None:
        self._waiting.pop(acquisition, None)
        if not self._waiting and self._server not in _outages.ongoing:
            self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._unconnected_since = None
        _outages.listeners.get(self._server, set()).discard(self._on_outage)

    def _on_outage(self) -> None:
        """Something is wrong with the server; called in any thread."""
        try:
            self._client.loop.call_soon_threadsafe(self._tell_if_away)
        except RuntimeError:  # the loop is closed
            _outages.listeners.get(self._server, set()).discard(self._on_outage)

    def _tell_if_away(self) -> None:
        if is_away(self._server, self._after):
            for acquisition in list(self._waiting):
                acquisition.end_wait(ServerAway())

    def _tick(self) -> None:
        now, client = time.monotonic(), self._client
        is_out = self._server in _outages.ongoing
        if not (self._waiting or is_out):
            self._stop()
            return
        connection = client.connection_for(self._slot)
        if connection is None:  # it is being opened, or that has failed: then it is told
            self._unconnected_since = self._unconnected_since or now
            silence, asks = now - self._unconnected_since, is_out
        else:
            self._unconnected_since = None
            silence = connection.silence()
            asks = not silence and not connection.has_pending(self._slot)
        if asks and not self._is_asking:
            self._is_asking = True
            client.submit(Call(None, (), ["TIME"], self._answered, self._slot))
        # Checked twice: a loop that was busy may not have read the answer yet.
        was_overdue, self._is_overdue = self._is_overdue, silence >= self._after
        if was_overdue and self._is_overdue:
            error = Unreachable(
                f"{client.endpoint} did not answer in {silence:.1f} s; is it overloaded or stopped?"
            )
            _outages.begin(self._server, error, broken=False, ago=silence)
        self._tell_if_away()
        pause = max(min(self._after / 4, _ASK_EVERY), _LOOK_AGAIN)
        if self._is_overdue and not was_overdue:
            pause = _LOOK_AGAIN
        self._timer = client.loop.call_later(pause, self._tick)

    def _answered(self, _: Call, __: Any) -> None:
        """Ignore a reply: only the silence counts."""
        self._is_asking = False
