"""Any key may vanish at any time: no slot number is handed out twice, or above the value."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import redis
from tests._effort import seeds
from tests.redis._eval import evaluate, keys_that_stay, read_keys
from tests.redis._server import FAKE_CLOCK, until
from tests.redis.test_scripts_against_ledger import expand

from slotwise import Tier, Tiers
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._keys import SemaphoreKeys
from slotwise.redis._path_keys import PathKeys
from slotwise.redis._scripts import load

pytestmark = pytest.mark.usefixtures("x_listens")

INTERVAL = 15.0
VALUE = 5


async def work(semaphore: RedisSemaphore, order: list[int], n: int) -> None:
    async with semaphore:
        order.append(n)


async def workers_in_line(
    semaphore: RedisSemaphore, client: redis.Redis, order: list[int], count: int
) -> list[asyncio.Task[None]]:
    """Start tasks that wait for a slot, one by one, and note the order in which they get it."""
    tasks = []
    for n in range(count):
        tasks.append(asyncio.create_task(work(semaphore, order, n)))
        await until(
            lambda n=n: client.zcard("adv-sem:semaphore_waiting:s") == n + 1, "one more waiter"
        )
    return tasks


@cache
def that_puts_back(name: str, at_once: int | None) -> bytes:
    """Return a script that puts so many claims back, if not as many as usual."""
    source = load(name).source
    if at_once is None:
        return source
    changed = re.sub(rb"REBUILT = \d+", b"REBUILT = %d" % at_once, source)
    assert changed != source or name.endswith("release_many")
    return changed


class Fleet:
    """Clients of one semaphore, what they were told, and a server that loses keys."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.keys = SemaphoreKeys(FAKE_CLOCK, "s")
        self.now = round(time.time(), 3)
        self.issued = 0
        self.told: dict[str, set[int]] = {}  # the numbers of those who were ever granted any
        self.believers: set[str] = set()  # who holds slots as far as they know
        self.waiters: set[str] = set()
        self.at_once: int | None = None  # how many claims a call puts back, if not as many as usual

    def run(self, name: str, *args: object) -> Any:
        texts = ["" if arg is None else str(arg) for arg in args]
        given = (*self.keys.all, f"{self.now:.6f}", *texts)
        source = that_puts_back(name, self.at_once)
        return evaluate(self.client, source, len(self.keys.all), *given)

    def request(self, claim_id: str, *, again: bool = False) -> None:
        args = (claim_id, VALUE, INTERVAL, None, "wait", "again" if again else "", 0)
        reply = self.run("semaphore/request", *args, "host 1 ", "", "")
        (self.believers if reply[0] == "granted" else self.waiters).add(claim_id)
        assert reply[0] in ("granted", "queued")

    def release(self, claim_id: str) -> None:
        self.believers.discard(claim_id)
        self.waiters.discard(claim_id)
        if random.random() < 0.5 or "*" in claim_id:
            self.run("semaphore/release", claim_id, "", INTERVAL, "", "")
        else:
            self.run("semaphore/release_many", "", INTERVAL, "", claim_id)

    def beat(self, ids: set[str]) -> None:
        holders, waiters = sorted(ids & self.believers), sorted(ids & self.waiters)
        counts = (len(holders), len(waiters))
        [[_, *outcomes]] = self.run(
            "semaphore/heartbeat", "", INTERVAL, "", *counts, *holders, *waiters
        )
        for word, claim_id, *more in (outcome.split() for outcome in outcomes):
            assert word in ("lost", "gone", "granted")
            if word == "lost":
                self.believers.discard(claim_id)
                if more == ["kept"]:
                    self.release(claim_id)
            elif word == "gone":
                self.waiters.discard(claim_id)
                self.told.pop(claim_id, None)  # granted, and taken back before it was told
                self.request(claim_id, again=True)
            else:
                self.waiters.discard(claim_id)
                self.believers.add(claim_id)

    def check(self) -> None:
        [members, state], _ = read_keys(self.client, self.keys.main, self.keys.state)
        assert len(members) <= VALUE
        seen: set[int] = set()
        for holder in (member for member in members if "#" not in member):
            claim = state.get(holder, "").split()
            if claim and claim[4] != "0":
                numbers = set(expand(claim[4]))
                assert self.told.setdefault(holder, numbers) == numbers
            numbers = self.told.get(holder, set())
            assert max(numbers, default=1) <= VALUE, "no number above the value"
            assert not numbers & seen, "no number twice"
            seen |= numbers
        assert keys_that_stay(self.client) == []


