"""The quick lane of atomic paths, under every interleaving of two and three threads.

As `tests/memory/test_quick_lane_interleavings.py` does for a semaphore: each test sets
a scenario with few slots and lets `_stepping.explore` play it under all schedules. At
the end of each: no limit was ever exceeded, no slot was lost, nobody waits who fits.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest
from tests._timers import timers
from tests.ledger.invariants import check
from tests.memory._inside import ledger_of
from tests.memory._stepping import (
    EXHAUSTIVELY,
    HandLoop,
    Run,
    Scenario,
    SteppedLock,
    explore,
    keep_strangers_out,
)

from slotwise._core.paths import Path, TierSpec
from slotwise._ledger.path_nodes import Node
from slotwise._ledger.slots import QUICK_LANE
from slotwise._wait import deliveries, section
from slotwise._wait.wakers import block_on
from slotwise.errors import AcquireTimeout, SemaphoreClosed
from slotwise.memory import _acquisition, _backend, _ids, _tracker
from slotwise.memory._backend import MemoryBackend
from slotwise.testing import FakeClock

pytestmark = pytest.mark.skipif(not QUICK_LANE, reason="there is no quick lane here")

ALICE, BOB, CAROL = ("alice", None), ("bob", None), ("carol", None)

Act = Callable[[], None]


class World:
    """A fresh world for one run, with limits per user and for all."""

    clock: FakeClock

    def __init__(self, run: Run) -> None:
        self.run = run
        self.loops: list[HandLoop] = []
        self.lock = SteppedLock(run)
        self.inside: Counter[object] = Counter()
        self.limits: dict[object, int] = {}
        self._leaving: list[Callable[[], object]] = []

        def block(waker: Any) -> None:
            run.step(until=lambda: not waker.locked())
            block_on(waker)

        self.clock._move_to(1000.0)
        timers().clear()
        section.lock = _tracker.lock = self.lock
        assert not section.section.busy
        assert not section.postponed
        assert not deliveries.posted
        next_key = itertools.count(1).__next__
        _acquisition.next_key = _backend.next_key = next_key
        _backend.block_on = block

    def tiers(self, narrow: int, wide: int, *, wide_is_keyed: bool = False, **more: Any) -> None:
        specs = [TierSpec("narrow", narrow, True), TierSpec("wide", wide, wide_is_keyed)]
        self.paths = MemoryBackend(specs, **more)
        self.values = (narrow, wide)

    @property
    def ledger(self) -> Any:
        return ledger_of(self.paths)

    def used(self, *those: Path) -> None:
        """Let them have been there before, as the quick lane wants it: all at once."""
        for held in [self.paths.acquire_sync(path, timeout=0) for path in those]:
            self.paths.release_sync(held.acquisition_id)
        assert not self.ledger.attention

    def loop(self) -> HandLoop:
        self.loops.append(HandLoop(self.run))
        return self.loops[-1]

    def enter(self, path: Path) -> None:
        for place in enumerate(path):
            self.inside[place] += 1
            assert self.inside[place] <= self.values[place[0]], f"too many in {place}"

    def leave(self, path: Path) -> None:
        self.inside.subtract(enumerate(path))

    def holds(self, path: Path, leave: Callable[[], object]) -> None:
        """Somebody is inside until the `end`."""
        self.enter(path)
        self._leaving += [lambda: self.leave(path), leave]

    def count(self) -> int:
        return len(self._leaving) // 2

    def end(self) -> None:
        """Let those leave who are inside; nobody must be left."""
        for leave in self._leaving:
            leave()
            self.run_loops()
        check(self.ledger)
        assert not self.ledger.waiting, "somebody waits"
        assert not self.ledger.holders, "somebody holds"
        for tier in self.ledger.tiers:
            for node in tier.nodes.values():
                assert node.in_use == 0, f"a slot of {node.key} is lost"
                assert len({*node.free}) == len(node.free) or tier.index == 0

    def scenario(self, *acts: Act, check: Act = lambda: None) -> Scenario:
        def check_all() -> None:
            self.run_loops()
            check()
            self.end()

        shared = [
            self.paths,
            self.lock,
            self.loops,
            _tracker.ttl_cancels,
            section.section,
            deliveries.posted,
            self,
        ]
        return Scenario(list(acts), shared, check_all, self._glance)

    def run_loops(self) -> None:
        while any(loop.ready for loop in self.loops):
            for loop in self.loops:
                loop.run_ready()

    def _glance(self) -> tuple[object, ...]:
        ledger = self.ledger
        nodes: list[Node] = [node for table in ledger.tables for node in table.values()]
        return (
            ledger.attention,
            *[(node.key, node.circulating, node.value, *node.free) for node in nodes],
        )


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    # Put back at the end; a World fills them.
    for module, name in (
        (section, "lock"),
        (_tracker, "lock"),
        (_acquisition, "next_key"),
        (_backend, "next_key"),
        (_backend, "block_on"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))

    def play_all(
        make_scenario: Callable[[World], Scenario], *, acts: int = 2, **options: Any
    ) -> int:
        if EXHAUSTIVELY:
            # Three threads have too many schedules for all of them.
            options["interruptions"] = inf if acts == 2 else 3
        explored = explore(lambda run: make_scenario(World(run)), **options)
        assert explored.schedules > 1, "there was nothing to choose"
        return explored.schedules

    # A World has its own counter: by this one, all of its keys have been issued.
    monkeypatch.setattr(_ids, "next_key", lambda: 1_000_000)
    with keep_strangers_out(), FakeClock() as clock:
        monkeypatch.setattr(World, "clock", clock, raising=False)
        yield play_all
        timers().clear()


# ------------------------------------------------------------------ the actors


def _thread_takes_block(world: World, path: Path) -> Act:
    block = world.paths.cm(path)

    def act() -> None:
        block.__enter__()
        world.holds(path, lambda: block.__exit__(None, None, None))

    return act


def _loop_takes_block(world: World, path: Path) -> Act:
    loop, block = world.loop(), world.paths.cm(path)

    def act() -> None:
        loop.drive(block.__aenter__)
        world.holds(path, lambda: loop.drive(block.__aexit__, None, None, None))

    return act


def _loop_acquires(world: World, path: Path) -> Act:
    loop = world.loop()

    def act() -> None:
        held = loop.drive(lambda: world.paths.acquire(path, timeout=None))
        world.holds(path, lambda: world.paths.release_sync(held.acquisition_id))

    return act


def _thread_tries(world: World, path: Path) -> Act:
    def act() -> None:
        try:
            held = world.paths.acquire_sync(path, timeout=0)
        except AcquireTimeout:
            return
        world.holds(path, lambda: world.paths.release_sync(held.acquisition_id))

    return act


TAKERS = [_thread_takes_block, _loop_takes_block, _loop_acquires, _thread_tries]


def _thread_gives_block(world: World, path: Path) -> Act:
    block = world.paths.cm(path)
    block.__enter__()
    world.enter(path)

    def act() -> None:
        world.leave(path)
        block.__exit__(None, None, None)

    return act


def _loop_gives_block(world: World, path: Path) -> Act:
    loop, block = world.loop(), world.paths.cm(path)
    loop.drive(block.__aenter__)
    world.enter(path)

    def act() -> None:
        world.leave(path)
        loop.drive(block.__aexit__, None, None, None)

    return act


def _thread_releases(world: World, path: Path) -> Act:
    held = world.paths.acquire_sync(path, timeout=0)
    world.enter(path)

    def act() -> None:
        world.leave(path)
        assert world.paths.release_sync(held.acquisition_id)

    return act


GIVERS = [_thread_gives_block, _loop_gives_block, _thread_releases]


def _thread_visits(world: World, path: Path) -> Act:
    def act() -> None:
        with world.paths.cm(path):
            world.enter(path)
            world.leave(path)

    return act


def _loop_visits(world: World, path: Path) -> Act:
    loop = world.loop()

    async def visit() -> None:
        async with world.paths.cm(path):
            world.enter(path)
            world.leave(path)

    return lambda: loop.drive(visit)


# ---------------------------------------------------------- takers and givers


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(ALICE, id="the same user", marks=pytest.mark.soak),
        pytest.param(BOB, id="another user"),
    ],
)
@pytest.mark.parametrize("giver", GIVERS)
@pytest.mark.parametrize("taker", TAKERS)
def test_a_caller_that_asks_while_the_last_slot_is_given_gets_it(play, taker, giver, path):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 1)
        world.used(ALICE)
        world.used(BOB)
        give = giver(world, ALICE)

        def check() -> None:
            assert taker is _thread_tries or world.count() == 1

        return world.scenario(taker(world, path), give, check=check)

    play(scenario, interruptions=2)


@pytest.mark.parametrize("path", [ALICE, BOB], ids=["the same user", "another user"])
@pytest.mark.parametrize("giver", GIVERS)
def test_a_caller_that_asks_for_two_slots_while_the_last_one_is_given_gets_them(play, giver, path):
    def scenario(world: World) -> Scenario:
        world.tiers(2, 2)
        world.used(ALICE, BOB)
        give = giver(world, ALICE)
        block = world.paths.cm(path, needs=(2, 2))

        def take() -> None:
            block.__enter__()
            world.holds(path, lambda: block.__exit__(None, None, None))

        def check() -> None:
            assert world.count() == 1
            assert [acquisition.numbers for acquisition in world.ledger.holders.values()] == [
                (1, 2)
            ]

        return world.scenario(take, give, check=check)

    play(scenario, interruptions=2)


@pytest.mark.parametrize("giver", GIVERS)
def test_a_quick_taker_and_one_of_two_slots_are_never_inside_together(play, giver):
    def scenario(world: World) -> Scenario:
        world.tiers(2, 2)
        world.used(ALICE, BOB)
        give = giver(world, ALICE)
        block = world.paths.cm(BOB, timeout=0, needs=(1, 2))

        def try_both() -> None:
            try:
                block.__enter__()
            except AcquireTimeout:
                return
            assert {*world.ledger.holders.values()} == {block}
            block.__exit__(None, None, None)

        return world.scenario(try_both, give, _thread_visits(world, BOB))

    play(scenario, acts=3, interruptions=1)


@pytest.mark.parametrize("paths", [(ALICE, ALICE), (ALICE, BOB)], ids=["one user", "two users"])
@pytest.mark.parametrize("used", [False, True], ids=["for the first time", "again"])
@pytest.mark.parametrize(
    ("one", "other"),
    [(_thread_visits, _thread_visits), (_thread_visits, _loop_visits)],
)
def test_two_visitors_are_never_inside_together(play, one, other, used, paths):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 1)
        if used:
            world.used(ALICE)
            world.used(BOB)
        return world.scenario(one(world, paths[0]), other(world, paths[1]))

    play(scenario, interruptions=2)


def test_two_users_side_by_side_get_two_numbers(play):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 2)
        world.used(ALICE, BOB)
        acts = _thread_takes_block(world, ALICE), _loop_takes_block(world, BOB)

        def check() -> None:
            assert {acquisition.slot_number for acquisition in world.ledger.holders.values()} == {
                1,
                2,
            }

        return world.scenario(*acts, check=check)

    play(scenario)


def test_two_visitors_and_a_giver_in_three_threads_are_inside_one_at_a_time(play):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 1)
        world.used(ALICE)
        world.used(BOB)
        give = _thread_releases(world, ALICE)
        acts = _loop_visits(world, ALICE), _thread_visits(world, BOB), give
        return world.scenario(*acts)

    play(scenario, acts=3, interruptions=1)


# --------------------------------------------------- what is taken and put back


@pytest.mark.parametrize("taker", TAKERS)
def test_a_caller_that_asks_while_another_puts_back_a_failed_take_gets_it(play, taker):
    """The first takes a's slot, finds none of x, and puts it back; the other wants a and y."""

    def scenario(world: World) -> Scenario:
        world.tiers(1, 1, wide_is_keyed=True)
        world.used(("a", "x"))
        world.used(("a", "y"))
        held = world.paths.acquire_sync(("b", "x"), timeout=0)
        world.holds(("b", "x"), lambda: world.paths.release_sync(held.acquisition_id))

        def check() -> None:
            assert taker is _thread_tries or world.count() == 2

        acts = _thread_tries(world, ("a", "x")), taker(world, ("a", "y"))
        return world.scenario(*acts, check=check)

    play(scenario, interruptions=2)


