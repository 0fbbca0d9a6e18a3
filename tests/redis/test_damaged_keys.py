"""Keys with something else in them than we wrote: after an interval everybody is served again.

Any key may vanish, lose a part of its contents, or have them replaced. What can be derived from
the others is made anew; no slot number is handed out twice, or above the value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from tests.redis._damage import (
    delete,
    drop_half,
    drop_other_half,
    write_garbage,
    write_one_piece_of_garbage,
)
from tests.redis._eval import evaluate, keys_that_stay
from tests.redis._server import FAKE_CLOCK

from slotwise.redis._keys import KINDS, KeySet, SemaphoreKeys
from slotwise.redis._path_keys import KINDS as PATH_KINDS
from slotwise.redis._path_keys import PathKeys
from slotwise.redis._scripts import load

pytestmark = pytest.mark.usefixtures("x_listens")

INTERVAL = 15.0
PING = 5.0
VALUE = 3


class Clients:
    """Clients of one name, by what they were told; those with a "dead" id say nothing."""

    keys: KeySet

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.now = round(time.time(), 3)
        self.holding: dict[str, int] = {}  # by id, the slot number
        self.waiting: list[str] = []

    def run(self, name: str, *args: object) -> Any:
        given = (*self.keys.all, f"{self.now:.6f}", *map(str, args))
        return evaluate(self.client, load(name).source, len(self.keys.all), *given)

    def ask(self, claim_id: str, *, again: bool) -> list[Any]:
        raise NotImplementedError

    def request(self, claim_id: str, *, again: bool = False) -> None:
        reply = self.ask(claim_id, again=again)
        if reply[0] == "granted":
            self.holding[claim_id] = reply[1]
        else:
            assert reply[0] == "queued", reply
            self.waiting.append(claim_id)
        self.hear([each for each in reply[2:] if isinstance(each, str)])

    def give_back(self, claim_id: str) -> list[Any]:
        raise NotImplementedError

    def release(self, claim_id: str) -> None:
        self.holding.pop(claim_id, None)
        self.hear([each for each in self.give_back(claim_id)[1:] if isinstance(each, str) and each])

    def beat(self, script: str) -> None:
        holders = [each for each in self.holding if "dead" not in each]
        waiters = [each for each in self.waiting if "dead" not in each]
        counts = len(holders), len(waiters)
        [[_, *told]] = self.run(script, "x", INTERVAL, "", *counts, *holders, *waiters)
        self.hear(told)

    def hear(self, told: list[str]) -> None:
        for word, claim_id, *more in (each.split() for each in told if " " in each):
            assert word in ("lost", "gone", "granted", "look"), told
            if word == "lost":
                self.holding.pop(claim_id, None)
                if more == ["kept"]:
                    self.release(claim_id)
            elif word == "gone":
                self.waiting.remove(claim_id)
                self.request(claim_id, again=True)
            elif word == "granted" and claim_id in self.waiting:
                self.waiting.remove(claim_id)
                self.holding[claim_id] = int(more[0])

    def check(self) -> None:
        # The slots of a process that died are free as soon as that is noticed.
        numbers = [self.holding[each] for each in self.holding if "dead" not in each]
        assert len({*numbers}) == len(numbers), f"a number twice: {self.holding}"
        assert all(1 <= each <= VALUE for each in numbers), f"above the value: {self.holding}"

    def check_lifetimes(self) -> None:
        assert keys_that_stay(self.client) == []


class SemaphoreClients(Clients):
    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.keys = SemaphoreKeys(FAKE_CLOCK, "s")

    def ask(self, claim_id: str, *, again: bool) -> list[Any]:
        args = (VALUE, INTERVAL, 100, "wait", "again" if again else "", "host 1 ", "", "")
        reply: list[Any] = self.run("semaphore/request", claim_id, *args)
        return reply

    def give_back(self, claim_id: str) -> list[Any]:
        reply: list[Any] = self.run("semaphore/release", claim_id, "x", INTERVAL, "", "")
        return reply

    def beat_all(self) -> None:
        self.beat("semaphore/heartbeat")


class PathClients(Clients):
    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.keys = PathKeys(FAKE_CLOCK, "t")

    def ask(self, claim_id: str, *, again: bool) -> list[Any]:
        args = ("user*,all", f"2,{VALUE}", INTERVAL, 100, "wait", "again" if again else "")
        path = "0:dead,1:" if "dead" in claim_id else "0:ada,1:"
        reply: list[Any] = self.run("tiers/request", *args, "host 1 ", "", "", claim_id, path)
        return reply

    def give_back(self, claim_id: str) -> list[Any]:
        reply: list[Any] = self.run("tiers/release", "x", claim_id)
        return reply

    def beat_all(self) -> None:
        self.beat("tiers/heartbeat")


DAMAGES = [delete, write_garbage, write_one_piece_of_garbage, drop_half, drop_other_half]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    ("make", "kind"),
    [(SemaphoreClients, each) for each in KINDS] + [(PathClients, each) for each in PATH_KINDS],
    ids=lambda each: getattr(each, "__name__", each),
)
@pytest.mark.parametrize("leave", [False, True], ids=["hold", "leave"])
def test_everybody_is_served_an_interval_after_a_key_was_damaged(
    client: redis.Redis,
    make: type[SemaphoreClients | PathClients],
    kind: str,
    damage: Callable[[redis.Redis, bytes], None],
    *,
    leave: bool,
) -> None:
    clients = make(client)
    kinds = KINDS if make is SemaphoreClients else PATH_KINDS
    for each in ("sw-x-1", "sw-x-2", "sw-dead-1", "sw-x-3", "sw-dead-2", "sw-x-4"):
        clients.request(each)
        clients.now += 0.1
    clients.beat_all()
    damaged_at = clients.now
    damage(client, clients.keys.all[kinds.index(kind)])
    if leave:
        clients.release("sw-x-1")
        clients.check()
    newcomers = 0
    while clients.now < damaged_at + INTERVAL + 1:
        clients.now += 1
        if newcomers < 2:
            newcomers += 1
            clients.request(f"sw-x-new{newcomers}")
        if clients.now - damaged_at > PING * 0.2:  # the first heartbeat comes soon
            clients.beat_all()
            clients.check()
    clients.check_lifetimes()
    clients.holding = {k: v for k, v in clients.holding.items() if "dead" not in k}
    served = 0
    while clients.holding:
        served += 1
        assert served < 20, clients.holding
        clients.check()
        clients.release(next(iter(clients.holding)))
        clients.beat_all()
    assert [each for each in clients.waiting if "dead" not in each] == []
    for n in range(VALUE - 1):  # as good as new
        clients.request(f"sw-x-last{n}")
    assert sorted(clients.holding.values()) == [1, 2]


def test_garbage_at_the_end_of_a_queue_costs_nobody_its_place_for_long(
    client: redis.Redis,
) -> None:
    clients = SemaphoreClients(client)
    for n in range(VALUE):
        clients.request(f"sw-x-held{n}")
    clients.request("sw-x-before")
    client.zadd(clients.keys.waiting, {"garbage": 5e9})
    # Doubles are too coarse there: these can't be told apart.
    after = [f"sw-x-{n}" for n in range(30, 10, -1)]
    for each in after:
        clients.request(each)
    clients.beat_all()
    later = [f"sw-x-{n}" for n in range(60, 40, -1)]
    for each in later:
        clients.now += 0.001
        clients.request(each)
    queue = client.zrange(clients.keys.waiting, 0, -1)
    assert queue[0] == "sw-x-before"
    assert {*queue[1:21]} == {*after}
    assert queue[21:] == later
