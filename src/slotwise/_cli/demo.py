"""``slotwise demo``: a few named semaphores under contention, live, with no server.

Everything shown is read from real semaphores that real tasks compete for; the scenario
only decides which task comes when. On a terminal it is a live picture, elsewhere one
line per event. `demo_shell` then does the same in a shell.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from slotwise import AcquireTimeout, MemorySemaphore, SemaphoreStats
from slotwise._cli import demo_shell
from slotwise._cli.commands import Command
from slotwise._cli.flags import Parser
from slotwise._cli.output import have_rich, print_table

if TYPE_CHECKING:
    from rich.console import Group

SECONDS = 5.0
_FRAMES_PER_SECOND = 12
_LINES_KEPT = 9  # as many as fit under the table on a small terminal

Report = Callable[[str, str], None]


class Scenario:
    """The semaphores, the tasks that compete for them, and what has happened so far."""

    def __init__(self, report: Report) -> None:
        self.started = time.monotonic()
        self.report = report
        self.api = MemorySemaphore(name="api", value=4)
        self.database = MemorySemaphore(name="database", value=2, max_acquire_time=1.0)
        self.gpu = MemorySemaphore(name="gpu", value=1, ttl=1.5, cancel_task_after_ttl=True)
        self.semaphores = [self.api, self.database, self.gpu]
        self.waits: dict[str, list[float]] = {s.name or "": [] for s in self.semaphores}
        self.served: dict[str, int] = {s.name or "": 0 for s in self.semaphores}
        self._dice = random.Random(7)  # noqa: S311  # a demo is the same every time

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    async def use(self, semaphore: MemorySemaphore, stay: float) -> None:
        """Hold a slot for ``stay`` seconds, and note how long the wait for it was."""
        name = semaphore.name or ""
        asked = time.monotonic()
        async with semaphore.cm():
            self.waits[name].append(time.monotonic() - asked)
            self.served[name] += 1
            await asyncio.sleep(stay)

    async def load(self, semaphore: MemorySemaphore, every: float, stay: float) -> None:
        """Start one task after the other, until the demo is almost over."""
        async with asyncio.TaskGroup() as tasks:
            while self.elapsed < SECONDS - 2:
                tasks.create_task(self.use(semaphore, stay * self._dice.uniform(0.5, 1.5)))
                await asyncio.sleep(every * self._dice.uniform(0.3, 1.7))

    async def time_out(self) -> None:
        """Two reports keep the database busy; a third comes and does not wait forever."""
        await asyncio.sleep(0.8)
        self.report("info", "two long reports take both slots of 'database'")
        async with asyncio.TaskGroup() as reports:
            for _ in range(2):
                reports.create_task(self.use(self.database, 2.2))
            await asyncio.sleep(0.2)
            try:
                await self.use(self.database, 0.1)
            except AcquireTimeout as error:
                self.report("time-out", str(error))

    async def expire(self) -> None:
        """A job hangs on the GPU until its ttl ends, and the next one gets the slot."""
        await asyncio.sleep(0.5)

        async def hang() -> None:
            async with self.gpu.cm() as acquired:
                self.report("info", f"a job hangs with slot {acquired.slot_number} of 'gpu'")
                await asyncio.sleep(3600)

        job = asyncio.create_task(hang())
        await asyncio.sleep(0.3)
        await self.use(self.gpu, 0.6)
        self.report("ttl", f"the hanging job was cancelled ({job.cancelled()}) and 'gpu' went on")

    async def cancel(self) -> None:
        """Somebody in the middle of the queue gives up; the others keep their places."""
        await asyncio.sleep(2.4)
        holders = [asyncio.create_task(self.use(self.api, 1.0)) for _ in range(4)]
        queue = [asyncio.create_task(self.use(self.api, 0.2)) for _ in range(5)]
        await asyncio.sleep(0.4)
        queue[2].cancel()
        await asyncio.sleep(0)
        stats = await self.api.stats()
        self.report("cancel", f"one waiter of 'api' gave up; {stats.waiting} keep their places")
        await asyncio.gather(*holders, *queue, return_exceptions=True)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self.load(self.api, every=0.12, stay=0.45))
            parts.create_task(self.load(self.gpu, every=1.1, stay=0.3))
            for part in (self.time_out, self.expire, self.cancel):
                parts.create_task(part())


class LogToScenario(logging.Handler):
    """Reports slotwise's own warnings, such as the end of a ttl."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report("warning", record.getMessage())


