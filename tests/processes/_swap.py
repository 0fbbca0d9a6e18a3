"""Replace a directory by others, as anybody can who may write to its parent.

python -m tests.processes._swap DIRECTORY DECOY...    # until its input ends
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path


def swap(directory: Path, decoy: Path) -> None:
    """Show ``decoy`` in the place of ``directory`` for an instant."""
    aside = directory.with_suffix(".aside")
    directory.rename(aside)
    show_instead(decoy, directory)
    os.sched_yield()
    directory.rename(decoy)
    show_instead(aside, directory)


def show_instead(other: Path, directory: Path) -> None:
    while True:
        try:
            other.rename(directory)
        except OSError:  # the process under test has created one meanwhile
            shutil.rmtree(directory, ignore_errors=True)
        else:
            return


def main(directory: Path, decoys: list[Path]) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print("begun", flush=True)  # noqa: T201
    count = 0
    while not ended.is_set():
        swap(directory, decoys[count % len(decoys)])
        count += 1
        time.sleep(0.001)  # or the process under test would never get past the check
    print(count)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
