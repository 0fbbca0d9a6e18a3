"""Hooks: of other packages, in forked processes, of tiers and servers; and the sums."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from tests._stdlib import leave
from tests.redis._server import Server

import slotwise
from slotwise import MemorySemaphore, SlotwiseError, Tier, Tiers
from slotwise._core import events
from slotwise.instrumentation import KINDS, Event, add_hook, remove_hook
from slotwise.redis import RedisConfig, RedisSemaphore

ROOT = Path(__file__).parents[2]
ENDINGS = ("released", "expired", "lost", "kicked")


_USES_A_LIMIT = """
import asyncio, os, sys, slotwise
async def main():
    for _ in range(2):
        async with slotwise.MemorySemaphore(1, name='s'): pass
"""


def _run_beside_another_package(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    metadata = folder / "other-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[slotwise.hooks]\nsays = other:says\nbroken = other:missing\n"
    )
    (folder / "other.py").write_text("def says(event):\n    print(event.kind)\n")
    path = os.pathsep.join([str(folder), str(ROOT / "src")])
    return subprocess.run(
        [sys.executable, "-c", _USES_A_LIMIT + program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_a_hook_that_another_package_declares_is_told_of_everything_once_it_is_loaded(
    tmp_path: Path,
) -> None:
    program = "from slotwise.instrumentation import load_hooks\nload_hooks(); asyncio.run(main())"
    ran = _run_beside_another_package(tmp_path, program)
    assert ran.stdout.split() == ["requested", "acquired", "released"] * 2
    assert "'other:missing'" in ran.stderr  # it is logged, and breaks nothing


def test_an_acquisition_does_not_read_what_other_packages_declare(tmp_path: Path) -> None:
    program = """
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
asyncio.run(main())
print([path for path in opened if path.endswith("entry_points.txt")], "other" in sys.modules)
"""
    ran = _run_beside_another_package(tmp_path, program)
    assert (ran.stdout, ran.stderr) == ("[] False\n", "")


def test_a_hook_is_a_callable_that_is_called_once_however_often_it_is_added() -> None:
    with pytest.raises(TypeError, match="callable"):
        add_hook(None)  # type: ignore[arg-type]
    heard: list[Event] = []
    hook = heard.append
    add_hook(hook)
    add_hook(hook)
    try:
        MemorySemaphore(1).try_acquire_sync()
    finally:
        remove_hook(hook)
        remove_hook(hook)
    assert [event.kind for event in heard] == ["requested", "acquired"]


async def test_without_a_hook_no_record_is_kept() -> None:
    async with MemorySemaphore(1), MemorySemaphore(1).cm():
        assert events.hooks == ()
        assert events.live() == []


async def test_a_path_through_tiers_is_told_with_its_keys_and_a_resized_tier_by_its_name(
    heard: list[Event],
) -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2), name="path")
    async with tiers.at(tenant="acme").cm():
        pass
    await tiers.resize("all", 5)
    assert all(event.keys == {"tenant": "acme"} for event in heard[:3])
    assert [event.tier for event in heard[:3]] == [None] * 3
    assert (heard[3].kind, heard[3].tier, heard[3].value) == ("resized", "all", 5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_tells_only_of_its_own(heard: list[Event]) -> None:
    semaphore = MemorySemaphore(2)
    acquired = semaphore.try_acquire_sync()
    assert acquired is not None
    pid = os.fork()
    if not pid:
        heard.clear()
        try:
            assert events.live() == []
            semaphore.release_sync(acquired)
            own = semaphore.try_acquire_sync()
            assert own is not None
            assert [event.kind for event in heard] == ["requested", "acquired"]
        except BaseException:
            leave(1)
        leave()
    assert os.waitpid(pid, 0)[1] == 0
    semaphore.release_sync(acquired)
    assert [event.kind for event in heard] == ["requested", "acquired", "released"]


async def test_a_server_that_is_away_and_back_is_told(tmp_path: Path, heard: list[Event]) -> None:
    with Server(tmp_path) as server:
        semaphore = RedisSemaphore(name="s", value=1, config=RedisConfig(server.url))
        async with semaphore:
            pass
        server.stop()
        with suppress(SlotwiseError):
            await semaphore.acquire(timeout=1)
        server.start()
        async with asyncio.timeout(60):
            while "back" not in [event.kind for event in heard]:
                with suppress(SlotwiseError):
                    async with semaphore.cm(timeout=5):
                        pass
                await asyncio.sleep(0.01)
    away = next(event for event in heard if event.kind == "unreachable")
    assert away.name is not None
    assert str(server.port) in away.name
    refused = [event.reason for event in heard if event.kind == "refused"]
    assert refused[0] == "unreachable"


@pytest.mark.parametrize("policy", ["open", "local"])
async def test_what_is_done_instead_of_a_server_is_told_under_the_same_name(
    policy: str, tmp_path: Path, heard: list[Event]
) -> None:
    local = {"local_value": 1} if policy == "local" else {}
    with Server(tmp_path) as server:
        options = {"url": server.url, "on_unreachable": policy, **local}
        limits = [
            slotwise.semaphore("s", 1, **options),
            Tiers(Tier("tenant", 1, keyed=True), name="s", **options).at(tenant="acme"),
        ]
        for limit in limits:
            async with limit:
                pass
    heard.clear()
    for limit in limits:
        for _ in range(2):
            async with limit:
                pass
    count = Counter(event.kind for event in heard if event.kind not in ("unreachable", "back"))
    assert count["acquired"] == count["released"] == 4
    assert count["requested"] == 4 + count["refused"]  # of those who asked the server first
    assert {event.reason for event in heard if event.kind == "refused"} <= {"unreachable"}
    assert {event.name for event in heard if event.acquisition_id is not None} == {"s"}
    assert {event.scope for event in heard if event.kind == "acquired"} == {"memory"}


def test_the_docs_have_the_table_of_events_that_the_code_has() -> None:
    rows = [
        f"| `{kind}` | {words} | {', '.join(f'`{name}`' for name in fields)} |"
        for kind, (words, fields) in KINDS.items()
    ]
    table = "\n".join(["| kind | when | fields |", "|---|---|---|", *rows])
    assert table in (ROOT / "docs" / "instrumentation.md").read_text(), f"put in:\n{table}"


_KILLED = """
import sys, time
from slotwise.redis import RedisConfig, RedisSemaphore
semaphore = RedisSemaphore(
    name="sums", value=3, config=RedisConfig(sys.argv[1]), heartbeat_max_interval=2
)
with semaphore:
    print("held", flush=True)
    time.sleep(600)
