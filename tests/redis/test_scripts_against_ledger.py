"""The scripts of semaphores and the ledger, one random sequence: after every step they agree.

Like test_paths_against_ledger, whose verbs these are: a semaphore is a path with one node. Clients
that speak only the document are compared with a simpler model, with ours beside them and alone.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis
from tests._effort import seeds
from tests.redis._eval import evaluate, keys_that_stay
from tests.redis._inside import free
from tests.redis._keys import PLACEHOLDER, SemaphoreKeys
from tests.redis._server import FAKE_CLOCK
from tests.redis.test_paths_against_ledger import INTERVAL, Pair, in_turn, numbers_in

from slotwise._core.paths import RankedNeeds
from slotwise._ledger.path_nodes import FIRST
from slotwise._ledger.path_queue import LOOKS, PATIENCE
from slotwise.redis._scripts import load
from slotwise.redis._writing import write_needs

pytestmark = pytest.mark.usefixtures("x_listens")

PATH = (None,)
OWNER = "host 1 x y"


class LinePair(Pair):
    """One semaphore twice: a ledger here, and the keys on a server."""

    def __init__(self, client: redis.Redis, value: int, *, quick: bool = True) -> None:
        super().__init__(client, [value], PATIENCE, LOOKS, quick=quick)
        self.passed = 0

    def replace(self, claim_id: str, ttl: float | None, *, wait: bool) -> None:
        self.ttls[claim_id], self.paths[claim_id] = ttl, PATH
        self.silent_at[claim_id] = self.now + INTERVAL
        self.end_what_is_over()
        args = (self.shape, self.declared, INTERVAL, "-" if ttl is None else ttl)
        word = "replace" if wait else "replace try"
        reply = self.run("request", *args, word, "", OWNER, "due", self.pattern, claim_id, "0:")
        ledger, claim = self.ledger, self.claim_of(claim_id, ttl)
        slots = 1 if claim.needs is None else claim.needs[0]
        if claim.needs is not None and ledger.unfit(claim.needs, PATH) is not None:
            assert reply[:3] == ["refused", ledger.max_slots, 0]
            return
        first = next(iter(ledger.groups.values())).head if ledger.groups else None
        if ledger.try_request(claim, PATH, self.now):
            granted, replaced = [claim], []
        else:
            is_behind = first is not None and first.head_start == FIRST
            replaced = [] if is_behind else self.replaced_by(slots)
            claim.head_start = FIRST
            for each in replaced:
                ledger.timed().discard(each)
                free(ledger, ledger.holders.pop(each), self.now)
            if ledger.try_request(claim, PATH, self.now):
                granted = [claim, *ledger.serve(self.now)]
            elif not wait:
                assert reply[0] == "busy"
                return
            else:
                granted = ledger.request(claim, PATH, self.now, wait_until=self.silent_at[claim_id])
        told = [each.split(" ")[1] for each in reply if str(each).startswith("kicked ")]
        assert told == replaced
        self.note(granted)
        assert reply[0] == ("granted" if claim in granted else "queued")
        if claim in granted:
            self.tokens.append(reply[2])

    def replaced_by(self, slots: int) -> list[str]:
        """Return whose slots a newcomer takes over, the longest hold first."""
        ledger = self.ledger
        missing = slots + ledger.node().in_use - ledger.max_slots
        if ledger.waiting:
            missing = max(missing, slots)
        chosen: list[str] = []
        for claim in ledger.holders.values():
            if missing > 0 and not ledger.paused:
                chosen.append(str(claim.key))
                missing -= 1 if claim.needs is None else claim.needs[0]
        return [] if missing > 0 else chosen

    def inspect(self) -> None:
        self.end_what_is_over()
        ledger, node = self.ledger, self.ledger.node()
        closed, reason, _, _, *counts = self.run("inspect", self.pattern, "path", "0:")
        assert (closed, reason) == ((2, "for a while") if ledger.closed else (0, ""))
        if counts:
            held, waiting, value, _, paused_ms, _ = counts
            pause = max(node.paused_until - self.now, 0) if ledger.paused else 0
            assert (held, waiting, value) == (node.in_use, len(ledger.waiting), ledger.max_slots)
            assert paused_ms / 1000 == pytest.approx(pause, abs=0.002)
        for what, known in (("holders", ledger.holders), ("waiters", ledger.waiting)):
            *_, end = self.run("inspect", self.pattern, what, "")[:4]
            found = self.run("inspect", self.pattern, what, "")[4:]
            assert end == ""
            assert {*found[::3]} == {*known}
            assert all(each.endswith(f" 0: {OWNER}") for each in found[1::3])

    def compare(self) -> None:
        super().compare()
        if self.client.hexists(self.key["state"], ".values"):
            assert int(self.client.get(self.key["max"])) == self.ledger.node().value
        line = [claim for group in self.ledger.groups.values() for claim in in_turn(group)]
        self.passed += [claim.key for claim in line] != [*self.ledger.waiting]


def play(
    client: redis.Redis,
    seed: int,
    *,
    head_starts: bool = False,
) -> LinePair:
    """A random sequence, compared after every step; in one of four, few have to wait."""
    dice, calm = random.Random(seed), seed % 4 == 3
    pair = LinePair(client, 9 if calm else dice.choice([1, 2, 3, 5]))
    pair.overload_dice = random.Random(seed)
    issued = 0

    def new_id(*, alone: bool = False) -> str:
        nonlocal issued
        issued += 1
        needs = RankedNeeds([dice.choice([1] * 9 if calm else [1, 1, 1, 2, 3])])
        if alone and head_starts and dice.random() < 0.5:
            # No two have the same rank: elsewhere that would take luck.
            needs.head_start = dice.choice([-1, 1]) * dice.choice([0, 1, 9, 40]) * 500_000
            needs.head_start += issued * 7
        return f"sw-x-{issued}" + write_needs(needs)

    for step in range(150):
        pair.now = round(pair.now + dice.choice([0, 0, 0.001, 0.5, 2]), 6)
        pair.end_many()
        everyone = [str(each) for each in (*pair.ledger.holders, *pair.ledger.waiting)]
        action = dice.random()
        ttl = dice.choice([None, None, 1.0, 20.0])
        if pair.ledger.closed and not 0.45 < action < 0.9:
            pair.reopen()
        elif action < 0.1:
            pair.request_many({new_id(): PATH for _ in range(3)})
        elif action < 0.15 and seed % 2:
            pair.replace(new_id(), ttl, wait=dice.random() < 0.7)
        elif action < 0.45:
            pair.request(new_id(alone=True), PATH, ttl, wait=dice.random() < 0.8)
        elif action < 0.55:
            pair.give(dice.sample(everyone, dice.randint(0, len(everyone))) or ["sw-x-nobody"])
        elif action < 0.75:
            pair.give([dice.choice([*everyone, "sw-x-nobody"])], count=dice.random() < 0.3)
        elif action < 0.87:
            pair.beat(dice.sample(everyone, dice.randint(0, len(everyone))))
        elif action < 0.9:
            pair.kick(dice.choice([*everyone, "sw-x-nobody"]))
        elif action < 0.93:
            pair.resize(0, dice.randint(1, 6) + 4 * calm, None)
        elif action < 0.96 and seed % 3 == 0:
            pair.pause(0, dice.choice([0.001, 0.5, 3, 3]), None)
            if dice.random() < 0.3:
                pair.reopen()
        elif action < 0.96:
            pair.inspect()
        elif action < 0.98:
            pair.now += 20
            pair.end_many()
            pair.beat([])
        else:
            pair.beat([])
            if step > 60:
                pair.close()
        pair.compare()
        if not pair.ledger.closed:
            pair.estimate(PATH, (dice.choice([1, 1, 2]),))
    assert pair.tokens == sorted(set(pair.tokens)), "tokens increase strictly"
    return pair


@pytest.mark.parametrize("seed", [*seeds(4, 12), 57])
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
    pair = LinePair(client, held)

    def request(claim_id: str, word: str) -> Any:
        args = ("", held, 100, "-", word, "", f"host 1 {claim_id}", "", pair.pattern)
        return pair.run("request", *args, claim_id, "0:")

    for number in range(held):
        assert request(f"sw-a-{number}", "wait")[0] == "granted"
        pair.now += 1
    # The oldest has the latest deadline.
    pair.run("heartbeat", "", 100, pair.pattern, 1, 0, "sw-a-0")
    named = [f"{held - number} host 1 sw-a-{number}" for number in range(min(held, 3))]
    oldest = named if held <= 32 else []
    assert request("sw-b-0", "try") == ["busy", "0:", held, held, 0, oldest]
    assert request("sw-b-1", "wait")[0] == "queued"
    reply = pair.run("release", "", pair.pattern, "count", "sw-b-1")
    assert reply == ["2", "0:", held, held, 0, oldest]


# ------------------------------------------------------------- clients that speak only the document


class Semaphore:
    """What a semaphore is to the document: who holds and who waits, each until it is silent."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.holders: dict[str, float] = {}
        self.waiting: dict[str, float] = {}  # in order

    def held(self) -> int:
        return sum(map(slots_of, self.holders))

    def expire(self, now: float) -> None:
        self.holders = {each: end for each, end in self.holders.items() if end > now}
        self.waiting = {each: end for each, end in self.waiting.items() if end > now}

    def serve(self, now: float) -> list[str]:
        """End what is over; return who is granted now."""
        self.expire(now)
        granted = []
        for each in [*self.waiting]:
            if self.held() + slots_of(each) > self.value:
                break
            self.holders[each] = self.waiting.pop(each)
            granted.append(each)
        return granted

    def end(self, claim_id: str) -> bool:
        """Forget a holder or waiter, serving nobody; return whether it held anything."""
        self.waiting.pop(claim_id, None)
        return self.holders.pop(claim_id, None) is not None

    def renew(self, claim_id: str, until: float) -> list[int]:
        """Note a sign of life; return whether it waits, and whether it holds."""
        for known in (self.waiting, self.holders):
            if claim_id in known:
                known[claim_id] = until
        return [int(claim_id in self.waiting), int(claim_id in self.holders)]


