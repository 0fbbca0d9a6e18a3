"""End what this process has in directories, or hundreds of tests leave their files and threads."""

from __future__ import annotations

import os
from typing import Any

from slotwise.processes import _process as process_module


def end_processes() -> None:
    """Close the files of all directories, and end the threads that look after them."""
    ended = {*process_module._processes.values()}
    process_module._processes.clear()
    for process in ended:
        wakeups: Any = process.wakeups
        if wakeups._single.thread is not None:
            wakeups._ended = True
            os.write(wakeups._fd, b"end\n")
            wakeups._single.thread.join()
            wakeups._single.thread = None
        for limit in [*process._known.values()]:
            limit.with_journal(limit.abandon)  # a timer may be changing it
        process.abandon()
    process_module.fork_epoch = object()