def picture(scenario: Scenario, events: deque[tuple[float, str, str]]) -> Group:
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=True, title=f"slotwise: {scenario.elapsed:4.1f} s of {SECONDS:.0f} s")
    table.add_column("semaphore", style="bold")
    table.add_column("slots")
    table.add_column("queue")
    table.add_column("served", justify="right")
    table.add_column("waits p50 / max", justify="right")
    for semaphore in scenario.semaphores:
        name, stats = semaphore.name or "", semaphore.stats_sync()
        table.add_row(
            name,
            Text("■" * stats.acquired_slots, "red" if _full(stats) else "green")
            + Text("□" * (stats.max_slots - stats.acquired_slots), "dim"),
            Text("●" * min(stats.waiting, 20), "yellow") + Text(f" {stats.waiting or ''}", "dim"),
            str(scenario.served[name]),
            _waits(scenario.waits[name]),
        )
    lines = [
        Text.assemble((f"{when:5.1f} s  ", "dim"), (f"{kind:<9}", _COLOURS[kind]), words)
        for when, kind, words in events
    ]
    lines += [Text()] * (_LINES_KEPT - len(lines))
    return Group(table, Panel(Group(*lines), title="what happens", border_style="dim"))


_COLOURS = {"info": "cyan", "time-out": "red", "ttl": "magenta", "cancel": "yellow"}
_COLOURS["warning"] = "magenta"


def _full(stats: SemaphoreStats) -> bool:
    return stats.acquired_slots >= stats.max_slots


def _waits(waits: list[float]) -> str:
    if not waits:
        return ""
    return f"{sorted(waits)[len(waits) // 2] * 1000:.0f} / {max(waits) * 1000:.0f} ms"


def print_end(scenario: Scenario, stats: dict[str, SemaphoreStats]) -> None:
    rows = []
    for name, one in stats.items():
        held, of, waiting = one.acquired_slots, one.max_slots, one.waiting
        rows.append([name, held, of, waiting, scenario.served[name], _waits(scenario.waits[name])])
    print("the end: every slot was released", flush=True)  # noqa: T201
    print_table(("semaphore", ">held", ">of", ">waiting", ">served", ">waits p50 / max"), rows)


async def play() -> None:
    """Run the scenario with the semaphores of this process, and show it."""
    events: deque[tuple[float, str, str]] = deque(maxlen=_LINES_KEPT)
    drawn = sys.stdout.isatty() and have_rich()

    def report(kind: str, words: str) -> None:
        events.append((scenario.elapsed, kind, words))
        if not drawn:
            _print(scenario, kind, words)

    scenario = Scenario(report)
    logger = logging.getLogger("slotwise")
    handler = LogToScenario(report)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        if drawn:
            await _live(scenario, events)
        else:
            await _plain(scenario)
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    names = [semaphore.name or "" for semaphore in scenario.semaphores]
    print_end(scenario, await MemorySemaphore.get_acquired_stats(names))


def _print(scenario: Scenario, kind: str, words: str) -> None:
    print(f"{scenario.elapsed:5.1f} s  {kind:<9}{words}", flush=True)  # noqa: T201


async def _live(scenario: Scenario, events: deque[tuple[float, str, str]]) -> None:
    from rich.live import Live

    with Live(auto_refresh=False) as live:

        def show() -> None:
            live.update(picture(scenario, events), refresh=True)

        await _while_running(scenario.run(), show, 1 / _FRAMES_PER_SECOND)
        show()


async def _plain(scenario: Scenario) -> None:
    def show() -> None:
        states = []
        for semaphore in scenario.semaphores:
            stats = semaphore.stats_sync()
            states.append(
                f"{semaphore.name} {stats.acquired_slots}/{stats.max_slots} +{stats.waiting}"
            )
        _print(scenario, "slots", "   ".join(states))

    await _while_running(scenario.run(), show, 1.0)


async def _while_running(work: Awaitable[None], show: Callable[[], None], every: float) -> None:
    running = asyncio.ensure_future(work)
    try:
        while not running.done():
            show()
            await asyncio.wait([running], timeout=every)
        await running
    finally:
        running.cancel()


def _parser() -> Parser:
    return Parser(
        "demo",
        details="It takes ten seconds, touches nothing of yours, and ends with 'slotwise run' and\n"
        "'slotwise ls' as you would type them.",
        examples="  slotwise demo               a picture that changes; Ctrl-C ends it\n"
        "  slotwise demo | cat         the same as lines",
    )


def demo(_given: argparse.Namespace) -> int:
    """Show all of it."""
    asyncio.run(play())
    demo_shell.show()
    return 0


COMMANDS = {"demo": Command(_parser, demo)}
