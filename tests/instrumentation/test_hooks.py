"""Hooks: of other packages, in forked processes, of tiers and servers; and the sums."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.redis._server import Server

import slotwise
from slotwise import MemorySemaphore, SlotwiseError, Tier, Tiers
from slotwise._core import events
from slotwise.instrumentation import KINDS, Event, add_hook, drop_totals, keep_totals, remove_hook
from slotwise.instrumentation._metrics import Distribution
from slotwise.processes import ProcessSemaphore
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.testing import FakeClock

ROOT = Path(__file__).parents[2]


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


# ------------------------------------------------------------------------ totals


@pytest.fixture
def kept() -> Iterator[None]:
    keep_totals()
    yield
    drop_totals()


async def test_without_totals_there_are_none() -> None:
    assert (await MemorySemaphore(1, name="none").stats()).totals is None


async def test_grants_refusals_losses_waits_and_holds_are_counted(
    kept: None, clock: FakeClock
) -> None:
    semaphore = MemorySemaphore(1, name="counted")
    for _ in range(19):
        async with semaphore.cm():
            clock.advance(2)
    held = await semaphore.acquire()
    assert await semaphore.try_acquire() is None
    clock.advance(40)
    await semaphore.kick(held)
    totals = (await semaphore.stats()).totals
    assert totals is not None
    assert (totals.granted, dict(totals.refused), totals.lost) == (20, {"full": 1}, 1)
    assert totals.wait_mean == 0
    assert totals.hold_mean == pytest.approx((19 * 2 + 40) / 20)
    assert totals.hold_p95 == pytest.approx(2, rel=0.1)


async def test_other_limits_have_totals_too(kept: None, tmp_path: object) -> None:
    path = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2), name="totals").at(tenant="a")
    for limit in (path, ProcessSemaphore(1, name="totals", directory=str(tmp_path))):
        async with limit:
            pass
        for stats in (await limit.stats(), limit.stats_sync()):
            assert stats.totals is not None
            assert stats.totals.granted == 1
    private = MemorySemaphore(1)
    async with private:
        assert (await private.stats()).totals is None


def test_a_percentile_is_right_to_five_per_cent_whatever_the_times() -> None:
    distribution = Distribution()
    for number in range(1, 1001):
        distribution.add(number / 100)
    for share in (0.5, 0.95, 0.99):
        assert distribution.percentile(share) == pytest.approx(share * 10, rel=0.06)
    assert Distribution().percentile(0.5) is Distribution().mean is None
