"""Fork while other threads are in the middle of changes; each child uses the semaphore too.

python -m tests.processes._forks DIRECTORY
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from pathlib import Path

from tests._stdlib import leave

from slotwise import SemaphoreStats
from slotwise.processes import ProcessSemaphore

warnings.simplefilter("ignore", DeprecationWarning)

CHILDREN = 40


def main(directory: Path) -> None:
    semaphore = ProcessSemaphore(name="s", value=3, directory=directory)
    enough = threading.Event()

    def hammer() -> None:
        while not enough.is_set():
            with semaphore.cm():
                pass

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    children = []
    for _ in range(CHILDREN):
        child = os.fork()
        if not child:
            signal.alarm(60)  # a child that hangs fails
            with semaphore.cm(), ProcessSemaphore(name="other", value=40, directory=directory).cm():
                pass
            leave()
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    enough.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * CHILDREN, codes
    assert semaphore.stats_sync() == SemaphoreStats(0, 3)
    print("ok")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
