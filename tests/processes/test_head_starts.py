"""Head starts in a file: each process decides the same, from records or from a snapshot."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests._effort import seeds

from slotwise import ProcessSemaphore
from slotwise._core.paths import semaphore_spec
from slotwise.processes import _file_journal as journals
from slotwise.processes._state import State
from slotwise.processes._views import waiters_of


class Queue:
    """Who waits, as simply as possible: sorted anew at every look."""

    def __init__(self, value: int) -> None:
        self.free = value
        self.held: dict[str, int] = {}
        self.waiting: list[tuple[tuple[int, int, int], str, int]] = []
        self.last = 0

    def ask(self, key: str, slots: int, head_start: int, now_us: int) -> list[str]:
        if not self.waiting:
            self.last = 0  # nobody is there whom a ticket could be compared with
        ticket = self.last = max(self.last + 1, now_us)
        rank = ticket - head_start, ticket if head_start else 0, ticket
        self.waiting.append((rank, key, slots))
        return self.serve()

    def end(self, key: str) -> list[str]:
        self.free += self.held.pop(key, 0)
        self.waiting = [each for each in self.waiting if each[1] != key]
        return self.serve()

    def serve(self) -> list[str]:
        granted = []
        for _, key, slots in sorted(self.waiting):
            if slots > self.free:
                break
            self.free -= slots
            self.held[key] = slots
            granted.append(key)
        self.waiting = [each for each in self.waiting if each[1] not in granted]
        return granted


@pytest.mark.parametrize("seed", seeds(3, 12))
def test_records_and_snapshots_lead_to_the_same_order(seed: int) -> None:
    dice = random.Random(seed)
    specs = [semaphore_spec(3)]
    state, other, queue = State("s", specs, "boot"), State("s", specs, "boot"), Queue(3)
    now, wall_us, keys = 100.0, 1_000_000, ["p1-0"]
    for step in range(400):
        passed = dice.choice([0.0, 0.0, 0.000001, 0.25, 1.0])
        now, wall_us = round(now + passed, 6), wall_us + int(passed * 1e6)
        if dice.random() < 0.55:
            keys.append(f"p1-{step}")
            slots = dice.choice([1, 1, 2, 3])
            head_start = dice.choice([0, 0, 1, -1]) * dice.choice([1, 400_000, 3_000_000])
            wanted: Any = [[None], [slots], [], head_start]
            record = ["request", now, wall_us, keys[-1], wanted, None, None, 1, None]
            expected = queue.ask(keys[-1], slots, head_start, round(now * 1e6))
        else:
            key = dice.choice(keys[-12:])
            verb = "release" if key in queue.held else "withdraw"
            record = [verb, now, wall_us, key]
            expected = queue.end(key)
        written = json.loads(json.dumps(record))
        for each in (state, other):
            events = each.apply(written)
            assert [str(claim.key) for word, claim in events if word == "granted"] == expected
        snapshot = json.loads(json.dumps(state.snapshot()))
        if dice.random() < 0.3:
            other = State.restore(snapshot)
        turns = [key for _, key, _ in sorted(queue.waiting)]
        assert [each.acquisition_id for each in waiters_of(state, now)] == turns
        assert [each.acquisition_id for each in waiters_of(other, now)] == turns


async def test_a_process_that_reads_a_snapshot_knows_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_COMPACT_AFTER", 200)  # bytes: a snapshot at almost every step
    semaphore = ProcessSemaphore(1, name="s", directory=tmp_path)
    order: list[int] = []
    holder = await semaphore.acquire()

    async def ask(n: int, priority: float) -> None:
        acquired = await semaphore.acquire(priority=priority)
        order.append(n)
        await semaphore.release(acquired)

    tasks = []
    for n, priority in enumerate((0, -60, 60, 0, 30)):
        tasks.append(asyncio.create_task(ask(n, priority)))
        async with asyncio.timeout(30):
            while (await semaphore.stats()).waiting != n + 1:
                await asyncio.sleep(0.001)
    await semaphore.release(holder)
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
    assert order == [2, 4, 0, 3, 1]
