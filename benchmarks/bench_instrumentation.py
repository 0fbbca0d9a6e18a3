"""What hooks cost: nothing where there is none, and with OpenTelemetry on Redis a part of the call.

The first race is one of a pair in memory with itself, before a hook was ever added and after one
was removed: the switch leaves nothing behind. A pair there takes about a microsecond and each of
the SDK's histograms some ten, so only the ratio on Redis has a bar.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from benchmarks._race import Race, cpu, report, start
from benchmarks.bench_redis import running_server
from slotwise import MemorySemaphore
from slotwise.instrumentation import add_hook, remove_hook
from slotwise.instrumentation.opentelemetry import instrument, uninstrument
from slotwise.redis import RedisConfig, RedisSemaphore


async def pairs(semaphore: Any, count: int) -> None:
    for _ in range(count):
        async with semaphore.cm():
            pass


def without_a_hook(runner: asyncio.Runner, count: int) -> tuple[str, bool]:
    semaphore = MemorySemaphore(1, name="bench")

    def plain() -> float:
        return cpu(lambda: runner.run(pairs(semaphore, count)), count)

    def after_a_hook() -> float:
        add_hook(_ignore)
        remove_hook(_ignore)
        return plain()

    runs = {"no hook": plain, "a hook was removed": after_a_hook}
    race = Race("a pair in memory, CPU", runs, "no hook", "a hook was removed", 1.01, repeats=21)
    return race.title, race.run()


def _ignore(_: object) -> None: ...


def with_opentelemetry(runner: asyncio.Runner, port: int, count: int) -> tuple[str, bool]:
    config = RedisConfig(f"redis://127.0.0.1:{port}")
    semaphore = RedisSemaphore(1, name="bench", config=config)
    provider = MeterProvider([InMemoryMetricReader()])

    def plain() -> float:
        return cpu(lambda: runner.run(pairs(semaphore, count)), count)

    def measured() -> float:
        instrument(meter_provider=provider)
        try:
            return plain()
        finally:
            uninstrument()

    runs = {"plain": plain, "with OpenTelemetry": measured}
    race = Race("a pair on Redis, CPU", runs, "plain", "with OpenTelemetry", 1.5)
    return race.title, race.run()


def main() -> int:
    quick = "--quick" in sys.argv
    with running_server() as port, asyncio.Runner() as runner:
        results = [
            without_a_hook(runner, 2_000 if quick else 20_000),
            with_opentelemetry(runner, port, 100 if quick else 1000),
        ]
    return report(results)


if __name__ == "__main__":
    start(main)
