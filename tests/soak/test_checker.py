"""The checker itself: a good history passes, and every kind of bad one is found.

A checker that finds nothing wrong proves nothing until it is shown something wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.soak._checker import Report, check
from tests.soak._history import Event, Fault, Recorder, read

INTERVAL, PING = 3.0, 0.75


class History:
    """Makes one by hand; times are seconds from its beginning."""

    def __init__(self, *, value: int = 1, interval: float | None = INTERVAL) -> None:
        self.events: list[Event] = [
            {
                "kind": "object",
                "object": "s",
                "limits": {"s": value},
                "interval": interval,
                "ping": PING,
            }
        ]
        self._numbers: Iterator[int] = iter(range(1, 1000))
        self._pids: set[int] = set()

    def add(self, kind: str, at: float, pid: int, n: int, **fields: object) -> None:
        self._pids.add(pid)
        self.events.append({"kind": kind, "at": at, "pid": pid, "n": n, **fields})

    def hold(
        self,
        pid: int,
        asked: float,
        granted: float,
        until: float,
        token: int,
        *,
        slots: int = 1,
        end: str = "release",
    ) -> int:
        """One that is asked for, granted, and ends by a release, a loss or not at all."""
        n = next(self._numbers)
        self.add("request", asked, pid, n, object="s", limits=["s"], slots=slots)
        self.add("grant", granted, pid, n, id=f"id-{n}", token=token)
        if end == "release":
            self.add("release", until, pid, n)
            self.add("released", until, pid, n, freed=True)
        elif end == "lost":
            self.add("lost", until, pid, n, reason="no heartbeat")
        return n

    def arrive(self, *numbers: int) -> None:
        for n in numbers:
            self.arrive_together(n)

    def arrive_together(self, *numbers: int) -> None:
        self.events.append({"kind": "arrival", "at": 1.7e9, "ids": [f"id-{n}" for n in numbers]})

    def fault(self, fault: Fault) -> None:
        self.events.append({"kind": "fault", **asdict(fault)})

    def check(self) -> Report:
        ends = [{"kind": "end", "at": 0.0, "pid": pid} for pid in self._pids]
        return check([*self.events, *ends])


def test_a_good_history_passes() -> None:
    history = History(value=2)
    numbers = [
        history.hold(1, 0.0, 0.1, 0.5, token=1),
        history.hold(2, 0.0, 0.1, 0.6, token=2),
        history.hold(1, 0.2, 0.5, 0.9, token=3),
        history.hold(2, 0.3, 0.6, 0.9, token=4),
        history.hold(1, 0.4, 0.9, 1.0, token=5, slots=2),
    ]
    history.arrive(*numbers)
    report = history.check()
    assert report.broken == {}
    assert (report.grants, report.in_order) == (5, 5)


def test_an_overlap_above_the_value_is_found() -> None:
    history = History()
    history.hold(1, 0.0, 0.1, 0.5, token=1)
    history.hold(2, 0.2, 0.49, 0.6, token=2)
    [overlap] = history.check().overlaps
    assert overlap.startswith("s: 2 of 1 for 10.0 ms")


def test_slots_are_counted_and_not_holders() -> None:
    history = History(value=3)
    history.hold(1, 0.0, 0.1, 0.5, token=1, slots=2)
    history.hold(2, 0.2, 0.3, 0.6, token=2, slots=2)
    assert len(history.check().overlaps) == 1


def test_one_tier_of_several_that_is_exceeded_is_found() -> None:
    history = History()
    history.events[0]["limits"] = {"all": 3, "tenant a": 1}
    for n, pid in ((1, 1), (2, 2)):
        limits = ["all", "tenant a"]
        history.add("request", 0.0, pid, n, object="s", limits=limits, slots=1)
        history.add("grant", 0.1 * n, pid, n, id=f"id-{n}", token=n)
        history.add("release", 0.9, pid, n)
    [overlap] = history.check().overlaps
    assert overlap.startswith("tenant a: 2 of 1")


def test_a_killed_process_holds_nothing_from_then_on() -> None:
    history = History()
    history.hold(1, 0.0, 0.1, 0.5, token=1, end="never")
    history.add("request", 5.0, 1, 99, object="s", limits=["s"], slots=1)  # it lived until here
    history.hold(2, 0.2, 4.0, 4.1, token=2)
    assert len(history.check().overlaps) == 1
    history.fault(Fault("killed", "death", 1.0, 1.0, within=INTERVAL + 1, pids=(1,)))
    assert history.check().overlaps == []


@pytest.mark.parametrize(("until", "found"), [(1.5, 1), (6.0, 0)])
def test_only_a_process_stopped_for_the_interval_is_excused(until: float, found: int) -> None:
    history = History()
    history.hold(1, 0.0, 0.1, until + 0.1, token=1)
    history.hold(2, 0.2, until - 0.2, until - 0.1, token=2)
    history.fault(Fault("stopped", "stopped", 0.5, until, pids=(1,)))
    assert len(history.check().overlaps) == found


def test_a_grant_that_was_read_after_a_stop_is_not_excused() -> None:
    history = History()
    history.hold(1, 0.0, 5.01, 5.5, token=1)
    history.hold(2, 0.2, 4.0, 5.2, token=2)
    history.fault(Fault("stopped", "stopped", 0.5, 5.0, pids=(1,)))
    assert len(history.check().overlaps) == 1


def test_a_stopped_process_keeps_its_slots_where_silence_ends_nothing() -> None:
    history = History(interval=None)
    history.hold(1, 0.0, 0.1, 6.1, token=1)
    history.hold(2, 0.2, 5.0, 5.5, token=2)
    history.fault(Fault("stopped", "stopped", 0.5, 6.0, pids=(1,)))
    assert len(history.check().overlaps) == 1


def test_holders_of_a_server_that_forgot_are_excused_for_a_ping() -> None:
    for until, found in ((2.0, 0), (5.0, 1)):
        history = History()
        history.hold(1, 0.0, 0.1, until, token=1)
        history.hold(2, 0.6, 0.7, until, token=2)
        history.fault(Fault("restart", "amnesia", 0.5, 0.5))
        assert len(history.check().overlaps) == found


def test_one_that_was_told_of_its_loss_is_excused_until_then_though_damage_was_noticed_late() -> (
    None
):
    for end, found in (("lost", 0), ("release", 1)):
        history = History()
        history.hold(1, 0.0, 0.1, 3.0, token=1, end=end)
        history.hold(2, 2.8, 2.9, 3.5, token=2)
        history.fault(Fault("damage", "amnesia", 0.5, 0.5))
        assert len(history.check().overlaps) == found


def test_a_token_that_was_given_twice_is_found() -> None:
    history = History(value=2)
    history.hold(1, 0.0, 0.1, 0.5, token=7)
    history.hold(2, 0.0, 0.2, 0.5, token=7)
    [token] = history.check().tokens
    assert "7 twice" in token


def test_a_token_below_one_that_was_known_at_the_request_is_found() -> None:
    history = History(value=2)
    history.hold(1, 0.0, 0.1, 0.5, token=7)
    history.hold(2, 0.2, 0.3, 0.5, token=6)
    [token] = history.check().tokens
    assert "6 came after 7" in token


def test_a_loss_without_a_reason_is_found() -> None:
    history = History()
    history.hold(1, 0.0, 0.1, 2.0, token=1, end="lost")
    assert len(history.check().losses) == 1


@pytest.mark.parametrize(("until", "found"), [(1.0, 1), (4.0, 0)])
def test_only_a_silence_of_the_interval_explains_a_loss(until: float, found: int) -> None:
    history = History()
    history.hold(1, 0.0, 0.1, until + 0.5, token=1, end="lost")
    history.fault(Fault("server stopped", "silence", 0.5, until))
    report = history.check()
    assert (len(report.losses), report.explained_losses) == (found, 1 - found)


def test_a_fault_of_another_process_or_object_explains_nothing() -> None:
    for scope in ({"pids": (2,)}, {"objects": ("other",)}):
        history = History()
        history.hold(1, 0.0, 0.1, 4.5, token=1, end="lost")
        history.fault(Fault("stopped", "stopped", 0.5, 4.0, **scope))
        assert len(history.check().losses) == 1


def test_a_release_of_nothing_is_a_loss() -> None:
    history = History()
    n = history.hold(1, 0.0, 0.1, 0.5, token=1, end="never")
    history.add("release", 0.5, 1, n)
    history.add("released", 0.5, 1, n, freed=False)
    assert len(history.check().losses) == 1


def test_a_request_that_was_passed_is_found() -> None:
    history = History()
    first = history.hold(1, 0.0, 0.9, 1.0, token=9)
    second = history.hold(2, 0.1, 0.3, 0.4, token=8)
    history.arrive(second, first)  # by the server's order all is well
    assert history.check().passed == []
    del history.events[-2:]
    history.arrive_together(first, second)  # in one write, which has no order
    assert history.check().passed == []
    history.events.pop()
    history.arrive(first, second)
    [passed] = history.check().passed
    assert "token 9 of process 1" in passed.partition(" was passed by ")[0]


def test_an_error_outside_of_every_fault_is_found() -> None:
    history = History()
    history.add("request", 0.0, 1, 1, object="s", limits=["s"], slots=1)
    history.add("error", 2.0, 1, 1, error="BackendError")
    history.fault(Fault("memory full", "trouble", 0.5, 0.9))
    assert len(history.check().errors) == 1
    history.fault(Fault("memory full", "trouble", 1.0, 1.5))
    report = history.check()
    assert (report.errors, report.explained_errors) == ([], 1)


def test_a_service_that_comes_back_late_is_found() -> None:
    history = History()
    history.hold(1, 0.0, 0.1, 0.2, token=1)
    history.hold(1, 0.3, 2.2, 2.3, token=2)
    history.fault(Fault("server stopped", "silence", 0.4, 1.5))
    report = history.check()
    assert report.late == []
    assert report.back == pytest.approx(0.7)
    history.hold(1, 2.4, 5.0, 5.1, token=3)
    history.fault(Fault("server stopped", "silence", 2.5, 3.5))
    report = history.check()
    assert len(report.late) == 1
    assert report.back == pytest.approx(1.5)


def test_a_service_that_never_comes_back_is_found() -> None:
    history = History()
    history.hold(1, 0.0, 0.1, 0.2, token=1)
    history.add("request", 9.0, 1, 99, object="s", limits=["s"], slots=1)
    history.fault(Fault("server stopped", "silence", 0.4, 1.5))
    assert len(history.check().late) == 1


def test_a_service_that_pauses_without_a_fault_is_found() -> None:
    history = History()
    history.hold(1, 0.0, 0.1, 0.2, token=1)
    history.hold(1, 0.3, 1.9, 2.0, token=2)
    assert len(history.check().late) == 1


def test_a_process_that_never_ended_is_found() -> None:
    history = History()
    history.hold(1, 0.0, 0.1, 0.2, token=1)
    assert len(check(history.events).unfinished) == 1
    history.fault(Fault("killed", "death", 0.3, 0.3, pids=(1,)))
    assert check(history.events).unfinished == []


def test_a_history_is_read_up_to_an_incomplete_last_line(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "worker-1")
    recorder.write("end")
    recorder.write_fault(Fault("killed", "death", 1.0, 2.0, pids=(3,)))
    recorder.close()
    path = tmp_path / "worker-1.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "gra')
    assert [event["kind"] for event in read(tmp_path)] == ["end", "fault"]


def _starve(
    history: History, pid: int, *, is_server: bool = False, heartbeats: bool = False
) -> None:
    """From 1.0 to 4.0 it waits for a processor half of the time, or its heartbeats all of it."""
    for at, waited in ((0.0, 0.0), (1.0, 0.0), (4.0, 1.5), (9.0, 1.5)):
        main = 0.0 if heartbeats else waited
        event = {"kind": "waited", "at": at, "pid": pid, "is_server": is_server}
        history.events.append({**event, "waited": [main, 2 * waited if heartbeats else 0.0]})


def test_what_the_machine_took_at_another_time_excuses_nothing() -> None:
    history = History()
    history.hold(1, 4.0, 4.1, 4.5, token=1)
    history.hold(1, 4.5, 5.9, 6.0, token=2)
    _starve(history, 1)
    assert len(history.check().late) == 1
