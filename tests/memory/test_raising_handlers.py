"""Signal handlers that raise in the middle of slotwise: what is lost then, and what never is."""

from __future__ import annotations

import contextlib
import itertools
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine
from heapq import heappop
from typing import Any

import pytest
from tests import _fresh_processes
from tests._interrupting import AMID_STARTS, interrupted_start
from tests.memory._raising_handlers import Interrupt, interrupted

from slotwise import Adaptive, MemorySemaphore
from slotwise._ledger import Claim, Ledger
from slotwise._ledger import slots as slots_module
from slotwise._ledger.base import QUICK_LANE
from slotwise._wait import clock
from slotwise.memory import _acquisition, _adaptive, _semaphore

pytestmark = pytest.mark.soak

# ------------------------------------------------- the ledger, between any two bytecodes


def prepared(value: int) -> Ledger[Claim]:
    ledger = Ledger[Claim](value)
    for key in ("one", "two", "three"):
        ledger.request(Claim(key))
    ledger.request(Claim("wide", 20))
    ledger.request(Claim("above"))
    ledger.release("two")
    return ledger


# The most that an interrupt may cost, which is what the interrupted call is about.
VERBS: dict[str, tuple[int, Callable[[Ledger[Claim]], object]]] = {
    "request": (1, lambda ledger: [ledger.request(Claim(f"new {n}")) for n in range(12)]),
    "wide request": (16, lambda ledger: ledger.request(Claim("new", 16))),
    "release": (1, lambda ledger: ledger.release("one")),
    "wide release": (20, lambda ledger: ledger.release("wide")),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupt_anywhere_in_the_ledger_repeats_no_number(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worth, call = VERBS[verb]
    value = 40
    monkeypatch.setattr(slots_module, "FEW", 4)
    for number in itertools.count(1):
        ledger = prepared(value)
        if not interrupted(number, lambda: call(ledger)):  # noqa: B023 - called at once
            break
        ledger.serve()
        held = [number for claim in ledger.holders.values() for number in claim.numbers]
        for key, slots in enumerate((1, 1, 1, 1, 6, 5, *[1] * 40)):
            claim = Claim(key, slots)
            if ledger.try_request(claim):
                held += claim.numbers
        assert len(set(held)) == len(held), "a number was handed out twice"
        assert len(held) >= value - worth, f"lost {value - len(held)} slots"
        assert len(held) <= value
    assert number > 50, "nothing was interrupted"


# -------------------------------------------- the quick lane, right after a number is popped


class InterruptingList(list[int]):
    """Raises after it has popped, as a signal handler would."""

    def pop(self, *_: Any) -> int:
        super().pop()
        raise Interrupt


def interrupt_after_pop(heap: list[int]) -> int:
    heappop(heap)
    raise Interrupt


def drive(coroutine: Coroutine[Any, Any, Any]) -> None:
    with contextlib.suppress(StopIteration):
        coroutine.send(None)


ENTERING: dict[str, Callable[[MemorySemaphore], object]] = {
    "async with": lambda semaphore: drive(semaphore.__aenter__()),
    "with": lambda semaphore: semaphore.__enter__(),
    "async cm": lambda semaphore: drive(semaphore.cm().__aenter__()),
    "cm": lambda semaphore: semaphore.cm().__enter__(),
    "acquire": lambda semaphore: drive(semaphore.acquire()),
    "try_acquire": lambda semaphore: semaphore.try_acquire_sync(),
}


def assert_all_can_be_taken(semaphore: MemorySemaphore, in_use: int) -> None:
    assert semaphore.stats_sync().acquired_slots == in_use
    numbers = [semaphore.acquire_sync().slot_number for _ in range(semaphore.value - in_use)]
    assert len({*numbers}) == len(numbers)


@pytest.mark.skipif(not QUICK_LANE, reason="there is no quick lane here")
@pytest.mark.parametrize("value", [4, Adaptive(4, 1, 4)], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("way", ENTERING)
def test_an_interrupt_right_after_a_slot_was_taken_gives_it_back(
    way: str, value: int | Adaptive, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore = MemorySemaphore(value)
    for acquired in [semaphore.acquire_sync() for _ in range(4)]:
        semaphore.release_sync(acquired)  # so that all numbers are in circulation
    acquired = semaphore.acquire_sync()
    with semaphore:
        monkeypatch.setattr(_semaphore, "heappop", interrupt_after_pop)
        monkeypatch.setattr(_acquisition, "heappop", interrupt_after_pop)
        monkeypatch.setattr(_adaptive, "heappop", interrupt_after_pop)
        with pytest.raises(Interrupt):
            ENTERING[way](semaphore)
        monkeypatch.undo()
        assert semaphore.release_sync(acquired)
        assert_all_can_be_taken(semaphore, 1)


LEAVING: dict[str, Callable[[MemorySemaphore], object]] = {
    "async with": lambda semaphore: drive(semaphore.__aexit__(None, None, None)),
    "with": lambda semaphore: semaphore.__exit__(None, None, None),
}


@pytest.mark.parametrize("way", LEAVING)
def test_an_interrupt_while_a_block_is_left_frees_its_slot(way: str) -> None:
    semaphore = MemorySemaphore(4)
    acquired = semaphore.acquire_sync()
    semaphore.__enter__()
    semaphore.__enter__()
    semaphore._numbers = InterruptingList(semaphore._numbers)
    with pytest.raises(Interrupt):
        LEAVING[way](semaphore)
    assert semaphore.release_sync(acquired)
    assert_all_can_be_taken(semaphore, 1)


def test_a_number_that_might_be_somebody_elses_is_not_given_back() -> None:
    semaphore, other = (MemorySemaphore(4, name="two instances, interrupted") for _ in range(2))
    with other:
        semaphore.__enter__()
        semaphore._numbers = InterruptingList(semaphore._numbers)
        with pytest.raises(Interrupt):
            semaphore.__exit__(None, None, None)
        assert_all_can_be_taken(semaphore, 2)  # one is lost, and none is there twice


# ------------------------------------------------------- the driver, with real signals

WAYS = {
    "async with": "drive(block(semaphore))",
    "async cm": "drive(cm(semaphore))",
    "acquire": "drive(pair(semaphore))",
    "with": "with semaphore: pass",
    "cm": "with semaphore.cm(): pass",
    "acquire_sync": "semaphore.release_sync(semaphore.acquire_sync())",
    "wide": "with semaphore.cm(2): pass",
    "adaptive async cm": "drive(cm(semaphore))",
    "adaptive cm": "with semaphore.cm(): pass",
    "adaptive acquire": "drive(pair(semaphore))",
    "mint": "[semaphore.acquire_sync() for semaphore in [MemorySemaphore(16)] for _ in range(9)]",
}


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_costs_one_acquisition_at_most_and_repeats_no_number(way: str) -> None:
    program = """
    import asyncio, random, signal, sys
    from slotwise import Adaptive, MemorySemaphore
    from slotwise._wait import section as _section

    class Interrupt(BaseException): ...

    interrupts = 0
    armed = False

    def interrupt(*_):
        global interrupts
        if armed:
            interrupts += 1
            raise Interrupt

    async def block(semaphore):
        async with semaphore: pass

    async def cm(semaphore):
        async with semaphore.cm(): pass

    async def pair(semaphore):
        await semaphore.release(await semaphore.acquire())

    loop = asyncio.new_event_loop()

    def drive(coroutine):
        asyncio._set_running_loop(loop)
        try:
            coroutine.send(None)
        except StopIteration:
            pass

    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = lambda unraisable: None
    for _ in range(500):
        interrupts = 0  # one in somebody's finalizer is swallowed, and another one follows
        semaphore = MemorySemaphore(VALUE)
        others = [semaphore.acquire_sync(), semaphore.acquire_sync()]
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-4), 0.5)
            while True:
                WAY
        except Interrupt:
            armed = False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            asyncio._set_running_loop(None)
        assert not _section.section.busy
        held = [acquired.slot_number for acquired in others]
        while (acquired := semaphore.try_acquire_sync()) is not None:
            held.append(acquired.slot_number)
        assert len(set(held)) == len(held), "a number was handed out twice"
        assert max(held) <= 16
        assert len(held) >= 16 - WORTH * interrupts, f"{interrupts} lost {16 - len(held)} slots"
    print("done")
    """
    code = textwrap.dedent(program).replace("WAY", WAYS[way])
    code = code.replace("VALUE", "Adaptive(16, 1, 16)" if "adaptive" in way else "16")
    code = code.replace("WORTH", "2" if way == "wide" else "0" if way == "mint" else "1")
    outcome = _fresh_processes.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert outcome.stdout == "done\n", outcome.stderr


# ------------------------------------------------- the thread of the timers


class Bell:
    def __init__(self) -> None:
        self.rung = 0
        self.heard = threading.Event()

    def ring(self, _: float) -> None:
        self.rung += 1
        self.heard.set()


@pytest.mark.parametrize(("point", "error"), AMID_STARTS)
def test_timers_ring_after_an_interrupted_start_of_their_thread(
    point: str, error: type[BaseException]
) -> None:
    timekeeper = clock.Timekeeper()
    bells = Bell(), Bell()
    with interrupted_start(point, error):
        timekeeper.call_at(clock.now(), bells[0].ring)
    timekeeper.call_at(clock.now(), bells[1].ring)
    assert all(bell.heard.wait(30) for bell in bells)
    assert [bell.rung for bell in bells] == [1, 1]
