"""The purger against find: local trees, and a file system with 5 ms per operation.

Whole processes with default flags, on trees that are made here, in the temporary
directory of the machine. A tree is gone after each run, so every run has its own;
ours and find take turns, and medians are compared.

    --quick        smaller trees, one run each
    --shim=PATH    the C source of the library that slows metadata operations down
                   and counts them; without it the rows of the slow file system are
                   left out. Built with cc into a temporary folder.
    --only=slow    only the rows of the slow file system; --only=local: only the others
    --repeats=N    repeat each local contest N times instead of 3
    --soak         also the tree of 1,000,000 files, which takes minutes to make
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from timeit import repeat

from benchmarks._race import python, report, start
from slotwise import MemorySemaphore
from slotwise.purge._gates import Gate

OLD = 1_000_000_000
LATENCY = 0.005
IN_FLIGHT = 64
# Beside the repository, where the team keeps it.
_USUAL_SHIM = Path(__file__).parents[2] / "shared" / "tools" / "latency_shim.c"

FIND_FILES = ["-mindepth", "1", "-type", "f", "-mtime", "+30", "-delete"]
FIND_DIRECTORIES = ["-mindepth", "1", "-depth", "-type", "d", "-empty", "-delete"]
CASCADE = ["--remove-empty-dirs", "--max-empty-dirs-to-delete", "0"]


# As an installed program runs: with its bytecode on the disk, whatever this shell says.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


@dataclass
class Cost:
    wall: float
    cpu: float


def run(command: list[str], **environment: str) -> Cost:
    """A whole process, from its start to its end."""
    started = time.perf_counter()
    with Path(os.devnull).open("w") as nothing:
        process = subprocess.Popen(command, stdout=nothing, env={**_ENVIRONMENT, **environment})
        _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(wall, used.ru_utime + used.ru_stime)


# Linux counts the memory of the parent at the fork as the child's: that has to be a small one.
_SMALL_PARENT = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


def peak_memory_mb(command: list[str]) -> float:
    """The most that a whole process had in memory."""
    small = [sys.executable, "-c", _SMALL_PARENT, *command]
    return float(subprocess.check_output(small, env=_ENVIRONMENT))


def purge(root: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "slotwise", "purge", str(root), "--yes", "--json", *flags]


def find(root: Path, what: list[str]) -> list[str]:
    return ["find", str(root), *what]


# ------------------------------------------------------------------------- trees


def old_files(root: Path, directories: int, files: int) -> None:
    root.mkdir()
    for number in range(directories):
        directory = root / f"d{number}"
        directory.mkdir()
        _fill(directory, files)


def one_directory(root: Path, files: int) -> None:
    root.mkdir()
    _fill(root, files)


def _fill(directory: Path, files: int) -> None:
    fd = os.open(directory, os.O_RDONLY)
    for number in range(files):
        name = f"f{number}"
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.utime(name, (OLD, OLD), dir_fd=fd)
    os.close(fd)


def empty_directories(root: Path, count: int, fanout: int) -> None:
    """A tree that is as deep as ``count`` and ``fanout`` make it, level by level."""
    root.mkdir()
    level, made = [root], 0
    while made < count:
        below = []
        for directory in level:
            for number in range(min(fanout, count - made)):
                child = directory / f"{number}"
                child.mkdir()
                below.append(child)
                made += 1
        level = below


def left(root: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(root))


# ------------------------------------------------------------------------- races


@dataclass
class Contest:
    """One kind of tree, what find has to do about it, and the bars for us."""

    title: str
    make: Callable[[Path], None]
    flags: list[str]
    rival: list[str]
    bars: dict[str, float]

    def grow(self, base: Path, repeats: int) -> None:
        """Make all trees of the contest.

        All of them before the first one is purged: ext4 avoids inodes that were freed
        a moment ago, and looks for others very slowly.
        """
        self.trees = {
            who: [base / f"{id(self)}-{who}-{turn}" for turn in range(repeats)]
            for who in ("slotwise", "find")
        }
        for turn in range(repeats):
            for trees in self.trees.values():
                self.make(trees[turn])

    def run(self) -> tuple[str, bool]:
        costs: dict[str, list[Cost]] = {"slotwise": [], "find": []}
        os.sync()  # what the making left to be written is nobody's handicap
        for turn in range(len(self.trees["find"])):
            for who in ("slotwise", "find") if turn % 2 else ("find", "slotwise"):
                root = self.trees[who][turn]
                mine = who == "slotwise"
                command = purge(root, *self.flags) if mine else find(root, self.rival)
                costs[who].append(run(command))
                if left(root):
                    raise RuntimeError(f"{who} left {left(root)} files")
        print(f"\n{self.title}")
        passed = True
        for what, bar in self.bars.items():
            ours = median(getattr(cost, what) for cost in costs["slotwise"])
            other = median(getattr(cost, what) for cost in costs["find"])
            ratio = median(
                getattr(a, what) / getattr(b, what)
                for a, b in zip(costs["slotwise"], costs["find"], strict=True)
            )
            passed = passed and ratio <= bar
            print(
                f"  {what:<6} slotwise {ours:6.2f} s   find {other:6.2f} s   ratio {ratio:5.2f}"
                f"   <- bar {bar:g}: {'passed' if ratio <= bar else 'MISSED'}"
            )
        sys.stdout.flush()
        return self.title, passed


# ------------------------------------------------------------ a slow file system


def slowed(library: Path, root: Path, log: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(library),
        "LAT_PREFIX": str(root),
        "LAT_US": str(int(LATENCY * 1e6)),
        "LAT_DIRLOCK": "1",  # as the kernel does: one removal at a time in a directory
        "LAT_REPORT": str(log),
    }


def slow_run(command: list[str], library: Path, root: Path, log: Path) -> dict[str, float]:
    log.unlink(missing_ok=True)
    run(command, **slowed(library, root, log))
    counted: dict[str, float] = json.loads(log.read_text().splitlines()[-1])
    return counted


def both_limits(limit: int) -> list[str]:
    return ["--max-concurrency-scanning", str(limit), "--max-concurrency-deletion", str(limit)]


def slow_rows(shim: Path, base: Path, quick: bool) -> list[tuple[str, bool]]:
    library, log, root = base / "shim.so", base / "operations", base / "tree"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-o", library, shim, "-ldl", "-lpthread"], check=True
    )
    limits = both_limits(IN_FLIGHT)
    files = 100 if not quick else 30

    old_files(root, 3, 100)
    theirs = slow_run(find(root, FIND_FILES), library, root, log)
    find_rate = theirs["unlink"] / theirs["span_s"]
    shutil.rmtree(root)
    old_files(root, 400, files)
    ours = slow_run(purge(root, *limits), library, root, log)
    shutil.rmtree(root)
    rows = []
    rate = ours["ops_per_s"] / (IN_FLIGHT / LATENCY)
    per_file = ours["total"] / ours["unlink"]
    faster = ours["unlink"] / ours["span_s"] / find_rate
    title = f"5 ms per operation, {400 * files:,} files in 400 directories"
    print(f"\n{title}; both limits {IN_FLIGHT}, peak in flight {ours['peak_inflight']:.0f}")
    for words, value, fine in (
        (f"operations a second, of {IN_FLIGHT} / 5 ms (bar 0.9)", rate, rate >= 0.9),
        ("operations per purged file (bar 2.1)", per_file, per_file <= 2.1),
        ("times find's rate (bar 40)", faster, faster >= 40),
    ):
        print(f"  {words:<48} {value:8.2f}   {'passed' if fine else 'MISSED'}")
        rows.append((f"{title}: {words}", fine))

    for words, value, bar in flat_rows(library, root, log, quick):
        print(f"  {words:<60} {value:8.2f} (bar {bar})   {'passed' if value >= bar else 'MISSED'}")
        rows.append((words, value >= bar))

    # With half of it for each kind, there are never more than that in flight in total.
    bare = [sys.executable, "-m", "benchmarks._bare_pool", str(root), str(IN_FLIGHT)]
    rates: dict[str, list[float]] = {"slotwise": [], "bare": []}
    for _ in range(1 if quick else 3):
        for who, command in (
            ("slotwise", purge(root, *both_limits(IN_FLIGHT // 2))),
            ("bare", bare),
        ):
            old_files(root, 400, files)
            counted = slow_run(command, library, root, log)
            rates[who].append(counted["ops_per_s"] / (IN_FLIGHT / LATENCY))
            shutil.rmtree(root)
    print(
        f"  the same, both limits {IN_FLIGHT // 2}: {median(rates['slotwise']):.2f} of"
        f" {IN_FLIGHT} / 5 ms; a bare pool of {IN_FLIGHT} threads {median(rates['bare']):.2f};"
        f" ratio {median(a / b for a, b in zip(*rates.values(), strict=True)):.2f}"
    )

    empty_directories(root, 30, 10)
    theirs = slow_run(find(root, FIND_DIRECTORIES), library, root, log)
    find_rate = theirs["rmdir"] / theirs["span_s"]
    shutil.rmtree(root)
    empty_directories(root, 1110, 10)
    ours = slow_run(purge(root, *limits, *CASCADE), library, root, log)
    if os.listdir(root):  # noqa: PTH208
        raise RuntimeError("directories were left")
    root.rmdir()
    faster = ours["rmdir"] / ours["span_s"] / find_rate
    title = "5 ms per operation, 1,110 empty directories, cascade"
    fine = faster >= 50
    print(
        f"\n{title}\n  times find's rate (bar 50) {faster:8.1f}   {'passed' if fine else 'MISSED'}"
    )
    rows.append((title, fine))
    sys.stdout.flush()
    return rows


def flat_rows(
    library: Path, root: Path, log: Path, quick: bool
) -> Iterator[tuple[str, float, float]]:
    """Large directories, in which the kernel removes one name after the other."""
    limits = both_limits(IN_FLIGHT)
    files = 1000 if quick else 5000
    for share in (0.05, 1.0):
        one_directory(root, files)
        young = [number for number in range(files) if number % round(1 / share)]
        for number in young:
            os.utime(root / f"f{number}")
        counted = slow_run(purge(root, *limits), library, root, log)
        shutil.rmtree(root)
        removing = (files - len(young)) * LATENCY
        reading = files / IN_FLIGHT * LATENCY if share < 1 else 0.0
        words = f"{files:,} files in one directory, {share:.0%} old: of what is possible"
        yield words, (reading + removing) / counted["span_s"], 0.8 if share < 1 else 0.85
    old_files(root, 50, 100)
    counted = slow_run(purge(root, *limits), library, root, log)
    shutil.rmtree(root)
    yield "50 directories of 100 files: of 64 in flight", counted["mean_inflight"] / IN_FLIGHT, 0.8
    old_files(root, 200, 100)
    counted = slow_run(purge(root), library, root, log)
    shutil.rmtree(root)
    rate = counted["unlink"] / counted["span_s"]
    yield "200 directories of 100 files, limits 100 and 1000: files/s", rate, 6000


def gate_row() -> None:
    """What the purger's own gates save, as `slotwise.purge._gates` says."""
    gate, semaphore = Gate(IN_FLIGHT), MemorySemaphore(IN_FLIGHT)
    enter, leave = gate.enter, gate.leave
    acquire, release = semaphore.acquire_sync, semaphore.release_sync

    def through_gate() -> None:
        enter()
        leave()

    def through_semaphore() -> None:
        release(acquire())

    ours, theirs = (
        min(repeat(pair, number=10_000, repeat=5)) * 100
        for pair in (through_gate, through_semaphore)
    )
    print(f"\nin and out of a gate: {ours:.2f} µs; of a MemorySemaphore: {theirs:.2f} µs")
    starts = [
        median(run([sys.executable, "-c", f"import {modules}"]).cpu for _ in range(5))
        for modules in ("slotwise.purge", "slotwise.purge, slotwise.memory")
    ]
    print(f"importing the purger: {starts[0]:.3f} s; with slotwise.memory: {starts[1]:.3f} s")