def slots_of(claim_id: str) -> int:
    return int(claim_id.rpartition("*")[2]) if "*" in claim_id else 1


class DocumentedClients:
    """Clients of the six scripts, whose semaphore is compared with the model after each step."""

    def __init__(self, client: redis.Redis, value: int) -> None:
        self.client, self.model = client, Semaphore(value)
        self.keys = SemaphoreKeys(FAKE_CLOCK, "s")
        self.now = Pair.now

    def run(self, name: str, keys: tuple[bytes, ...], *args: object) -> Any:
        source = load(f"documented/{name}").source
        return evaluate(self.client, source, len(keys), *keys, *map(str, args))

    def queue(self, claim_id: str) -> None:
        keys = (self.keys.waiting, self.keys.waiting_heartbeat)
        assert self.run("queue", keys, claim_id, INTERVAL, "", self.now) == 1
        self.model.waiting[claim_id] = self.now + INTERVAL

    def release(self, claim_id: str) -> None:
        keys = (self.keys.main, self.keys.ttl, self.keys.waiting, self.keys.waiting_heartbeat)
        assert self.run("release", keys, claim_id) == self.model.end(claim_id)

    def ping(self, claim_id: str) -> None:
        keys = (self.keys.waiting, self.keys.waiting_heartbeat, self.keys.main)
        found = self.run("ping", keys, claim_id, INTERVAL, "", self.now)
        assert found == self.model.renew(claim_id, self.now + INTERVAL)

    def wake_up_nexts(self) -> None:
        """Serve; those who learn of it by their lists confirm it."""
        keys = (self.keys.main, self.keys.ttl, self.keys.waiting, self.keys.waiting_heartbeat)
        args = (self.model.value, INTERVAL, "", self.now, self.keys.notification.decode())
        granted = self.model.serve(self.now)
        assert self.run("wake_up_nexts", keys, *args) == len(granted)
        for claim_id in granted:
            if not claim_id.startswith("sw-"):
                self.confirm(claim_id)

    def confirm(self, claim_id: str) -> None:
        assert (
            self.client.lpop(
                self.keys.notification.replace(PLACEHOLDER.encode(), claim_id.encode())
            )
            is not None
        )
        keys = (self.keys.main, self.keys.ttl, self.keys.max)
        args = (claim_id, self.model.value, INTERVAL, "", self.now)
        assert self.run("acquire", keys, *args) == [1, self.model.held()]
        self.model.renew(claim_id, self.now + INTERVAL)

    def compare(self) -> None:
        held = {
            f"{each}#{number}" if number else each
            for each in self.model.holders
            for number in (0, *range(2, slots_of(each) + 1))
        }
        assert {*self.client.zrange(self.keys.main, 0, -1)} == held
        assert self.client.zrange(self.keys.waiting, 0, -1) == [*self.model.waiting]
        assert {*self.client.zrange(self.keys.waiting_heartbeat, 0, -1)} == {*self.model.waiting}
        assert not keys_that_stay(self.client)


