"""Each of the six documented scripts alone, run by EVAL as its file stands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.redis._eval import evaluate

import slotwise

LUA = Path(slotwise.__file__).parent / "redis" / "lua" / "documented"
MAIN, TTL, MAX, WAITING, HEARTBEAT = (
    f"adv-sem:semaphore_{kind}:s" for kind in ("main", "ttl", "max", "waiting", "waiting_heartbeat")
)
PATTERN = "adv-sem:acquisition_notification:@@@ACQUISITION_ID@@@"
NOW = round(time.time(), 3)


class Six:
    """The documented scripts as methods, with a clock that the test sets."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.now: float | str = NOW
        self.interval = 15
        self.ttl: float | str = ""

    def _run(self, name: str, keys: list[str], *args: object) -> Any:
        source = (LUA / f"{name}.lua").read_text()
        return evaluate(self.client, source, len(keys), *keys, *map(str, args))

    def queue(self, claim_id: str) -> Any:
        return self._run("queue", [WAITING, HEARTBEAT], claim_id, self.interval, self.ttl, self.now)

    def wake_up_nexts(self, limit: int) -> Any:
        keys = [MAIN, TTL, WAITING, HEARTBEAT]
        return self._run("wake_up_nexts", keys, limit, self.interval, self.ttl, self.now, PATTERN)

    def acquire(self, claim_id: str, limit: int) -> Any:
        args = (claim_id, limit, self.interval, self.ttl, self.now)
        return self._run("acquire", [MAIN, TTL, MAX], *args)

    def release(self, claim_id: str) -> Any:
        return self._run("release", [MAIN, TTL, WAITING, HEARTBEAT], claim_id)

    def ping(self, claim_id: str) -> Any:
        keys = [WAITING, HEARTBEAT, MAIN]
        return self._run("ping", keys, claim_id, self.interval, self.ttl, self.now)

    def card(self) -> Any:
        return self._run("card", [MAIN, TTL], self.now)


@pytest.fixture
def six(client: redis.Redis) -> Six:
    return Six(client)


def test_queue_files_the_place_and_the_sign_of_life(six: Six) -> None:
    six.queue("a")
    assert six.client.zscore(WAITING, "a") == NOW
    assert six.client.zscore(HEARTBEAT, "a") == pytest.approx(NOW + 15, abs=1e-6)
    assert 15_000 < six.client.pttl(WAITING) <= 30_000
    assert 15_000 < six.client.pttl(HEARTBEAT) <= 30_000


def test_queue_gives_strictly_increasing_tickets_in_one_microsecond_and_backwards(six: Six) -> None:
    six.queue("z")
    six.queue("a")
    assert isinstance(six.now, float)
    six.now -= 3600
    six.queue("m")
    assert six.client.zrange(WAITING, 0, -1) == ["z", "a", "m"]


def test_queue_never_shortens_the_life_of_a_key(six: Six) -> None:
    six.interval = 1000
    six.queue("long")
    six.interval = 1
    six.queue("short")
    assert six.client.ttl(WAITING) > 1000
    assert six.client.ttl(HEARTBEAT) > 1000


def test_an_empty_now_is_the_servers_clock(six: Six) -> None:
    six.now = ""
    before = time.time()
    six.queue("a")
    assert before - 1 < (six.client.zscore(WAITING, "a") or 0) < time.time() + 1
    assert six.wake_up_nexts(1) == 1
    assert six.acquire("a", 1) == [1, 1]
    assert six.ping("a") == [0, 1]
    assert six.card() == 1


def test_wake_up_nexts_grants_the_first_that_fit_and_tells_their_lists(six: Six) -> None:
    for claim_id in "abc":
        six.queue(claim_id)
    assert six.wake_up_nexts(2) == 2
    assert set(six.client.zrange(MAIN, 0, -1)) == {"a", "b"}
    assert six.client.zrange(WAITING, 0, -1) == ["c"]
    assert six.client.zrange(HEARTBEAT, 0, -1) == ["c"]
    assert six.client.llen("adv-sem:acquisition_notification:a") == 1
    assert six.client.pttl("adv-sem:acquisition_notification:b") > 0
    assert not six.client.exists("adv-sem:acquisition_notification:c")
    assert six.wake_up_nexts(2) == 0


def test_wake_up_nexts_tells_ids_of_ours_by_a_message(six: Six) -> None:
    with six.client.pubsub() as messages:
        messages.subscribe("slotwise:client")
        messages.get_message(timeout=5)
        six.queue("sw-client-7")
        six.wake_up_nexts(1)
        message = messages.get_message(timeout=5)
    assert message is not None
    assert message["data"] == "look sw-client-7"
    assert not six.client.keys("*notification*")


def test_acquire_confirms_a_member_even_when_nothing_changes(six: Six) -> None:
    six.queue("a")
    six.wake_up_nexts(1)
    six.ttl = 60
    assert six.acquire("a", 1) == [1, 1]
    assert six.acquire("a", 1) == [1, 1]
    assert six.client.get(MAX) == "1"
    assert six.client.zscore(TTL, "a") == pytest.approx(NOW + 60, abs=1e-6)
    assert six.client.ttl(TTL) >= 60
    assert six.client.ttl(MAX) > 0


def test_acquire_of_a_stale_grant_changes_nothing(six: Six) -> None:
    six.ttl = 60
    assert six.acquire("never granted", 1) == [0, 0]
    assert six.client.keys() == []


def test_card_counts_after_ending_what_is_over(six: Six) -> None:
    assert isinstance(six.now, float)
    for claim_id in "abc":
        six.queue(claim_id)
    six.wake_up_nexts(3)
    six.ttl = 5
    six.acquire("a", 3)
    assert six.card() == 3
    six.now += 5
    assert six.card() == 2
    six.ping("b")
    six.now += 10
    assert six.card() == 1
    assert six.client.zrange(MAIN, 0, -1) == ["b"]


MADE_UP = "sw-a-1*2000000"  # of two million slots, says its name


@pytest.mark.others_keys
@pytest.mark.parametrize("step", ["acquire", "ping", "release", "card", "wake_up_nexts"])
def test_a_made_up_number_of_slots_costs_nobody_anything(six: Six, step: str) -> None:
    """Held as one member, as a client may do who does not know what the name means."""
    client = six.client
    client.zadd(MAIN, {MADE_UP: NOW + 15, "x*5000": NOW + 15})
    client.zadd(TTL, {MADE_UP: NOW - 1})
    client.config_resetstat()
    if step in ("card", "wake_up_nexts"):
        six.wake_up_nexts(1) if step == "wake_up_nexts" else six.card()
        assert client.zrange(MAIN, 0, -1) == ["x*5000"]
    else:
        six.acquire(MADE_UP, 5) if step == "acquire" else getattr(six, step)(MADE_UP)
        assert client.zscore(MAIN, "x*5000")
    calls = sum(each["calls"] for each in client.info("commandstats").values())
    assert calls < 30


@pytest.mark.others_keys
def test_a_foreign_id_means_what_it_says_and_no_more(six: Six) -> None:
    six.client.zadd(MAIN, dict.fromkeys(("x*3", "x*3#2", "x*3#3"), NOW + 15))
    assert six.release("x*3") == 1
    assert six.client.zrange(MAIN, 0, -1) == ["x*3#2", "x*3#3"]
    assert six.release("x*3#2") == 1
