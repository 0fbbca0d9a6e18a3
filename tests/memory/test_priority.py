"""Head starts on a MemorySemaphore: who is passed, and who never is."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.ledger.invariants import check
from tests.ledger.one_node import Claim, Ledger

from slotwise import MemorySemaphore


class Queue:
    """Requests in order, and who was served when a slot came back."""

    def __init__(self, semaphore, settle):
        self.semaphore, self.settle = semaphore, settle
        self.served, self.tasks = [], []

    async def ask(self, name, **options):
        async def work():
            acquired = await self.semaphore.acquire(**options)
            self.served.append(name)
            await self.semaphore.release(acquired)

        self.tasks.append(asyncio.create_task(work()))
        await self.settle()

    async def block(self, name):
        async def work():
            async with self.semaphore:
                self.served.append(name)

        self.tasks.append(asyncio.create_task(work()))
        await self.settle()

    async def all(self, holder):
        await self.semaphore.release(holder)
        await asyncio.wait_for(asyncio.gather(*self.tasks), 30)
        return self.served


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_blocks_that_come_after_a_head_start_wait_in_the_same_order():
    semaphore = MemorySemaphore(1)
    holder = await semaphore.acquire()
    queue = Queue(semaphore, settle)
    await queue.ask("not urgent", priority=-3600)
    await queue.block("block")
    await queue.ask("urgent", priority=3600)
    assert await queue.all(holder) == ["urgent", "block", "not urgent"]


async def test_a_try_with_a_head_start_takes_what_a_large_request_waits_for():
    semaphore = MemorySemaphore(2)
    holder = await semaphore.acquire()
    queue = Queue(semaphore, settle)
    await queue.ask("large", slots=2)
    assert await semaphore.try_acquire() is None
    assert await semaphore.try_acquire(priority=-5) is None
    taken = await semaphore.try_acquire(priority=3600)
    assert taken is not None
    await semaphore.release(taken)
    assert await queue.all(holder) == ["large"]


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_passed_by_one_who_came_later_than_its_head_start_allows(seed):
    """Against a sorted list; every grant is the first by time of arrival less head start."""
    dice = random.Random(seed)
    ledger = Ledger(dice.choice([1, 2, 3]))
    now, last, waiting, holding = 100.0, 0, [], []

    def note(granted):
        for claim in granted:
            rank = next(entry for entry in waiting if entry[3] is claim)
            # Those who never waited took no microsecond, so ranks may differ by some.
            assert rank[0] <= min(waiting)[0] + 1000, "somebody else was before it"
            waiting.remove(rank)
            holding.append(claim)

    for step in range(300):
        now += dice.choice([0.0, 0.0, 0.5, 1.0])
        action = dice.random()
        if action < 0.5:
            seconds = dice.choice([0, 0, 0, 1, 2, 5, -1, -3])
            claim = Claim(step, dice.choice([1, 1, 2]), head_start=seconds * 1_000_000)
            if claim.slots > ledger.value:
                continue
            last = max(last + 1, int(now * 1_000_000 + 0.5))
            tie = last if claim.head_start else 0
            waiting.append((last - claim.head_start, tie, step, claim))
            note(ledger.request(claim, now))
        elif action < 0.9 and holding:
            claim = holding.pop(dice.randrange(len(holding)))
            note(ledger.release(claim.key, now))
        elif waiting:
            entry = dice.choice(waiting)
            waiting.remove(entry)
            note(ledger.cancel(entry[2], now))
        check(ledger)
        assert len(ledger.waiting) == len(waiting)
