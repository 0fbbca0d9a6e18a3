"""The rival on a slow file system: threads that each empty one directory after the other.

No limits, no ages that are read again, no safety, no report: what Python's threads reach.

    python -m benchmarks._bare_pool ROOT THREADS
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue


def main(root: str, threads: str) -> None:
    directories: SimpleQueue[Path] = SimpleQueue()
    for directory in Path(root).iterdir():
        directories.put(directory)

    def work() -> None:
        while True:
            try:
                fd = os.open(directories.get_nowait(), os.O_RDONLY | os.O_DIRECTORY)
            except Empty:
                return
            with os.scandir(fd) as listing:
                names = [entry.name for entry in listing]
            for name in names:
                if os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime < 1.5e9:
                    os.unlink(name, dir_fd=fd)
            os.close(fd)

    pool = [threading.Thread(target=work) for _ in range(int(threads))]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
