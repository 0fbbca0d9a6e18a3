"""ProcessSemaphore against portalocker's NamedBoundedSemaphore, the rival without a server.

Everything by the wall clock: what counts is how long a process has to wait. The
files of all rivals are in one folder on one disk.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import portalocker

from benchmarks._race import Race, report, start, timed
from slotwise import ProcessSemaphore

QUICK = "--quick" in sys.argv
REPEATS = 5 if QUICK else 15

Result = tuple[str, bool]

names = itertools.count()


def ours(folder: Path, value: int = 1, **options: Any) -> ProcessSemaphore:
    return ProcessSemaphore(name=f"b{next(names)}", value=value, directory=folder, **options)


# ------------------------------------------------------------------ one process


def uncontended(folder: Path, pairs: int = 2_000) -> list[Result]:
    """One process takes and gives, nobody else is there."""
    semaphore = ours(folder)
    timed_one = ours(folder, ttl=60)
    theirs = portalocker.NamedBoundedSemaphore(1, name="rival", directory=str(folder))

    def run_theirs() -> None:
        for _ in range(pairs):
            theirs.acquire()
            theirs.release()

    def run(which: ProcessSemaphore) -> Callable[[], None]:
        def work() -> None:
            for _ in range(pairs):
                which.release_sync(which.acquire_sync())

        return work

    def run_async() -> None:
        async def work() -> None:
            for _ in range(pairs):
                async with semaphore.cm():
                    pass

        asyncio.run(work())

    def cost(work: Callable[[], object]) -> Callable[[], float]:
        return lambda: timed(time.perf_counter, work, pairs)

    runs = {
        "portalocker.NamedBoundedSemaphore": cost(run_theirs),
        "slotwise": cost(run(semaphore)),
        "slotwise, ttl": cost(run(timed_one)),
        "slotwise, async with cm()": cost(run_async),
    }
    title = "uncontended pair, value 1 (wall)"
    race = Race(title, runs, "portalocker.NamedBoundedSemaphore", "slotwise", 0.9, REPEATS)
    return [(title, race.run())]


def long_queue(folder: Path, tasks: int = 5_000) -> list[Result]:
    """A long queue for one slot in one process: each waits, is served and gives."""

    def run(count: int) -> float:
        async def work() -> float:
            semaphore = ours(folder)

            async def member() -> None:
                async with semaphore.cm():
                    pass

            started = time.perf_counter()
            async with semaphore.cm():
                waiting = [asyncio.create_task(member()) for _ in range(count)]
                await asyncio.sleep(0)
            await asyncio.gather(*waiting)
            return (time.perf_counter() - started) / count

        return asyncio.run(work())

    run(100)
    short, long = median(run(100) for _ in range(5)), run(tasks)
    title = (
        f"a queue of {tasks:,} costs {long * 1e6:.0f} µs for each, one of 100 {short * 1e6:.0f} µs"
        f" (bar 2 times as much)"
    )
    print(f"\n{title}")
    return [(title, long <= 2 * short)]


# ----------------------------------------------------------------- two processes


def hand_off(folder: Path, rounds: int = 500) -> list[Result]:
    """A slot that goes to and fro: from the release in one process to the other's having it."""
    with Helper("--partner", folder, "handoff", rounds) as partner:
        semaphore = ProcessSemaphore(name="handoff", value=1, directory=folder)
        released = []
        partner.tell("go")
        for _ in range(rounds):
            acquired = semaphore.acquire_sync()
            while not semaphore.waiters_sync():
                time.sleep(0.0002)
            released.append(time.monotonic())
            semaphore.release_sync(acquired)
            while semaphore.holders_sync():  # it gives it back by itself
                time.sleep(0.0002)
        had: list[float] = json.loads(partner.hears())
    waits = [there - here for here, there in zip(released, had, strict=True)]
    p50, p99 = median(waits), quantiles(waits, n=100)[98]
    title = f"hand-off to another process: p50 {p50 * 1e3:.2f} ms (bar 3), p99 {p99 * 1e3:.2f} ms"
    print(f"\n{title}")
    return [(title, p50 <= 3e-3)]


def partner(folder: Path, name: str, rounds: int) -> None:
    semaphore = ProcessSemaphore(name=name, value=1, directory=folder)
    sys.stdin.readline()
    had = []
    for number in range(rounds):
        while True:  # until the other has it
            holders = semaphore.holders_sync()
            if holders:
                break
            time.sleep(0.0002)
        with semaphore.cm():
            had.append(time.monotonic())
        del number
    print(json.dumps(had), flush=True)
    sys.stdin.readline()


