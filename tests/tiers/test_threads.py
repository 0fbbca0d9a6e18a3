"""Atomic tiers in many threads at once: the quick lane has no lock, and meets everything here."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import Counter

import pytest
from tests._inside import uploads_of
from tests.ledger.invariants import check
from tests.memory._inside import ledger_of

from slotwise import AcquireTimeout, SlotManager, Tier, Tiers
from slotwise._wait.section import lock

pytestmark = pytest.mark.soak


@pytest.fixture
def restless():
    """Threads change places as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_threads_that_switch_all_the_time_overshoot_nowhere_and_lose_nothing(restless):
    """The quick lane has no lock: here it meets itself, waiters and the clean-up."""
    slots = SlotManager(max_uploads=2, max_idle_users=1, cleanup_interval=0)
    users = ["a", "b", "c"]
    inside = dict.fromkeys(users, 0)
    faults: list[object] = []
    go_on = threading.Event()
    go_on.set()

    def work(number):
        try:
            for turn in range(1500):
                user = users[(number + turn) % 3]
                with slots.upload(user, timeout=30):
                    inside[user] += 1
                    if inside[user] > 1 or sum(inside.values()) > 2:
                        faults.append(dict(inside))
                    inside[user] -= 1
        except BaseException as error:
            faults.append(error)

    def clean():
        while go_on.is_set():
            slots.cleanup_idle_user_slots_sync(0)

    cleaner = threading.Thread(target=clean)
    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in (cleaner, *workers):
        thread.start()
    for thread in workers:
        thread.join(60)
    go_on.clear()
    cleaner.join(30)
    assert faults == []
    tracker = ledger_of(uploads_of(slots))
    assert (len(tracker.holders), len(tracker.waiting)) == (0, 0)
    check(tracker)


LIMITS = {"tenant": 1, "model": 2, "all": 3}


class Watched:
    """Tiers, and who is inside by what they think."""

    def __init__(self):
        self.limits = Tiers(
            Tier("tenant", LIMITS["tenant"], keyed=True),
            Tier("model", LIMITS["model"], keyed=True),
            Tier("all", LIMITS["all"]),
            max_idle_keys=1,
        )
        self.faults: list[object] = []
        self._inside: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def enter(self, tenant, model, by=1):
        with self._lock:
            for tier, key in (("tenant", tenant), ("model", model), ("all", "")):
                self._inside[tier, key] += by
                if self._inside[tier, key] > LIMITS[tier]:
                    self.faults.append((tier, key, self._inside[tier, key]))

    def leave(self, tenant, model):
        self.enter(tenant, model, by=-1)

    def in_a_thread(self, seed, turns):
        chance = random.Random(seed)
        for _ in range(turns):
            keys = {"tenant": chance.choice("ab"), "model": chance.choice("xy")}
            try:
                with self.limits.cm(timeout=chance.choice([None, None, 0, 0.001]), **keys):
                    self.enter(**keys)
                    self.leave(**keys)
            except AcquireTimeout:
                pass

    def in_a_loop(self, seed, turns):
        chance = random.Random(seed)

        async def work():
            for _ in range(turns):
                keys = {"tenant": chance.choice("ab"), "model": chance.choice("xy")}
                async with self.limits.cm(**keys):
                    self.enter(**keys)
                    try:
                        await asyncio.sleep(0)
                    finally:
                        self.leave(**keys)

        async def main():
            tasks = [asyncio.create_task(work()) for _ in range(10)]
            while not all(task.done() for task in tasks):
                chance.choice(tasks).cancel()
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(main())


def storm(turns):
    watched = Watched()
    go_on = threading.Event()
    go_on.set()

    def clean():
        while go_on.is_set():
            watched.limits.forget_idle_sync("tenant", 0)
            watched.limits.forget_idle_sync("model", 0, 0)

    def resize():
        while go_on.is_set():
            for value in (LIMITS["all"] - 1, LIMITS["all"]):
                watched.limits.resize_sync("all", value)

    background = [threading.Thread(target=clean), threading.Thread(target=resize)]
    workers = [
        threading.Thread(target=work, args=(seed, turns))
        for seed, work in enumerate([watched.in_a_thread] * 3 + [watched.in_a_loop] * 2)
    ]
    for thread in background + workers:
        thread.start()
    for thread in workers:
        thread.join(600)
        assert not thread.is_alive(), "somebody waits forever"
    go_on.clear()
    for thread in background:
        thread.join(30)
    assert watched.faults == []
    tracker = ledger_of(watched.limits)
    with lock:
        assert (len(tracker.holders), len(tracker.waiting)) == (0, 0)
        check(tracker)


def test_threads_loops_cancels_clean_ups_and_resizes_together(restless):
    storm(150)


@pytest.mark.soak
def test_threads_loops_cancels_clean_ups_and_resizes_together_for_long(restless):
    storm(20_000)
