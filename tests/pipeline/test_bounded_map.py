"""bounded_map with coroutine functions: limits, order, back-pressure, ends."""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
import textwrap
import time

import pytest

from slotwise import Adaptive, MemorySemaphore, Rate, RateLimit, SemaphoreClosed, Tier, Tiers
from slotwise.pipeline import bounded_map, run_bounded
from slotwise.pipeline._settings import check_settings
from slotwise.testing import settle


class Counted:
    """An endless or finite source that knows how often it was asked."""

    def __init__(self, most: int | None = None) -> None:
        self.pulled = 0
        self._most = most

    def __iter__(self):
        return self

    def __next__(self) -> int:
        if self.pulled == self._most:
            raise StopIteration
        self.pulled += 1
        return self.pulled - 1


class Work:
    """Items that run until they are let go, counted independently."""

    def __init__(self) -> None:
        self.started: list[object] = []
        self.cancelled: list[object] = []
        self.now = self.most = 0
        self._doors: dict[object, asyncio.Event] = {}

    async def __call__(self, item):
        self.started.append(item)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self._doors.setdefault(item, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        finally:
            self.now -= 1
        return item

    async def let_go(self, *items) -> None:
        for item in items:
            self._doors.setdefault(item, asyncio.Event()).set()
        await settle()


async def same(item):
    return item


async def after_a_turn(item):
    await asyncio.sleep(0)
    return item


async def numbers(count: int):
    for number in range(count):
        yield number


def tasks() -> int:
    return len(asyncio.all_tasks())


async def test_results_come_as_they_finish() -> None:
    work = Work()
    async with bounded_map(work, range(3), limit=3) as results:
        await settle()
        await work.let_go(2)
        assert await anext(results) == 2
        await work.let_go(0, 1)
        assert [r async for r in results] == [0, 1]


async def test_never_more_than_the_limit_run_and_no_more_are_pulled() -> None:
    work, source = Work(), Counted()
    async with bounded_map(work, source, limit=5) as results:
        await settle()
        assert (work.now, source.pulled) == (5, 5)
        await work.let_go(3)
        assert (work.now, source.pulled) == (5, 6)
        assert await anext(results) == 3
    assert work.most == 5


async def test_a_consumer_that_takes_nothing_holds_the_source_back() -> None:
    source = Counted()
    async with bounded_map(same, source, limit=10) as results:
        await settle()
        assert source.pulled == 20
        assert results.report.queue_depth == 20
        assert await anext(results) == 0
        await settle()
        assert source.pulled == 21
        assert results.report.back_pressure_seconds > 0


async def test_an_ordered_run_holds_at_most_its_window_behind_a_slow_item() -> None:
    work, source = Work(), Counted()
    async with bounded_map(work, source, limit=3, ordered=True) as results:
        await settle()
        for item in range(1, 30):
            await work.let_go(item)
        assert source.pulled == 6
        await work.let_go(0)
        assert [await anext(results) for _ in range(6)] == list(range(6))


async def test_a_function_that_never_waits_leaves_the_loop_time_to_breathe() -> None:
    turns = 0

    async def breathe() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    breathing = asyncio.create_task(breathe())
    await run_bounded(same, range(10_000), limit=5)
    breathing.cancel()
    assert turns > 20


async def test_run_bounded_gives_the_report_and_keeps_no_results() -> None:
    report = await run_bounded(after_a_turn, range(1000), limit=10)
    assert (report.done, report.failed, report.in_flight, report.queue_depth) == (1000, 0, 0, 0)
    assert report.rate > 0
    assert 0 < report.utilisation <= 1
    assert report.peak_memory >= report.memory > 0


@pytest.mark.parametrize("source", ["iterable", "async"])
async def test_leaving_the_loop_stops_the_workers(source: str) -> None:
    work = Work()
    endless = itertools.count() if source == "iterable" else numbers(10**9)
    before = tasks()
    async for _ in bounded_map(after_a_turn, endless, limit=4):
        break
    results = bounded_map(work, itertools.count(), limit=4)
    await work.let_go(0)
    async for _ in results:
        break
    gc.collect()
    await settle()
    assert tasks() == before
    assert work.now == 0
    assert results.report.in_flight == 0


async def test_aclose_before_the_start_pulls_nothing() -> None:
    source = Counted()
    results = bounded_map(same, source, limit=3)
    await results.aclose()
    with pytest.raises(RuntimeError, match="was closed"):
        await anext(results)
    assert source.pulled == 0


@pytest.mark.parametrize("on_cancel", ["cancel", "finish"])
async def test_a_cancelled_run_ends_before_the_cancellation_is_told(on_cancel) -> None:
    work = Work()
    run = asyncio.create_task(run_bounded(work, Counted(), limit=3, on_cancel=on_cancel))
    await settle()
    await work.let_go(0)
    run.cancel()
    await settle()
    if on_cancel == "finish":
        assert not run.done()
        await work.let_go(1, 2, 3)
    with pytest.raises(asyncio.CancelledError) as caught:
        await run
    assert work.now == 0
    report = caught.value.report
    if on_cancel == "finish":
        assert (report.done, report.cancelled, work.cancelled) == (4, 0, [])
    else:
        assert (report.done, report.cancelled) == (1, 3)


async def test_a_second_cancellation_has_no_patience() -> None:
    work = Work()
    run = asyncio.create_task(run_bounded(work, Counted(), limit=2, on_cancel="finish"))
    await settle()
    run.cancel()
    await settle()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert sorted(work.cancelled) == [0, 1]


@pytest.mark.parametrize("turns", range(25))
@pytest.mark.parametrize("kind", ["plain", "async source", "semaphore", "groups", "priority"])
async def test_a_cancellation_at_any_await_leaves_nothing_behind(kind: str, turns: int) -> None:
    semaphore = MemorySemaphore(value=2)
    more: dict = {
        "semaphore": {"semaphore": semaphore},
        "groups": {"group_key": lambda item: item % 3, "semaphore": semaphore},
        "priority": {"priority": lambda item: item % 5},
    }.get(kind, {})
    source = numbers(500) if kind in ("async source", "priority") else range(500)
    before = tasks()
    run = asyncio.create_task(run_bounded(after_a_turn, source, limit=3, **more))
    for _ in range(turns):
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await settle()
    assert tasks() == before
    assert (await semaphore.stats()).acquired_slots == 0


# ------------------------------------------------------------------------ errors


async def test_collect_keeps_the_first_hundred() -> None:
    async def fail(item):
        raise ValueError(item)

    report = await run_bounded(fail, range(150), limit=3, on_error="collect")
    assert report.failed == 150
    assert [item for item, _ in report.failures] == list(range(100))


# ------------------------------------------------------------ weights and friends


async def test_an_item_heavier_than_the_limit_fails_and_blocks_nobody() -> None:
    report = await run_bounded(
        same, [1, 9, 2], limit=5, weight=lambda item: item, on_error="collect"
    )
    assert report.done == 2
    [(item, error)] = report.failures
    assert item == 9
    assert "never fits" in str(error)
    with pytest.raises(ValueError, match="a weight of 9 never fits into a limit of 5"):
        await run_bounded(same, [1, 9, 2], limit=5, weight=lambda item: item)
    with pytest.raises(ValueError, match="never fits"):
        bounded_map(same, [1], limit=2, weight=3)


async def test_a_shared_semaphore_is_shared() -> None:
    semaphore = MemorySemaphore(value=4)
    others = await semaphore.acquire(3)
    work, source = Work(), Counted()
    async with bounded_map(work, source, semaphore=semaphore) as results:
        await settle()
        assert work.started == [0]
        assert source.pulled == 4  # the others are in hand and wait for their slots
        await semaphore.release(others)
        await settle()
        assert work.now == 4
        await work.let_go(0)
        assert await anext(results) == 0
        assert work.most == 4
    assert (await semaphore.stats()).acquired_slots == 0


async def test_a_closed_semaphore_ends_the_run_after_what_runs() -> None:
    semaphore = MemorySemaphore(value=1)
    work = Work()
    run = asyncio.create_task(
        run_bounded(work, Counted(), semaphore=semaphore, limit=3, on_error="skip")
    )
    await settle()
    await semaphore.close()
    await settle()
    assert not run.done()
    await work.let_go(0)
    with pytest.raises(SemaphoreClosed) as caught:
        await run
    assert caught.value.report.done == 1


async def test_max_per_second_spaces_the_starts() -> None:
    starts = []

    async def note(item):
        starts.append(time.monotonic())

    began = time.monotonic()
    await run_bounded(note, range(6), limit=6, max_per_second=50)
    # Not from one start to the next: a busy machine may be late with one of them.
    assert all(at - began >= 0.02 * number for number, at in enumerate(starts))


async def test_max_items_ends_the_run_and_leaves_the_rest_to_others() -> None:
    source = iter(range(10))
    assert (await run_bounded(same, source, limit=3, max_items=4)).done == 4
    assert list(source) == [4, 5, 6, 7, 8, 9]


async def test_higher_priority_goes_first_within_the_look_ahead() -> None:
    order = []

    async def note(item):
        order.append(item)
        await asyncio.sleep(0)

    source = Counted(9)
    await run_bounded(note, source, limit=1, priority=lambda item: item)
    assert order == list(range(9))  # a look-ahead of one sees no choice
    order.clear()
    work, source = Work(), Counted()
    async with bounded_map(work, source, limit=3, priority=lambda item: item):
        await settle()
        assert work.started == [2, 3, 4]
        assert source.pulled <= 6


async def test_a_slow_async_source_does_not_hold_back_what_was_looked_at() -> None:
    more = asyncio.Event()

    async def source():
        yield 1
        yield 2
        await more.wait()
        yield 3

    work = Work()
    async with bounded_map(work, source(), limit=3, priority=abs) as results:
        await settle()
        assert sorted(work.started) == [1, 2]
        more.set()
        await settle()
        await work.let_go(1, 2, 3)
        assert sorted([r async for r in results]) == [1, 2, 3]


async def test_groups_run_side_by_side_and_a_busy_one_holds_back_only_itself() -> None:
    work, source = Work(), Counted()
    async with bounded_map(work, source, limit=4, group_key=lambda i: 0 if i < 3 else i) as results:
        await settle()
        assert work.started == [0, 3, 4, 5]
        await work.let_go(0)
        assert work.started == [0, 3, 4, 5, 1]
        assert await anext(results) == 0
        assert source.pulled <= 8


async def test_progress_is_told_and_the_end_always() -> None:
    seen = []
    await run_bounded(same, range(10), limit=2, on_progress=lambda r: seen.append(r.done))
    assert seen[-1] == 10

    def broken(report):
        raise RuntimeError("no screen")

    with pytest.raises(RuntimeError, match="no screen"):
        await run_bounded(same, range(10), limit=2, on_progress=broken)


async def test_the_ready_made_bar_shows_the_counts() -> None:
    from io import StringIO

    from rich.console import Console

    from slotwise.pipeline import progress_bar

    screen = Console(file=StringIO(), force_terminal=True, width=120)
    with progress_bar(total=7, console=screen) as show:
        await run_bounded(same, range(7), limit=2, on_progress=show)
    assert "7 done" in screen.file.getvalue()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"limit": 0}, ValueError),
        ({"limit": None}, TypeError),
        ({"limit": 1, "on_error": "ignore"}, ValueError),
        ({"limit": 1, "on_cancel": "wait"}, ValueError),
        ({"limit": 1, "max_per_second": 0}, ValueError),
        ({"limit": 1, "max_items": 0}, ValueError),
        ({"limit": 1, "weight": 0}, ValueError),
        ({"limit": 1, "semaphore": asyncio}, TypeError),
        ({"limit": 1, "memory_guard": 5}, TypeError),
        ({"limit": 1, "priority": abs, "group_key": abs}, ValueError),
        ({"limit": 1, "group_key": 3}, TypeError),
    ],
)
def test_wrong_arguments_are_told_before_anything_starts(wrong, error) -> None:
    with pytest.raises(error):
        bounded_map(same, [1], **wrong)


