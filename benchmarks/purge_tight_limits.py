"""Many runs of the purger with both limits at 2, on a machine that has other things to do.

    python -m benchmarks.purge_tight_limits --runs=200 --busy=4

``--runs`` runs with 5 ms per operation, and as many with no delay. ``--busy`` starts that many
processes that only use CPU. With tight limits, a run takes four times as long if its workers
are dismissed, and a busy machine must not cause that: the scaler has to want all workers of a
slow run until its end, and one for a fast run. A run that gets no CPU is slow anyway, so its
time is only printed, next to the time for which the watching thread alone waited for a CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._race import python, report, start
from benchmarks.bench_purge import old_files
from slotwise.purge import PurgeOptions, Run, make_plan
from slotwise.purge._scaling import WorkerScaler

LATENCY = 0.005
LIMIT = 2


class Watched(WorkerScaler):
    """Remembers what it wanted."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.history: list[int] = []

    def look(self, *args: Any, **more: Any) -> int:
        wanted = super().look(*args, **more)
        self.history.append(wanted)
        return wanted

    @property
    def least_after_growth(self) -> int:
        """The fewest workers that it wanted once it had wanted all."""
        if self.most not in self.history:
            return 0
        return min(self.history[self.history.index(self.most) :])


@contextmanager
def slow_file_system(seconds: float) -> Iterator[None]:
    """Let all that is done through a directory's descriptor take so long."""
    real = {name: getattr(os, name) for name in ("open", "stat", "unlink")}

    def slowed(name: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if more.get("dir_fd") is not None:
                time.sleep(seconds)
            return real[name](*args, **more)

        return call

    for name in real:
        setattr(os, name, slowed(name))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def queued_seconds() -> float:
    """How long this thread was ever queued for a processor; 0 where nobody knows."""
    try:
        text = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text()
    except OSError:
        return 0.0
    return int(text.split()[1]) / 1e9


def one_run(root: Path, latency: float) -> tuple[float, float, Watched]:
    directories, files = (20, 25) if latency else (60, 100)
    old_files(root, directories, files)
    plan = make_plan(
        root, PurgeOptions(max_concurrency_scanning=LIMIT, max_concurrency_deletion=LIMIT)
    )
    try:
        run = Run(plan)
        scaler = run._scaler = Watched(run._scaler.most)
        queued, started = queued_seconds(), time.perf_counter()
        if latency:
            with slow_file_system(latency):
                purged = run.run().files_purged
        else:
            purged = run.run().files_purged
        seconds = time.perf_counter() - started
    finally:
        plan.close()
    if purged != directories * files:
        raise RuntimeError(f"{purged} files were purged, and not {directories * files}")
    for directory in root.iterdir():
        directory.rmdir()
    root.rmdir()
    return seconds, queued_seconds() - queued, scaler


def flag(name: str, default: int) -> int:
    given = [word.removeprefix(f"--{name}=") for word in sys.argv if word.startswith(f"--{name}=")]
    return int(given[0]) if given else default


def main() -> int:
    runs = flag("runs", 20 if "--quick" in sys.argv else 200)
    print(f"slotwise purge on {python()}; {runs} runs, limits {LIMIT}/{LIMIT}")
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-purge-") as folder,
        busy_processes(flag("busy", 0)),
    ):
        for latency in (LATENCY, 0.0):
            found = [one_run(Path(folder) / "tree", latency) for _ in range(runs)]
            times = sorted(seconds for seconds, _, _ in found)
            print(
                f"\n{latency * 1000:g} ms per operation: seconds min {times[0]:.2f}, median"
                f" {median(times):.2f}, 95 % {times[len(times) * 95 // 100]:.2f}, max"
                f" {times[-1]:.2f}"
            )
            slowest = max(found, key=lambda each: each[0])
            print(f"  in the slowest run the watch was queued for {slowest[1]:.2f} s")
            if latency:
                fewer = sum(a.least_after_growth < a.most for _, _, a in found)
                words = f"runs that sent workers home: {fewer} (bar 0)"
                fine = not fewer
            else:
                more = sum(max(a.history, default=1) > 1 for _, _, a in found)
                words = f"runs with more than one worker: {more} (bar 5 %)"
                fine = more <= runs * 0.05
            print(f"  {words}")
            results.append((words, fine))
            sys.stdout.flush()
    return report(results)


if __name__ == "__main__":
    start(main)
