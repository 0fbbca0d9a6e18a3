"""How a race is run: all rivals in one process, in turns, and only ratios count.

Machines are shared and noisy. Runs of the rivals alternate, so that a slow
spell meets them all; what is printed is the median of the ratios of
neighbouring runs, with absolute figures for orientation only.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NoReturn

Clock = Callable[[], float]
Run = Callable[[], float]  # does the work once, returns seconds per operation


@dataclass
class Race:
    """One workload, its rivals, and the bar that ours has to pass.

    ``runs`` maps a rival's name to a function that does the work once and
    returns its cost per operation. Ratios are taken to ``base``.
    """

    title: str
    runs: dict[str, Run]
    base: str
    ours: str
    bar: float
    repeats: int = 9
    unit: str = "µs"
    medians: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    def run(self) -> bool:
        """Run it, print a row for each rival, and tell whether ours passed."""
        for work in self.runs.values():  # warm caches and specialised bytecode
            work()
        costs: dict[str, list[float]] = {name: [] for name in self.runs}
        for _ in range(self.repeats):
            for name, work in self.runs.items():
                gc.collect()
                costs[name].append(work())
        for name, own in costs.items():
            self.medians[name] = median(own)
            self.ratios[name] = median(
                mine / base for mine, base in zip(own, costs[self.base], strict=True)
            )
        passed = self.ratios[self.ours] <= self.bar
        print(f"\n{self.title}")
        for name, ratio in sorted(self.ratios.items(), key=lambda item: item[1]):
            mark = ""
            if name == self.ours:
                mark = f"  <- bar {self.bar:g}: {'passed' if passed else 'MISSED'}"
            print(f"  {name:<38} {ratio:7.3f}   {self.medians[name] * 1e6:10.2f} {self.unit}{mark}")
        sys.stdout.flush()
        return passed


def timed(clock: Clock, work: Callable[[], object], operations: int) -> float:
    """Seconds per operation of ``work``."""
    started = clock()
    work()
    return (clock() - started) / operations


def cpu(work: Callable[[], object], operations: int) -> float:
    return timed(time.process_time, work, operations)


def start(main: Callable[[], int]) -> NoReturn:
    """Run a benchmark as a program; with ``--help``, print how to call it instead."""
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(sys.modules["__main__"].__doc__)
        sys.exit(0)
    sys.exit(main())


def report(results: Sequence[tuple[str, bool]]) -> int:
    """Say what was missed; the exit code."""
    missed = [title for title, passed in results if not passed]
    print(f"\n{len(results) - len(missed)} of {len(results)} bars passed on {python()}")
    for title in missed:
        print(f"  missed: {title}")
    return 1 if missed else 0


def python() -> str:
    return f"{sys.implementation.name} {sys.version.split()[0]}"