def test_a_failed_take_while_the_missing_slot_is_given_may_get_it_and_loses_nothing(play):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 1)
        world.used(ALICE)
        world.used(BOB)
        give = _thread_releases(world, BOB)
        acts = _thread_tries(world, ALICE), _thread_tries(world, CAROL), give
        return world.scenario(*acts)

    play(scenario, acts=3, interruptions=1)


# ------------------------------------------------------------------- releasing


def test_two_releases_of_one_acquisition_free_it_once(play):
    def scenario(world: World) -> Scenario:
        world.tiers(2, 2)
        world.used(ALICE, ALICE)
        held = world.paths.acquire_sync(ALICE, timeout=0)
        freed: list[bool] = []

        def release() -> None:
            freed.append(world.paths.release_sync(held.acquisition_id))

        def check() -> None:
            assert sorted(freed) == [False, True]

        return world.scenario(release, release, check=check)

    play(scenario)


def test_a_release_and_the_end_of_the_ttl_free_it_once(play):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 1, ttl=5.0)
        held = world.paths.acquire_sync(ALICE, timeout=0)
        acts = (
            lambda: world.clock.advance(6),
            lambda: world.paths.release_sync(held.acquisition_id),
        )
        return world.scenario(*acts)

    play(scenario, interruptions=2)


