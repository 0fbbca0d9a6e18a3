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
from tests._inside import backend_of, give_number
from tests.memory._inside import ledger_of, unnamed_numbers

from slotwise import MemorySemaphore
from slotwise._ledger.declared import DeclaredLedger
from slotwise._ledger.slots import QUICK_LANE
from slotwise._wait.woken import Woken
from slotwise.memory import _quick_lane, _semaphore
from slotwise.memory._acquisition import GeneralAcquisition, MemoryAcquisition
from slotwise.memory._backend import MemoryBackend
from slotwise.memory._tracker import Tracker

pytestmark = pytest.mark.skipif(not QUICK_LANE, reason="there is no quick lane here")

NUMBER = 7


class Asked(Exception):
    """The copy has left the quick lane: it asks the tracker, or begins to wait."""


class Looks(list[object]):
    """What was looked at, and each call that leads to the lock, in order."""

    watching = False
    arrives = ""  # who comes while a number is taken or pushed

    def note(self, look: object) -> None:
        if self.watching:
            self.append(look)


LOOKS = Looks()


class WatchedLedger(DeclaredLedger[Any]):
    __slots__ = ()


class WatchedTracker(Tracker):
    __slots__ = ()

    def hand_over(self, number: int) -> None:
        LOOKS.note(("hand_over", number))

    def look_around(self, nodes: object) -> None:
        LOOKS.note("look_around")

    def undo(self, taken: object, number: int) -> None:
        LOOKS.note(("undo", number))


class WatchedBackend(MemoryBackend):
    __slots__ = ()


def _watch(kind: Any, base: Any, name: str) -> None:
    slot = getattr(base, name)

    def get(thing: Any) -> object:
        value = slot.__get__(thing)
        LOOKS.note(name)
        if name == "free" and LOOKS.watching and LOOKS.arrives == "attention":
            thing.lane.attention = True
        if name == "free" and LOOKS.watching and LOOKS.arrives == "line":
            thing.lane.line = deque(["somebody"])
        return value

    setattr(kind, name, property(get, slot.__set__))


_watch(WatchedLedger, DeclaredLedger, "attention")
_watch(WatchedLedger, DeclaredLedger, "line")
_watch(WatchedTracker, Tracker, "woken")
_watch(WatchedBackend, MemoryBackend, "free")


def drive(coroutine: Coroutine[Any, Any, object]) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def rule_take(semaphore: MemorySemaphore) -> int:
    return _quick_lane.take_one(backend_of(semaphore))


def enter_block(enter: Callable[[MemorySemaphore], None]) -> Callable[..., int]:
    def take(semaphore: MemorySemaphore) -> int:
        enter(semaphore)
        return unnamed_numbers(semaphore)[-1]

    return take


def enter_cm(semaphore: MemorySemaphore) -> int:
    acquisition: Any = semaphore.cm()
    drive(acquisition.__aenter__())
    number: int = acquisition.slot_number
    return number


TAKES: dict[str, Callable[[MemorySemaphore], int]] = {
    "MemorySemaphore.__aenter__": enter_block(lambda semaphore: drive(semaphore.__aenter__())),
    "MemorySemaphore.__enter__": enter_block(lambda semaphore: semaphore.__enter__()),
    "MemoryAcquisition.__aenter__": enter_cm,
}


def rule_give(semaphore: MemorySemaphore) -> None:
    _quick_lane.give_one(backend_of(semaphore), NUMBER)


def held(semaphore: MemorySemaphore) -> Any:
    acquisition: Any = semaphore.cm()
    acquisition.key = 1
    give_number(acquisition, NUMBER)
    ledger_of(semaphore).holders[1] = acquisition
    return acquisition


def exit_block(leave: Callable[[MemorySemaphore], None]) -> Callable[..., None]:
    def give(semaphore: MemorySemaphore) -> None:
        unnamed_numbers(semaphore).append(NUMBER)
        leave(semaphore)

    return give


GIVES: dict[str, Callable[[MemorySemaphore], object]] = {
    "MemorySemaphore.__aexit__": exit_block(lambda sem: drive(sem.__aexit__(None, None, None))),
    "MemorySemaphore.__exit__": exit_block(lambda sem: sem.__exit__(None, None, None)),
    "MemoryAcquisition.__aexit__": lambda sem: drive(held(sem).__aexit__(None, None, None)),
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
    monkeypatch.setattr(MemoryBackend, "get", ask)
    monkeypatch.setattr(MemorySemaphore, "_blocks_have_claims", ask)


def outcome(
    call: Callable[[MemorySemaphore], object], arrives: str = "", **state: Any
) -> tuple[list[object], object, list[int]]:
    """What a call looks at, what it returns, and what is free then."""
    semaphore = MemorySemaphore(10)
    backend = backend_of(semaphore)
    tracker, ledger = backend.tracker, backend.lane
    backend.__class__, tracker.__class__ = WatchedBackend, WatchedTracker
    ledger.__class__ = WatchedLedger
    places = {"attention": ledger, "line": ledger, "woken": tracker}
    for name, value in state.items():
        if name == "free":
            backend.free[:] = value
        else:
            setattr(places[name], name, value)
    LOOKS.clear()
    LOOKS.watching, LOOKS.arrives = True, arrives
    try:
        result: object = call(semaphore)
    except Asked:
        result = 0
    LOOKS.watching = False
    return [*LOOKS], result, backend.free


@pytest.mark.parametrize("copy", TAKES)
def test_a_copy_of_take_looks_and_takes_as_the_rule_does(copy: str) -> None:
    taken = 0
    for log, attention, waiting, woken, free, arrives in itertools.product(
        ("not logged", "logged", "not known"),
        (False, True),
        ((), ("somebody",)),
        ((), ("somebody",)),
        ((), (1,), (2, 5, 3)),
        ("", "attention"),
    ):

        def prepared() -> dict[str, Any]:
            set_log(log)  # noqa: B023 - called at once
            lane = Woken()
            lane.update(woken)  # noqa: B023
            line = deque(waiting)  # noqa: B023
            state = {"attention": attention, "line": line, "woken": lane, "free": [*free]}  # noqa: B023
            return {**state, "arrives": arrives}  # noqa: B023

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
    assert ways == {str(("hand_over", NUMBER)), "look_around", "attention"}


def test_every_copy_is_compared() -> None:
    kinds = (MemorySemaphore, MemoryAcquisition, GeneralAcquisition)
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