def killed(folder: Path, times: int = 10) -> list[Result]:
    """`kill -9` of a holder while another process waits."""
    took = []
    semaphore = ProcessSemaphore(name="killed", value=1, directory=folder)
    for _ in range(times):
        with Helper("--hold", folder, "killed", 0) as holder:
            assert holder.hears() == "held"

            async def wait(pid: int = holder.process.pid) -> float:
                waiting = asyncio.create_task(semaphore.acquire())
                while not (await semaphore.stats()).waiting:
                    await asyncio.sleep(0.001)
                os.kill(pid, signal.SIGKILL)
                started = time.monotonic()
                await semaphore.release(await waiting)
                return time.monotonic() - started

            took.append(asyncio.run(wait()))
    title = (
        f"kill -9 of a holder: the waiter has the slot after {median(took) * 1e3:.1f} ms,"
        f" at most {max(took) * 1e3:.1f} ms (bar 1000)"
    )
    print(f"\n{title}")
    return [(title, max(took) <= 1)]


def hold(folder: Path, name: str, _: int) -> None:
    ProcessSemaphore(name=name, value=1, directory=folder).acquire_sync()
    print("held", flush=True)
    time.sleep(3600)


# --------------------------------------------------------------- many processes


def storm(
    folder: Path,
    hold_ms: int,
    processes: int = 8,
    rounds: int = 200,
    value: int = 3,
    busy: int = 0,
) -> list[Result]:
    """Many processes, few slots; the overshoot is counted from the times of all stays.

    Without any hold the file's lock is never free: that is the harder of the two for the order.
    ``busy`` other processes do nothing but compute meanwhile.
    """
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        log, took = stays_of(folder, f"storm-{busy}-{hold_ms}", processes, rounds)
    finally:
        for other in others:
            other.kill()
            other.wait()
    steps = sorted([(had, 1) for _, had, _, _ in log] + [(gave, -1) for _, _, gave, _ in log])
    most = max(itertools.accumulate(step for _, step in steps))
    by_token = sorted(log, key=lambda stay: stay[3])
    latest = itertools.accumulate((called for called, _, _, _ in by_token), max)
    late = [latest_call - stay[0] for latest_call, stay in zip(latest, by_token, strict=True)]
    p95, worst = quantiles(late, n=20)[18], max(late)
    title = (
        f"{processes} processes x {rounds} on {value} slots, {hold_ms} ms hold"
        f"{f', beside {busy} busy ones' if busy else ''}: {took / len(log) * 1e6:.0f} µs for each,"
        f" overshoot {max(most - value, 0)} (bar 0), a token out of the order of calls by"
        f" {p95 * 1e3:.1f} ms at p95, {worst * 1e3:.1f} ms at most"
        f" (bar 5 {'at p95' if busy else 'at most'})"
    )
    print(f"\n{title}")
    return [(title, most <= value and (p95 if busy else worst) < 5e-3)]


def stays_of(
    folder: Path, name: str, processes: int, rounds: int
) -> tuple[list[list[float]], float]:
    """Return when each stay was asked for, begun and ended, its token, and how long all took."""
    helpers = [Helper("--member", folder, name, rounds) for _ in range(processes)]
    for helper in helpers:
        assert helper.hears() == "ready"
    started = time.monotonic()
    for helper in helpers:
        helper.tell("go")
    log: list[list[float]] = []
    for helper in helpers:
        log += json.loads(helper.hears())
    took = time.monotonic() - started
    for helper in helpers:
        helper.__exit__()
    return log, took


def member(folder: Path, name: str, rounds: int) -> None:
    hold = int(name.rpartition("-")[2]) / 1000
    semaphore = ProcessSemaphore(name=name, value=3, directory=folder)
    semaphore.release_sync(semaphore.acquire_sync())  # all that is done once
    print("ready", flush=True)
    sys.stdin.readline()
    log = []
    for _ in range(rounds):
        called = time.monotonic()
        with semaphore.cm() as acquired:
            had = time.monotonic()
            if hold:
                time.sleep(hold)
            log.append((called, had, time.monotonic(), acquired.fencing_token))
    print(json.dumps(log), flush=True)
    sys.stdin.readline()


class Helper:
    """Another process, running one of the functions here."""

    def __init__(self, role: str, folder: Path, name: str, rounds: int) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.bench_processes"),
                *(role, str(folder), name, str(rounds)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hears(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.communicate()


def main() -> int:
    roles = {"--partner": partner, "--hold": hold, "--member": member}
    if len(sys.argv) > 1 and sys.argv[1] in roles:
        roles[sys.argv[1]](Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return 0
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="slotwise-bench-") as made:
        folder = Path(made)
        results += uncontended(folder)
        results += long_queue(folder)
        results += hand_off(folder)
        results += storm(folder, hold_ms=1)
        results += storm(folder, hold_ms=0)
        results += storm(folder, hold_ms=1, busy=8)
        results += storm(folder, hold_ms=0, busy=8)
        results += killed(folder)
    return report(results)


if __name__ == "__main__":
    start(main)
