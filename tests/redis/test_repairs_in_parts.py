"""What was lost of very many claims is made anew in several calls; nobody is wronged meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis
from tests.redis._eval import evaluate
from tests.redis._server import BUSY, until

from slotwise import Adaptive, Rate, Tier, Tiers
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.redis._keys import SemaphoreKeys
from slotwise.redis._path_keys import KINDS, PathKeys
from slotwise.redis._scripts import load

pytestmark = [pytest.mark.usefixtures("x_listens"), pytest.mark.soak]

SEMAPHORE, TIERS = SemaphoreKeys("adv-sem", "s"), PathKeys("adv-sem", "t")
HOLDERS, TENANTS, WAITERS = 900, 300, 300


def calls(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def run(client: redis.Redis, name: str, *args: object) -> Any:
    keys = SEMAPHORE.all if name.startswith("semaphore") else TIERS.all
    return evaluate(client, load(name).source, len(keys), *keys, "", *map(str, args))


def run_until_done(client: redis.Redis, name: str, *args: object) -> tuple[Any, int]:
    """The reply of a script, and how many calls did only a part of a repair before that."""
    parts = 0
    while True:
        try:
            return run(client, name, *args), parts
        except redis.ResponseError as error:
            if not str(error).startswith("REPAIRING "):
                raise
            parts += 1


def fill_tiers(client: redis.Redis) -> None:
    """Each tenant holds all of its three slots, and one more waits."""
    paths = [(f"sw-x-{n}", f"0:t{n % TENANTS},1:") for n in range(HOLDERS + WAITERS)]
    for at in range(0, len(paths), 40):
        own = [word for each in paths[at : at + 40] for word in each]
        args = ("tenant*,all", "3,5000", 60, "-", "wait", "", "host 1 ", "", "")
        run(client, "tiers/request", *args, *own)


def hold(client: redis.Redis, number: int) -> list[Any]:
    args = (f"sw-x-{number}", 5_000, 60, "", "wait", "", "host 1 ", "", "")
    reply: list[Any] = run(client, "semaphore/request", *args)
    return reply


@pytest.mark.parametrize(
    "lost", [kind for kind in KINDS if kind in ("holders", "waiters", "queue")]
)
async def test_tiers_of_very_many_claims_are_rebuilt_in_several_calls(
    config: RedisConfig, client: redis.Redis, lost: str
) -> None:
    fill_tiers(client)
    client.delete(f"adv-sem:tiers_{lost}:t")
    tiers = Tiers(Tier("tenant", 3, keyed=True), Tier("all", 5_000), name="t", url=config)
    before = calls(client)
    acquired = await tiers.acquire(tenant="new", timeout=60)
    assert calls(client) - before > 5, "one call does only a part of it"
    assert acquired.slot_number == HOLDERS + 1
    assert (await tiers.stats())["tenant"].keys["t7"].active == 3, "its holders were counted"
    assert len({each.acquisition_id for each in await tiers.waiters()}) == WAITERS
    assert client.zcard("adv-sem:tiers_holders:t") == HOLDERS + 1
    # The first waiter of a tenant gets what it releases.
    run(client, "tiers/release", "", "sw-x-7")
    assert client.zscore("adv-sem:tiers_holders:t", f"sw-x-{HOLDERS + 7}") is not None
    assert await tiers.release(acquired) is True


async def test_heartbeats_get_through_while_tiers_are_rebuilt(
    config: RedisConfig, client: redis.Redis
) -> None:
    """Those of several objects travel together, and only one of them is under repair."""
    fill_tiers(client)
    tiers = Tiers(
        Tier("tenant", 3, keyed=True),
        Tier("all", 5_000),
        name="t",
        heartbeat_max_interval=BUSY,
        url=config,
    )
    others = Tiers(Tier("all", 5), name="other", heartbeat_max_interval=BUSY, url=config)
    held = [await tiers.acquire(tenant="new"), await others.acquire()]

    def is_renewed(then: float) -> bool:
        score = client.zscore("adv-sem:tiers_holders:t", held[0].acquisition_id) or 0.0
        return held[0].lost.is_set() or score > then

    for _ in range(2):
        renewed = client.zscore("adv-sem:tiers_holders:t", held[0].acquisition_id) or 0.0
        client.delete("adv-sem:tiers_parked:t")
        await until(lambda then=renewed: is_renewed(then), "a heartbeat", within=60)
    assert not any(each.lost.is_set() for each in held)
    assert await tiers.release(held[0]) is True
    assert await others.release(held[1]) is True


def test_what_is_lost_again_during_a_repair_is_found(client: redis.Redis) -> None:
    fill_tiers(client)
    client.delete("adv-sem:tiers_queue:t")
    for lost in ("waiters", "queue", "holders", "numbers"):
        with pytest.raises(redis.ResponseError, match=r"^REPAIRING"):
            run(client, "tiers/describe")
        client.delete(f"adv-sem:tiers_{lost}:t")
    _, parts = run_until_done(client, "tiers/describe")
    assert parts > 5
    assert client.zcard("adv-sem:tiers_queue:t") == WAITERS
    state = client.hgetall("adv-sem:tiers_state:t")
    assert state["1:"].split()[:2] == [str(HOLDERS), str(WAITERS)]
    assert {state[f"0:t{n}"].split(" ", 2)[0] for n in range(TENANTS)} == {"3"}


def test_the_call_that_finishes_a_long_repair_does_nothing_else(client: redis.Redis) -> None:
    fill_tiers(client)
    client.delete("adv-sem:tiers_parked:t")
    released = ["sw-x-7"]
    asked_again = 0
    while not client.hexists(TIERS.all[0], ".suspect"):
        with pytest.raises(redis.ResponseError, match=r"^REPAIRING"):
            run(client, "tiers/release", "", *released)
    while client.hexists(TIERS.all[0], ".suspect"):
        with pytest.raises(redis.ResponseError, match=r"^REPAIRING"):
            run(client, "tiers/release", "", *released)
        asked_again += 1
    assert asked_again > 5
    assert client.zscore("adv-sem:tiers_holders:t", "sw-x-7") is not None
    assert run(client, "tiers/release", "", *released)[0] == "1"
    assert client.zscore("adv-sem:tiers_holders:t", f"sw-x-{HOLDERS + 7}") is not None


def test_a_heartbeat_that_takes_a_waiter_for_a_holder_is_no_reason_for_a_repair(
    client: redis.Redis,
) -> None:
    """As after a failover, when the grant was made on another server."""
    fill_tiers(client)
    waiter = f"sw-x-{HOLDERS + 7}"
    [[_, *outcome]] = run(client, "tiers/heartbeat", "", 60, "", 1, 0, waiter)
    assert outcome == [f"lost {waiter}"]
    assert client.hget(TIERS.all[0], ".suspect") is None
    assert client.zscore("adv-sem:tiers_waiters:t", waiter) is None
    assert client.zcard("adv-sem:tiers_holders:t") == HOLDERS


@pytest.mark.parametrize("shape", ["tenant*,all", "tenant*=,all"])
def test_a_call_that_serves_twice_grants_no_more_than_another(
    client: redis.Redis, shape: str
) -> None:
    paths = [(f"sw-x-{n}", f"0:t{n % 40},1:") for n in range(HOLDERS)]
    for at in range(0, HOLDERS, 60):
        own = [word for each in paths[at : at + 60] for word in each]
        run(client, "tiers/request", shape, "1,5000", 60, "-", "wait", "", "host 1 ", "", "", *own)
    resize, after, held, most = ("", 60, shape, "1,5000", 0, "", 0, 60), "", 40, 0
    while True:
        after = run(client, "tiers/resize", *resize, after)[1]
        most, held = max(most, client.zcard(TIERS.all[1]) - held), client.zcard(TIERS.all[1])
        if not after:
            break
    while held < HOLDERS:
        run(client, "tiers/heartbeat", "", 60, "", 0, 0)
        most, held = max(most, client.zcard(TIERS.all[1]) - held), client.zcard(TIERS.all[1])
    assert most == 96


async def test_the_numbers_of_very_many_holders_are_counted_in_several_calls(
    config: RedisConfig, client: redis.Redis
) -> None:
    for number in range(1, HOLDERS + 1):
        assert hold(client, number)[:2] == ["granted", number]
    for number in (5, 6, 7, 300):
        run(client, "semaphore/release", f"sw-x-{number}", "", 60, "", "")
    client.delete(SEMAPHORE.numbers)
    [queued, *_] = hold(client, 5_000)
    assert queued == "queued", "nobody knows yet which numbers are free"
    assert client.hget(SEMAPHORE.state, ".rebuild") is not None
    # Some leave meanwhile, in all the ways there are.
    run(client, "semaphore/release", "sw-x-600", "", 60, "", "")
    run(client, "semaphore/release_many", "", 60, "", "sw-x-1", "sw-x-899")
    run(client, "semaphore/kick", "sw-x-450", "", 60, "")
    args = ("sw-x-5001", 5_000, 60, "", "try", "", "host 1 ", "", "")
    reply, parts = run_until_done(client, "semaphore/request", *args)
    assert parts > 3, "one call does only a part of it"
    claim = client.hget(SEMAPHORE.state, "sw-x-5000").split()[4]
    assert (claim, reply[:2]) == ("1", ["granted", 5]), "the lowest ones, in order"
    later = [hold(client, number)[1] for number in range(6_000, 6_007)]
    assert later == [6, 7, 300, 450, 600, 899, 901]
    assert client.hget(SEMAPHORE.state, ".rebuild") is None
    # And by a client, which asks again by itself.
    client.delete(SEMAPHORE.numbers)
    semaphore = RedisSemaphore(5_000, name="s", config=config)
    before = calls(client)
    acquired = await semaphore.acquire(timeout=60)
    assert calls(client) - before > 3
    assert acquired.slot_number == 902
    assert await semaphore.release(acquired) is True


def test_a_lost_key_during_the_count_of_numbers_gives_nobody_a_number_twice(
    client: redis.Redis,
) -> None:
    for number in range(1, HOLDERS + 1):
        hold(client, number)
    client.delete(SEMAPHORE.numbers)
    for lost in (SEMAPHORE.numbers, SEMAPHORE.numbers, SEMAPHORE.waiting, SEMAPHORE.ttl):
        for _ in range(4):
            run(client, "semaphore/heartbeat", "", 60, "", 0, 0)
            hold(client, int(time.monotonic_ns()))
        client.delete(lost)
    for _ in range(40):
        run(client, "semaphore/heartbeat", "", 60, "", 0, 0)
    claims = [
        text.split() for id_, text in client.hgetall(SEMAPHORE.state).items() if id_[0] == "s"
    ]
    granted = [claim[4] for claim in claims if claim[3] != "0"]
    assert len(granted) == len(claims) > HOLDERS
    assert sorted(map(int, granted)) == list(range(1, len(granted) + 1))


async def test_a_tier_of_very_many_keys_is_frozen_in_several_calls(
    config: RedisConfig, client: redis.Redis
) -> None:
    value = Adaptive(3, 1, 9)
    tiers = Tiers(Tier("tenant", value, keyed=True), Tier("all", 5_000), name="t", url=config)
    held = await asyncio.gather(*(tiers.acquire(tenant=f"t{n}") for n in range(200)))
    before = calls(client)
    await tiers.freeze("tenant", 5)
    assert calls(client) - before > 3
    values = [client.hget(TIERS.all[0], f"0:t{n}").split()[2] for n in range(200)]
    assert {*values} == {"5"}
    for each in held:
        await tiers.release(each)


async def test_the_keys_of_a_tier_are_looked_at_in_parts_when_its_pause_ends(
    config: RedisConfig, client: redis.Redis
) -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 5_000), name="t", url=config)
    pause = ("tenant*,all", "1,5000", "0", 600)  # that tier, with all its keys
    assert run(client, "tiers/pause", "", 60, *pause) == ["paused"]
    waiting = [asyncio.create_task(tiers.acquire(tenant=f"t{n}")) for n in range(300)]
    await until(lambda: client.zcard("adv-sem:tiers_waiters:t") == 300, "all of them in the queue")
    before = calls(client)
    await tiers.reopen()
    held = await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert calls(client) - before > 3
    for each in held:
        await tiers.release(each)


async def test_the_buckets_of_a_tier_get_another_rate_in_several_calls(
    config: RedisConfig, client: redis.Redis
) -> None:
    slow = Rate(10, per=360_000, burst=10)
    tiers = Tiers(Tier("tenant", rate=slow, keyed=True), Tier("all", 5_000), name="t", url=config)
    costs = [n % 10 + 1 for n in range(300)]
    held = await asyncio.gather(
        *(tiers.acquire(tenant=f"t{n}", costs={"tenant": cost}) for n, cost in enumerate(costs))
    )
    before = calls(client)
    # Those that come meanwhile are served afterwards, by the new rate.
    faster = Rate(30, per=360_000, burst=30)
    resizing = asyncio.create_task(tiers.resize("tenant", faster))
    newcomer = await tiers.acquire(tenant="t0", costs={"tenant": 2})
    await resizing
    assert calls(client) - before > 3
    left = (await tiers.stats())["tenant"].keys
    expected = {f"t{n}": 10 - cost - 2 * (n == 0) for n, cost in enumerate(costs)}
    assert {key: round(left[key].level or 0.0) for key in expected} == expected
    for each in (*held, newcomer):
        await tiers.release(each)
