"""Callers with different limits share a connection, and each waits as its own limits say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.redis._inside import shared_of
from tests.redis._server import Server
from tests.redis.faults.test_server_away import Killed, Stopped, own_server, trouble

from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore

pytestmark = pytest.mark.soak

__all__ = ["own_server", "trouble"]

PATIENT = {"connect_timeout": 60, "reply_timeout": 60, "attempts": 3, "backoff": 60}
HASTY = {"connect_timeout": 0.2, "reply_timeout": 0.2, "attempts": 2, "backoff": 0.01}


def a_semaphore(url: str, name: str, **limits: Any) -> RedisSemaphore:
    config = RedisConfig(url, **{"max_backoff": limits["backoff"], **limits})
    return RedisSemaphore(1, name=name, heartbeat_max_interval=60, config=config)


@pytest.mark.parametrize("connected", [True, False])
async def test_a_hasty_caller_fails_by_itself_and_a_patient_one_waits_on(
    own_server: Server, trouble: Killed | Stopped, *, connected: bool
) -> None:
    patient = a_semaphore(own_server.url, "patient", **PATIENT)
    # More attempts than the patient one has, where each takes no time.
    attempts = 6 if isinstance(trouble, Killed) else 2
    hasty = a_semaphore(own_server.url, "hasty", **{**HASTY, "attempts": attempts})
    assert shared_of(patient) is shared_of(hasty)
    if connected:
        await patient.stats()
    connection = shared_of(patient).client().connection_for(None)
    trouble.begin(own_server)
    waiting = asyncio.create_task(patient.acquire())
    await asyncio.sleep(0)  # its call is made first
    with pytest.raises(BackendError):
        await asyncio.wait_for(hasty.acquire(), 20)
    assert not waiting.done()
    trouble.end(own_server)
    await patient.release(await asyncio.wait_for(waiting, 20))
    if connected and isinstance(trouble, Stopped):
        assert shared_of(patient).client().connection_for(None) is connection, "not reopened"
    # What the server did for a caller that had gone was undone: it would be kept for 60 s.
    unhurried = a_semaphore(own_server.url, "hasty", **PATIENT)
    await unhurried.release(await asyncio.wait_for(unhurried.acquire(), 20))
