"""Adaptive limits against the best fixed limit and against what others do, in virtual time.

The table of docs/adaptive.md, and what an acquisition costs more than one of a fixed value. With
``--plots`` it also draws the limits of each scenario over time (needs matplotlib, in the docs
extra), with ``--pairs`` it only measures the cost.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import redis

from benchmarks._race import Race, Run, cpu, start
from benchmarks.adaptive.rivals import RIVALS
from benchmarks.adaptive.scenarios import MAX, MIN, SCENARIOS, Scenario, search
from benchmarks.adaptive.simulation import Controller, Fixed, Ours, Simulation
from benchmarks.bench_redis import running_server
from slotwise import Adaptive, MemorySemaphore
from slotwise._core.semaphore import Semaphore
from slotwise.redis import RedisConfig, RedisSemaphore

LEVEL = 0.95  # of a rival's score: as good as that rival


def controllers(scenario: Scenario) -> dict[str, Controller]:
    """Ours first, then the rivals."""
    best = scenario.bests[-1]
    return {
        "slotwise": Ours(Adaptive(scenario.start, MIN, MAX)),
        **{name: rival(scenario.start) for name, rival in RIVALS.items()},
        "half": Fixed(max(best // 2, MIN)),
        "double": Fixed(min(best * 2, MAX)),
    }


async def pairs(limit: Semaphore, count: int) -> None:
    for _ in range(count):
        async with limit.cm():
            pass


def measure_pairs() -> bool:
    """What a pair of `cm()` costs if the value adapts, against a fixed one: CPU time."""

    def in_memory(value: int | Adaptive) -> Run:
        limit = MemorySemaphore(value)
        return lambda: cpu(lambda: asyncio.run(pairs(limit, 20_000)), 20_000)

    passed = Race(
        "uncontended pair of cm(), memory",
        {"fixed": in_memory(20), "adaptive": in_memory(Adaptive(20, 2, 200))},
        *("fixed", "adaptive", 1.45),
    ).run()
    with running_server() as port, redis.Redis(port=port) as client:
        loop = asyncio.new_event_loop()

        def used() -> float:
            """The CPU time of this process and of the server."""
            server = client.info("cpu")
            return time.process_time() + float(server["used_cpu_user"] + server["used_cpu_sys"])

        def on_redis(value: int | Adaptive, name: str) -> Callable[[], float]:
            config = RedisConfig(f"redis://127.0.0.1:{port}")
            limit = RedisSemaphore(value, name=name, config=config)

            def run() -> float:
                before = used()
                loop.run_until_complete(pairs(limit, 1000))
                return (used() - before) / 1000

            return run

        passed &= Race(
            "uncontended pair of cm(), Redis, client and server",
            {
                "fixed": on_redis(20, "fixed"),
                "adaptive": on_redis(Adaptive(20, 2, 200), "adaptive"),
            },
            *("fixed", "adaptive", 1.1),
            repeats=15,
        ).run()
        loop.close()
    return passed


def main() -> int:
    if "--pairs" in sys.argv:
        return 0 if measure_pairs() else 1
    plots = Path("docs") if "--plots" in sys.argv else None
    throughputs, passed = [], True
    names = [*controllers(SCENARIOS[0])]
    print("Share of the best fixed limit's throughput, and p99 as a multiple of its p99.")
    print(f"{'scenario':<28}{'best':>5}  " + "".join(f"{name:>14}" for name in names))
    for scenario in SCENARIOS:
        if "--quick" not in sys.argv:
            for span, best in zip(scenario.spans, scenario.bests, strict=True):
                found = search(scenario, span)
                if not best * 0.8 <= found <= best * 1.25:
                    print(f"  the best fixed limit is {found}, not {best}")
                    passed = False
        seen = {name: scenario.play(each) for name, each in controllers(scenario).items()}
        for number, best in enumerate(scenario.bests):
            cells, scores = [], []
            for name in names:
                own, fixed, _ = seen[name][number]
                throughput, p99 = own.throughput / fixed.throughput, own.p99 / fixed.p99
                cells.append(f"{throughput:>7.2f} {p99:>5.2f} ")
                scores.append(own.score / fixed.score)
                if name == "slotwise":
                    throughputs.append(throughput)
                    passed &= throughput >= 0.87 and p99 <= 1.6
            # A fixed limit that happens to be the best one of a span is no rival there.
            rivals = [
                score
                for name, score in zip(names[1:], scores[1:], strict=True)
                if name != "half" or max(scenario.bests[-1] // 2, MIN) != best
            ]
            ahead = scores[0] >= LEVEL * max(rivals)
            passed &= ahead
            mark = "" if ahead else "  behind"
            print(
                f"{scenario.name:<28}{best:>5}  " + "".join(f"{cell:>14}" for cell in cells) + mark
            )
        sys.stdout.flush()
    middle = median(throughputs)
    passed &= middle >= 0.95
    print(f"median throughput {middle:.3f} (bar 0.95), least {min(throughputs):.3f} (bar 0.87)")
    print("passed" if passed else "MISSED")
    passed &= measure_pairs()
    if plots is not None:
        draw(plots / "adaptive.svg")
    return 0 if passed else 1


def draw(path: Path) -> None:
    """The limits over time, of ours and of two rivals."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "slotwise"  # the same picture, the same file
    shown = ("knee at 20", "capacity halves, recovers", "latency drifts to 3 x", "knee at 8")
    figure, axes = plt.subplots(2, 2, figsize=(10, 6), sharey=False, layout="constrained")
    for axis, name in zip(axes.flat, shown, strict=True):
        [scenario] = [each for each in SCENARIOS if each.name == name]
        seconds = scenario.spans[-1][1]
        for label, controller in (
            ("slotwise", Ours(Adaptive(scenario.start, MIN, MAX))),
            ("Gradient2", RIVALS["Gradient2"](scenario.start)),
            ("Vegas", RIVALS["Vegas"](scenario.start)),
        ):
            run = Simulation(scenario.service, controller, scenario.load).play(seconds)
            times, limits = zip(*run.limits, strict=True)
            axis.step([*times, seconds], [*limits, limits[-1]], where="post", label=label, lw=1)
        first = 0.0
        for span, best in zip(scenario.spans, scenario.bests, strict=True):
            axis.hlines(best, *span, colors="black", linestyles="dashed", label="_best")
            first = span[1]
        axis.set(title=name, xlabel="s", ylabel="limit", xlim=(0, first), ylim=(0, 60))
    axes.flat[0].legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    start(main)
