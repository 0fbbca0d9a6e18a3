"""The copies of a path's quick lane do what its rule does, in every state of a tracker.

`MemoryPathAcquisition.take` and ``give`` are the rule; ``__aenter__`` and ``__aexit__`` are written
out for speed. A tracker that notes what is looked at, and in which order, compares them. So is
what follows if they take nothing: `Waiting._request` and ``_get`` are the rule there.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from slotwise._core.overload import Overload
from slotwise._core.paths import RankedNeeds, TierSpec
from slotwise._ledger.base import QUICK_LANE
from slotwise._ledger.path_nodes import Node
from slotwise._wait import deliveries
from slotwise._wait import section as sections
from slotwise._wait.wakers import thread_waker
from slotwise._wait.woken import Woken
from slotwise.memory import _path_acquisition
from slotwise.memory._base_tracker import BaseTracker
from slotwise.memory._ids import next_key
from slotwise.memory._path_acquisition import MemoryPathAcquisition
from slotwise.memory._path_tracker import PathTracker
from slotwise.memory._paths import MemoryPaths
from slotwise.memory._waiting import Waiting
from slotwise.testing import FakeClock

pytestmark = pytest.mark.skipif(not QUICK_LANE, reason="there is no quick lane here")

SPECS = TierSpec("user", 2, True), TierSpec("all", 3, False)
FAIR = TierSpec("user", 2, True, fair="by", weight_of=lambda _: 1.0), SPECS[1]
PATH = "a", None


class Asked(Exception):
    """The copy has left the quick lane: it asks the tracker."""


class Watched(PathTracker):
    """Notes each look at what threads share, and each call that leads to the lock."""

    __slots__ = ("looks", "watching")

    def __init__(self) -> None:
        self.watching = False
        self.looks: list[object] = []
        super().__init__(SPECS, None)

    def undo(self, taken: Sequence[Node], number: int) -> None:
        self.looks.append(("undo", [node.key for node in taken], number))

    def take_back(self, acquisition: MemoryPathAcquisition) -> None:
        self.looks.append("take_back")

    def look_around(self, nodes: Sequence[Node]) -> None:
        self.looks.append(("look_around", [node.key for node in nodes]))

    def keep_task(self, key: object) -> None:
        self.looks.append("keep_task")


def _watch(name: str) -> None:
    slot = getattr(PathTracker, name)

    def get(tracker: Watched) -> object:
        if tracker.watching:
            tracker.looks.append(name)
        return slot.__get__(tracker)

    setattr(Watched, name, property(get, slot.__set__))


for _name in ("attention", "woken", "closed", "tables"):
    _watch(_name)


def drive(coroutine: Coroutine[Any, Any, object]) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def outcome(
    call: Callable[[MemoryPathAcquisition], object], *, held: bool, **state: Any
) -> tuple[object, ...]:
    """What a call looks at, and what it leaves behind."""
    tracker = Watched()
    paths = MemoryPaths(SPECS)
    paths._tracker = paths._lane = tracker
    with paths.cm(PATH):
        pass  # now there are nodes
    acquisition = paths.cm(PATH)
    if held:
        acquisition.key = 1
        assert acquisition.take()
        if not state.pop("known"):
            tracker.holders.clear()
    for table, key, free in zip(tracker.tables, PATH, state.pop("free", ()), strict=False):
        table[key].free = [*free]
    tracker.looks.clear()
    for name, value in state.items():
        setattr(tracker, name, value)
    tracker.watching = True
    try:
        result = call(acquisition)
    except Asked:
        result = False
    tracker.watching = False
    return (
        tracker.looks,
        result,
        [[*node.free] for table in tracker.tables for node in table.values()],
        [*tracker.holders.values()] == [acquisition],
        getattr(acquisition, "_slot_number", None),
    )


def take(acquisition: MemoryPathAcquisition) -> bool:
    acquisition.key = 1
    return acquisition.take()


def enter(acquisition: MemoryPathAcquisition) -> bool:
    drive(acquisition.__aenter__())
    return True


def leave(acquisition: MemoryPathAcquisition) -> bool:
    before = acquisition.paths._tracker.holders.get(1)
    drive(acquisition.__aexit__(None, None, None))
    return before is not None


def test_entering_looks_and_takes_as_the_rule_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        raise Asked

    monkeypatch.setattr(_path_acquisition, "get_running_loop", ask)
    taken = 0
    for attention, woken, closed, *free in itertools.product(
        (False, True), ((), ("somebody",)), (False, True), ((), (1,)), ((), (1,), (2, 3))
    ):

        def prepared() -> dict[str, Any]:
            lane = Woken()
            lane.update(woken)  # noqa: B023 - called at once
            return {"attention": attention, "woken": lane, "closed": closed, "free": free}  # noqa: B023

        rule = outcome(take, held=False, **prepared())
        assert outcome(enter, held=False, **prepared()) == rule
        taken += rule[1] is True
    assert taken == 2, "of all states, only the quiet ones with something free"


def test_leaving_looks_and_gives_as_the_rule_does() -> None:
    ways = set()
    for attention, known, roomy in itertools.product((False, True), (False, True), (0, 10)):
        state = {"attention": attention, "known": known, "roomy": roomy}
        rule = outcome(lambda acquisition: acquisition.give(), held=True, **state)
        assert outcome(leave, held=True, **state) == rule
        assert isinstance(rule[0], list)
        ways.add(str(rule[0][-1]))
    assert ways == {"keep_task", "take_back", "attention", str(("look_around", [*PATH]))}


def asked(
    request: Callable[..., bool], how: str, timeout: float | None
) -> tuple[object, int, int, list[str]]:
    """What a request returns or raises, what it leaves behind, and what it does beside that."""
    paths = MemoryPaths(SPECS)
    if how == "full":
        for _ in range(2):
            paths.cm(PATH).__enter__()
    elif how == "closed":
        paths.close_sync()
    done: list[str] = []
    acquisition = paths.cm(PATH, timeout)
    acquisition.key = 1
    deliveries.post(lambda: done.append("delivered"))
    if how != "interrupted":
        sections.postponed.append((done.append, ("postponed",), lambda _: None))
    sections.section.busy = how == "interrupted"
    result: object
    try:
        result = request(paths, acquisition, thread_waker)
    except Exception as error:
        result = type(error), str(error)
    finally:
        sections.section.busy = False
    assert not sections.postponed
    return result, len(paths._tracker.waiting), len(paths._tracker.holders), done


@pytest.mark.parametrize("how", ["free", "full", "closed", "interrupted"])
@pytest.mark.parametrize("timeout", [None, 0, 60.0])
def test_asking_does_what_the_rule_does(how: str, timeout: float | None) -> None:
    rule = asked(Waiting._request, how, timeout)
    assert asked(MemoryPaths._request, how, timeout) == rule
    expected = ["delivered"] if how == "interrupted" else ["postponed", "delivered"]
    assert rule[3] == expected


# The same time for all whose outcomes are compared, and later than any test runs.
_BEGIN = math.ceil(time.monotonic()) + 1_000_000.0


def joined(ask: Callable[..., bool], how: str, timeout: float | None) -> dict[str, object]:
    """What asking behind others of the same path returns or raises, and what it leaves behind."""
    with FakeClock() as clock:
        clock.advance(_BEGIN - clock.now())
        paths = MemoryPaths(FAIR if how == "fair" else SPECS)
        tracker = paths._tracker
        for _ in range(1 if how == "nobody waits" else 3):
            each = paths.cm(PATH)
            each.key = next_key()
            if not each.take():
                paths._request(each, thread_waker)
        if how == "paused":
            paths.pause_sync(10.0)
        elif how == "closed":
            paths.close_sync()
        needs = {"several": (2, 2), "too many": (9, 9), "head start": RankedNeeds((1, 1))}.get(how)
        if isinstance(needs, RankedNeeds):
            needs.head_start = 10_000_000
        acquisition = paths.cm(PATH, timeout, needs=needs)
        acquisition.key = next_key()
        clock.advance(1.0)
        overload = Overload(1, (None, None), False) if how == "overload" else None
        try:
            result: object = ask(tracker, acquisition, thread_waker, overload)
        except Exception as error:
            result = type(error), str(error)
        group = tracker.groups.get(PATH)
        return {
            "result": result,
            "waits": acquisition.key in tracker.waiting,
            "is head": group is not None and group.head is acquisition,
            "how many are first": list(tracker.waiting).index(acquisition.key)
            if acquisition.key in tracker.waiting
            else None,
            "noted": [
                str(getattr(acquisition, name, None))
                for name in ("_slot_number", "since", "waiting_since", "failure", "ticket", "rank")
            ],
            "waker": type(getattr(acquisition, "waker", None)),
            "nodes": [(node.waiting, node.in_use) for node in tracker._nodes(PATH, 0.0)],
            "alarm": tracker.alarm,
            "posted": len(deliveries.posted),
        }


@pytest.mark.parametrize("timeout", [None, 0, 60.0])
def test_joining_others_does_what_the_rule_does(timeout: float | None) -> None:
    results = {}
    for how in (
        *("nobody waits", "behind", "several", "too many", "head start", "paused", "closed"),
        *("overload", "fair"),
    ):
        rule = joined(BaseTracker.ask, how, timeout)
        assert joined(PathTracker.ask, how, timeout) == rule, how
        results[how] = rule
    assert results["behind"]["waits"] is (timeout != 0)
    assert results["head start"]["is head"] is (timeout != 0)


async def waited(enter: Callable[[MemoryPathAcquisition], Any], how: str) -> tuple[object, ...]:
    """How a wait ends, and what it leaves behind."""
    paths = MemoryPaths(SPECS)
    held = [paths.cm(PATH) for _ in range(2)]
    for each in held:
        await each.__aenter__()
    acquisition = paths.cm(PATH, 60.0)

    async def work() -> object:
        try:
            await enter(acquisition)
        except BaseException as error:
            return type(error), str(error)
        return "entered"

    waiting = asyncio.create_task(work())
    await asyncio.sleep(0)
    assert len(paths._tracker.waiting) == 1
    if how.startswith("granted"):
        held[0].give()
        assert paths._tracker.woken, "newcomers let it pass"
    if how.endswith("cancelled"):
        waiting.cancel()
    elif how == "closed":
        paths.close_sync()
    tracker = paths._tracker
    return await waiting, len(tracker.waiting), len(tracker.holders), len(tracker.woken)


async def wait_by_the_rule(acquisition: MemoryPathAcquisition) -> None:
    acquisition.key = 1
    assert not acquisition.take()
    await acquisition._wait()


@pytest.mark.parametrize("how", ["granted", "cancelled", "granted and cancelled", "closed"])
async def test_waiting_ends_as_the_rule_says(how: str) -> None:
    rule = await waited(wait_by_the_rule, how)
    assert await waited(lambda acquisition: acquisition.__aenter__(), how) == rule
    assert rule[3] == 0, "nobody is to be let pass any more"
