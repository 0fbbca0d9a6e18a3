"""Puts other folders in the place of one, as whoever may write to its parent can do.

python -m tests.processes._swap FOLDER DECOY...    # until its input ends
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path


def swap(folder: Path, decoy: Path) -> None:
    """Show ``decoy`` in the place of ``folder`` for an instant."""
    aside = folder.with_suffix(".aside")
    folder.rename(aside)
    show_instead(decoy, folder)
    os.sched_yield()
    folder.rename(decoy)
    show_instead(aside, folder)


def show_instead(other: Path, folder: Path) -> None:
    while True:
        try:
            other.rename(folder)
        except OSError:  # whom this is done to has made one in the gap
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return


def main(folder: Path, decoys: list[Path]) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print("begun", flush=True)  # noqa: T201
    count = 0
    while not ended.is_set():
        swap(folder, decoys[count % len(decoys)])
        count += 1
        time.sleep(0.001)  # or nobody would ever get beyond the check
    print(count)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
