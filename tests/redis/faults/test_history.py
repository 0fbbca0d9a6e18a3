"""A recorded history of a random run of four processes, checked by somebody else.

The recorder is the server's own MONITOR: every command that the scripts ran, in
the order and at the time at which the server ran it. The checker knows only the
documented keys, and shares no code with the scripts or the client. What expires isn't
recorded: where all processes stood still for longer than a key lasts, it is gone.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests import _fresh_processes
from tests.redis._client import ROOT
from tests.redis._server import Server

pytestmark = pytest.mark.soak

MAIN, WAITING = "adv-sem:semaphore_main:s", "adv-sem:semaphore_waiting:s"


@dataclass
class Checker:
    value: int
    holders: set[str] = field(default_factory=set)
    line: dict[str, float] = field(default_factory=dict)
    expires: dict[str, float] = field(default_factory=dict)  # when, by key
    just_left: set[str] = field(default_factory=set)
    grants: int = 0
    direct: int = 0
    from_line: int = 0

    def see_script(self, now: float, commands: list[list[str]]) -> None:
        """See a script, which is over before it matters in which order it wrote its keys."""
        self.just_left = set()
        places = {("ZREM", WAITING): 0, ("ZADD", WAITING): 2}  # around what it does to holders
        for words in sorted(commands, key=lambda words: places.get((words[0], words[1]), 1)):
            self.see(now, words)

    def see(self, now: float, words: list[str]) -> None:
        command, key, *rest = words
        for gone in [each for each, when in self.expires.items() if when <= now]:
            del self.expires[gone]
            (self.holders if gone == MAIN else self.line).clear()
        if key in (MAIN, WAITING) and command == "PEXPIRE":
            self.expires[key] = now + int(rest[0]) / 1000
        elif key == WAITING and command == "ZADD":
            for ticket, claim_id in sorted(zip(map(float, rest[::2]), rest[1::2], strict=True)):
                assert claim_id not in self.line, "it stands there already"
                assert claim_id not in self.holders, "holders do not wait"
                assert all(ticket > other for other in self.line.values()), "tickets increase"
                self.line[claim_id] = ticket
        elif key == WAITING and command == "ZREM":
            left = {claim_id: self.line.pop(claim_id) for claim_id in rest if claim_id in self.line}
            # Whether they left as the first in line decides what may become of them.
            first = min(self.line.values(), default=float("inf"))
            self.just_left |= {claim_id for claim_id, ticket in left.items() if ticket < first}
        elif key == MAIN and command == "ZADD" and "XX" not in rest:  # only asks for memory
            for member in rest[1::2]:
                if member not in self.holders:
                    self.granted(member)
        elif key == MAIN and command == "ZREM":
            self.holders -= set(rest)
        for empty, members in ((MAIN, self.holders), (WAITING, self.line)):
            if not members:
                self.expires.pop(empty, None)  # it is deleted, and lasts anew when it is made

    def granted(self, member: str) -> None:
        claim_id = member.partition("#")[0]
        if member == claim_id:
            self.grants += 1
            if claim_id in self.just_left:
                self.from_line += 1
            else:
                assert not self.line, f"{claim_id} passed {list(self.line)}"
                self.direct += 1
        assert claim_id not in self.line, "who holds has left the line"
        self.holders.add(member)
        assert len(self.holders) <= self.value, f"over: {self.holders}"


def test_a_random_run_of_four_processes_keeps_its_promises(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        records: list[str] = []
        monitor = server.client(decode_responses=True)
        connection = monitor.connection_pool.make_connection()
        connection.send_command("MONITOR")
        connection.read_response()

        def record() -> None:
            while True:
                line = connection.read_response()
                records.append(line)
                if "end of the run" in line:
                    return

        recording = threading.Thread(target=record)
        recording.start()
        processes = [
            _fresh_processes.Popen(
                [sys.executable, "-m", "tests.redis._storm", server.url, str(seed)], cwd=ROOT
            )
            for seed in range(4)
        ]
        try:
            assert [process.wait(60) for process in processes] == [0] * 4
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait(10)
            with server.client() as client:
                leftovers = {key.decode() for key in client.scan_iter()}
                client.echo("end of the run")
            recording.join(20)
            monitor.connection_pool.release(connection)
            monitor.close()

    checker = Checker(value=3)
    last = 0.0
    script: list[list[str]] = []  # what the current one has run
    for line in records:
        stamp, _, rest = line.partition(" ")
        origin, _, command = rest.partition("] ")
        if not origin.endswith(" lua"):
            checker.see_script(last, script)
            script = []
            continue
        assert float(stamp) >= last - 1, "recorded in the server's order"
        last = float(stamp)
        words = shlex.split(command)
        if len(words) > 1:
            script.append([words[0].upper(), *words[1:]])
    assert checker.grants > 100
    assert checker.from_line > 50
    assert checker.direct > 0
    assert checker.line == {}, "every ended waiter is out of the line"
    assert checker.holders == set()
    assert not leftovers & {MAIN, WAITING}
    assert time.time() > last
