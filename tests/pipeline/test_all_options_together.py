"""Every option of a run at once, by the roll of dice, against a naive model.

Each case is drawn from a seed, run for real, and compared with what the options promise:
the outcome, the order, who may run beside whom, and that nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slotwise import MemorySemaphore, ProcessSemaphore, Semaphore
from slotwise.pipeline import (
    MemoryGuard,
    bounded_map,
    bounded_map_sync,
    run_bounded,
    run_bounded_sync,
)

HANGS = 30  # seconds; a case takes some milliseconds
WAYS = ["tasks", "threads of a loop", "threads"]
who = contextvars.ContextVar("who", default="nobody")


class SourceBroke(Exception):
    pass


@dataclass
class WorkItem:
    number: int
    end: str  # "fine", or how it fails
    turns: int
    weight: int
    group: int
    rank: int

    def __hash__(self) -> int:
        return self.number


@dataclass
class Case:
    """What was drawn. Its repr tells all there is to know about a failure."""

    way: str
    items: list[WorkItem]
    source: str
    breaks_at: int | None  # the source raises in place of this item
    limit: int
    settings: dict[str, Any]
    slots: int | None  # of the semaphore
    driver: type[Semaphore]
    stranger: int  # how many of them somebody else has for a while
    wants_results: bool
    consumer: str
    patience: int  # results, or turns of the loop, until the consumer has enough
    dawdles: bool
    eager: bool  # tasks begin as they are made, where Python knows that
    problems: list[str] = field(default_factory=list)

    # ----------------------------------------------------------- the naive model

    @property
    def pulled(self) -> list[WorkItem]:
        most = self.settings.get("max_items", len(self.items))
        return self.items[: self.breaks_at][:most]

    @property
    def source_breaks(self) -> bool:
        if self.breaks_at is None:
            return False
        return self.settings.get("max_items", self.breaks_at + 1) > self.breaks_at

    @property
    def most_at_once(self) -> int:
        return self.limit if self.slots is None else self.slots

    def fails(self, item: WorkItem) -> bool:
        too_heavy = "weight" in self.settings and item.weight > self.most_at_once
        return item.end != "fine" or too_heavy

    @property
    def fine(self) -> list[int]:
        return [item.number for item in self.pulled if not self.fails(item)]

    @property
    def failing(self) -> list[int]:
        return [item.number for item in self.pulled if self.fails(item)]


def draw(seed: int, way: str) -> Case:
    dice = random.Random(f"{way} {seed}")
    one = dice.choice
    in_loop = way != "threads"
    limit = dice.randint(1, 4)
    slots = one([None, None, 1, 2, 3])
    ends = ["fine"] * one([2, 6, 30]) + ["error", "stop", "async stop", "cancelled"]
    if way == "tasks":
        ends.append("cancelled by a stranger")
    if dice.random() < 0.3:
        ends = ["fine"]
    count = one([0, 1, 3, 9, 20])
    items = [
        WorkItem(
            number=number,
            end=one(ends),
            turns=one([0, 0, 0, 1, 5]),
            weight=dice.randint(1, limit if slots is None else slots) + (dice.random() < 0.05),
            group=dice.randint(0, 5),
            rank=dice.randint(0, 3),
        )
        for number in range(count)
    ]
    source = one(["list", "generator", "slow"] + ["async", "slow async"] * in_loop)
    settings: dict[str, Any] = {
        "on_error": one(["raise", "skip", "collect"]),
        "on_cancel": one(["cancel", "finish"]),
        "ordered": one([False, True]),
    }
    if dice.random() < 0.3:
        settings["weight"] = lambda item: item.weight
    settings |= one([{}, {"priority": lambda item: item.rank}, {"group_key": lambda i: i.group}])
    if dice.random() < 0.2:
        settings["max_items"] = dice.randint(1, count + 2)
    if dice.random() < 0.1:
        settings["max_per_second"] = 5000
    if dice.random() < 0.1:
        settings["memory_guard"] = MemoryGuard(100, gauge=lambda: 90 * 1024 * 1024)
    if dice.random() < 0.2:
        settings["on_progress"] = lambda report: report.done
    breaks_at = None
    if source != "list" and dice.random() < 0.25:
        breaks_at = dice.randint(0, count)
    consumers = ["takes all", "takes all", "breaks", "closes", "raises"]
    return Case(
        way=way,
        items=items,
        source=source,
        breaks_at=breaks_at,
        limit=limit,
        settings=settings,
        slots=slots,
        driver=one([MemorySemaphore] * 4 + [ProcessSemaphore]),
        stranger=0 if slots is None else dice.randint(0, slots),
        wants_results=dice.random() < 0.75,
        consumer=one([*consumers, "is cancelled", "is cancelled"] if in_loop else consumers),
        patience=dice.randint(0, 8),
        dawdles=dice.random() < 0.2,
        eager=dice.random() < 0.2,
    )


class World:
    """The work, the source and the semaphore of a case, and what was seen of them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.semaphore = None if case.slots is None else case.driver(case.slots)
        self.got: list[int] = []
        self.running: list[WorkItem] = []
        self.started: list[WorkItem] = []
        self.lock = threading.Lock()

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.case.settings, "limit": self.case.limit, "semaphore": self.semaphore}

    def begin(self, item: WorkItem) -> None:
        case = self.case
        with self.lock:
            self.running.append(item)
            self.started.append(item)
            at_once = self.running[:]
        weighs = "weight" in case.settings
        taken = sum(other.weight if weighs else 1 for other in at_once)
        if taken > case.most_at_once or len(at_once) > case.limit:
            case.problems.append(f"too many at once: {at_once}")
        if "memory_guard" in case.settings and len(at_once) > 1:
            case.problems.append(f"memory is short, and there run {at_once}")
        groups = Counter(other.group for other in at_once)
        if "group_key" in case.settings and groups[item.group] > 1:
            case.problems.append(f"two of a group at once: {at_once}")
        if who.get() != "the caller":
            case.problems.append(f"{item} sees the context of {who.get()}")
        who.set(f"item {item.number}")

    def end(self, item: WorkItem) -> int:
        with self.lock:
            self.running.remove(item)
        errors = {
            "error": ValueError,
            "stop": StopIteration,
            "async stop": StopAsyncIteration,
            "cancelled": asyncio.CancelledError,
        }
        if item.end in errors:
            raise errors[item.end](item.number)
        return item.number

    async def task_work(self, item: WorkItem) -> int:
        self.begin(item)
        task = asyncio.current_task()
        if task.cancelling():
            self.case.problems.append(f"{item} began with a cancellation that is not its own")
        try:
            for _ in range(item.turns):
                await asyncio.sleep(0)
            if item.end == "cancelled by a stranger":
                task.cancel()
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            with self.lock:
                self.running.remove(item)
            raise
        return self.end(item)

    def thread_work(self, item: WorkItem) -> int:
        self.begin(item)
        if item.turns:
            time.sleep(item.turns * 0.0001)
        return self.end(item)

    @property
    def work(self) -> Any:
        return self.task_work if self.case.way == "tasks" else self.thread_work

    def source(self) -> Any:
        case = self.case
        if case.source == "list":
            return case.items
        return self.async_items() if "async" in case.source else self.items()

    def items(self):
        for number, item in enumerate([*self.case.items, None]):
            if self.case.source == "slow" and number % 3 == 0 and self.case.way != "tasks":
                time.sleep(0.0002)
            if number == self.case.breaks_at:
                raise SourceBroke
            if item is not None:
                yield item

    async def async_items(self):
        for item in self.items():
            if self.case.source == "slow async":
                await asyncio.sleep(0)
            yield item

    # ------------------------------------------------------------ the comparison

    def compare(self, outcome: BaseException | str, report: Any) -> None:
        case = self.case
        assert case.problems == []
        assert self.running == []
        assert report.in_flight == 0
        assert len(set(self.started)) == len(self.started)
        assert {item.number for item in self.started} <= {item.number for item in case.pulled}
        assert len(set(self.got)) == len(self.got)
        assert set(self.got) <= set(case.fine)
        if case.settings["ordered"] and "priority" not in case.settings:
            assert self.got == sorted(self.got)
        if "group_key" in case.settings:
            for group in range(6):
                numbers = [item.number for item in self.started if item.group == group]
                assert numbers == sorted(numbers)
        self.compare_outcome(outcome, report)

    def compare_outcome(self, outcome: BaseException | str, report: Any) -> None:
        case = self.case
        on_error = case.settings["on_error"]
        if outcome == "left":
            return
        possible: set[Any] = set()
        if case.source_breaks:
            possible.add("source")
        if on_error == "raise":
            possible |= set(case.failing)
        if outcome == "end" and case.consumer == "closes":
            return
        if outcome == "end":
            assert possible == set()
        else:
            assert outcome.report is report
            if outcome.args == ("enough",):
                return
            assert self.told(outcome) & possible, outcome
        if on_error == "raise" and case.failing:
            return
        # Nothing stopped it: all was done that could be.
        assert report.done == len(case.fine)
        assert report.failed == len(case.failing)
        assert report.cancelled == 0
        if case.wants_results:
            assert sorted(self.got) == case.fine
        if on_error == "collect":
            assert sorted(item.number for item, _ in report.failures) == case.failing
            assert all(item.number in self.told(error) for item, error in report.failures)
        else:
            assert report.failures == []

    def told(self, error: BaseException) -> set[Any]:
        """What an error may be about: most name their item."""
        assert not isinstance(error, StopIteration | StopAsyncIteration)
        if isinstance(error, SourceBroke):
            return {"source"}
        if isinstance(error, RuntimeError):
            # Python's own for a StopIteration in a coroutine, or ours.
            assert isinstance(error.__cause__, StopIteration | StopAsyncIteration)
            error = error.__cause__
        if error.args and isinstance(error.args[0], int):
            return {error.args[0]}
        if isinstance(error, asyncio.CancelledError):
            return {i.number for i in self.started if i.end == "cancelled by a stranger"}
        assert "never fits" in str(error)
        return {i.number for i in self.case.pulled if i.weight > self.case.most_at_once}