@pytest.mark.parametrize("path", [ALICE, BOB], ids=["the same user", "another user"])
@pytest.mark.parametrize("taker", TAKERS)
def test_a_caller_that_asks_during_a_pause_is_served_before_it_or_when_it_ends(play, taker, path):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 2)
        world.used(ALICE)
        world.used(BOB)

        def pause() -> None:
            world.paths.control_sync("pause", ("narrow", ALICE[0]), 60)
            world.clock.advance(60)

        def check() -> None:
            assert taker is _thread_tries or world.count() == 1
            assert not world.ledger.paused

        return world.scenario(taker(world, path), pause, check=check)

    play(scenario, interruptions=2)


@pytest.mark.parametrize("giver", GIVERS)
def test_a_caller_that_is_cancelled_as_the_slot_is_given_keeps_none(play, giver):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 1)
        world.used(ALICE)
        world.used(BOB)
        give = giver(world, ALICE)
        loop, block = world.loop(), world.paths.cm(BOB)

        def come_and_go() -> None:
            try:
                loop.drive(block.__aenter__, cancel_when_it_waits=True)
            except asyncio.CancelledError:
                return
            world.holds(BOB, lambda: loop.drive(block.__aexit__, None, None, None))

        return world.scenario(come_and_go, give)

    play(scenario, interruptions=2)


