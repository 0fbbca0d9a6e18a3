"""Celery, Dramatiq, taskiq and RQ with real workers, against the Redis server of the tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integrations._servers import process, wait_until

from slotwise import semaphore

# Workers start slowly on a busy machine, and RQ starts a process for each job.
pytestmark = pytest.mark.timeout(600)
LIMIT = 240

ROOT = Path(__file__).parents[2]
SEND = {
    "celery": "from tests.integrations._celery_app import send\nfor n in range({n}): send(n)",
    "dramatiq": "from tests.integrations._dramatiq_app import send\nfor n in range({n}): send(n)",
    "rq": "from tests.integrations._rq_app import send\nfor n in range({n}): send(n)",
    "taskiq": (
        "import asyncio; from tests.integrations._taskiq_app import send_all\n"
        "asyncio.run(send_all(range({n})))"
    ),
}


def command(kind: str, concurrency: int, url: str) -> tuple[str, ...]:
    if kind == "celery":
        pool = "prefork" if concurrency > 4 else "threads"
        options = ("-P", pool, "-c", str(concurrency), "--without-gossip", "--without-mingle")
        return ("-m", "celery", "-A", "tests.integrations._celery_app", "worker", *options)
    if kind == "dramatiq":
        options = ("-p", "1", "-t", str(concurrency))
        return ("-m", "dramatiq", "tests.integrations._dramatiq_app", *options)
    if kind == "taskiq":
        return ("-m", "taskiq", "worker", "tests.integrations._taskiq_app:broker", "-w", "1")
    return ("-m", "rq.cli", "worker", "--with-scheduler", "--url", url)


class Run:
    """One queue on one server."""

    def __init__(self, kind: str, server, folder: Path, value: int, seconds: float) -> None:
        self.kind = kind
        self.url = server.url
        self.folder = folder
        self.environment = {
            "TEST_REDIS_URL": server.url,
            "TEST_VALUE": str(value),
            "TEST_SECONDS": str(seconds),
            "PYTHONPATH": str(ROOT),
        }
        self.client = server.client()

    def send(self, n: int) -> None:
        subprocess.run(
            [sys.executable, "-c", SEND[self.kind].format(n=n)],
            env=os.environ | self.environment,
            cwd=self.folder,
            check=True,
            timeout=120,
        )

    def worker(self, concurrency: int = 4):
        words = command(self.kind, concurrency, self.url)
        return process(*words, cwd=self.folder, patience=0, **self.environment)

    def attempts(self) -> int:
        return int(self.client.get("attempts") or 0)

    def done(self) -> int:
        return self.client.scard("done")


@pytest.mark.parametrize("kind", SEND)
def test_tasks_that_find_the_limit_full_come_back_without_a_retry(kind, server, tmp_path) -> None:
    run = Run(kind, server, tmp_path, value=1, seconds=0.02)
    run.send(3)
    limit = semaphore("tasks", 1, url=server.url)
    with run.client, run.worker() as worker:
        with limit.cm():
            wait_until(
                lambda: run.attempts() >= 3 or worker.poll() is not None, "all refused", LIMIT
            )
            assert run.done() == 0
        try:
            wait_until(lambda: run.done() == 3 or worker.poll() is not None, "all tasks", LIMIT)
            assert run.done() == 3
        except AssertionError as error:
            done = run.client.smembers("done")
            pytest.fail(f"{error} {run.attempts()} attempts, {done=}\n{worker.log.read_text()}")
        assert run.client.smembers("over") == set()


@pytest.mark.soak
@pytest.mark.parametrize("kind", SEND)
def test_two_hundred_tasks_survive_the_death_of_a_worker(kind, server, tmp_path) -> None:
    run = Run(kind, server, tmp_path, value=5, seconds=0.1)
    run.send(200)
    with run.client, contextlib.ExitStack() as stack:
        workers = [stack.enter_context(run.worker(8)) for _ in range(6 if kind == "rq" else 2)]
        wait_until(lambda: run.done() >= 50, "some tasks", LIMIT)
        for victim in victims(kind, workers[0].pid):
            os.kill(victim, signal.SIGKILL)
        # RQ calls the job of a dead worker failed, unless it was enqueued with retries.
        least = 199 if kind == "rq" else 200

        def all_done() -> bool:
            if kind == "taskiq":  # it looks for messages of the dead when there is a new one
                run.send(1)
            return run.done() >= least

        wait_until(all_done, "all tasks", LIMIT)
        assert run.client.smembers("over") == set()
        limit = semaphore("tasks", 5, url=server.url)
        wait_until(lambda: limit.stats_sync().acquired_slots == 0, "nothing held", LIMIT)


def victims(kind: str, pid: int) -> list[int]:
    """The processes to kill: a child of celery's pool, whose task it redelivers; else all."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    children = [int(each) for each in found.stdout.split()]
    return children[:1] if kind == "celery" else [pid, *children]