class _Enough(Exception):
    def __init__(self) -> None:
        super().__init__("enough")


# ---------------------------------------------------------------- with a loop


async def in_a_loop(case: Case) -> None:
    if case.eager and hasattr(asyncio, "eager_task_factory"):  # from 3.12 on
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    who.set("the caller")
    world = World(case)
    theirs = None
    if world.semaphore is not None and case.stranger:
        theirs = await world.semaphore.acquire(case.stranger)
    before = asyncio.all_tasks()
    reports: list[Any] = []
    consumer = asyncio.create_task(consume(world, reports))
    for _ in range(case.patience):
        await asyncio.sleep(0)
    cancelled = case.consumer == "is cancelled" and consumer.cancel()
    if theirs is not None:
        await world.semaphore.release(theirs)
    done, _ = await asyncio.wait([consumer], timeout=HANGS)
    assert done, f"hangs: {case}"
    if consumer.cancelled():
        outcome: BaseException | str = "left"
        if not cancelled:  # then it is an item's
            outcome = reports.pop()
    elif consumer.exception() is not None:
        outcome = consumer.exception()
    else:
        outcome = consumer.result()
    deadline = time.monotonic() + HANGS
    while asyncio.all_tasks() - before or pipeline_threads():
        assert time.monotonic() < deadline, "tasks or threads are left"
        await asyncio.sleep(0)
    if world.semaphore is not None:
        stats = await world.semaphore.stats()
        assert (stats.acquired_slots, stats.waiting) == (0, 0)
    if outcome == "left" and not reports:
        return  # cancelled before it began
    world.compare(outcome, reports[0])


