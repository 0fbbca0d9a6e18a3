"""Every copy of the quick lane's rule does what the rule does, in every state of a tracker.

The copies in `_semaphore` and `_acquisition` are inlined for speed. A tracker that
notes what is looked at, and in which order, tells whether one of them has drifted from
`_quick_lane`: the order of the looks is what makes the quick lane safe.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from slotwise import MemorySemaphore
from slotwise._ledger.base import QUICK_LANE
from slotwise._wait.woken import Woken
from slotwise.memory import _quick_lane, _semaphore
from slotwise.memory._acquisition import GeneralMemoryAcquisition, MemoryAcquisition
from slotwise.memory._tracker import Tracker

pytestmark = pytest.mark.skipif(not QUICK_LANE, reason="there is no quick lane here")

NUMBER = 7


class Asked(Exception):
    """The copy has left the quick lane: it asks the tracker, or begins to wait."""


class Watched(Tracker):
    """Notes each look at what threads share, and each call that leads to the lock."""

    __slots__ = ("arrives", "looks", "watching")

    def __init__(self) -> None:
        self.watching = False
        self.looks: list[object] = []
        self.arrives = ""  # who comes while a number is pushed
        super().__init__(10)

    def hand_over(self, number: int) -> None:
        self.looks.append(("hand_over", number))

    def look_after_waiters(self) -> None:
        self.looks.append("look_after_waiters")

    def take_fresh(self) -> int:
        raise Asked

    def arm(self, when: float) -> None:
        pass

    def take_back(self, acquisition: MemoryAcquisition) -> bool:
        self.looks.append(("take_back", acquisition._slot_number))
        return True


def _watch(name: str) -> None:
    slot = getattr(Tracker, name)

    def get(tracker: Watched) -> object:
        value = slot.__get__(tracker)
        if tracker.watching:
            tracker.looks.append(name)
            if name == "free" and tracker.arrives == "attention":
                tracker.attention = True
            if name == "free" and tracker.arrives == "line":
                tracker.line = deque(["somebody"])
        return value

    def set_(tracker: Watched, value: object) -> None:
        if tracker.watching and name == "last_used":
            tracker.looks.append("last_used is set")
        slot.__set__(tracker, value)

    setattr(Watched, name, property(get, set_))


for _name in ("attention", "line", "woken", "free", "last_used"):
    _watch(_name)


def drive(coroutine: Coroutine[Any, Any, object]) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def rule_take(tracker: Watched, _: MemorySemaphore) -> int:
    return _quick_lane.take(tracker)


def enter_block(enter: Callable[[MemorySemaphore], None]) -> Callable[..., int]:
    def take(_: Watched, semaphore: MemorySemaphore) -> int:
        enter(semaphore)
        return semaphore._numbers[-1]

    return take


def enter_cm(_: Watched, semaphore: MemorySemaphore) -> int:
    acquisition: Any = semaphore.cm()
    drive(acquisition.__aenter__())
    number: int = acquisition.slot_number
    return number


TAKES: dict[str, Callable[[Watched, MemorySemaphore], int]] = {
    "MemorySemaphore.__aenter__": enter_block(lambda semaphore: drive(semaphore.__aenter__())),
    "MemorySemaphore.__enter__": enter_block(lambda semaphore: semaphore.__enter__()),
    "MemoryAcquisition.__aenter__": enter_cm,
}


def rule_give(tracker: Watched, _: MemorySemaphore) -> None:
    _quick_lane.give(tracker, NUMBER)


def held(tracker: Watched, semaphore: MemorySemaphore) -> Any:
    acquisition: Any = semaphore.cm()
    acquisition.key, acquisition._slot_number = 1, NUMBER
    tracker.holders[1] = acquisition
    return acquisition


def exit_block(leave: Callable[[MemorySemaphore], None]) -> Callable[..., None]:
    def give(_: Watched, semaphore: MemorySemaphore) -> None:
        semaphore._numbers.append(NUMBER)
        leave(semaphore)

    return give


GIVES: dict[str, Callable[[Watched, MemorySemaphore], object]] = {
    "MemorySemaphore.__aexit__": exit_block(lambda sem: drive(sem.__aexit__(None, None, None))),
    "MemorySemaphore.__exit__": exit_block(lambda sem: sem.__exit__(None, None, None)),
    "MemoryAcquisition.__aexit__": lambda tracker, sem: drive(
        held(tracker, sem).__aexit__(None, None, None)
    ),
}


def set_log(state: str) -> None:
    """Make it known that acquisitions are logged, known that they are not, or not known."""
    logger = logging.getLogger("slotwise.memory")
    logger.setLevel(logging.DEBUG if state == "logged" else logging.WARNING)
    if state != "not known":
        logger.isEnabledFor(logging.DEBUG)


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    logger = logging.getLogger("slotwise.memory")
    before = logger.level
    yield
    logger.setLevel(before)
    logger.isEnabledFor(logging.DEBUG)


@pytest.fixture(autouse=True)
def asking_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        raise Asked

    monkeypatch.setattr(_semaphore, "get_running_loop", ask)
    for name in ("_acquire", "_enter_slowly", "_blocks_have_claims"):
        monkeypatch.setattr(MemorySemaphore, name, ask)


def outcome(
    call: Callable[[Watched, MemorySemaphore], object], **state: Any
) -> tuple[list[object], object, list[int]]:
    """What a call looks at, what it returns, and what is free then."""
    tracker = Watched()
    semaphore = MemorySemaphore(10)
    semaphore._attach(tracker)
    for name, value in state.items():
        setattr(tracker, name, value)
    tracker.watching = True
    try:
        result: object = call(tracker, semaphore)
    except Asked:
        result = 0
    tracker.watching = False
    return tracker.looks, result, tracker.free


@pytest.mark.parametrize("copy", TAKES)
def test_a_copy_of_take_looks_and_takes_as_the_rule_does(copy: str) -> None:
    taken = 0
    for log, attention, waiting, woken, free in itertools.product(
        ("not logged", "logged", "not known"),
        (False, True),
        ((), ("somebody",)),
        ((), ("somebody",)),
        ((), (1,), (2, 5, 3)),
    ):

        def prepared() -> dict[str, Any]:
            set_log(log)  # noqa: B023 - called at once
            lane = Woken()
            lane.update(woken)  # noqa: B023
            line = deque(waiting)  # noqa: B023
            return {"attention": attention, "line": line, "woken": lane, "free": [*free]}  # noqa: B023

        looks, number, left = outcome(rule_take, **prepared())
        copied_looks, copied_number, copied_left = outcome(TAKES[copy], **prepared())
        assert copied_number == number
        assert copied_left == left
        # A caller that has to ask looks again afterwards.
        assert copied_looks[: len(looks)] == looks
        assert not number or copied_looks == looks
        taken += bool(number)
    assert taken == 2, "of all states, only the quiet ones with something free"


@pytest.mark.parametrize("copy", GIVES)
def test_a_copy_of_give_looks_and_gives_as_the_rule_does(copy: str) -> None:
    ways = set()
    for attention, waiting, arrives in itertools.product(
        (False, True), ((), ("somebody",)), ("", "line", "attention")
    ):

        def prepared() -> dict[str, Any]:
            set_log("not logged")
            line = deque(waiting)  # noqa: B023 - called at once
            return {"attention": attention, "line": line, "free": [2, 9], "arrives": arrives}  # noqa: B023

        looks, _, free = outcome(rule_give, **prepared())
        copied_looks, _, copied_free = outcome(GIVES[copy], **prepared())
        assert copied_looks == looks
        assert copied_free == free
        ways.add(str(looks[-1]))
    assert ways == {str(("hand_over", NUMBER)), "look_after_waiters", "attention"}


def test_an_acquisition_with_a_label_takes_the_quick_lane_too() -> None:
    set_log("not logged")

    def enter(_: Watched, semaphore: MemorySemaphore) -> None:
        acquisition = semaphore.cm(label="import")
        drive(acquisition.__aenter__())
        [holder] = semaphore.holders_sync()
        assert (holder.label, holder.since is None) == ("import", False)
        drive(acquisition.__aexit__(None, None, None))

    def acquire(_: Watched, semaphore: MemorySemaphore) -> None:
        acquisition = semaphore.try_acquire_sync(label="import")
        assert acquisition is not None
        [holder] = semaphore.holders_sync()
        assert (holder.label, holder.since is None) == ("import", False)
        assert semaphore.release_sync(acquisition) is True

    for use in (enter, acquire):
        looks, _, free = outcome(use, free=[1])
        assert free == [1]
        assert looks[:4] == ["attention", "line", "woken", "free"]


def test_every_copy_is_compared() -> None:
    kinds = (
        MemorySemaphore,
        MemoryAcquisition,
        GeneralMemoryAcquisition,
    )
    written_out = {
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, function in vars(kind).items()
        if inspect.isfunction(function) and "inlined" in inspect.getsource(function)
    }
    assert written_out == {*TAKES, *GIVES}
    using_the_heap = {
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, function in vars(kind).items()
        if inspect.isfunction(function) and {"heappop", "heappush"} & {*function.__code__.co_names}
    }
    assert using_the_heap == written_out, "a copy that doesn't say so"