# -------------------------------------------------------------- forgetting keys


@pytest.mark.parametrize("taker", TAKERS)
def test_a_key_that_is_forgotten_as_it_is_requested_gets_its_slot_all_the_same(play, taker):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 1)
        world.used(ALICE)

        def check() -> None:
            assert world.count() == 1
            assert "alice" in world.ledger.tables[0]

        forget = lambda: world.paths.forget_idle("narrow", 0)  # noqa: E731
        return world.scenario(taker(world, ALICE), forget, check=check)

    play(scenario)


@pytest.mark.parametrize("giver", GIVERS)
def test_a_key_that_is_forgotten_as_its_holder_leaves_is_gone_or_idle(play, giver):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 1)
        world.used(ALICE)
        forget = lambda: world.paths.forget_idle("narrow", 0)  # noqa: E731
        return world.scenario(giver(world, ALICE), forget)

    play(scenario)


def test_two_visits_of_a_user_who_is_forgotten_meanwhile_never_overlap(play):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 2)
        world.used(ALICE)
        forget = lambda: world.paths.forget_idle("narrow", 0)  # noqa: E731
        return world.scenario(_thread_visits(world, ALICE), _thread_visits(world, ALICE), forget)

    play(scenario, acts=3, interruptions=1)


def test_users_beyond_the_bound_are_forgotten_while_others_come_and_nothing_is_lost(play):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 2, max_idle_keys=0)
        give = _thread_releases(world, ALICE)

        def check() -> None:
            assert not world.ledger.tables[0], "nobody is there, and none may be remembered"

        return world.scenario(give, _thread_visits(world, BOB), check=check)

    play(scenario, interruptions=2)


