"""``slotwise demo``: what slotwise is for, in three acts, with no server.

Everything shown happens: real tasks, real processes and a real ``kill -9``. Each act has a
headline and the lines of code that it runs. With ``--web``, there is an endless load instead,
and the page that shows it.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slotwise import Adaptive, Latency, Limit, MemorySemaphore, Tier, Tiers, semaphore
from slotwise._cli.commands import load
from slotwise._cli.flags import Command, Flag, port_flag
from slotwise.errors import SlotwiseError
from slotwise.processes import ProcessSemaphore

_PATIENCE = 20.0  # for processes to start on a busy machine

_TASKS = """\
api = MemorySemaphore(2, name="api")
async def call(number):
    async with api.cm() as acquired:
        print(f"task {number} has slot {acquired.slot_number}", flush=True)
        await asyncio.sleep(0.4)
await asyncio.gather(*[call(number) for number in range(1, 7)])"""

_PROCESSES = """\
import slotwise, sys, time
printer = slotwise.semaphore("printer", 2, "process://{folder}")
with printer.cm(label=sys.argv[1]) as acquired:
    print("has slot", acquired.slot_number, flush=True)
    time.sleep(60)
# kill -9 of one of them: the next has its slot at once"""

_TENANTS = """\
limits = Tier("tenant", 9, keyed=True), Tier("all", 2)
model = Tiers(*limits, url="memory://", order="fair", fair_by="tenant")
async def ask(tenant):
    async with model.at(tenant=tenant).cm():
        print(tenant, end=" ", flush=True)
        await asyncio.sleep(0.2)
await asyncio.gather(*[ask("big") for _ in range(12)], *[ask("small") for _ in range(4)])"""


def demo(given: argparse.Namespace) -> int:
    """Run the three acts, or show a load on the page."""
    if given.web:
        return _show_in_page(given.port)
    _headline("Act 1: tasks stand in line", _TASKS)
    _run(_TASKS)
    _say("six tasks, never more than two at once, in the order in which they came")
    with _folder() as folder:
        code = _PROCESSES.format(folder=folder)
        _headline("Act 2: a process is killed, and nothing is lost", code)
        _processes(folder, code)
    _headline("Act 3: tenants take turns, and none starves", _TENANTS)
    _run(_TENANTS)
    _say("\n'small' came after 12 requests of 'big'; they take turns, so it needn't wait for them")
    _say("\nTry next: slotwise run backup --limit 1 -- sleep 10 &  slotwise explain backup")
    return 0


def _say(words: str) -> None:
    print(words, flush=True)  # noqa: T201


def _headline(words: str, code: str) -> None:
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    _say(f"\n{bold}{words}{plain}\n")
    _say("".join(f"    {line}\n" for line in code.splitlines()))


# ------------------------------------------------------------------------------ the acts


def _run(code: str) -> None:
    """Run the very lines that were shown."""
    lines = compile(code, "<demo>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = {"asyncio": asyncio, "MemorySemaphore": MemorySemaphore, "Tier": Tier, "Tiers": Tiers}
    acting: Coroutine[Any, Any, None] = eval(lines, names)  # noqa: S307
    asyncio.run(acting)
    sys.stdout.flush()


def _processes(folder: Path, code: str) -> None:
    started: list[subprocess.Popen[str]] = []
    try:
        for label in ("first", "second", "third"):
            command = [sys.executable, "-c", code, label]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
            started.append(process)
            if label != "third":
                _say(f"process {process.pid} ({label}) {_line(process)}")
        _wait_for_a_waiter(folder)
        first, _, third = started
        _say(f"process {third.pid} (third) waits: both slots are taken")
        _say(f"$ kill -9 {first.pid}")
        killed_at = time.monotonic()
        os.kill(first.pid, signal.SIGKILL)
        got = _line(third)
        took = (time.monotonic() - killed_at) * 1000
        _say(f"process {third.pid} (third) {got}, {took:.0f} ms later")
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _wait_for_a_waiter(folder: Path) -> None:
    printer = semaphore("printer", 2, f"process://{folder}")
    deadline = time.monotonic() + _PATIENCE
    while not printer.waiters_sync() and time.monotonic() < deadline:
        time.sleep(0.02)


# ------------------------------------------------------------------------------ the page


def _show_in_page(number: int) -> int:
    with _folder() as folder:
        url = f"process://{folder}"
        stopped = threading.Event()
        workers = [threading.Thread(target=_work, args=(*each, stopped)) for each in _load(url)]
        for worker in workers:
            worker.start()
        try:
            words = ["--url", url, "--port", str(number), "--open", "--allow-steer"]
            page = load("web")
            return page.main(page.parser().parse(words))
        finally:
            stopped.set()
            for worker in workers:
                worker.join()


def _load(url: str) -> Iterator[tuple[Limit, float, str]]:
    """Limits, for how long each is held, and by whom."""
    jobs = ("nightly export", "report", "thumbnails", "search", "invoice", "sync", "import")
    for name, value, workers, seconds, ttl in (
        *(("model-api", 3, 7, 4.0, 30), ("database", 8, 9, 0.8, None), ("gpu", 1, 3, 6.0, 12)),
        ("backup", 2, 1, 6.0, None),
    ):
        for number in range(workers):
            yield semaphore(name, value, url, ttl=ttl), seconds, jobs[number % len(jobs)]
    adaptive = ProcessSemaphore(
        Adaptive(4, min=2, max=40, algorithm=Latency(window=1, samples=8)),
        name="crawler",
        directory=url.removeprefix("process://"),
    )
    for number in range(1, 16):
        yield adaptive, 0.5, f"page {number}"
    uploads = Tiers(Tier("user", 2, keyed=True), Tier("all", 4), name="uploads", url=url)
    for number, user in enumerate(("ann", "ann", "ann", "ann", "bob", "bob", "eve", "joe", "kim")):
        yield uploads.at(user=user), 3.0, f"upload {number + 1}"


def _work(limit: Limit, seconds: float, label: str, stopped: threading.Event) -> None:
    dice = random.Random(f"{label} {limit!r}")  # noqa: S311
    while not stopped.wait(dice.uniform(0, 0.3)):
        try:
            with limit.cm(timeout=20, label=label):
                stopped.wait(dice.uniform(0.3, 1.7) * seconds)
        except (SlotwiseError, ValueError):  # it took too long, or somebody steers
            continue


@contextmanager
def _folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="slotwise-demo-"))
    try:
        yield made / "slots"
    finally:
        shutil.rmtree(made, ignore_errors=True)


COMMANDS = (
    Command(
        "demo",
        demo,
        Flag("--web", action="store_true", help="show it in a browser instead"),
        port_flag(8765),
        details="It takes less than 20 seconds, touches nothing of yours and needs no server.\n"
        "With --web it runs an endless load and shows it on the page of 'slotwise web'.",
        examples="  slotwise demo\n"
        "  slotwise demo --web         the same kind of load in a browser; Ctrl-C ends it",
    ),
)