def soak(base: Path) -> tuple[str, bool]:
    """1,000,000 files in 100,000 directories, against a tenth of it."""
    peaks = []
    for directories in (10_000, 100_000):
        root = base / "tree"
        old_files(root, directories, 10)
        peaks.append(peak_memory_mb(purge(root, *CASCADE)))
        shutil.rmtree(root)
    small, large = peaks
    title = (
        f"peak memory for 1,000,000 files and 100,000 directories: {large:.0f} MB (bar 60),"
        f" {large / small:.2f} of that for 100,000 files (bar 1.1)"
    )
    print(f"\n{title}")
    return title, large <= 60 and large <= 1.1 * small


def main() -> int:
    quick = "--quick" in sys.argv
    given = [word.removeprefix("--shim=") for word in sys.argv if word.startswith("--shim=")]
    shim = Path(given[0]) if given else _USUAL_SHIM
    only = [word.removeprefix("--only=") for word in sys.argv if word.startswith("--only=")]
    turns = [word.removeprefix("--repeats=") for word in sys.argv if word.startswith("--repeats=")]
    repeats = int(turns[0]) if turns else 1 if quick else 3
    tenth = 10 if quick else 1
    print(f"slotwise purge on {python()}; ratios, find = 1, medians of {repeats} turns")
    results: list[tuple[str, bool]] = []
    with tempfile.TemporaryDirectory(prefix="bench-purge-") as folder:
        base = Path(folder)
        _ENVIRONMENT["PYTHONPYCACHEPREFIX"] = str(base / "bytecode")
        (base / "empty").mkdir()
        run(purge(base / "empty"))
        gate_row()
        contests = [
            Contest(
                f"{100_000 // tenth:,} old files in {1000 // tenth:,} directories",
                lambda root: old_files(root, 1000 // tenth, 100),
                [],
                FIND_FILES,
                {"wall": 1.3, "cpu": 1.3},
            ),
            Contest(
                f"{20_000 // tenth:,} old files in {200 // tenth:,} directories",
                lambda root: old_files(root, 200 // tenth, 100),
                [],
                FIND_FILES,
                {"wall": 1.8},
            ),
            Contest(
                f"{50_000 // tenth:,} empty directories, depth 5, cascade",
                lambda root: empty_directories(root, 50_000 // tenth, 9 if tenth == 1 else 6),
                CASCADE,
                FIND_DIRECTORIES,
                {"wall": 2},
            ),
            Contest(
                f"{100_000 // tenth:,} files in one directory",
                lambda root: one_directory(root, 100_000 // tenth),
                [],
                FIND_FILES,
                {"wall": 1.25},
            ),
        ]
        if only == ["local"]:
            pass
        elif shim.exists():
            results += slow_rows(shim, base, quick)
        else:
            print("\n(the slow file system is left out: no --shim=PATH)")
        if only == ["slow"]:
            contests = []
        for contest in contests:
            contest.grow(base, repeats)
        results += [contest.run() for contest in contests]
        if "--soak" in sys.argv:
            results.append(soak(base))
    return report(results)


if __name__ == "__main__":
    start(main)
