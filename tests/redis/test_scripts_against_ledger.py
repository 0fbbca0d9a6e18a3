"""The scripts and the ledger, one random sequence: after every step they agree.

The ledger is the oracle: who holds which slot numbers, and who waits in which
order. The test's clock is passed to both.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import redis
from tests._effort import seeds
from tests.redis._eval import evaluate, keys_that_stay, read_keys
from tests.redis._inside import free
from tests.redis._server import FAKE_CLOCK
from tests.redis._slot_ledger import Claim, Ledger

from slotwise._core.overload import Overload, overload_of
from slotwise._ledger.estimates import HoldTimes, slots_in
from slotwise.errors import SemaphoreClosed
from slotwise.redis._dialect import write_wait
from slotwise.redis._keys import SemaphoreKeys
from slotwise.redis._scripts import Script, load

pytestmark = pytest.mark.usefixtures("x_listens")

INTERVAL = 15.0


def expand(text: str) -> Iterator[int]:
    """The numbers that "1-3,7" stands for."""
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


def taken_numbers(client: redis.Redis, keys: SemaphoreKeys) -> set[int]:
    """The slot numbers that are neither above the highest so far nor free."""
    return taken_by([*client.zrange(keys.numbers, 0, -1, withscores=True)])


def taken_by(records: Iterable[tuple[str, float | str]]) -> set[int]:
    """Those that the members of that sorted set and their scores say."""
    free_from = dict(records)
    taken = set(range(1, int(free_from.pop("top", 0)) + 1))
    for text, low in free_from.items():
        free = set(expand(text))
        assert min(free) == float(low)
        assert free <= taken, "free once, and below the highest"
        taken -= free
    return taken


class Pair:
    """One semaphore twice: a ledger here, and the keys on a server."""

    def __init__(self, client: redis.Redis, value: int) -> None:
        self.client = client
        self.keys = SemaphoreKeys(FAKE_CLOCK, "s")
        self.ledger: Ledger[Claim] = Ledger(value)
        self.value = value
        self.now = round(time.time(), 3)
        self.ttl_ends: dict[str, float] = {}
        self.silent_at: dict[str, float] = {}
        self.ttls: dict[str, float | None] = {}
        self.tokens: list[int] = []
        self.fell_back = self.passed = 0
        self.overload_dice = random.Random(0)

    # ------------------------------------------------------- the server's side

    def run(self, script: Script, *args: object) -> Any:
        keys = self.keys.all
        texts = ["" if arg is None else str(arg) for arg in args]
        return evaluate(self.client, script.source, len(keys), *keys, f"{self.now:.6f}", *texts)

    # ------------------------------------------------------- the ledger's side

    def end_what_is_over(self) -> None:
        self.note(self.ledger.expire(self.now)[2])

    def note(self, granted: list[Claim]) -> list[Claim]:
        for claim in granted:
            claim_id = str(claim.key)
            ttl = self.ttls[claim_id]
            self.ttl_ends[claim_id] = float("inf") if ttl is None else self.now + ttl
            self.ledger.renew(claim_id, min(self.silent_at[claim_id], self.ttl_ends[claim_id]))
        return granted

    # --------------------------------------------------------------- the verbs

    def request(
        self, claim_id: str, slots: int, ttl: float | None, *, wait: bool, head_start: int = 0
    ) -> None:
        if head_start:
            claim_id = f"{claim_id}^{'n' * (head_start < 0)}{abs(head_start)}*{slots}"
        elif slots > 1:
            claim_id = f"{claim_id}*{slots}"
        self.ttls[claim_id] = ttl
        self.silent_at[claim_id] = self.now + INTERVAL
        self.end_what_is_over()
        overload = self.some_overload() if wait else None
        mode = write_wait(overload) if wait else "try"
        args = (claim_id, self.value, INTERVAL, ttl, mode, "")
        reply = self.run(
            load("semaphore/request"), *args, "host 1 label", "", random.choice(["", "due"])
        )
        claim = Ranked(claim_id, slots, ttl)
        claim.head_start = head_start
        self.compare_request(claim, reply, wait=wait, overload=overload)

    def compare_request(
        self, claim: Claim, reply: list[Any], *, wait: bool, overload: Overload | None = None
    ) -> None:
        waiting = overload and overload.exceeded(len(self.ledger.waiting))
        try:
            if waiting is not None and not self.ledger.try_request(claim, self.now):
                assert reply[:3] == ["full", self.ledger.value, self.ledger.in_use]
                assert int(str(reply[3]).split()[0]) == waiting
                return
            if waiting is not None:
                granted = [claim]
            elif wait:
                granted = self.ledger.request(claim, self.now, wait_until=self.now + INTERVAL)
            else:
                granted = [claim] if self.ledger.try_request(claim, self.now) else []
        except SemaphoreClosed:
            assert reply == ["closed", "for a while"]
            return
        except ValueError:
            assert reply[:2] == ["too many", self.ledger.value]
            return
        self.note(granted)
        if claim in granted:
            assert reply[0] == "granted"
            assert reply[1] == claim.slot_number
            self.tokens.append(reply[2])
        elif wait:
            assert reply[0] == "queued"
        else:
            assert reply[0] == "busy"

    def some_overload(self) -> Overload | None:
        return overload_of(self.overload_dice.choice([None, None, 0, 1, 2, 4]))

    def replace(self, claim_id: str, slots: int, ttl: float | None) -> None:
        if slots > 1:
            claim_id = f"{claim_id}*{slots}"
        self.ttls[claim_id] = ttl
        self.silent_at[claim_id] = self.now + INTERVAL
        self.end_what_is_over()
        args = (claim_id, self.value, INTERVAL, ttl, "replace", "")
        reply = self.run(load("semaphore/request"), *args, "host 1 label", "", "")
        ledger, claim = self.ledger, Replacing(claim_id, slots, ttl)
        if ledger.closed or slots > ledger.value or ledger.try_request(claim, self.now):
            if ledger.closed or slots > ledger.value:
                assert reply[0] in ("closed", "too many")
                return
            granted: list[Claim] = [claim]
        else:
            for each in ledger.to_replace([*ledger.holders.values()], slots):
                del ledger.holders[each.key]
                ledger.timed().discard(each.key)
                free(ledger, each, self.now)
            until = self.now + INTERVAL
            granted = ledger.request_first(claim, self.now, wait_until=until)
        self.note(granted)
        assert reply[0] == ("granted" if claim in granted else "queued")
        if claim in granted:
            assert reply[1] == claim.slot_number
            self.tokens.append(reply[2])

    def request_many(self, ids: list[str], ttl: float | None) -> None:
        for claim_id in ids:
            self.ttls[claim_id] = ttl
            self.silent_at[claim_id] = self.now + INTERVAL
        self.end_what_is_over()
        args = (self.value, INTERVAL, ttl, "", "host 1 ", random.choice(["", "due"]))
        overload = self.some_overload()
        reply = self.run(load("semaphore/request_many"), *args, "", write_wait(overload), *ids)
        if reply[0] == "each":
            self.fell_back += 1
            for claim_id, own in zip(ids, reply[1:], strict=True):
                self.compare_request(Claim(claim_id, 1, ttl), own, wait=True, overload=overload)
            return
        assert (
            overload is None or overload.exceeded(len(self.ledger.waiting) + len(ids) - 1) is None
        )
        assert reply[:2] == ["queued", self.ledger.value]
        for claim_id in ids:
            claim = Claim(claim_id, 1, ttl)
            assert self.ledger.request(claim, self.now, wait_until=self.now + INTERVAL) == []

    def estimate(self, slots: int) -> None:
        """The script says what the rule says, of the hold times that the server has."""
        if self.ledger.closed or slots > self.ledger.value:
            return
        *_, estimate = self.run(load("semaphore/inspect"), "estimate", "", INTERVAL, slots)
        text = self.client.hget(self.keys.state, ".hold") or "0 0"
        mean = HoldTimes(*map(float, text.split()[-2:])).mean
        ahead = sum(claim.slots for claim in self.ledger.waiting.values())
        missing = self.ledger.in_use + ahead + slots - self.ledger.value
        expected = slots_in(missing, self.ledger.value, mean)
        paused_for = self.ledger.paused_until - self.now
        if paused_for > 0:
            assert float(estimate) == pytest.approx(max(expected or 0.0, paused_for), abs=2e-6)
            return
        if estimate != "0":
            assert (float(estimate) if estimate else None) == pytest.approx(expected, abs=2e-6)
        if mean != 0.0:  # the clock may have stood still
            assert (estimate == "0.000000") == (missing <= 0) or estimate == "0"

    def give(self, claim_id: str) -> None:
        held, stood = claim_id in self.ledger.holders, claim_id in self.ledger.waiting
        # It goes together with all whose time is up; only then is anything granted.
        self.ledger.renew(claim_id, self.now)
        self.end_what_is_over()
        count = random.choice(["", "count"])
        reply = self.run(load("semaphore/release"), claim_id, "", INTERVAL, "", count)
        slots = int(claim_id.rpartition("*")[2]) if "*" in claim_id else 1
        assert reply[:2] == [slots if held else 0, int(stood)]

    def give_many(self, ids: list[str]) -> None:
        held = [claim_id in self.ledger.holders for claim_id in ids]
        for claim_id in ids:  # those in the queue leave it
            if claim_id in self.ledger.holders or claim_id in self.ledger.waiting:
                self.ledger.renew(claim_id, self.now)
        self.end_what_is_over()
        reply = self.run(load("semaphore/release_many"), "", INTERVAL, "", *ids)
        assert reply == ["".join(str(int(holds)) for holds in held)]

    def beat(self, ids: list[str]) -> None:
        holders = [claim_id for claim_id in ids if claim_id in self.ledger.holders]
        waiters = [claim_id for claim_id in ids if claim_id in self.ledger.waiting]
        lost = []
        for claim_id in holders:
            if self.ttl_ends[claim_id] > self.now:
                self.silent_at[claim_id] = self.now + INTERVAL
                self.ledger.renew(claim_id, min(self.silent_at[claim_id], self.ttl_ends[claim_id]))
            else:
                lost.append(f"lost {claim_id}")
        for claim_id in waiters:
            self.silent_at[claim_id] = self.now + INTERVAL
            self.ledger.renew(claim_id, self.now + INTERVAL)
        self.end_what_is_over()
        counts = (len(holders), len(waiters))
        [reply] = self.run(
            load("semaphore/heartbeat"), "", INTERVAL, "", *counts, *holders, *waiters
        )
        assert [each for each in reply[1:] if not each.startswith("adapted ")] == lost

    def resize(self, value: int) -> None:
        self.end_what_is_over()
        reply = self.run(load("semaphore/resize"), "", INTERVAL, "", self.value, value, 60, "")
        if self.ledger.closed:
            assert reply == ["closed", "for a while"]
            return
        self.note(self.ledger.resize(value, self.now)[1])
        assert reply == ["resized", value, ""]

    def close(self) -> None:
        self.end_what_is_over()
        self.ledger.close()
        assert self.run(load("semaphore/close"), "", self.value, "for a while") == []

    def reopen(self) -> None:
        self.end_what_is_over()
        self.note(self.ledger.reopen(self.now))
        assert self.run(load("semaphore/reopen"), "", INTERVAL, "") == []

    def pause(self, length: float) -> None:
        self.end_what_is_over()
        reply = self.run(load("semaphore/pause"), "", INTERVAL, "", self.value, length)
        if self.ledger.closed:
            assert reply == ["closed", "for a while"]
            return
        self.ledger.pause(self.now + length)
        assert reply == ["paused"]

    # ------------------------------------------------------------ do they agree

    def compare(self) -> None:
        written = self.run(load("semaphore/inspect"), "counts", "", INTERVAL, "")[2]
        paused_for = max(self.ledger.paused_until - self.now, 0.0)
        waiting, ms = map(int, written.split()) if paused_for else (written, 0)
        assert (waiting, ms / 1000) == (
            len(self.ledger.waiting),
            pytest.approx(paused_for, abs=0.002),
        )
        held = {
            f"{member}#{i}" if i > 1 else member: number
            for member, claim in self.ledger.holders.items()
            for i, number in enumerate(claim.numbers, 1)
        }
        keys = self.keys
        places = keys.numbers, keys.state, keys.main, keys.waiting, keys.waiting_heartbeat, keys.ttl
        found, _ = read_keys(self.client, *places)
        numbers, state, main, queue, queue_heartbeats, ttls = found
        assert taken_by(numbers.items()) == set(held.values())
        for holder, claim in self.ledger.holders.items():
            filed = state[holder].split()[4]
            assert list(expand(filed)) == list(claim.numbers)
        assert set(main) == set(held)
        line = [str(claim.key) for claim in self.ledger.in_turn()]
        self.passed += line != [*self.ledger.waiting]
        assert [*queue] == line
        assert set(queue_heartbeats) == set(line)
        claims = {claim_id for claim_id in state if not claim_id.startswith(".")}
        assert claims == {*self.ledger.holders, *line}
        assert set(ttls) == {
            claim_id for claim_id in self.ledger.holders if self.ttls[str(claim_id)] is not None
        }
        assert not keys_that_stay(self.client)


class Ranked(Claim):
    """One that may have a head start."""

    __slots__ = ("head_start",)


class Replacing(Claim):
    """One that replaces a holder."""

    __slots__ = ()

    replaces = True


def play(client: redis.Redis, seed: int, *, head_starts: bool = False) -> Pair:
    """A random sequence, compared after every step."""
    dice = random.Random(seed)
    pair = Pair(client, value=dice.choice([1, 2, 3, 5]))
    pair.overload_dice.seed(seed)
    issued = 0
    for step in range(150):
        pair.now = round(pair.now + dice.choice([0, 0, 0.001, 0.5, 2]), 6)
        # Scripts end what is over only where it stands in the way; the ledger
        # always does. A heartbeat of nobody makes them see the same.
        pair.beat([])
        everyone = [str(claim_id) for claim_id in (*pair.ledger.holders, *pair.ledger.waiting)]
        action = dice.random()
        if action < 0.1:
            issued += 3
            ids = [f"sw-x-{issued + n}" for n in range(-2, 1)]
            pair.request_many(ids, dice.choice([None, None, 20.0]))
        elif action < 0.15 and seed % 2:
            issued += 1
            pair.replace(f"sw-x-{issued}", dice.choice([1, 1, 2]), dice.choice([None, 20.0]))
        elif action < 0.45:
            issued += 1
            slots = dice.choice([1, 1, 1, 2, 3])
            ttl = dice.choice([None, None, 1.0, 20.0])
            head_start = 0
            if head_starts and dice.random() < 0.5:
                # No two have the same rank: elsewhere that would take luck.
                head_start = (
                    dice.choice([-1, 1]) * dice.choice([0, 1, 9, 40]) * 500_000 + issued * 7
                )
            wait = dice.random() < 0.8
            pair.request(f"sw-x-{issued}", slots, ttl, wait=wait, head_start=head_start)
        elif action < 0.55:
            single = [claim_id for claim_id in everyone if "*" not in claim_id]
            some = dice.sample(single, dice.randint(0, len(single)))
            if not some or dice.random() < 0.2:
                some.append("sw-x-nobody")
            pair.give_many(some)
        elif action < 0.75:
            pair.give(dice.choice([*everyone, "sw-x-nobody"]))
        elif action < 0.9:
            pair.beat(dice.sample(everyone, dice.randint(0, len(everyone))))
        elif action < 0.93:
            pair.resize(dice.randint(1, 6))
        elif action < 0.96 and seed % 3 == 0:
            pair.pause(dice.choice([0.001, 0.5, 3, 3]))
            if dice.random() < 0.3 and not pair.ledger.closed:
                pair.reopen()
        elif action < 0.96:
            pair.resize(dice.randint(1, 6))
        elif action < 0.98:
            pair.now += 20
            pair.beat([])
        elif step > 60:
            (pair.reopen if pair.ledger.closed else pair.close)()
        pair.compare()
        pair.estimate(dice.choice([1, 1, 2]))
    assert pair.tokens == sorted(set(pair.tokens)), "tokens increase strictly"
    return pair


@pytest.mark.parametrize("seed", seeds(3, 12))
def test_our_scripts_decide_as_the_ledger_does(client: redis.Redis, seed: int) -> None:
    play(client, seed)


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_the_scripts_give_head_starts_as_the_ledger_does(client: redis.Redis, seed: int) -> None:
    play(client, seed, head_starts=True)


def test_random_sequences_come_to_head_starts_that_pass_somebody(client: redis.Redis) -> None:
    passed = 0
    for seed in (3, 4, 5, 6):
        client.flushall()
        passed += play(client, seed, head_starts=True).passed
    assert passed > 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("head_starts", [False, True])
@pytest.mark.parametrize("chunk", range(10))
def test_the_scripts_agree_with_the_ledger_over_very_many_steps(
    client: redis.Redis, chunk: int, head_starts: bool
) -> None:
    """200,000 steps in each order, in all chunks."""
    for seed in range(1000 + 134 * chunk, 1000 + 134 * (chunk + 1)):
        client.flushall()
        play(client, seed, head_starts=head_starts)


@pytest.mark.parametrize("held", [2, 5, 32, 33])
def test_whoever_gets_nothing_is_told_the_oldest_holders_unless_they_are_many(
    client: redis.Redis, held: int
) -> None:
    pair, interval = Pair(client, value=held), 100

    def request(claim_id: str, word: str) -> Any:
        owner = f"host 1 {claim_id}"
        args = (claim_id, held, interval, None, word, "", owner, "", "")
        return pair.run(load("semaphore/request"), *args)

    for number in range(held):
        assert request(f"sw-a-{number}", "wait")[0] == "granted"
        pair.now += 1
    # The oldest has the latest deadline.
    pair.run(load("semaphore/heartbeat"), "", interval, "", 1, 0, "sw-a-0")
    named = [f"{held - number} host 1 sw-a-{number}" for number in range(min(held, 3))]
    oldest = named if held <= 32 else []
    assert request("sw-b-0", "try") == ["busy", held, held, 0, oldest]
    assert request("sw-b-1", "wait")[0] == "queued"
    reply = pair.run(load("semaphore/release"), "sw-b-1", "", interval, "", "count")
    assert reply == [0, 1, [held, held, 0, oldest]]


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_the_documented_scripts_decide_as_the_ledger_does(client: redis.Redis, seed: int) -> None:
    dice = random.Random(seed)
    value = dice.choice([1, 2, 4])
    ledger: Ledger[Claim] = Ledger(value)
    keys = SemaphoreKeys(FAKE_CLOCK, "s")
    now = round(time.time(), 3)

    def run(name: str, given: tuple[bytes, ...], *args: object) -> Any:
        return evaluate(
            client, load(f"documented/{name}").source, len(given), *given, *map(str, args)
        )

    line, main = (keys.waiting, keys.waiting_heartbeat), keys.main
    for step in range(120):
        now = round(now + dice.choice([0, 0.25, 3]), 6)
        everyone = [str(claim_id) for claim_id in (*ledger.holders, *ledger.waiting)]
        action = dice.random()
        if action < 0.4:
            claim_id = f"foreign{step}"
            run("queue", line, claim_id, INTERVAL, "", now)
            # To queue and to be granted are two steps here: a full ledger, for a moment.
            ledger.waiting = type(ledger.waiting)(ledger.waiting) | {claim_id: Claim(claim_id)}
            ledger.attention = True
            ledger.renew(claim_id, now + INTERVAL)
        elif action < 0.7 and everyone:
            claim_id = dice.choice(everyone)
            assert run("release", (main, keys.ttl, *line), claim_id) == int(
                claim_id in ledger.holders
            )
            ledger = _rebuilt(ledger, value, without=claim_id)
        elif everyone:
            for claim_id in dice.sample(everyone, dice.randint(0, len(everyone))):
                found = run("ping", (*line, main), claim_id, INTERVAL, "", now)
                assert found == [int(claim_id in ledger.waiting), int(claim_id in ledger.holders)]
                ledger.renew(claim_id, now + INTERVAL)
        granted = ledger.expire(now)[2]
        pattern = keys.notification.decode()
        args = (value, INTERVAL, "", now, pattern)
        assert run("wake_up_nexts", (main, keys.ttl, *line), *args) == len(granted)
        for claim in granted:
            claim_id = str(claim.key)
            assert client.lpop(keys.notification_of(claim_id)) is not None
            assert run(
                "acquire", (main, keys.ttl, keys.max), claim_id, value, INTERVAL, "", now
            ) == [
                1,
                ledger.in_use,
            ]
            ledger.renew(claim_id, now + INTERVAL)
        assert set(client.zrange(main, 0, -1)) == set(ledger.holders)
        assert client.zrange(keys.waiting, 0, -1) == list(ledger.waiting)
        assert run("card", (main, keys.ttl), now) == ledger.in_use


def _rebuilt(old: Ledger[Claim], value: int, *, without: str) -> Ledger[Claim]:
    """The ledger without one claim and with nothing handed on: release.lua wakes nobody."""
    new: Ledger[Claim] = Ledger(value)
    for claim_id in old.holders:
        if claim_id != without:
            new.request(Claim(claim_id))
            new.renew(claim_id, old.timed().get(claim_id) or 0.0)
    waiting = [claim_id for claim_id in old.waiting if claim_id != without]
    for claim_id in waiting:
        new.waiting = type(old.waiting)(new.waiting) | {claim_id: Claim(claim_id)}
        new.attention = True
        new.renew(claim_id, old.timed().get(claim_id) or 0.0)
    return new