def play_documented(client: redis.Redis, seed: int) -> None:
    dice = random.Random(seed)
    clients = DocumentedClients(client, dice.choice([1, 2, 4]))
    model = clients.model
    for step in range(120):
        clients.now = round(clients.now + dice.choice([0, 0.25, 3]), 6)
        everyone = [*model.holders, *model.waiting]
        action = dice.random()
        if action < 0.4:
            clients.queue(f"foreign{step}")
        elif action < 0.7 and everyone:
            clients.release(dice.choice(everyone))
        else:
            for claim_id in dice.sample(everyone, dice.randint(0, len(everyone))):
                clients.ping(claim_id)
        clients.wake_up_nexts()
        clients.compare()
        card = clients.run("card", (clients.keys.main, clients.keys.ttl), clients.now)
        assert card == model.held()


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_the_documented_scripts_decide_as_the_document_does(client: redis.Redis, seed: int) -> None:
    play_documented(client, seed)


class Mixed(DocumentedClients):
    """Clients of ours share the semaphore; `believed` has what each of theirs knows that it has."""

    def __init__(self, client: redis.Redis, value: int) -> None:
        super().__init__(client, value)
        self.pattern = self.keys.notification.decode()
        self.ours: list[str] = []  # who waits, or holds, as far as they know
        self.believed: dict[str, set[int]] = {}
        self.tokens: list[int] = []
        self.completed = 0

    def call(self, name: str, *args: object) -> Any:
        keys = self.keys.all
        given = (f"{self.now:.6f}", "", *map(str, args))
        reply = evaluate(self.client, load(name).source, len(keys), *keys, *given)
        assert "reset" not in str(reply), reply
        return reply

    def claims(self) -> list[str]:
        """The ids of ours that the server knows."""
        return [each for each in self.client.hkeys(self.keys.state) if each.startswith("sw-")]

    def hear(self, messages: list[Any]) -> None:
        for words in [str(each).split(" ") for each in messages]:
            if words[0] == "granted":
                self.note_grant(words[1], int(words[3]))
            elif words[0] in ("lost", "gone"):
                self.forget(words[1])

    def note_grant(self, claim_id: str, token: int) -> None:
        if claim_id in self.believed or claim_id not in self.ours:
            return
        numbers = self.client.hget(self.keys.state, claim_id).split(" ")[4]
        self.believed[claim_id] = {*numbers_in(numbers)}
        self.tokens.append(token)

    def forget(self, claim_id: str) -> None:
        self.ours.remove(claim_id)
        self.believed.pop(claim_id, None)

    def serve(self) -> None:
        """What each call of ours does; those that know nothing of ours confirm their grants."""
        for claim_id in self.model.serve(self.now):
            if not claim_id.startswith("sw-"):
                self.granted.append(claim_id)

    def request(self, claim_id: str, *, wait: bool) -> None:
        self.granted = []
        self.serve()
        model, slots = self.model, slots_of(claim_id)
        is_free = not model.waiting and model.held() + slots <= model.value
        args = ("", model.value, INTERVAL, "-", "wait" if wait else "try", "", OWNER, "")
        reply = self.call("request", *args, self.pattern, claim_id, "0:")
        if slots > model.value:
            assert reply[:3] == ["refused", model.value, 0]
        elif is_free:
            assert reply[0] == "granted"
            model.holders[claim_id] = self.now + INTERVAL
            self.ours.append(claim_id)
            self.note_grant(claim_id, reply[2])
        elif wait:
            assert reply[0] == "queued"
            model.waiting[claim_id] = self.now + INTERVAL
            self.ours.append(claim_id)
        else:
            assert reply[0] == "busy"
        self.after(reply)

    def give(self, claim_id: str) -> None:
        self.granted = []
        is_silent = self.model.holders.get(claim_id, self.now + 1) <= self.now
        self.serve()
        waited = claim_id in self.model.waiting
        held = self.model.end(claim_id)
        self.serve()
        reply = self.call("release", "x", self.pattern, "", claim_id)
        # The quick half gives back what a silent one has, if nobody waits for it, and ends nobody.
        assert reply[0] == ("1" if held else "2" if waited else "0") or is_silent
        self.call("heartbeat", "x", INTERVAL, self.pattern, 0, 0)
        if claim_id in self.ours:
            self.forget(claim_id)
        self.after(reply)

    def beat(self, ids: list[str]) -> None:
        self.granted = []
        model = self.model
        waiters = [each for each in ids if each not in self.believed]
        holders = [each for each in ids if each in self.believed]
        lost = [each for each in holders if each not in model.holders]
        gone = [each for each in waiters if not model.renew(each, self.now + INTERVAL).count(1)]
        told = [each for each in waiters if each in model.holders]
        for each in holders:
            model.renew(each, self.now + INTERVAL)
        self.serve()
        args = ("x", INTERVAL, self.pattern, len(holders), len(waiters), *holders, *waiters)
        [reply] = self.call("heartbeat", *args)
        assert {each for each in reply[1:] if each[:4] == "lost"} == {f"lost {i}" for i in lost}
        assert {each for each in reply[1:] if each[:4] == "gone"} == {f"gone {i}" for i in gone}
        self.completed += len(told)
        self.after(reply)
        assert {*told} <= {*self.believed}

    def after(self, reply: list[Any]) -> None:
        self.hear(reply[1:])
        for claim_id in self.granted:
            if claim_id in self.model.holders:
                self.confirm(claim_id)

    def compare(self) -> None:
        super().compare()
        live = [self.believed[each] for each in self.believed if each in self.model.holders]
        numbers = [number for each in live for number in each]
        assert len({*numbers}) == len(numbers)
        assert not numbers or max(numbers) <= self.model.value


