"""``slotwise run -- true`` against flock, GNU sem, and the interpreter that does nothing.

What a shell pays for each turn of a loop: by the wall clock, and in CPU time of all processes
that take part. GNU sem is raced if it is installed (Debian: parallel).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._race import Race, report, start

QUICK = "--quick" in sys.argv
REPEATS = 15 if QUICK else 60
BAR = 7


def rivals(folder: Path) -> dict[str, list[str]]:
    script = Path(sys.executable).with_name("slotwise")
    slotwise = [str(script)] if script.exists() else [sys.executable, "-m", "slotwise"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "slotwise run": [*slotwise, "run", "bench", "--limit", "1", "--", "true"],
        "slotwise run --keep-descendants": [
            *(*slotwise, "run", "bench", "--limit", "1", "--keep-descendants", "--", "true"),
        ],
        "flock": ["flock", str(folder / "flock"), "true"],
        "GNU sem": ["sem", "--fg", "--id", "slotwise-bench", "true"],
    }
    return {name: words for name, words in commands.items() if shutil.which(words[0])}


def run(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU time with those of its children."""
    started = time.perf_counter()
    pid = os.posix_spawnp(words[0], words, environment)
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        raise RuntimeError(f"{words[0]} failed: {status}")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime


def main() -> int:
    results = []
    with tempfile.TemporaryDirectory(prefix="slotwise-bench-") as made:
        environment = {**os.environ, "SLOTWISE_DIR": f"{made}/slots"}
        for name in ("PYTHONDONTWRITEBYTECODE", "SLOTWISE_URL"):
            environment.pop(name, None)

        def timed(words: list[str], which: int) -> Callable[[], float]:
            return lambda: run(words, environment)[which]

        for which, title in enumerate(("by the wall clock", "CPU time")):
            found = rivals(Path(made)).items()
            race = Race(
                f"one command, started with a slot that is free, {title}",
                {name: timed(words, which) for name, words in found},
                base="python -c pass",
                ours="slotwise run",
                bar=BAR,
                repeats=REPEATS,
            )
            results.append((race.title, race.run()))
    return report(results)


if __name__ == "__main__":
    start(main)
