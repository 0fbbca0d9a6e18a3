"""The format of a history: one JSON object for each event, in one file for each process.

Nothing here knows slotwise, and nothing judges; `_checker` does. ``at`` is CLOCK_MONOTONIC, which
all processes of a machine share. An event is written by a single call, so a process that is
killed leaves at most one incomplete line, its last.

    object    object, limits {limit: value}, interval, ping    what is used; interval is None
                                                               where silence ends nothing
    request   at, pid, n, object, limits, slots    about to ask; n numbers the requests of a process
    grant     at, pid, n, id, token                got it
    release   at, pid, n                           about to give it back
    released  at, pid, n, freed                    the answer
    lost      at, pid, n, reason                   told that it was lost
    gave up   at, pid, n                           timed out, or was cancelled
    error     at, pid, n, error
    end       at, pid                              an orderly end of a process
    stood still  at, pid, since                    no thread of the process ran between these
    waited    at, pid, is_server                   tells only ``waited``, as most events do: how
                                                   many seconds its main thread, and its heartbeat
                                                   threads, have waited for a processor
    arrival   at, ids                              the server ran a script for these requests; at is
                                                   the server's time, and lines are in its order;
                                                   servers of one machine share a clock
    deaf      at, since                            arrivals between these were not recorded
    fault     see `Fault`
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tests.soak._processor import ProcessorWaits, Waits

Event = dict[str, Any]

_WITH_WAITS = frozenset({"request", "grant", "release", "released", "end"})

Effect = Literal[
    "death",  # processes ended at `at`
    "stopped",  # processes stood still, and could not notice anything
    "silence",  # processes ran, but nothing of them reached the server, or the other way round
    "amnesia",  # the server lost something that it knew
    "trouble",  # calls may fail; nothing may be lost
    "none",  # it is to be coped with: nothing may fail, nothing may be lost
]


@dataclass(frozen=True)
class Fault:
    """What was done, from ``at`` to ``until``, and to whom; None is everybody, everything.

    Within ``within`` seconds of its end every object has to grant again.
    """

    name: str
    effect: Effect
    at: float
    until: float
    within: float = 1.0
    pids: tuple[int, ...] | None = None
    objects: tuple[str, ...] | None = None


class Recorder:
    """Appends the events of this process to its file."""

    def __init__(self, folder: Path, name: str) -> None:
        self._waits = ProcessorWaits(os.getpid())
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(folder / f"{name}.jsonl", flags, 0o600)

    def write(self, kind: str, **fields: object) -> None:
        event = {"kind": kind, "at": time.monotonic(), "pid": os.getpid(), **fields}
        if kind in _WITH_WAITS:
            event["waited"] = self._waits.so_far()
        os.write(self._descriptor, json.dumps(event).encode() + b"\n")

    def write_waits(self, pid: int, waited: Waits, *, is_server: bool) -> None:
        self.write("waited", pid=pid, waited=waited, is_server=is_server)

    def write_fault(self, fault: Fault) -> None:
        self.write("fault", **asdict(fault))

    def close(self) -> None:
        os.close(self._descriptor)


def read(folder: Path) -> Iterator[Event]:
    """The events of all files, each file in its order."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)


def fault_of(event: Event) -> Fault:
    fields = {name: event[name] for name in Fault.__dataclass_fields__}
    for name in ("pids", "objects"):
        fields[name] = None if fields[name] is None else tuple(fields[name])
    return Fault(**fields)