# ----------------------------------------------------------- resizing, closing


@pytest.mark.parametrize("tier", ["narrow", "wide"])
@pytest.mark.parametrize("taker", TAKERS)
def test_a_caller_that_asks_during_a_shrink_gets_a_slot_or_waits_and_no_number_is_lost(
    play, taker, tier
):
    def scenario(world: World) -> Scenario:
        world.tiers(2, 2)
        low = world.paths.acquire_sync(ALICE, timeout=0)
        high = world.paths.acquire_sync(ALICE, timeout=0)
        world.paths.release_sync(low.acquisition_id)

        def shrink() -> None:
            world.paths.control_sync("resize", (tier, None), 1)
            world.paths.release_sync(high.acquisition_id)

        def check() -> None:
            assert taker is _thread_tries or world.count() == 1

        return world.scenario(taker(world, ALICE), shrink, check=check)

    play(scenario, interruptions=2)


@pytest.mark.parametrize("taker", TAKERS)
def test_a_caller_that_asks_while_a_tier_grows_gets_the_new_slot(play, taker):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 1)
        world.used(BOB)
        held = world.paths.acquire_sync(ALICE, timeout=0)
        world.holds(ALICE, lambda: world.paths.release_sync(held.acquisition_id))

        def grow() -> None:
            world.values = (1, 2)
            world.paths.control_sync("resize", ("wide", None), 2)

        def check() -> None:
            assert taker is _thread_tries or world.count() == 2

        return world.scenario(taker(world, BOB), grow, check=check)

    play(scenario, interruptions=2)


def test_what_is_given_after_a_shrink_that_it_does_not_fit_is_granted_to_nobody(play):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 2)
        world.used(ALICE, BOB)
        low = world.paths.acquire_sync(ALICE, timeout=0)
        world.holds(ALICE, lambda: world.paths.release_sync(low.acquisition_id))
        high = world.paths.acquire_sync(BOB, timeout=0)

        def shrink_then_give() -> None:
            world.paths.control_sync("resize", ("wide", None), 1)
            world.paths.release_sync(high.acquisition_id)

        def check() -> None:
            assert world.count() == 1, "it got a slot, and the one that there is is held"

        return world.scenario(_thread_tries(world, BOB), shrink_then_give, check=check)

    play(scenario, interruptions=2)


@pytest.mark.parametrize("taker", TAKERS)
def test_a_close_fails_who_asks_and_loses_no_slot(play, taker):
    def scenario(world: World) -> Scenario:
        world.tiers(1, 1)
        world.used(BOB)
        give = _thread_releases(world, ALICE)
        take = taker(world, BOB)

        def take_unless_closed() -> None:
            try:
                take()
            except SemaphoreClosed:
                pass

        def close_then_give() -> None:
            world.paths.close_sync()
            give()

        def check() -> None:
            assert world.count() == 0, "it got a slot that was free after the close only"

        return world.scenario(take_unless_closed, close_then_give, check=check)

    play(scenario, interruptions=2)