def test_a_source_must_be_iterable() -> None:
    with pytest.raises(TypeError, match="source must be"):
        bounded_map(same, 5, limit=1)


@pytest.mark.soak
def test_memory_does_not_grow_with_the_work() -> None:
    # In a process of its own: what other threads of the test run allocate would count.
    script = """
        import asyncio, gc, tracemalloc
        from slotwise.pipeline import bounded_map

        async def same(item):
            return item

        async def consume(count):
            async for _ in bounded_map(same, range(count), limit=200):
                pass

        def peak(count):
            gc.collect()
            tracemalloc.start()
            asyncio.run(consume(count))
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return most

        peak(100)
        print(peak(4_000), peak(60_000))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    few, many = map(int, ran.stdout.split())
    assert many <= 1.1 * few


@pytest.mark.parametrize(
    "more",
    [{}, {"ordered": True}, {"priority": int}, {"group_key": int}, {"max_items": 3}],
    ids=lambda more: next(iter(more), "plain"),
)
async def test_the_last_items_raise_too_after_the_source_has_ended(more) -> None:
    async def fail(item: int) -> None:
        await asyncio.sleep(0.02)  # by now the source has no more
        if item == 1:
            raise ValueError(item)

    with pytest.raises(ValueError, match="1") as raised:
        await run_bounded(fail, range(3), 5, **more)
    assert raised.value.report.failed == 1


# ----------------------------------------------------------- paths through tiers


def tiers() -> Tiers:
    return Tiers(Tier("tenant", 2, keyed=True), Tier("all", 5))


async def test_no_more_items_run_than_the_tightest_tier_has_slots() -> None:
    limits = tiers()
    acme = limits.at(tenant="acme")
    running, most = 0, 0

    async def work(_: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    report = await run_bounded(work, range(20), 4, semaphore=acme)
    assert (report.done, most) == (20, 2)
    assert (await limits.stats())["all"].active == 0


async def test_the_smallest_fixed_value_on_a_path_is_the_limit() -> None:
    async def work(_: int) -> None: ...

    assert check_settings(None, {"semaphore": tiers().at(tenant="acme")}).limit == 2
    rated = Tiers(Tier("calls", rate=Rate(99, per=1, burst=99)), Tier("x", 0), Tier("all", 5))
    assert check_settings(None, {"semaphore": rated.at()}).limit == 5
    report = await run_bounded(work, range(7), semaphore=tiers().at(tenant="acme"))
    assert report.done == 7


async def test_a_limit_without_a_value_needs_a_limit_for_the_run() -> None:
    async def work(_: int) -> None: ...

    for limit in (
        Tiers(Tier("calls", rate=Rate(9, per=1)), Tier("all", 0)).at(),
        Tiers(Tier("calls", Adaptive(2, min=1, max=3)), Tier("all", 0)).at(),
    ):
        with pytest.raises(TypeError, match="needs limit=: no fixed value for 'calls' or 'all'"):
            await run_bounded(work, [1], semaphore=limit)
    with pytest.raises(TypeError, match=r"needs limit=: .* 'calls' has no fixed value"):
        await run_bounded(work, [1], semaphore=RateLimit("calls", Rate(9, per=1)))
    with pytest.raises(TypeError, match="slotwise Limit"):
        await run_bounded(work, [1], 1, semaphore=asyncio.Semaphore(1))  # type: ignore[arg-type]
    for limit_of_run in (None, 1):
        with pytest.raises(TypeError, match=r"semaphore=tiers\.at\(\.\.\.\)"):
            await run_bounded(work, [1], limit_of_run, semaphore=tiers())  # type: ignore[arg-type]
    report = await run_bounded(work, [1], semaphore=MemorySemaphore(2))
    assert report.done == 1


@pytest.mark.parametrize("what", ["weight", "priority", "group_key"])
async def test_a_question_about_an_item_that_raises_fails_that_item(what: str) -> None:
    def ask(item):
        if item == 2:
            raise KeyError(item)
        return 1

    report = await run_bounded(same, range(4), limit=2, on_error="collect", **{what: ask})
    assert (report.done, report.failed) == (3, 1)
    with pytest.raises(KeyError):
        await run_bounded(same, range(4), limit=2, **{what: ask})


async def test_equal_priorities_keep_the_order() -> None:
    order = []

    async def note(item):
        order.append(item)

    await run_bounded(note, range(10), limit=5, priority=lambda item: 0)
    assert order == list(range(10))
