"""Storms: everything at once, at random, and in the end nothing is held and nobody waits."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests._inside import backend_of, uploads_of
from tests.ledger.invariants import check

from slotwise import AcquireTimeout, BackendError
from slotwise._wait.section import lock

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("seed", range(3))
async def test_acquires_cancels_timeouts_and_clean_ups_leave_nothing_behind(manager, seed):
    chance = random.Random(seed)
    slots = manager(max_uploads=3, max_idle_users=4, cleanup_interval=0)
    inside: dict[str, int] = {}

    async def upload(user):
        async with slots.upload(user, timeout=chance.choice([None, 0, 0.01, 5])):
            inside[user] = inside.get(user, 0) + 1
            assert inside[user] == 1
            assert sum(inside.values()) <= 3
            try:
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
            finally:
                inside[user] -= 1

    running: list[asyncio.Task[None]] = []
    async with asyncio.timeout(60):
        for _ in range(150):
            step = chance.random()
            if step < 0.6:
                running.append(asyncio.create_task(upload(f"user-{chance.randrange(8)}")))
            elif step < 0.8 and running:
                chance.choice(running).cancel()
            elif step < 0.9:
                await slots.cleanup_idle_user_slots(0)
            else:
                await asyncio.sleep(0)
            tracker = getattr(backend_of(uploads_of(slots)), "tracker", None)
            if tracker is not None:
                with lock:  # time-outs end in a thread of their own
                    check(tracker.ledger)
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        wrong = [
            outcome
            for outcome in outcomes
            if outcome is not None
            # A busy server may not have answered at all in so short a time.
            and not isinstance(outcome, asyncio.CancelledError | AcquireTimeout | BackendError)
        ]
        assert wrong == []
        while True:  # cancelled waits are still on their way out of a server
            stats = await uploads_of(slots).stats()
            if not stats["uploads"].active and not stats["user"].waiting:
                break
            await asyncio.sleep(0.005)
