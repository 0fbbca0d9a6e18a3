"""Keys that somebody has damaged: the trouble of one name stays that name's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

import pytest
import redis
from tests.redis._inside import record_of, shared_of
from tests.redis._server import FAKE_CLOCK, until
from tests.redis.test_semaphore import in_line

from slotwise import Tier, Tiers
from slotwise._core.paths import TierSpec
from slotwise.errors import BackendError
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._keys import KINDS, SemaphoreKeys
from slotwise.redis._path_dialect import PATHS
from slotwise.redis._path_keys import KINDS as PATH_KINDS
from slotwise.redis._path_keys import PathKeys
from slotwise.redis._paths import RedisPaths
from slotwise.redis._scripts import load
from slotwise.redis._semaphore_dialect import SEMAPHORE

# A busy machine stands still for some seconds, which must cost no slot; heartbeats are frequent.
HEARTBEATS: Any = {"heartbeat_max_interval": 60, "ping_interval": 0.5}
TIERS = (TierSpec("user", 1, keyed=True), TierSpec("all", 2, keyed=False))


def damage(client: redis.Redis, key: str) -> None:
    """Put something of another type there, which no script can work with.

    At one instant: a script that finds the key missing would restore it.
    """
    client.pipeline(transaction=True).delete(key).rpush(key, "damaged").execute()


async def beats_go_on(client: redis.Redis, key: str) -> None:
    def latest() -> float:
        found = client.zrange(key, -1, -1, withscores=True)
        return float(found[0][1]) if found else 0.0

    before = latest()
    await until(lambda: latest() > before + 3, "heartbeats of the others")


@pytest.mark.soak
async def test_damaged_semaphores_cost_nobody_else_a_slot(
    config: RedisConfig, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def semaphore(kind: str) -> RedisSemaphore:
        return RedisSemaphore(1, name=f"damaged-{kind}", heartbeat_max_interval=2, config=config)

    sound = RedisSemaphore(1, name="sound", config=config, **HEARTBEATS)
    damaged = {kind: semaphore(kind) for kind in KINDS}
    paths = RedisPaths(TIERS, name="t", config=config, **HEARTBEATS)
    held, path = await sound.acquire(), await paths.acquire(("ada", None), timeout=None)
    victims = {kind: await each.acquire() for kind, each in damaged.items()}
    waiting = {kind: asyncio.create_task(each.acquire()) for kind, each in damaged.items()}
    for kind in KINDS:
        line = f"adv-sem:semaphore_waiting:damaged-{kind}"
        await until(lambda line=line: client.zcard(line), "a waiter")
    with caplog.at_level(logging.WARNING, "slotwise.redis"):
        for kind in KINDS:
            damage(client, f"adv-sem:semaphore_{kind}:damaged-{kind}")
        await asyncio.gather(
            beats_go_on(client, "adv-sem:semaphore_main:sound"),
            beats_go_on(client, "adv-sem:tiers_holders:t"),
        )
    assert not held.lost.is_set()
    assert not path.lost.is_set()
    texts = [each.getMessage() for each in caplog.records if "no heartbeat" in each.getMessage()]
    for kind in KINDS:
        complaints = [text for text in texts if f"'damaged-{kind}' got" in text]
        assert len(complaints) <= 1, "one complaint while it lasts"
        assert all("wrong type" in text for text in complaints)
    assert any("'damaged-main'" in text for text in texts)
    await asyncio.wait_for(victims["main"].lost, 20)
    assert "sound" in await RedisSemaphore.get_acquired_stats(config=config)
    assert await sound.release(held) is True
    assert await paths.release(path.acquisition_id) is True
    # Each is of use again as soon as the key is gone.
    for kind, each in damaged.items():
        client.delete(f"adv-sem:semaphore_{kind}:damaged-{kind}")
        await each.release(victims[kind])
        with contextlib.suppress(BackendError):  # that its key is of the wrong type
            await each.release(await asyncio.wait_for(waiting[kind], 20))
        await each.release(await each.acquire(timeout=20))


def has_round_trip(limit: Any) -> bool:
    """Whether a waiter has read the reply that it is queued."""
    return any(waiter.round_trip for waiter in shared_of(limit).waiters.values())


@pytest.mark.usefixtures("rare_heartbeats")
@pytest.mark.parametrize("informed", [True, False])
@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
async def test_a_waiter_that_gave_up_while_a_key_was_damaged_gets_nothing_when_it_is_repaired(
    config: RedisConfig,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    informed: bool,
) -> None:
    if kind == "semaphore":
        limit: Any = RedisSemaphore(1, name="s", heartbeat_max_interval=3000, config=config)
        damaged, queue = "adv-sem:semaphore_main:s", "adv-sem:semaphore_waiting:s"
    else:
        limit = Tiers(Tier("all", 1), name="s", heartbeat_max_interval=3000, url=config)
        damaged, queue = "adv-sem:tiers_holders:s", "adv-sem:tiers_waiters:s"
    held = await limit.acquire()
    waiting = asyncio.create_task(limit.acquire())

    def give_up() -> None:
        client.rename(damaged, "kept")
        damage(client, damaged)
        waiting.cancel()

    if informed:
        await until(lambda: has_round_trip(limit), "a waiter that knows that it is queued")
        give_up()
    else:  # the server has queued it, and the reply is only now read
        dialect = SEMAPHORE if kind == "semaphore" else PATHS
        on_reply = type(dialect).on_reply

        def give_up_first(self: Any, acquisition: Any, reply: list[Any]) -> list[bytes]:
            monkeypatch.undo()
            give_up()
            return on_reply(self, acquisition, reply)

        monkeypatch.setattr(type(dialect), "on_reply", give_up_first)
    await asyncio.wait([waiting])
    client.rename("kept", damaged)
    await until(lambda: client.zcard(queue) == 0, "nobody in the queue")
    assert await limit.release(held) is True
    assert await limit.release(await limit.acquire(timeout=20)) is True


@pytest.mark.soak
async def test_damaged_tiers_cost_nobody_else_a_slot(
    config: RedisConfig, client: redis.Redis
) -> None:
    def tiers(kind: str) -> RedisPaths:
        return RedisPaths(TIERS, name=f"damaged-{kind}", heartbeat_max_interval=2, config=config)

    sound = RedisSemaphore(1, name="sound", config=config, **HEARTBEATS)
    well = RedisPaths(TIERS, name="well", config=config, **HEARTBEATS)
    damaged = {kind: tiers(kind) for kind in PATH_KINDS}
    ada = ("ada", None)
    held, path = await sound.acquire(), await well.acquire(ada, timeout=None)
    victims = {kind: await each.acquire(ada, timeout=None) for kind, each in damaged.items()}
    waiting = {
        kind: asyncio.create_task(each.acquire(ada, timeout=None)) for kind, each in damaged.items()
    }
    for kind in PATH_KINDS:
        line = f"adv-sem:tiers_waiters:damaged-{kind}"
        await until(lambda line=line: client.zcard(line), "a waiter")
        damage(client, f"adv-sem:tiers_{kind}:damaged-{kind}")
    await asyncio.gather(
        beats_go_on(client, "adv-sem:semaphore_main:sound"),
        beats_go_on(client, "adv-sem:tiers_holders:well"),
    )
    assert not held.lost.is_set()
    assert not path.lost.is_set()
    assert await sound.release(held) is True
    assert await well.release(path.acquisition_id) is True
    # These didn't exist before, and are made anew of what the others say.
    repaired = {"ttls", "unfinished", "numbers", "refills", "cleanup", "passed", "shares"}
    for kind, each in damaged.items():
        if client.type(f"adv-sem:tiers_{kind}:damaged-{kind}") == "list":
            with pytest.raises(BackendError, match="wrong type"):
                await asyncio.wait_for(waiting[kind], 20)
            client.delete(f"adv-sem:tiers_{kind}:damaged-{kind}")
            assert kind not in repaired
        else:
            assert kind in repaired
            waiting[kind].cancel()
            await asyncio.wait([waiting[kind]])
        await each.release(victims[kind].acquisition_id)


GARBAGE = [
    (".life", "soon"),
    (".token", "many"),
    (".interval", "often"),
    (".value", "some"),
    (".values", "all"),
    ("claim", "a claim"),
    ("claim", ""),
    ("claim", "1 2 3 4 5 6 7 8"),
]


@pytest.mark.soak
async def test_garbage_in_the_facts_of_one_name_costs_nobody_else_a_slot(
    config: RedisConfig, client: redis.Redis
) -> None:
    def semaphore(name: str) -> RedisSemaphore:
        return RedisSemaphore(1, name=name, config=config, **HEARTBEATS)

    sound, damaged = semaphore("sound"), [semaphore(f"damaged-{n}") for n in range(len(GARBAGE))]
    held, victims = await sound.acquire(), [await each.acquire() for each in damaged]
    waiting = [asyncio.create_task(each.acquire()) for each in damaged]
    for (field, garbage), each, victim in zip(GARBAGE, damaged, victims, strict=True):
        line = f"adv-sem:semaphore_waiting:{each.name}"
        await until(lambda line=line: client.zcard(line), "a waiter")
        field = victim.acquisition_id if field == "claim" else field
        client.hset(f"adv-sem:semaphore_state:{each.name}", field, garbage)
    await beats_go_on(client, "adv-sem:semaphore_main:sound")
    assert not held.lost.is_set()
    assert await sound.release(held) is True
    for (field, _), each, victim, waiter in zip(GARBAGE, damaged, victims, waiting, strict=True):
        await each.release(victim)
        await each.release(await asyncio.wait_for(waiter, 20))
        if field == ".value":
            with pytest.raises(BackendError, match="not a number of slots"):
                await each.stats()
        else:
            assert (await each.stats()).acquired_slots == 0


@pytest.mark.soak
@pytest.mark.parametrize("in_block", [True, False])
async def test_a_release_that_a_damaged_key_refused_is_made_up_for_when_that_is_mended(
    config: RedisConfig, client: redis.Redis, in_block: bool
) -> None:
    semaphore = RedisSemaphore(1, name="s", heartbeat_max_interval=60, config=config)
    if in_block:
        async with semaphore:
            damage(client, "adv-sem:semaphore_waiting:s")
    else:
        held = await semaphore.acquire()
        damage(client, "adv-sem:semaphore_waiting:s")
        with pytest.raises(BackendError):
            await semaphore.release(held)
    client.delete("adv-sem:semaphore_waiting:s")
    async with asyncio.timeout(30):  # and not after the interval
        await semaphore.release(await semaphore.acquire())


@pytest.mark.soak
@pytest.mark.usefixtures("rare_heartbeats")
async def test_waiters_find_out_soon_that_a_damaged_key_was_mended(
    config: RedisConfig, client: redis.Redis
) -> None:
    """And all others with them, though their next heartbeats are minutes away."""
    semaphore = RedisSemaphore(1, name="s", heartbeat_max_interval=3000, config=config)
    held = await semaphore.acquire()
    waiting = asyncio.create_task(semaphore.acquire())
    await in_line(semaphore, 1)
    damage(client, "adv-sem:semaphore_main:s")
    shared_of(semaphore).heartbeat_thread.heartbeat_soon()
    heartbeats = shared_of(semaphore).heartbeat_thread
    await until(
        lambda: heartbeats.checks.is_scheduled(record_of(semaphore)),
        "trouble that is noticed",
    )
    client.delete("adv-sem:semaphore_main:s")
    await asyncio.wait_for(held.lost, 60)
    assert await semaphore.release(await asyncio.wait_for(waiting, 60))


async def test_a_request_that_failed_on_a_damaged_key_waits_for_nothing(
    config: RedisConfig, client: redis.Redis
) -> None:
    """It was queued before the script met the key, and nobody waits for its grant."""
    semaphore = RedisSemaphore(1, name="s", heartbeat_max_interval=60, config=config)
    held = await semaphore.acquire()
    damage(client, "adv-sem:semaphore_numbers:s")
    with pytest.raises(BackendError):
        await semaphore.acquire()
    await until(lambda: client.exists("adv-sem:semaphore_waiting:s") == 0, "nobody in the queue")
    client.delete("adv-sem:semaphore_numbers:s")
    await semaphore.release(held)
    async with asyncio.timeout(30):
        await semaphore.release(await semaphore.acquire())


def test_a_heartbeat_that_a_damaged_key_stopped_is_no_sign_of_life(client: redis.Redis) -> None:
    """A holder that died meanwhile is not put back for another interval."""
    keys, now = SemaphoreKeys(FAKE_CLOCK, "s"), round(time.time(), 3)

    def run(name: str, at: float, *args: object) -> Any:
        given = (*keys.all, f"{at:.6f}", *map(str, args))
        return client.eval(load(name).source, len(keys.all), *given)

    def request(at: float, acquisition_id: str) -> Any:
        rest = (1, 10, "", "wait", "", "host 1 ", "", "")
        return run("semaphore/request", at, acquisition_id, *rest)[0]

    assert request(now, "sw-dead-1") == "granted"
    assert request(now, "sw-living-1") == "queued"
    damage(client, keys.waiting)
    [[due, why]] = run("semaphore/heartbeat", now + 9, "", 10, "", 0, 1, "sw-living-1")
    assert (due, why.split()[0]) == (-1, "failed")
    client.delete(keys.waiting, keys.main)  # as it expires
    assert request(now + 11, "sw-living-2") == "granted"


def run_script(client: redis.Redis, script: str | bytes, keys: list[Any], *args: object) -> Any:
    return client.eval(script, len(keys), *keys, *map(str, args))


def request_path(client: redis.Redis, keys: PathKeys, at: float, *options: object) -> str:
    """Request a path by an interval, a ttl and an id."""
    interval, ttl, acquisition_id = options
    tiers = "user*,all", "1,5", interval, ttl
    rest = "wait", "", "!ab host 1 ", "", "", acquisition_id, "0:k,1:"
    source = load("tiers/request").source
    return str(run_script(client, source, [*keys.all], f"{at:.6f}", *tiers, *rest)[0])


@pytest.mark.soak
@pytest.mark.usefixtures("x_listens")
def test_tiers_that_fail_while_they_are_served_cost_others_of_the_same_heartbeat_nothing(
    client: redis.Redis,
) -> None:
    now = round(time.time(), 3)
    failing, sound = PathKeys(FAKE_CLOCK, "failing"), PathKeys(FAKE_CLOCK, "sound")
    for keys, name in ((failing, "f"), (sound, "s")):
        assert request_path(client, keys, now, 5, 100, f"sw-x-{name}1") == "granted"
        assert request_path(client, keys, now, 15, 100, f"sw-x-{name}2") == "queued"
    written, examined = (
        load("tiers/heartbeat").source.decode(),
        "local function examine(head, here)\n",
    )
    source = written.replace(
        examined, f"{examined}  if head[3] == 'sw-x-f2' then error('no') end\n"
    )
    assert source != written
    beats = [each for name in "fs" for each in (15, "", 0, 1, f"sw-x-{name}2")]
    both = [*failing.all, *sound.all]
    [[_, why], [_, *outcomes]] = run_script(client, source, both, f"{now + 6:.6f}", "x", *beats)
    assert why.startswith("failed ")
    assert [each.split()[:2] for each in outcomes] == [["granted", "sw-x-s2"]]


def test_a_claim_with_a_ttl_of_garbage_is_over_and_the_next_is_served(client: redis.Redis) -> None:
    now, keys = round(time.time(), 3), PathKeys(FAKE_CLOCK, "t")
    assert request_path(client, keys, now, 15, "9", "sw-x-1") == "granted"
    assert request_path(client, keys, now, 15, "9", "sw-x-2") == "queued"
    assert request_path(client, keys, now, 15, "9", "sw-x-3") == "queued"
    claim = client.hget(keys.all[0], "sw-x-2")
    client.hset(keys.all[0], "sw-x-2", claim.replace("15 9 ", "15 long "))
    beat = 15, "", 0, 2, "sw-x-2", "sw-x-3"
    source = load("tiers/heartbeat").source
    [[_, *outcomes]] = run_script(client, source, [*keys.all], f"{now + 10:.6f}", "x", *beat)
    assert [each.split()[:2] for each in outcomes] == [["gone", "sw-x-2"], ["granted", "sw-x-3"]]


async def test_a_waiter_whose_claim_has_a_ttl_of_garbage_is_served_all_the_same(
    config: RedisConfig, client: redis.Redis
) -> None:
    semaphore = RedisSemaphore(1, name="s", ttl=300, config=config)
    held, waiting = await semaphore.acquire(), asyncio.create_task(semaphore.acquire())
    await until(lambda: client.zcard("adv-sem:semaphore_waiting:s"), "a waiter")
    [acquisition_id] = client.zrange("adv-sem:semaphore_waiting:s", 0, -1)
    claim = client.hget("adv-sem:semaphore_state:s", acquisition_id)
    damaged = claim.replace(" 300.0 ", " long ")
    assert damaged != claim
    client.hset("adv-sem:semaphore_state:s", acquisition_id, damaged)
    await semaphore.release(held)
    async with asyncio.timeout(20):
        await semaphore.release(await waiting)
    assert (await semaphore.stats()).acquired_slots == 0


@pytest.mark.parametrize("garbage", ["inf", "nan", "1e30", "-5", "x"])
@pytest.mark.parametrize("fact", [".life", ".interval"])
def test_tiers_with_garbage_for_a_time_serve_others_and_every_key_expires(
    client: redis.Redis, fact: str, garbage: str
) -> None:
    now, keys = round(time.time(), 3), PathKeys(FAKE_CLOCK, "t")
    assert request_path(client, keys, now, 15, "9", "sw-x-1") == "granted"
    assert request_path(client, keys, now, 15, "9", "sw-x-2") == "queued"
    client.hset(keys.all[0], fact, garbage)
    beat = 15, "", 0, 1, "sw-x-2"
    source = load("tiers/heartbeat").source
    [[_, *outcomes]] = run_script(client, source, [*keys.all], f"{now + 10:.6f}", "x", *beat)
    assert [each.split()[:2] for each in outcomes] == [["granted", "sw-x-2"]]
    assert request_path(client, keys, now + 20, 15, "9", "sw-x-3") == "granted"
    assert all(client.pttl(key) != -1 for key in keys.all)
    times = [float(each) for each in client.hmget(keys.all[0], ".interval", ".life")]
    assert times[0] == 15
    assert now + 20 < times[1] / 1_000_000 < now + 100


@pytest.mark.parametrize("garbage", ["inf", "nan", "1e30", "-5", "x"])
@pytest.mark.parametrize("fact", [".life", ".interval"])
def test_a_request_to_tiers_at_rest_with_garbage_for_a_time_is_granted_and_every_key_expires(
    client: redis.Redis, fact: str, garbage: str
) -> None:
    now, keys = round(time.time(), 3), PathKeys(FAKE_CLOCK, "t")
    assert request_path(client, keys, now, 15, "9", "sw-x-1") == "granted"
    source = load("tiers/release").source
    assert run_script(client, source, [*keys.all], f"{now:.6f}", "x", "sw-x-1")[0] == "1"
    client.hset(keys.all[0], fact, garbage)
    assert request_path(client, keys, now, 15, "9", "sw-x-2") == "granted"
    assert all(client.pttl(key) != -1 for key in keys.all)
