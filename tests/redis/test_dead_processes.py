"""A process that died leaves one interval of waiting behind, however many claims it had."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.redis._calls import Calls
from tests.redis._eval import evaluate
from tests.redis._keys import SemaphoreKeys
from tests.redis._server import FAKE_CLOCK, Server
from tests.redis.conftest import listening

from slotwise.redis._scripts import load

INTERVAL = 15.0


class Queue(Calls):
    """One limit with one slot, a clock that the test sets, and claims by id."""

    now: float

    def __init__(self, client: redis.Redis, kind: str) -> None:
        tiers: Any = {"tiers": "user*,all", "values": "1,2"} if kind == "tiers" else {}
        now = round(time.time(), 3)
        super().__init__(client, FAKE_CLOCK, "s", interval=INTERVAL, now=now, **tiers)

    def ask(self, claim_id: str) -> str:
        path = ("0:a,1:",) if self.tiers else ()
        return str(self.request(claim_id, *path)[0])

    def held_and_waiting(self) -> list[int]:
        """How many hold and wait, as the first look at it says."""
        return self.counts("0:a,1:" if self.tiers else "0:")[:2]

    def beat(self, claim_id: str) -> list[str]:
        """Show that a waiter lives; what became of it."""
        _, outcomes = self.heartbeat((), (claim_id,), caller="y")
        return [outcome.rpartition(" ")[0] for outcome in outcomes]


@pytest.fixture(params=["semaphore", "tiers"])
def queue(request: pytest.FixtureRequest, client: redis.Redis) -> Queue:
    return Queue(client, request.param)


@pytest.fixture(autouse=True)
def long_running(client: redis.Redis) -> None:
    """A server that every living process has had the time to come back to."""
    while int(client.info("server")["uptime_in_seconds"]) < 3:
        time.sleep(0.05)


@pytest.fixture
def y_listens(client: redis.Redis) -> Iterator[None]:
    with listening(client, "y"):
        yield


def queue_up(queue: Queue) -> None:
    """x holds the slot, asks four times more, and dies; y waits behind."""
    assert queue.ask("sw-x-0") == "granted"
    for n in range(1, 5):
        queue.now += 3
        assert queue.ask(f"sw-x-{n}") == "queued"
    assert queue.ask("sw-y-1") == "queued"


@pytest.mark.usefixtures("y_listens")
def test_all_claims_of_a_dead_process_go_with_the_first_that_is_found(queue: Queue) -> None:
    queue_up(queue)
    queue.now += 2
    assert queue.beat("sw-y-1") == [], "x may live: its first claim is just 14 s old"
    queue.now += 1.2
    assert queue.beat("sw-y-1") == ["granted sw-y-1 1"]


def test_the_first_look_after_the_interval_counts_nobody_of_a_dead_process(queue: Queue) -> None:
    assert queue.ask("sw-x-0") == "granted"
    for n in range(1, 5):
        queue.now += 3
        assert queue.ask(f"sw-x-{n}") == "queued"
    assert queue.held_and_waiting() == [1, 4]
    queue.now += INTERVAL + 0.001  # since the last sign of life of any of them
    assert queue.held_and_waiting() == [0, 0]


@pytest.mark.usefixtures("y_listens")
def test_a_process_that_listens_loses_only_what_was_silent(
    queue: Queue, client: redis.Redis
) -> None:
    queue_up(queue)
    queue.now += 3.2
    with listening(client, "x"):
        assert queue.beat("sw-y-1") == []
        queue.now += 2
        assert queue.beat("sw-y-1") == [], "it is the turn of the second, which was not silent yet"
    queue.now += 1
    assert queue.beat("sw-y-1") == ["granted sw-y-1 1"]


@pytest.mark.usefixtures("y_listens")
def test_a_process_that_may_not_be_back_yet_is_not_taken_for_dead(queue: Queue) -> None:
    """The server was away while the first claim fell silent, and came back without listeners."""
    assert queue.ask("sw-x-0") == "granted"
    queue.now += 12
    assert queue.ask("sw-x-1") == "queued"
    assert queue.ask("sw-y-1") == "queued"
    queue.now += 6
    assert queue.beat("sw-y-1") == [], "the second is just 6 s old, and is granted the slot"
    assert queue.beat("sw-x-1") == ["granted sw-x-1 1"]


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
def test_nobody_is_taken_for_dead_right_after_a_restart(kind: str, tmp_path: Path) -> None:
    """Its first claim falls silent just then, while it has yet to open its connection again."""
    with Server(tmp_path) as server, server.client(decode_responses=True) as client:
        queue = Queue(client, kind)
        with listening(client, "y"):
            assert queue.ask("sw-x-0") == "granted"
            queue.now += 12
            assert queue.ask("sw-x-1") == "queued"
            assert queue.ask("sw-y-1") == "queued"
            queue.now += 3.1
            assert queue.beat("sw-y-1") == []
            assert queue.beat("sw-x-1") == ["granted sw-x-1 1"]


@pytest.mark.usefixtures("y_listens")
def test_other_seats_of_a_dead_process_are_looked_at_too(queue: Queue) -> None:
    assert queue.ask("sw-px0-1") == "granted"
    queue.now += 5
    assert queue.ask("sw-px1-2") == "queued"
    assert queue.ask("sw-qx0-3") == "queued"
    assert queue.ask("sw-y-1") == "queued"
    queue.now += 10.2
    assert queue.beat("sw-y-1") == [], "q did nothing wrong, and has its turn"
    queue.now += 5
    assert queue.beat("sw-y-1") == ["granted sw-y-1 1"]


def test_thousands_of_dead_claims_go_a_bounded_number_at_a_time(client: redis.Redis) -> None:
    queue = Queue(client, "semaphore")
    assert queue.ask("sw-x-0") == "granted"
    queue.now += 1
    for n in range(1, 1_000):
        queue.ask(f"sw-x-{n}")
    waiting = queue.key("waiting")
    queue.now += 14.5
    left = []
    while not left or left[-1]:
        queue.heartbeat()
        left.append(client.zcard(waiting))
        queue.now += 0.2
    steps = [before - after for before, after in zip([999, *left], left, strict=False)]
    assert max(steps) <= 300, "100 found silent, 100 beside them, 100 in passing"
    assert left[-1] == 0
    assert queue.ask("sw-y-1") == "granted"


def test_a_grant_by_the_documented_script_is_no_sign_of_life_either(client: redis.Redis) -> None:
    keys, now = SemaphoreKeys(FAKE_CLOCK, "s"), round(time.time(), 3)
    queue = (keys.waiting, keys.waiting_heartbeat)

    def run(name: str, given: tuple[bytes, ...], *args: object) -> Any:
        return evaluate(
            client, load(f"documented/{name}").source, len(given), *given, *map(str, args)
        )

    def wake(now: float) -> Any:
        pattern = keys.notification.decode()
        return run("wake_up_nexts", (keys.main, keys.ttl, *queue), 1, INTERVAL, "", now, pattern)

    for claim_id in ("dead1", "dead2"):
        run("queue", queue, claim_id, INTERVAL, "", now)
    run("queue", queue, "living", INTERVAL, "", now + 10)
    assert wake(now + 10) == 1
    assert wake(now + 15.1) == 1, "both are dead by now, and neither has a second interval"
    assert client.zrange(keys.main, 0, -1) == ["living"]
