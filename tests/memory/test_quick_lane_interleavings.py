"""The quick lane, under every interleaving of two and three threads.

Each test makes a scenario with few slots and lets `_stepping.explore` run it under
all schedules. At the end of each: never were more slots held than there are,
none was lost, and nobody waits while one is free.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from logging import DEBUG
from typing import Any

import pytest
from tests._inside import backend_of
from tests._timers import timers
from tests.ledger import invariants
from tests.memory._inside import ledger_of, tracker_of, unnamed_numbers
from tests.memory._stepping import (
    EXHAUSTIVELY,
    HandLoop,
    Run,
    Scenario,
    SteppedLock,
    explore,
    keep_strangers_out,
)

from slotwise import MemorySemaphore
from slotwise._core.paths import semaphore_spec
from slotwise._ledger import NEVER
from slotwise._ledger.slots import QUICK_LANE
from slotwise._wait import deliveries, section
from slotwise._wait.wakers import block_on, thread_waker
from slotwise.errors import SemaphoreClosed, ValueConflict
from slotwise.memory import (
    _acquisition,
    _backend,
    _ids,
    _line,
    _log,
    _registry,
    _semaphore,
    _tracker,
)
from slotwise.memory._acquisition import BlockWait
from slotwise.memory._registry import Registry
from slotwise.testing import FakeClock

pytestmark = pytest.mark.skipif(not QUICK_LANE, reason="there is no quick lane here")


class World:
    """A fresh world for one run: names, keys, time and lock start anew."""

    clock: FakeClock

    def __init__(self, run: Run) -> None:
        self.run = run
        self.loops: list[HandLoop] = []
        self._semaphores: list[MemorySemaphore] = []
        self.inside = 0
        self.most_inside = 0
        self._leaving: list[Callable[[], object]] = []
        self.lock = SteppedLock(run)

        def block(waker: Any) -> None:
            run.step(until=lambda: not waker.locked())
            block_on(waker)

        self.clock._move_to(1000.0)
        timers().clear()
        self.registry = Registry()
        section.lock = _tracker.lock = _registry.lock = self.lock
        assert not section.section.busy
        assert not section.postponed
        assert not deliveries.posted
        _semaphore.registry = _backend.registry = self.registry
        next_key = itertools.count(1).__next__
        _acquisition.next_key = _backend.next_key = next_key
        _backend.block_on = block
        _log.logger.isEnabledFor(DEBUG)
        assert not _log.perhaps_wanted(DEBUG, True), "with logs there is no quick lane"

    def semaphore(self, **arguments: Any) -> MemorySemaphore:
        made = MemorySemaphore(**arguments)
        self._semaphores.append(made)
        return made

    def loop(self) -> HandLoop:
        loop = HandLoop(self.run)
        self.loops.append(loop)
        return loop

    def enter(self) -> None:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)

    def leave(self) -> None:
        self.inside -= 1

    def at_the_end(self, leave: Callable[[], object]) -> None:
        self._leaving.append(leave)

    def end(self) -> None:
        """Let those leave who are inside."""
        for leave in self._leaving:
            self.leave()
            leave()
            self.run_loops()

    def waiter(self, sem: MemorySemaphore) -> BlockWait:
        """Somebody who waits already."""
        wait = BlockWait(backend_of(sem), None)
        assert not section.exclusive(wait.backend._ask, wait, thread_waker)
        return wait

    def serve(self, sem: MemorySemaphore, waiters: list[BlockWait]) -> None:
        """Let those visit, in this order, who wait already."""
        for wait in waiters:
            assert wait.slot_number, "it waits, and nobody is before it"
            assert not wait.waker.locked(), "it was not told"
            tracker_of(sem).hand_over(wait.slot_number)

    def scenario(
        self, *acts: Callable[[], None], check: Callable[[], None] = lambda: None
    ) -> Scenario:
        def check_all() -> None:
            self.run_loops()
            check()

        return Scenario(list(acts), [*self._semaphores, *self._shared()], check_all, self._glance)

    def run_loops(self) -> None:
        while any(loop.ready for loop in self.loops):
            for loop in self.loops:
                loop.run_ready()

    def assert_all_free(self, sem: MemorySemaphore, value: int = 1) -> None:
        """Nobody is left, in the private ``sem``."""
        ledger = ledger_of(sem)
        assert not ledger.line, "somebody stands in the line"
        assert not ledger.waiting, "somebody waits"
        assert not unnamed_numbers(sem)
        invariants.check(ledger)
        assert ledger.node().in_use == 0, "a slot is lost"
        assert ledger.node().value == value
        assert self.most_inside <= value
        assert self.inside == 0

    def _shared(self) -> list[object]:
        return [
            self.lock,
            self.loops,
            self.registry._trackers,
            _tracker.ttl_cancels,
            section.section,
            deliveries.posted,
            self,
        ]

    def _glance(self) -> tuple[object, ...]:
        seen: list[object] = []
        for sem in self._semaphores:
            ledger, home = ledger_of(sem), tracker_of(sem).home.loop
            node = ledger.node()
            seen += [
                (ledger.attention, node.circulating, node.value),
                (len(ledger.line), ledger.line.maxlen, *node.free),
                None if home is None else self.loops.index(home),
            ]
        return tuple(seen)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    # Put back at the end; a World fills them.
    for module, name in (
        (section, "lock"),
        (_tracker, "lock"),
        (_registry, "lock"),
        (_semaphore, "registry"),
        (_backend, "registry"),
        (_acquisition, "next_key"),
        (_backend, "next_key"),
        (_backend, "block_on"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))

    def play_all(make_scenario: Callable[[World], Scenario], **options: Any) -> int:
        def in_a_fresh_world(run: Run) -> Scenario:
            return make_scenario(World(run))

        if EXHAUSTIVELY:
            options.pop("interruptions", None)
        explored = explore(in_a_fresh_world, **options)
        assert explored.schedules > 1, "there was nothing to choose"
        return explored.schedules

    # A World has its own counter: by this one, all of its keys have been issued.
    monkeypatch.setattr(_ids, "next_key", lambda: 1_000_000)
    with keep_strangers_out(), FakeClock() as clock:
        monkeypatch.setattr(World, "clock", clock, raising=False)
        yield play_all
        timers().clear()


# ------------------------------------------------------------------ the actors

Act = Callable[[], None]


def _thread_takes_block(world: World, sem: MemorySemaphore) -> Act:
    def act() -> None:
        sem.__enter__()
        world.enter()
        world.at_the_end(lambda: sem.__exit__(None, None, None))

    return act


def _thread_takes_lease(world: World, sem: MemorySemaphore) -> Act:
    def act() -> None:
        acquired = sem.acquire_sync()
        world.enter()
        world.at_the_end(lambda: sem.release_sync(acquired))

    return act


def _thread_tries(world: World, sem: MemorySemaphore) -> Act:
    def act() -> None:
        acquired = sem.try_acquire_sync()
        if acquired is not None:
            world.enter()
            world.at_the_end(lambda: sem.release_sync(acquired))

    return act


def _thread_tries_and_leaves(world: World, sem: MemorySemaphore) -> Act:
    def act() -> None:
        acquired = sem.try_acquire_sync()
        if acquired is not None:
            world.enter()
            world.leave()
            sem.release_sync(acquired)

    return act


def _loop_takes_block(world: World, sem: MemorySemaphore) -> Act:
    loop = world.loop()

    def act() -> None:
        loop.drive(sem.__aenter__)
        world.enter()
        world.at_the_end(lambda: loop.drive(sem.__aexit__, None, None, None))

    return act


def _home_takes_block(world: World, sem: MemorySemaphore) -> Act:
    act = _loop_takes_block(world, sem)
    assert _line.at_home(tracker_of(sem), world.loops[-1])
    return act


def _loop_takes_lease(world: World, sem: MemorySemaphore) -> Act:
    loop = world.loop()
    cm = sem.cm()

    def act() -> None:
        loop.drive(cm.__aenter__)
        world.enter()
        world.at_the_end(lambda: loop.drive(cm.__aexit__, None, None, None))

    return act


def _unless_closed(take: Act) -> Act:
    def act() -> None:
        try:
            take()
        except SemaphoreClosed:
            pass

    return act


TAKERS = [
    _thread_takes_block,
    _thread_takes_lease,
    _thread_tries,
    _loop_takes_block,
    _home_takes_block,
    _loop_takes_lease,
]


def _thread_gives_block(world: World, sem: MemorySemaphore) -> Act:
    sem.__enter__()
    world.enter()

    def act() -> None:
        world.leave()
        sem.__exit__(None, None, None)

    return act


def _thread_gives_lease(world: World, sem: MemorySemaphore) -> Act:
    acquired = sem.acquire_sync()
    world.enter()

    def act() -> None:
        world.leave()
        assert sem.release_sync(acquired)

    return act


def _loop_gives_block(world: World, sem: MemorySemaphore) -> Act:
    loop = world.loop()
    loop.drive(sem.__aenter__)
    world.enter()

    def act() -> None:
        world.leave()
        loop.drive(sem.__aexit__, None, None, None)

    return act


def _loop_gives_lease(world: World, sem: MemorySemaphore) -> Act:
    loop = world.loop()
    cm = sem.cm()
    loop.drive(cm.__aenter__)
    world.enter()

    def act() -> None:
        world.leave()
        loop.drive(cm.__aexit__, None, None, None)

    return act


GIVERS = [_thread_gives_block, _thread_gives_lease, _loop_gives_block, _loop_gives_lease]


def _thread_visits(world: World, sem: MemorySemaphore) -> Act:
    def act() -> None:
        with sem:
            world.enter()
            world.leave()

    return act


def _thread_visits_by_cm(world: World, sem: MemorySemaphore) -> Act:
    def act() -> None:
        with sem.cm():
            world.enter()
            world.leave()

    return act


def _loop_visits(world: World, sem: MemorySemaphore) -> Act:
    loop = world.loop()

    async def visit() -> None:
        async with sem:
            world.enter()
            world.leave()

    return lambda: loop.drive(visit)


# ---------------------------------------------------------- takers and givers


@pytest.mark.parametrize(
    ("taker", "giver"),
    [(taker, giver) for taker in TAKERS for giver in GIVERS],
)
def test_a_caller_that_asks_while_the_slot_is_given_gets_it_and_nobody_else_does(
    play, taker, giver
):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        give = giver(world, sem)

        def check() -> None:
            assert taker is _thread_tries or world.inside == 1
            world.end()
            world.assert_all_free(sem)

        return world.scenario(taker(world, sem), give, check=check)

    play(scenario, interruptions=2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_thread_visits, _thread_visits),
        (_thread_visits, _loop_visits),
        (_thread_visits_by_cm, _loop_visits),
    ],
)
def test_two_visitors_are_never_inside_together(play, one, other):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        acts = one(world, sem), other(world, sem)
        return world.scenario(*acts, check=lambda: world.assert_all_free(sem))

    play(scenario, interruptions=2)


def test_two_visitors_and_a_giver_in_three_threads_are_inside_one_at_a_time(play):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        give = _thread_gives_lease(world, sem)

        def check() -> None:
            assert world.inside == 1
            world.end()
            world.assert_all_free(sem)

        return world.scenario(
            _thread_tries_and_leaves(world, sem), _thread_takes_block(world, sem), give, check=check
        )

    play(scenario, interruptions=2)


# ------------------------------------------------------------------- releasing


def test_two_releases_of_one_lease_free_it_once(play):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        acquired = sem.acquire_sync()
        freed: list[bool] = []

        def release() -> None:
            freed.append(sem.release_sync(acquired))

        def check() -> None:
            assert sorted(freed) == [False, True]
            world.assert_all_free(sem)

        return world.scenario(release, release, check=check)

    play(scenario)


def test_a_release_by_id_and_the_end_of_the_block_free_it_once_for_the_next(play):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        loop = world.loop()
        cm = sem.cm()
        loop.drive(cm.__aenter__)
        waiters = [world.waiter(sem), world.waiter(sem)]

        def check() -> None:
            assert [waiter.slot_number for waiter in waiters] == [1, 0]
            world.serve(sem, waiters)
            world.assert_all_free(sem)

        return world.scenario(
            lambda: sem.release_sync(cm.acquisition_id),
            lambda: loop.drive(cm.__aexit__, None, None, None),
            check=check,
        )

    play(scenario)


@pytest.mark.parametrize("by", ["id", "block"])
def test_a_release_and_the_end_of_the_ttl_free_it_once_for_the_next(play, by):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1, ttl=5)
        loop = world.loop()
        cm = sem.cm()
        loop.drive(cm.__aenter__)
        waiters = [world.waiter(sem), world.waiter(sem)]

        def leave() -> None:
            if by == "id":
                sem.release_sync(cm)
            else:
                loop.drive(cm.__aexit__, None, None, None)

        def check() -> None:
            assert [waiter.slot_number for waiter in waiters] == [1, 0]
            world.serve(sem, waiters)
            world.assert_all_free(sem)
            assert ledger_of(sem).next_deadline() == NEVER

        return world.scenario(leave, lambda: world.clock.advance(5), check=check)

    play(scenario, interruptions=2)


def test_a_ttl_that_starts_while_the_alarm_rings_ends_too(play):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=2, ttl=5)
        sem.acquire_sync()
        loop = world.loop()
        cm = sem.cm()

        def check() -> None:
            world.clock.advance(5)
            world.assert_all_free(sem, 2)

        return world.scenario(
            lambda: loop.drive(cm.__aenter__), lambda: world.clock.advance(5), check=check
        )

    play(scenario, interruptions=2)


# -------------------------------------------------- retire, close and resize


@pytest.mark.parametrize("taker", [_thread_takes_block, _thread_takes_lease, _loop_takes_block])
def test_a_slot_is_taken_or_its_semaphore_retired_but_never_both(play, taker):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1, name="s")
        take = taker(world, sem)

        def retire() -> None:
            other = MemorySemaphore(value=2, name="s")
            try:
                acquired = other.try_acquire_sync()
            except ValueConflict:
                return
            assert acquired is not None
            world.enter()
            # Who was there before is in the same semaphore, of another value.
            world.at_the_end(lambda: other.release_sync(acquired))

        def check() -> None:
            ledger = ledger_of(sem)
            assert ledger.node().in_use == world.inside == 1, "somebody is in a former ledger"
            world.end()
            assert ledger.node().in_use == 0
            assert not ledger.line
            assert not ledger.waiting
            assert len(world.registry) == 1

        def take_unless_in_conflict() -> None:
            try:
                take()
            except ValueConflict:
                assert ledger_of(sem).node().value == 2

        return world.scenario(take_unless_in_conflict, retire, check=check)

    play(scenario, interruptions=2, attachment=True)


@pytest.mark.parametrize("taker", TAKERS)
def test_a_caller_that_asks_while_it_is_closed_is_refused_or_holds_and_is_not_left_waiting(
    play, taker
):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        take = taker(world, sem)

        def check() -> None:
            assert ledger_of(sem).node().in_use == world.inside
            world.end()
            invariants.check(ledger_of(sem))

        return world.scenario(_unless_closed(take), sem.close_sync, check=check)

    play(scenario)


def test_a_caller_that_queues_while_it_is_closed_and_given_back_is_not_left_waiting(play):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        give = _thread_gives_lease(world, sem)
        take = _loop_takes_block(world, sem)

        def close_and_give() -> None:
            sem.close_sync()
            give()

        def check() -> None:
            assert ledger_of(sem).node().in_use == world.inside
            world.end()
            invariants.check(ledger_of(sem))

        return world.scenario(_unless_closed(take), close_and_give, check=check)

    play(scenario, interruptions=2)


def test_a_caller_that_joins_a_line_while_it_is_closed_is_not_left_waiting(play):
    """The line is replaced: who has read the old one must not queue there unseen."""

    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        give = _thread_gives_lease(world, sem)
        take = _home_takes_block(world, sem)
        first = world.loops[-1].create_future()
        ledger_of(sem).line.append(first)

        def check() -> None:
            assert isinstance(first.exception(), SemaphoreClosed)
            give()
            invariants.check(ledger_of(sem))

        return world.scenario(_unless_closed(take), sem.close_sync, check=check)

    play(scenario, interruptions=2)


@pytest.mark.parametrize("taker", TAKERS)
def test_a_caller_that_asks_during_a_shrink_gets_a_slot_or_waits_and_no_number_is_lost(play, taker):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=2)
        low, high = sem.acquire_sync(), sem.acquire_sync()
        sem.release_sync(low)

        def shrink() -> None:
            sem.resize_sync(1)
            sem.release_sync(high)

        def check() -> None:
            assert taker is _thread_tries or world.inside == 1
            world.end()
            world.assert_all_free(sem)
            acquired = sem.try_acquire_sync()
            assert acquired is not None
            assert acquired.slot_number == ledger_of(sem).node().top == 1

        return world.scenario(taker(world, sem), shrink, check=check)

    play(scenario, interruptions=2)


@pytest.mark.parametrize(
    ("end", "value"),
    [
        (lambda sem: sem.resize_sync(1), 2),
        (lambda sem: sem.close_sync(), 1),
        (lambda sem: sem.pause_sync(60), 1),
    ],
    ids=["a shrink that it does not fit", "the close", "the pause"],
)
def test_what_is_given_after_the_end_of_grants_is_granted_to_nobody(play, end, value):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=value)
        *_, last = [sem.acquire_sync() for _ in range(value)]

        def end_then_give() -> None:
            end(sem)
            sem.release_sync(last)

        def check() -> None:
            assert world.inside == 0, "it got a slot that was free after that only"

        take = _unless_closed(_thread_tries(world, sem))
        return world.scenario(take, end_then_give, check=check)

    play(scenario, interruptions=2)


@pytest.mark.parametrize("taker", TAKERS)
def test_a_caller_that_asks_during_a_pause_is_served_before_it_or_when_it_ends(play, taker):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=2)
        held = sem.acquire_sync()
        take = taker(world, sem)

        def pause() -> None:
            sem.pause_sync(60)
            sem.release_sync(held)
            world.clock.advance(60)

        def check() -> None:
            assert taker is _thread_tries or world.inside == 1
            world.end()
            world.assert_all_free(sem, value=2)

        return world.scenario(take, pause, check=check)

    play(scenario, interruptions=2)


# ---------------------------------------------------------------- the line


@pytest.mark.parametrize("giver", GIVERS)
def test_a_ticket_of_the_line_that_is_cancelled_meanwhile_keeps_no_slot(play, giver):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        give = giver(world, sem)
        loop = world.loop()

        def come_and_go() -> None:
            try:
                loop.drive(sem.__aenter__, cancel_when_it_waits=True)
            except asyncio.CancelledError:
                return
            world.enter()
            world.at_the_end(lambda: loop.drive(sem.__aexit__, None, None, None))

        def check() -> None:
            world.end()
            world.assert_all_free(sem)

        return world.scenario(come_and_go, give, check=check)

    play(scenario, interruptions=2)


@pytest.mark.parametrize("giver", GIVERS)
def test_a_waiter_behind_a_cancelled_ticket_of_the_line_is_served(play, giver):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        give = giver(world, sem)
        loop = world.loop()
        first, second = sem.__aenter__(), sem.__aenter__()
        with loop.running():
            ticket, other = first.send(None), second.send(None)
        assert list(ledger_of(sem).line) == [ticket, other]

        def cancel() -> None:
            loop.run_ready()
            world.run.step()
            with loop.running():
                ticket.cancel()
                with pytest.raises(asyncio.CancelledError):
                    first.throw(asyncio.CancelledError())

        def check() -> None:
            assert other.done(), "it waits, and the slot is free"
            with loop.running(), pytest.raises(StopIteration):
                second.send(None)
            loop.drive(sem.__aexit__, None, None, None)
            world.assert_all_free(sem)

        return world.scenario(cancel, give, check=check)

    play(scenario, interruptions=2)


def test_when_home_and_a_thread_give_at_once_one_ticket_gets_one_slot_and_none_is_lost(play):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=2)
        give = _thread_gives_lease(world, sem)
        loop = world.loop()
        loop.drive(sem.__aenter__)
        visit = sem.__aenter__()
        with loop.running():
            ticket = visit.send(None)

        def check() -> None:
            assert ticket.done(), "it waits, and two slots are free"
            with loop.running(), pytest.raises(StopIteration):
                visit.send(None)
            assert ledger_of(sem).node().in_use == 1
            loop.drive(sem.__aexit__, None, None, None)
            world.assert_all_free(sem, 2)

        return world.scenario(
            lambda: loop.drive(sem.__aexit__, None, None, None), give, check=check
        )

    play(scenario, interruptions=2)


def test_a_line_that_moves_to_another_loop_leaves_nobody_behind(play):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        give = _thread_gives_lease(world, sem)
        visit = _loop_visits(world, sem)
        assert _line.at_home(tracker_of(sem), world.loops[-1])
        other = world.loop()

        def move_and_give() -> None:
            _line.at_home(tracker_of(sem), other)
            give()

        return world.scenario(visit, move_and_give, check=lambda: world.assert_all_free(sem))

    play(scenario, interruptions=2)


def test_a_caller_that_queues_while_the_line_moves_and_is_tidied_is_not_dropped(play):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=1)
        give = _thread_gives_lease(world, sem)
        visit = _loop_visits(world, sem)
        tracker = tracker_of(sem)
        assert _line.at_home(tracker, world.loops[-1])
        other = world.loop()

        def move_and_tidy() -> None:
            if _line.at_home(tracker, other):
                with other.running():
                    # As if many had come here and given up.
                    for _ in range(2):
                        ticket = other.create_future()
                        ticket.cancel()
                        tracker.ledger.line.append(ticket)
                    tracker.ended_tickets = 100
                    section.exclusive(_line._tidy, tracker)
            give()

        return world.scenario(visit, move_and_tidy, check=lambda: world.assert_all_free(sem))

    play(scenario, interruptions=2)


# ----------------------------- numbers that are out of `free` for a moment only


def _retirement_fails(sem: MemorySemaphore) -> None:
    with pytest.raises(ValueConflict):
        section.exclusive(tracker_of(sem).declare, (semaphore_spec(3),))


def _try_for_both_slots_fails(sem: MemorySemaphore) -> None:
    assert sem.try_acquire_sync(2) is None


@pytest.mark.parametrize("fail", [_retirement_fails, _try_for_both_slots_fails])
def test_a_caller_that_queues_while_something_fails_gets_the_free_slot(play, fail):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=2, name="s")
        held = [sem.acquire_sync(), sem.acquire_sync()]
        sem.release_sync(held.pop())

        def check() -> None:
            assert world.inside == 1
            world.end()
            sem.release_sync(held.pop())
            world.assert_all_free(sem, 2)

        return world.scenario(_home_takes_block(world, sem), lambda: fail(sem), check=check)

    play(scenario)


def test_a_caller_that_queues_while_numbers_are_minted_gets_a_free_one(play):
    def scenario(world: World) -> Scenario:
        sem = world.semaphore(value=4)
        held = [sem.acquire_sync(), sem.acquire_sync()]
        assert ledger_of(sem).node().circulating == 2

        def check() -> None:
            assert world.inside == 2
            world.end()
            for acquired in held:
                sem.release_sync(acquired)
            world.assert_all_free(sem, 4)

        return world.scenario(
            _home_takes_block(world, sem), _thread_takes_block(world, sem), check=check
        )

    play(scenario, interruptions=2)
