"""Celery, Dramatiq, taskiq and RQ with real workers, against the Redis server of the tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import _fresh_processes
from tests.integrations._servers import process, wait_until

from slotwise import semaphore

# Workers start slowly on a busy machine, and RQ starts a process for each job.
pytestmark = pytest.mark.timeout(600)
LIMIT = 240

ROOT = Path(__file__).parents[2]
KINDS = ("celery", "dramatiq", "rq", "taskiq")


def command(kind: str, concurrency: int, url: str) -> tuple[str, ...]:
    app = f"tests.integrations._{kind}_app"
    if kind == "celery":
        pool = "prefork" if concurrency > 4 else "threads"
        options = ("-P", pool, "-c", str(concurrency), "--without-gossip", "--without-mingle")
        return ("-m", "celery", "-A", app, "worker", *options)
    if kind == "dramatiq":
        return ("-m", "dramatiq", app, "-p", "1", "-t", str(concurrency))
    if kind == "taskiq":
        return ("-m", "taskiq", "worker", f"{app}:broker", "-w", "1")
    return ("-m", "rq.cli", "worker", "--with-scheduler", "--url", url)


class Run:
    """One queue on one server."""

    def __init__(
        self, kind: str, server, folder: Path, value: int, seconds: float, **environment: str
    ) -> None:
        self.kind = kind
        self.url = server.url
        self.folder = folder
        self.environment = {
            "TEST_REDIS_URL": server.url,
            "TEST_VALUE": str(value),
            "TEST_SECONDS": str(seconds),
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self.client = server.client()

    @contextlib.contextmanager
    def sent(self, n: int, *more: str) -> Iterator[subprocess.Popen[str]]:
        """Send tasks; the program goes on, and prints their results, if there is ``more``."""
        with _fresh_processes.Popen(
            [sys.executable, "-m", f"tests.integrations._{self.kind}_app", str(n), *more],
            env=os.environ | self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
        ) as sender:
            assert sender.stdout.readline() == "sent\n"
            try:
                yield sender
            finally:
                if sender.poll() is None:
                    sender.kill()

    def worker(self, concurrency: int = 4):
        words = command(self.kind, concurrency, self.url)
        return process(*words, cwd=self.folder, patience=0, **self.environment)

    def scheduler(self):
        """The other program that taskiq needs for what is due later."""
        words = ("-m", "taskiq", "scheduler", "tests.integrations._taskiq_app:scheduler")
        return process(*words, "--update-interval", "1", cwd=self.folder, **self.environment)

    def attempts(self) -> int:
        return int(self.client.get("attempts") or 0)

    def done(self) -> int:
        return self.client.scard("done")


@pytest.mark.parametrize(
    ("kind", "scheduled"),
    [*((kind, False) for kind in KINDS), pytest.param("taskiq", True, marks=pytest.mark.soak)],
)
def test_tasks_that_find_the_limit_full_come_back_as_they_were(
    kind: str, scheduled: bool, server, tmp_path: Path
) -> None:
    """With their arguments, ids and retry counters; who waits for a result gets the right one."""
    options = {"TEST_SCHEDULE": "yes"} if scheduled else {}
    run = Run(kind, server, tmp_path, value=3, seconds=0.02, **options)
    limit = semaphore("tasks", 3, url=server.url)
    with contextlib.ExitStack() as stack:
        stack.enter_context(run.client)
        stack.enter_context(semaphore("full", 1, url=server.url))
        worker = stack.enter_context(run.worker())
        if scheduled:
            stack.enter_context(run.scheduler())
        with limit.cm(3):
            sender = stack.enter_context(run.sent(2, "wait"))
            wait_until(
                lambda: run.attempts() >= 3 or worker.poll() is not None, "all refused", LIMIT
            )
            assert run.done() == 0
        # Of those, the last fails once, and is retried: being refused before and after that counts
        # for nothing.
        try:
            wait_until(lambda: run.done() == 3 or worker.poll() is not None, "all ran", LIMIT)
            assert run.done() == 3
        except AssertionError as error:
            done = run.client.smembers("done")
            pytest.fail(f"{error} {run.attempts()} attempts, {done=}\n{worker.log.read_text()}")
        printed, _ = sender.communicate(timeout=LIMIT)
        *results, retries = json.loads(printed)
        assert [result for _, [result, _] in results] == [100, 101]
        assert [sent_id for sent_id, _ in results] == [run_id for _, [_, run_id] in results]
        assert retries == 1
        assert int(run.client.get("refused after failure")) >= 2
        assert run.client.smembers("over") == set()


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_tasks_survive_the_death_of_a_worker(kind, server, tmp_path) -> None:
    run = Run(kind, server, tmp_path, value=5, seconds=0.1)
    with run.sent(200) as sender:
        sender.wait(LIMIT)
    with run.client, contextlib.ExitStack() as stack:
        workers = [stack.enter_context(run.worker(8)) for _ in range(6 if kind == "rq" else 2)]
        wait_until(lambda: run.done() >= 50, "some tasks", LIMIT)
        for victim in victims(kind, workers[0].pid):
            os.kill(victim, signal.SIGKILL)
        # RQ calls the job of a dead worker failed, unless it was enqueued with retries.
        least = 200 if kind == "rq" else 201

        def all_done() -> bool:
            if kind == "taskiq":  # it looks for messages of the dead when there is a new one
                with run.sent(1) as sender:
                    sender.wait(LIMIT)
            return run.done() >= least

        if kind == "celery":
            # Its main process too: what it has taken from Redis and not noted yet is lost.
            wait_until(lambda: run.done() >= 100, "more tasks", LIMIT)
            for victim in family(workers[0].pid):
                os.kill(victim, signal.SIGKILL)
            least = 200
        wait_until(all_done, "all tasks", LIMIT)
        assert run.client.smembers("over") == set()
        limit = semaphore("tasks", 5, url=server.url)
        wait_until(lambda: limit.stats_sync().acquired_slots == 0, "nothing held", LIMIT)


def victims(kind: str, pid: int) -> list[int]:
    """The processes to kill: of celery a child, whose task the others get at once; else all."""
    return family(pid)[1:2] if kind == "celery" else family(pid)


def family(pid: int) -> list[int]:
    """A process and its children."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [pid, *[int(each) for each in found.stdout.split()]]
