"""Use new names all the time, and check that nothing grows.

python -m tests.processes._changing_names DIRECTORY SECONDS IDLE
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from slotwise.processes import ProcessSemaphore, _process


def measure(directory: Path) -> dict[str, int]:
    statm = Path("/proc/self/statm").read_text().split()
    return {
        "files": len([*directory.iterdir()]),
        "descriptors": len([*Path("/proc/self/fd").iterdir()]),
        "threads": threading.active_count(),
        "pages": int(statm[1]),
    }


def main(directory: Path, seconds: float, idle: float) -> None:
    _process.IDLE_TIME = idle
    begun = time.monotonic()
    settled: dict[str, int] | None = None
    number = 0
    while time.monotonic() - begun < seconds:
        with ProcessSemaphore(1, name=f"name {number}", directory=directory).cm():
            number += 1
        if settled is None and time.monotonic() - begun > 4 * idle:
            settled = measure(directory)
    assert settled is not None
    ended = measure(directory)
    print(number, settled, ended)  # noqa: T201
    grown = {what: count for what, count in ended.items() if count > 1.3 * settled[what] + 20}
    assert not grown, (settled, ended)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
