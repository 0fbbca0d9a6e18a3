"""Tiers and SlotManager: what two limits, rates and fair order cost, and what they promise.

Ratios in one run; CPU time of the process. On Redis commands are counted as the
server's MONITOR shows them, without those that scripts run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median
from typing import Any

import redis

from benchmarks._api_limits import api_limits
from benchmarks._many_keys import many_keys_of_a_rate
from benchmarks._race import Race, python, report, start
from benchmarks._rates import rate_on_redis, rates_in_memory
from benchmarks.bench_redis import running_server
from slotwise import (
    MemorySemaphore,
    ProcessSemaphore,
    RedisConfig,
    RedisSemaphore,
    SlotManager,
    Tier,
    Tiers,
)
from slotwise._core.limit import AcquisitionContext

Result = tuple[str, bool]


def in_loop(work: Callable[[], Awaitable[float]]) -> float:
    async def main() -> float:
        return await work()

    return asyncio.run(main())


# ------------------------------------------------------------------ uncontended


def alone_with_one_semaphore(pairs: int = 20_000) -> float:
    async def work() -> float:
        semaphore = MemorySemaphore(value=10)
        started = time.process_time()
        for _ in range(pairs):
            async with semaphore.cm() as _acquired:
                pass
        return (time.process_time() - started) / pairs

    return in_loop(work)


def alone_with_two_semaphores(pairs: int = 20_000) -> float:
    async def work() -> float:
        of_user, of_all = MemorySemaphore(value=1), MemorySemaphore(value=10)
        started = time.process_time()
        for _ in range(pairs):
            async with of_user.cm(), of_all.cm():
                pass
        return (time.process_time() - started) / pairs

    return in_loop(work)


def alone_with_a_dict_of_asyncio(pairs: int = 20_000) -> float:
    """The document's way, with asyncio's own semaphores: nobody is ever forgotten."""

    async def work() -> float:
        users: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(1))
        of_all = asyncio.Semaphore(10)
        started = time.process_time()
        for _ in range(pairs):
            async with users["alice"], of_all:
                pass
        return (time.process_time() - started) / pairs

    return in_loop(work)


def alone_with_a_manager(pairs: int = 20_000) -> float:
    async def work() -> float:
        slots = SlotManager(cleanup_interval=0)
        started = time.process_time()
        for _ in range(pairs):
            async with slots.upload("alice") as _acquired:
                pass
        return (time.process_time() - started) / pairs

    return in_loop(work)


# ------------------------------------------------------------------------ crowd

USERS, UPLOADS = 1_000, 100


def crowd_at_one_semaphore(tasks: int) -> float:
    async def work() -> float:
        semaphore = MemorySemaphore(value=UPLOADS)

        async def member() -> None:
            async with semaphore.cm():
                await asyncio.sleep(0)

        started = time.process_time()
        await asyncio.gather(*[member() for _ in range(tasks)])
        return (time.process_time() - started) / tasks

    return in_loop(work)


def crowd_at_a_manager(tasks: int) -> float:
    async def work() -> float:
        slots = SlotManager(max_uploads=UPLOADS, cleanup_interval=0)

        async def member(user: str) -> None:
            async with slots.upload(user):
                await asyncio.sleep(0)

        started = time.process_time()
        await asyncio.gather(*[member(f"user-{n % USERS}") for n in range(tasks)])
        return (time.process_time() - started) / tasks

    return in_loop(work)


def overshoot(tasks: int) -> int:
    """How often a tier was found over its value, in the same crowd, watched."""

    async def work() -> float:
        slots = SlotManager(max_uploads=UPLOADS, cleanup_interval=0)
        inside: dict[str, int] = defaultdict(int)
        active = faults = 0

        async def member(user: str) -> None:
            nonlocal active, faults
            async with slots.upload(user):
                inside[user] += 1
                active += 1
                faults += inside[user] > 1 or active > UPLOADS
                await asyncio.sleep(0)
                inside[user] -= 1
                active -= 1

        await asyncio.gather(*[member(f"user-{n % USERS}") for n in range(tasks)])
        stats = await slots.stats()
        return faults + stats.uploads_active

    return int(in_loop(work))


# --------------------------------------------------------------- a million users


def many_users(count: int) -> list[Result]:
    """Each user once: the time per user must not grow, nor the memory once enough are idle."""
    idle = 10_000
    part = count // 10

    async def work() -> tuple[list[float], int, int, int]:
        slots = SlotManager(max_idle_users=idle, cleanup_interval=0)
        costs = []
        gc.collect()
        empty = tracemalloc.get_traced_memory()[0]
        full = 0
        for tenth in range(10):
            started = time.process_time()
            for n in range(tenth * part, (tenth + 1) * part):
                async with slots.upload(f"user-{n}"):
                    pass
            costs.append((time.process_time() - started) / part)
            if tenth == 1:  # as many are idle as may be, and tables have their size
                gc.collect()
                full = tracemalloc.get_traced_memory()[0]
        gc.collect()
        end = tracemalloc.get_traced_memory()[0]
        assert (await slots.stats()).user_slots_count == idle
        return costs, empty, full, end

    tracemalloc.start()
    costs, empty, full, end = asyncio.run(work())
    tracemalloc.stop()
    # The first tenth forgets nobody, and is cheaper for that; medians, for a noisy machine.
    growth = median(costs[5:]) / median(costs[1:5])
    each, leaked = (full - empty) / idle, (end - full) / (count - 2 * part)
    linear = f"{count:,} users once each: last half / first half {growth:.2f} (bar 1.5)"
    flat = f"bytes per idle user {each:.0f}; per further user {leaked:.2f} (bar 0.1)"
    print(f"\n{linear}\n{flat}")
    return [(linear, growth <= 1.5), (flat, leaked <= 0.1)]


# ---------------------------------------------------------- processes of a machine


def on_one_machine(repeats: int, pairs: int = 500) -> list[Result]:
    """A pair that nobody else wants, in files."""

    def cost(make: Callable[[], AcquisitionContext]) -> Callable[[], float]:
        async def work() -> float:
            started = time.process_time()
            for _ in range(pairs):
                async with make():
                    pass
            return (time.process_time() - started) / pairs

        return lambda: in_loop(work)

    with tempfile.TemporaryDirectory() as directory:
        semaphore = ProcessSemaphore(20, name="alone", directory=directory)
        of_user, of_all = Tier("user", 5, keyed=True), Tier("all", 20)
        tiers = Tiers(of_user, of_all, name="tiers", url=f"process://{directory}")
        runs = {
            "ProcessSemaphore.cm()": cost(semaphore.cm),
            "two tiers": cost(lambda: tiers.cm(user="somebody")),
        }
        title = "process://, uncontended pair"
        race = Race(title, runs, "ProcessSemaphore.cm()", "two tiers", 1.3, repeats)
        return [(title, race.run())]


# ------------------------------------------------------------------------ Redis


def commands_of(port: int, tiers: tuple[Tier, ...], keys: dict[str, Any], times: int) -> float:
    """Client commands per acquisition and release together, as MONITOR shows them."""
    seen: list[str] = []
    mark = f"bench-{secrets.token_hex(4)}"
    ready = threading.Event()

    def watch() -> None:
        with redis.Redis(port=port) as client, client.monitor() as monitor:
            ready.set()
            for entry in monitor.listen():
                if entry["client_type"] != "lua":
                    seen.append(entry["command"])
                if entry["command"].endswith(f"{mark}-end"):
                    return

    async def work() -> None:
        limits = Tiers(*tiers, url=RedisConfig(f"redis://127.0.0.1:{port}"), name=mark)
        async with limits.cm(**keys):  # connects, and loads the scripts
            pass
        watcher.start()
        await asyncio.to_thread(ready.wait, 30)
        for _ in range(times):
            async with limits.cm(**keys):
                pass
        await limits.close()

    watcher = threading.Thread(target=watch, daemon=True)
    asyncio.run(work())
    with redis.Redis(port=port) as client:
        client.echo(f"{mark}-end")
    watcher.join(30)
    ours = [command for command in seen if command.startswith(("EVALSHA", "EVAL", "FCALL"))]
    return len([command for command in ours if mark in command]) / times


def on_redis(quick: bool) -> list[Result]:
    results = []
    times = 50 if quick else 500
    tenant, model = Tier("tenant", 5, keyed=True), Tier("model", 20, keyed=True)
    with running_server() as port:
        for tiers, keys in (
            ((tenant, Tier("all", 100)), {"tenant": "acme"}),
            ((tenant, model, Tier("all", 100)), {"tenant": "acme", "model": "large"}),
        ):
            commands = commands_of(port, tiers, keys, times)
            title = f"Redis, {len(tiers)} tiers: {commands:.2f} commands per pair (bar 2)"
            print(f"\n{title}")
            # Heartbeats aside, which come by the clock and not by the pair.
            results.append((title, 1.9 <= commands <= 2.1))
        with asyncio.Runner() as runner:
            rate_on_redis(runner, port, 5 if quick else 9)
            results += crowd_on_redis(runner, port, 3 if quick else 5)
        results += api_limits(port, 15.0 if quick else 60.0)
    return results


def crowd_on_redis(runner: asyncio.Runner, port: int, repeats: int) -> list[Result]:
    """The crowd of above on a server: throughput of tiers against the widest tier alone."""
    config = RedisConfig(f"redis://127.0.0.1:{port}")
    server = redis.Redis(port=port)
    tasks = 10_000
    seconds: dict[str, list[float]] = defaultdict(list)

    def cpu() -> float:  # of this process and of the server
        used = server.info("cpu")
        return time.process_time() + float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    async def semaphore() -> float:
        alone = RedisSemaphore(name="crowd", value=UPLOADS, config=config)
        return await crowd("the semaphore alone", [alone.cm] * tasks)

    async def tiers(who: str = "tiers", **order: Any) -> float:
        user, everybody = Tier("user", 1, keyed=True), Tier("all", UPLOADS)
        both = Tiers(user, everybody, name=f"crowd {who}", url=config, **order)
        users = [f"user-{n % USERS}" for n in range(tasks)]
        return await crowd(who, [partial(both.cm, user=user) for user in users])

    async def crowd(who: str, blocks: list[Callable[[], Any]]) -> float:
        async def member(block: Callable[[], Any]) -> None:
            async with block():
                await asyncio.sleep(0)

        await member(blocks[0])  # connects, and loads the scripts
        started, used = time.perf_counter(), cpu()
        await asyncio.gather(*[member(block) for block in blocks])
        seconds[who].append(time.perf_counter() - started)
        return (cpu() - used) / tasks

    title = (
        f"Redis, {tasks:,} tasks over {USERS:,} keys, CPU of client and server"
        " (the semaphore alone = 1; bar 1/0.6)"
    )
    runs = {
        "the semaphore alone": lambda: runner.run(semaphore()),
        "tiers": lambda: runner.run(tiers()),
    }
    race = Race(title, runs, "the semaphore alone", "tiers", 1 / 0.6, repeats=repeats)
    results = [(title, race.run())]
    by_clock = median(seconds["the semaphore alone"]) / median(seconds["tiers"])
    print(
        f"  throughput: {1 / race.ratios['tiers']:.2f} of the semaphore's by CPU,"
        f" {by_clock:.2f} by the clock"
    )
    title = (
        f"Redis, {tasks:,} tasks over {USERS:,} keys, CPU of client and server, in fair order"
        " (FIFO = 1; bar 1/0.85)"
    )
    runs = {
        "FIFO": lambda: runner.run(tiers("FIFO")),
        "fair": lambda: runner.run(tiers("fair", order="fair", fair_by="user")),
    }
    race = Race(title, runs, "FIFO", "fair", 1 / 0.85, repeats=repeats)
    results.append((title, race.run()))
    by_clock = median(seconds["FIFO"]) / median(seconds["fair"])
    print(
        f"  throughput: {1 / race.ratios['fair']:.2f} of FIFO's by CPU, {by_clock:.2f} by the clock"
    )
    return results


# ------------------------------------------------------------------- fair order


def fair_grants(weights: dict[str, float], queued: dict[str, int], value: int) -> list[str]:
    """The keys of all grants in fair order, while ``value`` holders take turns leaving."""
    served: list[str] = []
    tiers = Tiers(
        Tier("tenant", 0, keyed=True),
        Tier("all", value),
        order="fair",
        fair_by="tenant",
        weight=lambda key: weights.get(key, 1.0),
    )

    async def work() -> float:
        async def member(key: str) -> None:
            async with tiers.cm(tenant=key):
                served.append(key)
                await asyncio.sleep(0)

        await asyncio.gather(*[member(key) for key, many in queued.items() for _ in range(many)])
        return 0.0

    in_loop(work)
    return served


def fair_order() -> list[Result]:
    """What fair order promises, in memory."""
    value, results = 20, []
    served = fair_grants({}, {"a": 10_000, "b": 1}, value)
    # The first `value` are granted while nobody waits, and before b asks.
    place = served.index("b") + 1 - value
    title = f"A queues 10,000, B asks once: grant {place} is B's (bar {value + 1})"
    results.append((title, place <= value + 1))
    served = fair_grants({"a": 3.0, "b": 1.0}, {"a": 3_000, "b": 1_000}, value)[value:]
    both = served[: len(served) - 200]  # while both wait
    shares = [both[at : at + 100].count("a") for at in range(len(both) - 100)]
    results.append(
        (
            f"weights 3:1, of any 100 grants A has {min(shares)} to {max(shares)} (bar 74 to 76)",
            min(shares) >= 74 and max(shares) <= 76,
        )
    )
    started = time.process_time()
    served = fair_grants({}, {"a": 10_000}, value)
    seconds = time.process_time() - started
    results.append((f"a lone tenant gets all 10,000, in {seconds:.2f} s", len(served) == 10_000))
    for title, _ in results:
        print(f"\n{title}")
    return results


def main() -> int:
    quick = "--quick" in sys.argv
    repeats = 5 if quick else 11
    print(
        f"SlotManager on {python()}, {os.cpu_count()} cores; ratios, one sem.cm() = 1 unless said"
    )
    results: list[Result] = []

    def race(title: str, runs: dict[str, Callable[[], float]], bar: float, ours: str) -> None:
        contest = Race(title, runs, base=next(iter(runs)), ours=ours, bar=bar, repeats=repeats)
        results.append((title, contest.run()))

    race(
        "uncontended upload slot, two tiers",
        {
            "one sem.cm()": alone_with_one_semaphore,
            "two nested sem.cm()": alone_with_two_semaphores,
            "dict of asyncio.Semaphore + one": alone_with_a_dict_of_asyncio,
            "slots.upload()": alone_with_a_manager,
        },
        2.2,
        "slots.upload()",
    )
    tasks = 10_000
    race(
        f"{tasks:,} tasks over {USERS:,} users, {UPLOADS} uploads, sleep(0) inside",
        {
            "the global semaphore alone": lambda: crowd_at_one_semaphore(tasks),
            "slots.upload()": lambda: crowd_at_a_manager(tasks),
        },
        1 / 0.65,
        "slots.upload()",
    )
    faults = overshoot(tasks)
    title = f"overshoots in that crowd, any tier: {faults} (bar 0)"
    print(f"\n{title}")
    results.append((title, not faults))
    results += rates_in_memory(repeats)
    results += fair_order()
    results += many_users(100_000 if quick else 1_000_000)
    for url in (None, "process://"):
        results += many_keys_of_a_rate(10_000 if quick else 100_000, url)
    results += on_one_machine(5 * repeats)
    results += on_redis(quick)
    return report(results)


if __name__ == "__main__":
    start(main)
