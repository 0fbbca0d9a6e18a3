"""What tests look at inside a limit on Redis; everything else goes through its public face."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from tests._inside import backend_of

from slotwise.redis._heartbeat_thread import HeartbeatThread
from slotwise.redis._shared_client import NameRecord, SharedClient


def shared_of(limit: Any) -> SharedClient:
    """What this process has on the server of a semaphore, of tiers or of their backend."""
    return _attached(limit)[0]


def record_of(limit: Any) -> NameRecord:
    """What this process knows of the name."""
    return _attached(limit)[1]


def _attached(limit: Any) -> tuple[SharedClient, NameRecord]:
    attached: tuple[SharedClient, NameRecord] = backend_of(limit)._attached()
    return attached


# ------------------------------------------------------------------------ the heartbeat thread


def thread_of(heartbeats: HeartbeatThread) -> threading.Thread | None:
    """The thread that sends them now, if there is one."""
    return heartbeats._thread


def is_running(heartbeats: HeartbeatThread) -> bool:
    thread = thread_of(heartbeats)
    return thread is not None and thread.is_alive()


def loop_of(heartbeats: HeartbeatThread) -> asyncio.AbstractEventLoop:
    """The loop of the thread that runs."""
    loop = heartbeats._loop
    assert loop is not None
    return loop


def starting(heartbeats: HeartbeatThread) -> Any:
    """The lock under which a thread is started, and forgotten."""
    return heartbeats._starting


def spawn(heartbeats: HeartbeatThread, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run this in the thread, which doesn't wait for its end before it stops."""
    heartbeats._post(lambda: heartbeats.spawn(coroutine))


# --------------------------------------------------------------------------------- connections


def is_refused(limit: Any) -> bool:
    """Whether calls wait because the server has refused some for now."""
    return shared_of(limit).client().reconnector_to(None)._pausing is not None


def held_back(limit: Any) -> dict[Any, list[Any]]:
    """The calls of this loop that wait because their slot of the cluster moves, by slot."""
    held: dict[Any, list[Any]] = shared_of(limit).client()._held_back
    return held


# ---------------------------------------------------------------------- the ledgers of the tests


def free(ledger: Any, claim: Any, now: float) -> None:
    """Take back what a claim holds that was taken out of the holders; nobody is served yet."""
    ledger._free(claim, now)


def remove_waiter(ledger: Any, claim: Any, now: float) -> None:
    """Take a claim out of the line; nobody is served yet."""
    ledger._leave(claim, now)
