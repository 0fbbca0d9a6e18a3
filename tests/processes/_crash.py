"""Kill children at every step of a change, and print what the file says after each.

    python -m tests.processes._crash DIRECTORY VERB

For each system call of the change, in turn, a forked child makes the change and
is killed (SIGKILL) right before the call, right after it, and, if it writes, in
the middle. Then one line: which call, how, and the holders and the value that
are seen, as JSON. The last line is of a child that was not killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests._stdlib import leave

from slotwise.processes import ProcessSemaphore, _locked_file
from slotwise.processes import _file_journal as journals

warnings.simplefilter("ignore", DeprecationWarning)


class Killer:
    """Counts system calls, and kills the process at a given one."""

    def __init__(self, at: int, how: str) -> None:
        self.left = at
        self.how = how

    def armed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            self.left -= 1
            if self.left or (self.how == "amid" and name != "pwrite"):
                return call(*args)
            if self.how == "amid":
                fd, data, offset = args
                call(fd, data[: len(data) // 2], offset)
            elif self.how == "after":
                call(*args)
            os.kill(os.getpid(), signal.SIGKILL)
            return None

        return wrapped

    def arm(self) -> None:
        for name in ("pwrite", "pread", "fstat", "lstat", "posix_fallocate", "ftruncate"):
            armed = self.armed(getattr(os, name), name)
            for where in (os, journals, _locked_file):
                if hasattr(where, name):
                    setattr(where, name, armed)
        fcntl.lockf = journals.lockf = self.armed(fcntl.lockf, "lockf")


def change(semaphore: ProcessSemaphore, verb: str, holder: str, arm: Callable[[], None]) -> None:
    if verb != "release":
        arm()
    if verb == "acquire":
        semaphore.acquire_sync()
    elif verb == "release":
        acquired = semaphore.acquire_sync()
        arm()
        semaphore.release_sync(acquired)
    elif verb == "kick":
        semaphore.kick_sync(holder)
    elif verb == "resize":
        semaphore.resize_sync(5)
    elif verb == "compact":
        journals._COMPACT_AFTER = 0  # so that this change writes a snapshot
        semaphore.kick_sync(holder)
    elif verb == "create":
        semaphore.acquire_sync()


def main(directory: Path, verb: str) -> None:
    step = 0
    while True:
        step += 1
        for how in ("before", "amid", "after"):
            name = f"{verb}-{step}-{how}"
            own = ProcessSemaphore(name=name, value=3, directory=directory)
            holder = "" if verb == "create" else own.acquire_sync().acquisition_id
            child = os.fork()
            if not child:
                semaphore = ProcessSemaphore(name=name, value=3, directory=directory)
                if verb != "create":
                    semaphore.locked_sync()  # opens and reads the file
                change(semaphore, verb, holder, Killer(step, how).arm)
                leave()
            _, status = os.waitpid(child, 0)
            stats = own.stats_sync()
            seen = {
                "killed": os.WIFSIGNALED(status),
                "step": step,
                "how": how,
                "mine": holder in [each.acquisition_id for each in own.holders_sync()],
                "held": stats.acquired_slots,
                "value": stats.max_slots,
            }
            # It can still be used.
            again = own.acquire_sync(timeout=30)
            assert own.release_sync(again) is True
            print(json.dumps(seen), flush=True)  # noqa: T201
            if how == "before" and not os.WIFSIGNALED(status):
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
