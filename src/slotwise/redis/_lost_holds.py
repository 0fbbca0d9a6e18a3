"""LostHolds: notice that holds of this process have ended without a release.

A ttl is over, the server doesn't know a hold any more, or no heartbeat has got through for so long
that the server must consider this process dead. `_heartbeat_thread` says when to look.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from slotwise._core.messages import KICKED, cancelled_after_ttl, ttl_ended
from slotwise.redis import _log

if TYPE_CHECKING:
    from slotwise.redis._acquisition import RedisAcquisition
    from slotwise.redis._shared_client import SharedClient


class LostHolds:
    """What has ended among the holders of a shared client."""

    def __init__(
        self, shared: SharedClient, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._shared = shared
        self._spawn = spawn
        self._stalled = (-math.inf, -math.inf)

    def note_stall(self, since: float, until: float) -> None:
        """Note that the heartbeat thread did not run, which explains why holds are lost."""
        self._stalled = (since, until)

    def expire(self, now: float) -> float:
        """End the holds whose ttl is over; return when the next ttl ends."""
        soonest = math.inf
        for holder in list(self._shared.holders.values()):
            if holder.expires_at <= now:
                holder._state_outcome("dropped")
                sample = holder.sample()
                self._expire(holder)
                self._spawn(holder.release_quietly(sample))
            else:
                soonest = min(soonest, holder.expires_at)
        return soonest

    def lose_silent(self, now: float) -> float:
        """Mark holders as lost that the server must consider dead: no heartbeat got through.

        The time is counted from the last sign of life, which may have been sent during the wait;
        a grant is none. Return when the next holder is lost if no heartbeat gets through.
        """
        soonest = math.inf
        for holder in list(self._shared.holders.values()):
            heard_at = holder.heard_at
            if now - heard_at >= holder.interval:
                self.lose(holder, self._why_silent(heard_at, now))
                self._spawn(holder.release_quietly())
            else:
                soonest = min(soonest, heard_at + holder.interval)
        return soonest

    def on_lost(self, reply: bytes) -> None:
        """Act on what a heartbeat was told: the server doesn't know this id as a holder."""
        holder = self._shared.holders.get(reply.decode())
        if holder is None:
            return
        # On the server the ttl began a little earlier than here.
        ttl = holder.ttl
        if ttl is not None and time.monotonic() > holder.expires_at - max(0.1, ttl / 10):
            self._expire(holder)
        else:
            self.lose(holder, "the server does not know it any more, or it was kicked")

    def lose(self, holder: RedisAcquisition, why: str) -> None:
        """Tell a holder, from any thread, that the server has ended its hold."""
        holder._state_outcome("ignored")
        _log.lost(holder, "kicked" if why == KICKED else "lost", why)
        message = f"{holder.acquisition_id} was lost: {why}"
        cancel = message if holder.cancel_on_loss else None
        self._shared.lose(holder, why, cancel_message=cancel)

    def _expire(self, holder: RedisAcquisition) -> None:
        _log.lost(holder, "expired", ttl_ended(holder.ttl))
        message = cancelled_after_ttl(holder.acquisition_id, holder.ttl)
        cancel = message if holder.cancel_after_ttl else None
        self._shared.lose(holder, ttl_ended(holder.ttl), cancel_message=cancel)

    def _why_silent(self, since: float, now: float) -> str:
        why = f"no heartbeat got through for {now - since:.1f} s"
        from_, to = self._stalled
        stall = to - max(from_, since)
        if stall > (now - since) / 2:
            why += (
                f": the heartbeat thread did not run for {stall:.1f} s of that (the process was"
                " stopped or short of CPU time, or a hook or finalizer blocked the thread)"
            )
        return why
