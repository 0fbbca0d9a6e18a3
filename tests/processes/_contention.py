"""Many processes that all want a slot, forked from one before anything is open.

    python -m tests.processes._contention DIRECTORY PROCESSES ROUNDS VALUE

Each acquisition is a line of JSON: when it was called for, when it was had, when
it was about to be given back, all by the clock that all processes share, and its
fencing token and slot number.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import warnings
from pathlib import Path

from tests._stdlib import leave

from slotwise.processes import ProcessSemaphore

warnings.simplefilter("ignore", DeprecationWarning)

HOLD = 0.0005


def with_threads(semaphore: ProcessSemaphore, rounds: int) -> list[list[int]]:
    log: list[list[int]] = []

    def work() -> None:
        for _ in range(rounds // 2):
            called = time.monotonic_ns()
            with semaphore.cm() as acquired:
                had = time.monotonic_ns()
                time.sleep(HOLD)
                token = acquired.fencing_token or 0
                log.append([called, had, time.monotonic_ns(), token, acquired.slot_number])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return log


async def with_tasks(semaphore: ProcessSemaphore, rounds: int) -> list[list[int]]:
    log: list[list[int]] = []

    async def work() -> None:
        for _ in range(rounds // 2):
            called = time.monotonic_ns()
            async with semaphore.cm() as acquired:
                had = time.monotonic_ns()
                await asyncio.sleep(HOLD)
                token = acquired.fencing_token or 0
                log.append([called, had, time.monotonic_ns(), token, acquired.slot_number])

    await asyncio.gather(work(), work())
    return log


def main(directory: Path, processes: int, rounds: int, value: int) -> int:
    gate, opener = os.pipe()
    children = []
    for number in range(processes):
        child = os.fork()
        if not child:
            os.close(opener)
            os.read(gate, 1)  # until all have started
            semaphore = ProcessSemaphore(name="s", value=value, directory=directory)
            if number % 2:
                log = with_threads(semaphore, rounds)
            else:
                log = asyncio.run(with_tasks(semaphore, rounds))
            (directory.parent / f"log-{number}").write_text("\n".join(map(json.dumps, log)))
            leave()
        children.append(child)
    os.close(opener)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