def play_mixed(client: redis.Redis, seed: int) -> Mixed:
    """A random sequence of clients of ours and of others, compared after every step."""
    dice = random.Random(seed)
    clients = Mixed(client, dice.choice([1, 2, 3, 5]))
    model = clients.model
    if seed % 2:  # who comes first states the value
        clients.queue("foreign")
        clients.wake_up_nexts()
    else:
        clients.request("sw-x-first", wait=True)
    for step in range(150):
        clients.now = round(clients.now + dice.choice([0, 0, 0.001, 0.5, 2, 6]), 6)
        everyone = [*model.holders, *model.waiting]
        others = [each for each in everyone if not each.startswith("sw-")]
        action = dice.random()
        if action < 0.15:
            clients.queue(f"foreign{step}")
            if dice.random() < 0.8:
                clients.wake_up_nexts()
        elif action < 0.3 and others:
            clients.release(dice.choice(others))
            if dice.random() < 0.3:
                clients.wake_up_nexts()
        elif action < 0.4:
            for each in dice.sample(others, dice.randint(0, len(others))):
                clients.ping(each)
            clients.wake_up_nexts()
        elif action < 0.65:
            slots = dice.choice([1, 1, 1, 2, 3])
            claim_id = f"sw-x-{step}" + ("" if slots == 1 else f"*{slots}")
            clients.request(claim_id, wait=dice.random() < 0.8)
        elif action < 0.83:
            clients.give(dice.choice([*clients.ours, *everyone[:2], "sw-x-nobody"]))
        else:
            ours = clients.ours
            clients.beat(dice.sample(ours, dice.choice([len(ours), dice.randint(0, len(ours))])))
        clients.compare()
    assert len({*clients.tokens}) == len(clients.tokens)
    clients.now += 100  # everybody dies
    clients.beat([])
    clients.request(f"sw-x-last*{model.value}", wait=False)
    clients.compare()
    assert {*model.holders} == {f"sw-x-last*{model.value}"} == {*clients.claims()}
    return clients


@pytest.mark.parametrize("seed", [*seeds(3, 12), 59, 73, 320])
def test_clients_of_the_document_share_a_semaphore_with_ours(
    client: redis.Redis, seed: int
) -> None:
    play_mixed(client, seed)
