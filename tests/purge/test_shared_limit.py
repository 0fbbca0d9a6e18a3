"""A deletion limit that machines share, on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import _fresh_processes
from tests.redis._server import Server

import slotwise
from slotwise.purge import purge
from slotwise.redis import RedisConfig, RedisSemaphore


@pytest.fixture(autouse=True)
def no_descriptor_is_left_open() -> None:
    """The driver for Redis keeps its connections; what the purger opens is its own process's."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with Server(tmp_path / "redis") as server:
        yield server.url


def command(root: Path, url: str, *words: str) -> list[str]:
    program = [sys.executable, "-m", "slotwise", "purge", str(root), "--yes", "--json"]
    return [*program, "--url", url, "--name", "scratch", *words]


def test_machines_that_purge_together_share_the_deletion_limit(root, old, url) -> None:
    for number in range(20):
        old(root / f"{number}" / "x")

    async def hold_all_while_purging() -> tuple[int, subprocess.Popen[str]]:
        shared = RedisSemaphore(name="scratch", value=3, config=RedisConfig(url=url))
        held = await shared.acquire(3)
        purging = _fresh_processes.Popen(
            command(root, url, "--max-concurrency-deletion", "3"),
            stdout=subprocess.PIPE,
            text=True,
        )
        while (await shared.stats()).waiting == 0:
            assert purging.poll() is None
            await asyncio.sleep(0.001)
        waiting = sum(len(files) for _, _, files in os.walk(root))
        await shared.release(held)
        return waiting, purging

    waiting, purging = asyncio.run(hold_all_while_purging())
    said, _ = purging.communicate(timeout=30)
    assert waiting == 20
    assert purging.returncode == 0
    assert json.loads(said.splitlines()[-1])["files_purged"] == 20


def test_a_server_that_is_not_there_is_a_purge_that_is_not_done(root, old, tmp_path) -> None:
    path = old(root / "x")
    ran = _fresh_processes.run(
        command(root, f"unix://{tmp_path}/nothing"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert path.exists()


def test_a_name_without_a_url_is_refused_before_anything_is_deleted(root, old) -> None:
    path = old(root / "x")
    with pytest.raises(ValueError, match="name needs a url"):
        purge(root, name="scratch")
    assert path.exists()


def test_the_limit_may_be_one_of_this_machine(root, old, tmp_path) -> None:
    (tmp_path / "limits").mkdir()
    old(root / "x")
    report = purge(root, url=f"process://{tmp_path}/limits", name="scratch")
    assert (report.files_purged, report.exit_code) == (1, 0)


def test_another_limit_than_the_one_in_use_names_the_command_that_changes_it(
    root, old, tmp_path, caplog
) -> None:
    stays = old(root / "a")
    url = f"process://{tmp_path}/slots"
    with slotwise.semaphore("efs", 3, url):
        report = purge(root, url=url, name="efs", max_concurrency_deletion=4)
    assert (report.stopped_by, stays.exists()) == ("shared_limit", True)
    assert "'efs' is in use with 3 slots: slotwise resize efs 4" in caplog.text


def test_the_environment_says_where_a_named_limit_is(root, old, tmp_path) -> None:
    path = old(root / "x")
    words = [sys.executable, "-m", "slotwise", "purge", str(root), "--yes", "--json"]
    environment = {**os.environ, "SLOTWISE_URL": f"unix://{tmp_path}/nothing"}
    ran = _fresh_processes.run(
        [*words, "--name", "scratch"], env=environment, capture_output=True, timeout=60, check=False
    )
    assert ran.returncode == 2
    assert path.exists()
    ran = subprocess.run(words, env=environment, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0  # without a name, no limit is shared
    assert not path.exists()