"""


def _kill_a_holder(url: str) -> None:
    command = [sys.executable, "-c", _KILLED, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        victim.stdout.readline()
        os.kill(victim.pid, signal.SIGKILL)


@pytest.mark.soak
async def test_the_sums_hold_over_100_000_operations_with_faults(
    tmp_path: Path, heard: list[Event]
) -> None:
    """Timeouts, cancels, kicks, a connection that breaks, and a process killed with kill -9."""
    dice = random.Random(1)
    count: Counter[str] = Counter()
    remove_hook(heard.append)

    def hook(event: Event) -> None:
        count[event.kind] += 1

    add_hook(hook)
    try:
        with Server(tmp_path) as server:
            config = RedisConfig(server.url)
            limits = [
                RedisSemaphore(name="sums", value=3, config=config, heartbeat_max_interval=2),
                MemorySemaphore(2, name="sums"),
                Tiers(Tier("t", 2, keyed=True), Tier("all", 3), name="sums").at(t="a"),
            ]

            async def work() -> None:
                limit = dice.choice(limits)
                with suppress(SlotwiseError):
                    if dice.random() < 0.2:
                        acquired = await limit.try_acquire()
                    else:
                        acquired = await limit.acquire(timeout=dice.choice([0, 0.001, 0.01, 1]))
                    if acquired is None:
                        return
                    try:
                        await asyncio.sleep(0)
                    finally:
                        if dice.random() < 0.05 and hasattr(limit, "kick"):
                            await limit.kick(acquired)
                        else:
                            await limit.release(acquired)

            for turn in range(100):
                if turn % 25 == 5:
                    await asyncio.to_thread(_kill_a_holder, server.url)
                if turn % 25 == 15:
                    server.stop()
                    server.start()
                tasks = [asyncio.ensure_future(work()) for _ in range(1000)]
                await asyncio.sleep(0)
                for task in dice.sample(tasks, 50):
                    task.cancel()
                async with asyncio.timeout(120):
                    await asyncio.wait(tasks)

            def held() -> int:
                return count["acquired"] - sum(count[kind] for kind in ENDINGS)

            async with asyncio.timeout(60):  # a kick, or a loss by silence, is told a little later
                while held() or events.live():
                    await asyncio.sleep(0.01)
        assert count["requested"] == 100_000
        assert count["requested"] == count["acquired"] + count["refused"]
    finally:
        remove_hook(hook)


@pytest.mark.soak
def test_memory_is_flat_over_a_million_events() -> None:
    import tracemalloc

    told = 0

    def hook(event: Event) -> None:
        nonlocal told
        told += 1

    semaphore = MemorySemaphore(1, name="flat")
    add_hook(hook)
    try:
        tracemalloc.start()
        sizes = []
        for _ in range(2):
            while told < 500_000 * (len(sizes) + 1):
                with semaphore.cm():
                    pass
            sizes.append(tracemalloc.get_traced_memory()[0])
        assert sizes[1] - sizes[0] < 20_000
    finally:
        tracemalloc.stop()
        remove_hook(hook)
