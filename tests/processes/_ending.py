"""End what this process has in directories, or hundreds of tests leave their files and threads."""

from __future__ import annotations

from slotwise.processes import _process as process_module


def end_processes() -> None:
    """Close the files of all directories, and end the threads that look after them."""
    ended = {*process_module._processes.values()}
    process_module._processes.clear()
    for process in ended:
        process.wakeups.end()
        for limit in [*process._known.values()]:
            limit.with_journal(limit.abandon)  # a timer may be changing it
        process.abandon()
    process_module.fork_epoch = object()