@pytest.fixture
def no_small_hashes(client: redis.Redis) -> Iterator[None]:
    """A small hash or set is scanned in one step, however few entries are asked for."""
    before = client.config_get("*-max-ziplist-entries")
    for setting in before:
        client.config_set(setting, 0)
    yield
    for setting, value in before.items():
        client.config_set(setting, value)


@pytest.mark.soak
@pytest.mark.usefixtures("no_small_hashes")
@pytest.mark.parametrize("at_once", [None, 4], ids=["at once", "in parts"])
@pytest.mark.parametrize("seed", seeds(2, 7))
def test_no_number_is_handed_out_twice_whichever_key_is_lost(
    client: redis.Redis, seed: int, at_once: int | None
) -> None:
    dice = random.Random(seed)
    fleet = Fleet(client)
    fleet.at_once = at_once
    for _ in range(200):
        fleet.now = round(fleet.now + dice.choice([0, 0.001, 0.5, 2]), 6)
        everyone = fleet.believers | fleet.waiters
        action = dice.random()
        if action < 0.15:
            client.delete(dice.choice(fleet.keys.all))
        elif action < 0.5:
            fleet.issued += 1
            slots = dice.choice(["", "", "", "*2", "*3"])
            fleet.request(f"sw-x-{fleet.issued}{slots}")
        elif action < 0.75 and everyone:
            fleet.release(dice.choice(sorted(everyone)))
        else:
            fleet.beat(set(dice.sample(sorted(everyone), dice.randint(0, len(everyone)))))
        fleet.check()
    # Nothing is lost any more: all come to know what they have, and go. Then it is as good as new.
    for _ in range(20):
        fleet.now += 1
        fleet.beat(fleet.believers | fleet.waiters)
        for claim_id in sorted(fleet.believers):
            fleet.release(claim_id)
        fleet.check()
    assert not fleet.believers | fleet.waiters
    numbers = []
    for n in range(VALUE):
        args = (f"sw-y-{n}", VALUE, INTERVAL, None, "try", "", 0, "host 1 ", "", "")
        numbers.append(fleet.run("semaphore/request", *args)[:2])
    assert sorted(numbers) == [["granted", n] for n in range(1, VALUE + 1)]


