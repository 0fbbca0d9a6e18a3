"""End what this process has in directories, or hundreds of tests leave their files and threads."""

from __future__ import annotations

from typing import Any

from tests.processes._inside import single_of, tell

from slotwise.processes import _process as process_module


def end_processes() -> None:
    """Close the files of all directories, and end the threads that look after them."""
    processes = process_module._processes
    ended = {*processes.values()}
    processes.clear()
    for process in ended:
        wakeups: Any = process.wakeups
        single = single_of(wakeups)
        if single.thread is not None:
            wakeups._ended = True
            tell(wakeups, "end")
            single.thread.join()
            single.thread = None
        for limit in [*process._known.values()]:
            limit.with_journal(limit.abandon)  # a timer may be changing it
        process.abandon()
    process_module.fork_epoch = object()