async def consume(world: World, reports: list[Any]) -> str:
    try:
        return await consume_really(world, reports)
    except asyncio.CancelledError as error:
        reports[:0] = [error.report] if hasattr(error, "report") else []
        reports.append(error)
        raise
    except Exception as error:
        reports[:0] = [error.report]
        raise


async def consume_really(world: World, reports: list[Any]) -> str:
    case = world.case
    if not case.wants_results:
        report = await run_bounded(world.work, world.source(), **world.settings)
        reports.append(report)
        return "end"
    run = bounded_map(world.work, world.source(), **world.settings)
    reports.append(run.report)
    try:
        if case.consumer == "raises":
            async with run:
                await take(world, run)
        else:
            await take(world, run)
    except _Enough as error:
        error.report = run.report
        raise
    if case.consumer == "closes":
        await run.aclose()
    if len(world.got) > case.patience and case.consumer == "breaks":
        with pytest.raises(RuntimeError, match="left early"):
            await anext(run)
        return "left"
    return "end"


async def take(world: World, run: Any) -> None:
    case = world.case
    async for result in run:
        world.got.append(result)
        if case.dawdles:
            for _ in range(5):
                await asyncio.sleep(0)
        if len(world.got) > case.patience:
            if case.consumer == "raises":
                raise _Enough
            if case.consumer in ("breaks", "closes"):
                break


