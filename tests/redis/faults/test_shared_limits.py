"""Callers with different limits share a connection, and each waits as its own limits say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.redis._server import Server
from tests.redis.faults._proxy import IsSlow
from tests.redis.faults.test_server_away import Killed, Stopped, own_server, trouble

from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore

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
    assert patient._shared is hasty._shared
    if connected:
        await patient.stats()
    trouble.begin(own_server)
    waiting = asyncio.create_task(patient.acquire())
    await asyncio.sleep(0)  # its call is made first
    with pytest.raises(BackendError):
        await asyncio.wait_for(hasty.acquire(), 20)
    assert not waiting.done()
    trouble.end(own_server)
    await patient.release(await asyncio.wait_for(waiting, 20))
    await hasty.release(await asyncio.wait_for(hasty.acquire(), 20))


async def test_a_hasty_caller_does_not_cost_a_patient_one_its_reply(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IsSlow, "delay", 0.7)
    with IsSlow(server.port) as slow:
        patient = a_semaphore(slow.url, "patient", **PATIENT)
        hasty = a_semaphore(slow.url, "hasty", **{**HASTY, "attempts": 1})
        await patient.release(await patient.acquire())  # connected
        found = await asyncio.gather(
            *(hasty.acquire(), patient.acquire(), hasty.acquire()), return_exceptions=True
        )
        assert isinstance(found[0], BackendError)
        assert isinstance(found[2], BackendError)
        assert await patient.release(found[1])  # type: ignore[arg-type]
        # What the server did for callers that had gone was undone.
        async with asyncio.timeout(20):
            unhurried = a_semaphore(slow.url, "hasty", **PATIENT)
            await unhurried.release(await unhurried.acquire())