async def test_a_holder_that_lost_its_claim_is_told_and_a_waiter_keeps_its_place(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(
        2, name="s", heartbeat_max_interval=60, ping_interval=0.5, config=config
    )
    held = [await semaphore.acquire() for _ in range(2)]
    order: list[int] = []
    tasks = await workers_in_line(semaphore, client, order, 5)
    client.delete("adv-sem:semaphore_state:s")
    for each in held:
        await asyncio.wait_for(each.lost, 20)
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    # Two hold at a time. One may hear of it by a message, and the one before it by a heartbeat.
    assert all(n <= place + 1 for place, n in enumerate(order)), order


async def test_nobody_gets_the_slots_of_those_whose_holds_were_evicted_before_they_know(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(
        2, name="s", heartbeat_max_interval=60, ping_interval=1, config=config
    )
    held = [await semaphore.acquire() for _ in range(2)]
    client.delete("adv-sem:semaphore_main:s")
    waiting = asyncio.create_task(semaphore.acquire())
    while not all(each.lost.is_set() for each in held):
        newcomer = await semaphore.try_acquire()
        # Told while the server was asked.
        if newcomer is not None:
            assert held[newcomer.slot_number - 1].lost.is_set()
            await semaphore.release(newcomer)
        await asyncio.sleep(0.01)
    assert await semaphore.release(await asyncio.wait_for(waiting, 20)) is True


@pytest.mark.parametrize("lost", ["main", "state"])
def test_a_lost_slot_is_granted_again_only_after_its_holder_has_read_that(
    client: redis.Redis, lost: str
) -> None:
    fleet = Fleet(client)
    holders = [f"sw-x-{n}" for n in range(VALUE)]
    for each in holders:
        fleet.request(each)
    client.delete(getattr(fleet.keys, lost))
    fleet.now += 0.1
    fleet.request("sw-y-1")
    for _ in range(2):  # the first reply may get lost on the way
        args = ("", INTERVAL, "", VALUE, 0, *holders)
        [[_, *outcomes]] = fleet.run("semaphore/heartbeat", *args)
        assert outcomes == [f"lost {each} kept" for each in holders]
        assert client.zscore(fleet.keys.main, "sw-y-1") is None
        fleet.now += 0.1
    for each in holders:
        fleet.release(each)
    assert client.zrange(fleet.keys.main, 0, -1) == ["sw-y-1"]


@pytest.mark.parametrize("step", [-3600, 0])
def test_whoever_got_slots_after_an_eviction_keeps_them_when_the_clock_is_set_back(
    client: redis.Redis, step: int
) -> None:
    fleet = Fleet(client)
    fleet.request("sw-x-1")
    client.delete(fleet.keys.main)
    fleet.now += 0.1
    fleet.request("sw-y-1")
    fleet.now += step + 0.1
    fleet.request("sw-z-1")
    args = ("", INTERVAL, "", 3, 0, "sw-x-1", "sw-y-1", "sw-z-1")
    for _ in range(2):
        [[_, *outcomes]] = fleet.run("semaphore/heartbeat", *args)
        assert outcomes == ["lost sw-x-1 kept"]
        fleet.now += 0.1


def test_heartbeats_of_waiters_keep_no_holder_alive_while_main_is_damaged(
    client: redis.Redis,
) -> None:
    fleet = Fleet(client)
    for n in range(VALUE):
        fleet.request(f"sw-x-{n}")
    fleet.request("sw-y-1")

    def beat() -> None:
        fleet.now += INTERVAL / 4
        fleet.run("semaphore/heartbeat", "", INTERVAL, "", 0, 1, "sw-y-1")

    client.delete(fleet.keys.main)
    client.rpush(fleet.keys.main, "damaged")
    for _ in range(6):
        beat()
    client.delete(fleet.keys.main)
    beat()
    assert client.zrange(fleet.keys.main, 0, -1) == ["sw-y-1"]


@pytest.mark.usefixtures("rare_heartbeats")
@pytest.mark.parametrize("many", [False, True])
async def test_a_release_after_the_holds_were_evicted_frees_its_slot(
    config: RedisConfig, client: redis.Redis, *, many: bool
) -> None:
    semaphore = RedisSemaphore(4, name="s", heartbeat_max_interval=3000, config=config)
    held = [await semaphore.acquire() for _ in range(4)]
    client.delete("adv-sem:semaphore_main:s")
    if many:
        assert await asyncio.gather(*(semaphore.release(each) for each in held[:2])) == [True] * 2
    else:
        assert await semaphore.release(held[0]) is True
        # Told meanwhile, perhaps, like the others.
        assert await semaphore.release(held[1]) is True or held[1].lost.is_set()
    # The others are told at once, long before their next heartbeat, and give theirs back.
    newcomers = [await semaphore.acquire(timeout=20) for _ in range(4)]
    assert [each.slot_number for each in newcomers] == [1, 2, 3, 4]
    assert [each.lost.is_set() for each in held[2:]] == [True, True]
    for each in newcomers:
        assert await semaphore.release(each) is True


@pytest.mark.usefixtures("rare_heartbeats")
@pytest.mark.parametrize("lost", ["semaphore_main", "semaphore_state"])
async def test_one_call_is_enough_for_all_to_learn_that_a_key_was_evicted(
    config: RedisConfig, client: redis.Redis, lost: str
) -> None:
    """Their next heartbeats are minutes away, and nobody is granted anything before they know."""
    semaphore = RedisSemaphore(1, name="s", heartbeat_max_interval=3000, config=config)
    held = await semaphore.acquire()
    order: list[int] = []
    tasks = await workers_in_line(semaphore, client, order, 4)
    client.delete(f"adv-sem:{lost}:s")
    tasks.append(asyncio.create_task(work(semaphore, order, 4)))
    await asyncio.wait_for(held.lost, 60)
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert order == list(range(5))


@pytest.mark.usefixtures("rare_heartbeats")
async def test_one_call_is_enough_for_all_to_learn_that_the_state_of_tiers_was_evicted(
    config: RedisConfig, client: redis.Redis
) -> None:
    tiers = Tiers(Tier("all", 2), name="t", heartbeat_max_interval=3000, url=config)
    held = [await tiers.acquire() for _ in range(2)]
    waiting = asyncio.create_task(tiers.acquire())
    await until(lambda: client.zcard("adv-sem:tiers_waiters:t") == 1, "a waiter")
    client.delete("adv-sem:tiers_state:t")
    assert await tiers.try_acquire() is None
    for each in held:
        await asyncio.wait_for(each.lost, 60)
    assert await tiers.release(await asyncio.wait_for(waiting, 60))


def test_a_waiter_that_files_its_lost_claim_anew_gets_what_has_become_free(
    client: redis.Redis,
) -> None:
    fleet = Fleet(client)
    for n in range(VALUE + 1):
        fleet.request(f"sw-x-{n}")
    client.delete(fleet.keys.state)
    for n in range(VALUE):
        fleet.release(f"sw-x-{n}")
    assert client.zcard(fleet.keys.main) == 0, "nobody knows how long it would have to live"
    fleet.request(f"sw-x-{VALUE}", again=True)
    assert client.zrange(fleet.keys.main, 0, -1) == [f"sw-x-{VALUE}"]


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
def test_a_holder_that_waits_on_the_server_is_lost_and_waits_no_more(
    client: redis.Redis, kind: str
) -> None:
    """As after a failover, when another server had granted it something that is lost with that."""
    fleet: Any = Fleet(client) if kind == "semaphore" else PathFleet(client)
    path = () if kind == "semaphore" else ("0:u,1:",)
    room = VALUE if kind == "semaphore" else 2
    for n in range(room + 2):
        fleet.request(f"sw-x-{n}", *path)
    rest = ("", INTERVAL, "", 1, 0, f"sw-x-{room}")
    [[_, *outcomes]] = fleet.run(f"{kind}/heartbeat", *rest)
    assert outcomes == [f"lost sw-x-{room}"]
    fleet.release("sw-x-0")
    holders = fleet.keys.main if kind == "semaphore" else fleet.keys.all[1]
    assert f"sw-x-{room + 1}" in client.zrange(holders, 0, -1)
    if kind == "tiers":
        fleet.believers.clear()  # told by messages to others
        [[due, *outcomes]] = fleet.run("tiers/heartbeat", "", INTERVAL, "", 1, 0, "sw-x-1")
        assert (due, outcomes) == (-1, [])


async def test_the_dead_keep_nothing_when_their_keys_were_evicted(client: redis.Redis) -> None:
    fleet = Fleet(client)
    fleet.request("sw-x-1*5")
    fleet.request("sw-x-2")
    for kind in (fleet.keys.main, fleet.keys.waiting, fleet.keys.waiting_heartbeat):
        client.delete(kind)
    fleet.now += INTERVAL + 1
    args = ("sw-x-3", VALUE, INTERVAL, None, "try", "", "host 1 ", "", "")
    assert fleet.run("semaphore/request", *args)[:2] == ["granted", 1]


@pytest.mark.parametrize("lost", [["waiting"], ["waiting_heartbeat"]])
@pytest.mark.parametrize("by", ["newcomer", "newcomers", "try", "release", "releases", "heartbeat"])
def test_nobody_passes_waiters_whose_queue_was_evicted(
    client: redis.Redis, lost: list[str], by: str
) -> None:
    fleet = Fleet(client)
    for n in range(VALUE + 3):
        fleet.request(f"sw-x-{n}")
    for kind in lost:
        client.delete(getattr(fleet.keys, kind))
    fleet.now += 0.1
    many = (VALUE, INTERVAL, None, "", "host 1 ", "", "", "wait", "sw-x-100", "sw-x-101")
    one = (VALUE, INTERVAL, None, "try" if by == "try" else "wait", "", "host 1 ", "", "")
    if by == "newcomers":
        fleet.run("semaphore/request_many", *many)
    elif by in ("newcomer", "try"):
        fleet.run("semaphore/request", "sw-x-100", *one)
    elif by == "heartbeat":
        fleet.run("semaphore/heartbeat", "", INTERVAL, "", 0, 1, f"sw-x-{VALUE}")
    left = {"release": [0], "releases": [0, 1]}.get(by, [])
    if len(left) == 1:
        assert fleet.run("semaphore/release", "sw-x-0", "", INTERVAL, "", "")[0] == 1
    elif left:
        assert fleet.run("semaphore/release_many", "", INTERVAL, "", "sw-x-0", "sw-x-1") == ["11"]
    members = [f"sw-x-{n}" for n in range(len(left), VALUE + len(left))]
    assert set(client.zrange(fleet.keys.main, 0, -1)) == set(members)
    line = [f"sw-x-{n}" for n in range(VALUE + len(left), VALUE + 3)]
    line += {"newcomer": ["sw-x-100"], "newcomers": ["sw-x-100", "sw-x-101"]}.get(by, [])
    assert client.zrange(fleet.keys.waiting, 0, -1) == line
    assert set(client.zrange(fleet.keys.waiting_heartbeat, 0, -1)) == set(line)
    fleet.check()


async def test_holders_do_not_notice_that_the_numbers_are_lost(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=4, config=config)
    held = [await semaphore.acquire() for _ in range(3)]
    await semaphore.release(held.pop(1))
    client.delete("adv-sem:semaphore_numbers:s")
    held += [await semaphore.acquire() for _ in range(2)]
    assert [each.slot_number for each in held] == [1, 3, 2, 4]
    for each in held:
        assert await semaphore.release(each) is True


async def test_garbage_among_the_numbers_is_nobodys_number(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(name="s", value=5, config=config)
    held = [await semaphore.acquire() for _ in range(2)]
    for garbage in ({"garbage": 1}, {"garbage": 0.5}, {"0": 0}):
        client.zadd("adv-sem:semaphore_numbers:s", garbage)
        held.append(await semaphore.acquire())
    assert [each.slot_number for each in held] == [1, 2, 3, 4, 5]
    for each in held:
        assert await semaphore.release(each) is True


# ------------------------------------------------------------------------------------- tiers


@cache
def that_repairs(name: str, effort: int | None) -> bytes:
    """Return a script that does so much of a repair at once, if not as much as usual."""
    source = load(name).source
    if effort is None:
        return source
    changed, found = re.subn(rb"local EFFORT = \d+", b"local EFFORT = %d" % effort, source)
    assert found == 1
    return re.sub(rb"local SOME = \d+", b"local SOME = 2", changed)


class PathFleet:
    """Clients of tiers, what they believe to hold and until when, and a server that loses keys."""

    VALUES = (2, 4)

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.keys = PathKeys(FAKE_CLOCK, "t")
        self.now = round(time.time(), 3)
        self.issued = 0
        self.paths: dict[str, str] = {}
        self.alive_until: dict[str, float] = {}
        self.believers: dict[str, int] = {}  # the slot numbers of those who hold something
        self.waiters: set[str] = set()
        self.effort: int | None = None  # how much of a repair a call does, if not as much as usual

    def run(self, name: str, *args: object) -> Any:
        given = (*self.keys.all, f"{self.now:.6f}", *map(str, args))
        while True:
            try:
                source = that_repairs(name, self.effort)
                return evaluate(self.client, source, len(self.keys.all), *given)
            except redis.ResponseError as error:
                if not str(error).startswith("REPAIRING "):
                    raise

    def request(self, claim_id: str, path: str, *, again: bool = False) -> None:
        self.paths[claim_id] = path
        self.alive_until[claim_id] = self.now + INTERVAL
        values = ",".join(map(str, self.VALUES))
        args = ("user*,all", values, INTERVAL, "-", "wait", "again" if again else "")
        reply = self.run("tiers/request", *args, "host 1 ", "", "", claim_id, path)
        if reply[0] == "granted":
            self.believers[claim_id] = reply[1]
        else:
            assert reply[0] == "queued"
            self.waiters.add(claim_id)
        self.hear(reply[3:] if reply[0] == "granted" else reply[2:])

    def release(self, claim_id: str) -> None:
        self.hear(self.run("tiers/release", "x", claim_id)[5:])
        self.believers.pop(claim_id, None)  # it may have been granted just before
        self.waiters.discard(claim_id)

    def beat(self, ids: set[str]) -> None:
        holders, waiters = sorted(ids & self.believers.keys()), sorted(ids & self.waiters)
        for claim_id in (*holders, *waiters):
            self.alive_until[claim_id] = self.now + INTERVAL
        counts = (len(holders), len(waiters))
        [[_, *outcomes]] = self.run(
            "tiers/heartbeat", "x", INTERVAL, "", *counts, *holders, *waiters
        )
        self.hear(outcomes)

    def hear(self, outcomes: list[str]) -> None:
        told = (outcome.split() for outcome in outcomes if outcome != "unfinished")
        for word, claim_id, *more in told:
            assert word in ("lost", "gone", "granted")
            if word == "lost":
                self.believers.pop(claim_id, None)
                if more == ["kept"]:
                    self.release(claim_id)
            elif word == "gone":
                self.waiters.discard(claim_id)
                self.request(claim_id, self.paths[claim_id], again=True)
            else:
                self.waiters.discard(claim_id)
                self.believers[claim_id] = int(more[0])

    def check(self) -> None:
        # Who was silent for too long knows that by itself.
        for claim_id in [each for each in self.believers if self.alive_until[each] <= self.now]:
            del self.believers[claim_id]
        nodes = Counter(node for each in self.believers for node in self.paths[each].split(","))
        for node, held in nodes.items():
            assert held <= self.VALUES[int(node[0])], f"over the value of {node}"
        numbers = list(self.believers.values())
        assert len(set(numbers)) == len(numbers), "no number twice"
        assert max(numbers, default=1) <= self.VALUES[-1], "no number above the value"
        assert keys_that_stay(self.client) == []


def fleet_that_lost_its_state(client: redis.Redis) -> PathFleet:
    """Four of the client x held slots when that happened, and sw-y-1 waits."""
    fleet = PathFleet(client)
    for n in range(4):
        fleet.request(f"sw-x-{n}", f"0:{n // 2},1:")
    client.delete(fleet.keys.all[0])
    fleet.now += 0.1
    fleet.request("sw-y-1", "0:a,1:")
    return fleet


def test_tiers_that_lost_their_state_grant_only_after_every_holder_has_read_that(
    client: redis.Redis,
) -> None:
    fleet = fleet_that_lost_its_state(client)
    holders = sorted(fleet.believers)
    [[_, *outcomes]] = fleet.run("tiers/heartbeat", "x", INTERVAL, "", 4, 0, *holders)
    assert outcomes == [f"lost {each} kept" for each in holders]
    for each in holders:
        assert fleet.waiters == {"sw-y-1"}
        reply = fleet.run("tiers/release", "z", each)
    assert reply[-1] == "unfinished", "the next call makes all keys anew, and serves"
    fleet.beat(set())
    fleet.beat({"sw-y-1"})
    assert set(fleet.believers) == {*holders, "sw-y-1"}


def test_the_dead_block_tiers_that_lost_their_state_briefly_though_the_clock_is_set_back(
    client: redis.Redis,
) -> None:
    fleet = fleet_that_lost_its_state(client)
    fleet.now -= 3600
    for _ in range(6):  # those of x send none
        assert fleet.waiters == {"sw-y-1"}
        fleet.now += INTERVAL / 4
        fleet.beat({"sw-y-1"})
    fleet.beat({"sw-y-1"})
    assert fleet.waiters == set()


@pytest.mark.soak
@pytest.mark.usefixtures("no_small_hashes")
@pytest.mark.parametrize("effort", [None, 1], ids=["at once", "in parts"])
@pytest.mark.parametrize("seed", seeds(2, 7))
def test_tiers_stay_within_their_values_whichever_key_is_lost(
    client: redis.Redis, seed: int, effort: int | None
) -> None:
    dice = random.Random(seed)
    fleet = PathFleet(client)
    fleet.effort = effort
    lost_at = fleet.now
    for _ in range(300):
        fleet.now = round(fleet.now + dice.choice([0, 0.001, 0.5, 2]), 6)
        everyone = sorted(fleet.believers.keys() | fleet.waiters)
        action = dice.random()
        # One at a time: what is known of those who held something before is itself in the keys.
        if action < 0.1 and fleet.now > lost_at + INTERVAL:
            client.delete(dice.choice(fleet.keys.all))
            lost_at = fleet.now
            fleet.beat(set())
        elif action < 0.5:
            fleet.issued += 1
            fleet.request(f"sw-x-{fleet.issued}", f"0:{dice.choice('abc')},1:")
        elif action < 0.75 and everyone:
            fleet.release(dice.choice(everyone))
        else:
            fleet.beat(set(dice.sample(everyone, dice.randint(0, len(everyone)))))
        fleet.check()
    # Nothing is lost any more: all are served, and go. Then it is as good as new.
    for _ in range(60):
        fleet.now += 1
        fleet.beat(fleet.believers.keys() | fleet.waiters)
        fleet.check()
        for claim_id in sorted(fleet.believers):
            fleet.release(claim_id)
    assert not fleet.believers
    assert not fleet.waiters
    for claim_id, user in (("a", "a"), ("b", "a"), ("c", "b"), ("d", "b")):
        fleet.request(f"sw-x-{claim_id}", f"0:{user},1:")
    assert sorted(fleet.believers.values()) == [1, 2, 3, 4]


def test_an_entry_without_a_claim_is_not_taken_for_one_whose_keys_were_lost(
    client: redis.Redis,
) -> None:
    """Garbage in state, the claim of one that is gone, and a fact of a later version are none."""
    fleet = Fleet(client)
    fleet.at_once = 1
    fleet.request("sw-x-1")
    claim = client.hget(fleet.keys.state, "sw-x-1")
    client.hset(fleet.keys.state, mapping={"garbage": "x", "sw-x-0": claim, ".later": "1"})
    for _ in range(20):
        fleet.now += 0.1
        fleet.beat({"sw-x-1"})
    assert fleet.believers == {"sw-x-1"}
    fields = {*client.hkeys(fleet.keys.state)}
    assert not fields & {"garbage", "sw-x-0", ".rebuild"}
    fleet.request("sw-x-2")
    assert fleet.believers == {"sw-x-1", "sw-x-2"}