# ------------------------------------------------------------- without a loop


def without_a_loop(case: Case) -> None:
    who.set("the caller")
    world = World(case)
    theirs = None
    if world.semaphore is not None and case.stranger:
        theirs = world.semaphore.acquire_sync(case.stranger)
    if theirs is not None:
        stranger = threading.Timer(0.002, world.semaphore.release_sync, [theirs])
        stranger.start()
    report, outcome = consume_in_a_thread(world)
    if theirs is not None:
        stranger.join()
    deadline = time.monotonic() + HANGS
    while pipeline_threads():
        assert time.monotonic() < deadline, "threads are left"
        time.sleep(0.0002)
    if world.semaphore is not None:
        stats = world.semaphore.stats_sync()
        assert (stats.acquired_slots, stats.waiting) == (0, 0)
    world.compare(outcome, report)


def consume_in_a_thread(world: World) -> tuple[Any, BaseException | str]:
    case = world.case
    if not case.wants_results:
        try:
            return run_bounded_sync(world.work, world.source(), **world.settings), "end"
        except (Exception, asyncio.CancelledError) as error:
            return error.report, error
    run = bounded_map_sync(world.work, world.source(), **world.settings)
    try:
        for result in run:
            world.got.append(result)
            if case.dawdles:
                time.sleep(0.0005)
            if len(world.got) > case.patience:
                if case.consumer == "raises":
                    raise _Enough
                if case.consumer in ("breaks", "closes"):
                    break
    except _Enough as error:
        error.report = run.report
        run.close()
        return run.report, error
    except (Exception, asyncio.CancelledError) as error:
        return run.report, error
    if case.consumer == "closes":
        run.close()
    if len(world.got) > case.patience and case.consumer == "breaks":
        with pytest.raises(RuntimeError, match="left early"):
            next(run)
        return run.report, "left"
    return run.report, "end"


def pipeline_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("slotwise-pipeline")]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_DIR", str(tmp_path / "slots"))


def play(seed: int, way: str) -> None:
    case = draw(seed, way)
    context = contextvars.copy_context()
    try:
        if way == "threads":
            context.run(without_a_loop, case)
        else:
            context.run(asyncio.run, in_a_loop(case))
    except BaseException as error:
        error.add_note(f"seed {seed}: {case}")
        raise


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block", range(10))
def test_whatever_is_asked_for_together_is_kept(block: int, way: str) -> None:
    for seed in range(block * 15, block * 15 + 15):
        play(seed, way)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block", range(10, 60))
def test_whatever_is_asked_for_together_is_kept_for_long(block: int, way: str) -> None:
    for seed in range(block * 100, block * 100 + 100):
        play(seed, way)
