"""This version of slotwise against another commit: what has become slower?

    python -m benchmarks against COMMIT [--quick] [--only TEXT]

The other commit is unpacked into a temporary folder. Two processes, one with each version, run
the same workloads in turns (`_workloads.py`), and the ratios of neighbouring runs are compared:
above 1, this version is slower. What counts is CPU time, on Redis with that of the server, because
other programs on the machine disturb it least. A ratio above 1.05 fails, if the quarter of the
pairs that is best for this version is above 1 as well.

Changes that aren't committed are measured too. `against HEAD` without any shows the noise.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import _workloads
from benchmarks._race import python, start
from benchmarks.bench_redis import running_server

HERE = Path(__file__).parent
BAR = 1.05


class Version:
    """A process that runs workloads with one version of slotwise."""

    def __init__(self, source: Path, side: str, server: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(source),
            "BENCH_REDIS_URL": server,
            "BENCH_SIDE": side,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "_workloads.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        imported = Path(self._read()["path"])
        if not imported.is_relative_to(source):
            sys.exit(f"{imported} was imported instead of {source}")

    def measure(self, title: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(title + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a version ended; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.communicate()


@contextlib.contextmanager
def unpacked(commit: str) -> Iterator[Path]:
    """The folder with the packages of ``commit``."""
    archive = subprocess.run(
        ["git", "-C", str(HERE.parent), "archive", "--format=tar", f"{commit}:src"],
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        sys.exit(f"cannot unpack {commit!r}: {archive.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="slotwise-against-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as members:
            members.extractall(folder, filter="data")
        yield Path(folder).resolve()


def compare(title: str, mine: Version, theirs: Version, repeats: int) -> bool:
    """Print one row; whether this version is fast enough."""
    costs: dict[str, list[tuple[float, float]]] = {"cpu": [], "seconds": []}
    for number in range(-1, repeats):
        gc.collect()
        # Taking turns at going first, so that what the first leaves behind meets both.
        order = (mine, theirs) if number % 2 else (theirs, mine)
        answers = {id(version): version.measure(title) for version in order}
        own, other = answers[id(mine)], answers[id(theirs)]
        if "error" in own or "error" in other:
            who = "here" if "error" in own else "there"
            print(f"  {title:<50} cannot run {who}: {own.get('error') or other['error']}")
            return "error" not in own
        if number >= 0:  # the first pair warms caches and specialised bytecode
            for kind, pairs in costs.items():
                pairs.append((own[kind], other[kind]))
    ratios = [own / other for own, other in costs["cpu"]]
    ratio, best_quarter = median(ratios), quantiles(ratios, n=4)[0]
    clock = median(own / other for own, other in costs["seconds"])
    slower = ratio > BAR and best_quarter > 1
    own_cpu = median(own for own, _ in costs["cpu"])
    print(
        f"  {title:<50} {ratio:6.3f}  ({best_quarter:.3f} to {quantiles(ratios, n=4)[2]:.3f})"
        f"  by the clock {clock:6.3f}  {own_cpu * 1e6:9.2f} µs{'  SLOWER' if slower else ''}",
        flush=True,
    )
    return not slower


def main() -> int:
    words = sys.argv[1:]
    quick = "--quick" in words
    only = ""
    if "--only" in words:
        at = words.index("--only")
        [_, only] = words[at : at + 2]
        del words[at : at + 2]
    commits = [word for word in words if not word.startswith("-")]
    if len(commits) != 1:
        sys.exit("usage: python -m benchmarks against COMMIT [--quick] [--only TEXT]")
    repeats = 5 if quick else 21
    titles = [title for title in _workloads.workloads if only in title]
    with unpacked(commits[0]) as other, running_server() as port:
        server = f"redis://127.0.0.1:{port}"
        mine = Version(HERE.parent / "src", "mine", server)
        theirs = Version(other, "theirs", server)
        print(
            f"this version / {commits[0]}: CPU per operation on {python()},"
            f" medians of {repeats} pairs (quartiles); bar {BAR:g}"
        )
        try:
            slower = [title for title in titles if not compare(title, mine, theirs, repeats)]
        finally:
            mine.close()
            theirs.close()
    print(f"\n{len(titles) - len(slower)} of {len(titles)} are not slower")
    return 1 if slower else 0


if __name__ == "__main__":
    start(main)
