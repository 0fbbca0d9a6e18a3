"""The scripts of an adaptive semaphore and the ledger's rules, one random sequence on a server.

Like test_scripts_against_ledger, whose verbs these are; the value moves by itself here, in both.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis
from tests._effort import seeds
from tests.redis._inside import free, remove_waiter
from tests.redis._slot_ledger import Claim, Ledger
from tests.redis._window import read_window
from tests.redis.test_scripts_against_ledger import INTERVAL, Pair

from slotwise._core.adaptive import OUTCOMES, Adaptive, Errors, Latency, Outcome
from slotwise._ledger.adaptation import Adaptation, adaptation
from slotwise._ledger.times import microseconds
from slotwise.redis._scripts import load

pytestmark = pytest.mark.usefixtures("x_listens")


class AdaptiveLedger(Ledger[Claim]):
    """A ledger that asks the pair how a hold ended."""

    __slots__ = ("adaptation", "pair")

    adaptation: Adaptation
    pair: AdaptivePair

    def _ending_of(self, claim: Claim, now: float) -> tuple[int, Outcome, int]:
        return self.pair.ending_of(str(claim.key), now)


class AdaptivePair(Pair):
    """One adaptive semaphore twice; `value` is what callers were made with."""

    ledger: AdaptiveLedger

    def __init__(self, client: redis.Redis, options: Adaptive, dice: random.Random) -> None:
        super().__init__(client, options.start)
        self.dice = dice
        self.options = options
        self.value: Any = options.written
        self.ledger = AdaptiveLedger(options.start)
        self.ledger.pair = self
        self.ledger.adaptation = adaptation(options, microseconds(self.now))
        self.granted_at: dict[str, float] = {}
        self.endings: dict[str, tuple[int, Outcome, int]] = {}
        self.limits: set[int] = set()

    def note(self, granted: list[Claim]) -> list[Claim]:
        for claim in granted:
            self.granted_at[str(claim.key)] = self.now
        return super().note(granted)

    def ending_of(self, claim_id: str, now: float) -> tuple[int, Outcome, int]:
        if claim_id in self.endings:
            return self.endings[claim_id]
        held_us = microseconds(now) - microseconds(self.granted_at[claim_id])
        return held_us, "dropped" if now >= self.ttl_ends[claim_id] else "ignored", 0

    def ended(self, claim_id: str) -> str:
        """Roll how a hold ended; return what is sent for it."""
        dice = self.dice
        if dice.random() < 0.1:
            self.endings.pop(claim_id, None)
            return claim_id  # as an older client would: ignored
        outcome = dice.choice([*["ok"] * 12, *OUTCOMES])
        slots = self.ledger.value
        held_us = dice.choice([0, 5_000, *[150_000 * slots] * 3, 200_000 * slots])
        retry_after_us = dice.choice([0, 0, 40_000]) if outcome == "dropped" else 0
        is_foreign = claim_id in self.granted_at and dice.random() < 0.1
        if is_foreign:
            held_us = microseconds(self.now) - microseconds(self.granted_at[claim_id])
        self.endings[claim_id] = held_us, outcome, retry_after_us
        more = f" {retry_after_us}" if retry_after_us else ""
        return f"{claim_id} {outcome[0]}{'-' if is_foreign else held_us}{more}"

    def give(self, claim_id: str) -> None:
        held, stood = claim_id in self.ledger.holders, claim_id in self.ledger.waiting
        sent = self.ended(claim_id)
        self.take_away([claim_id])
        count = self.dice.choice(["", "count"])
        reply = self.run(load("semaphore/release"), sent, "", INTERVAL, "", count)
        slots = int(claim_id.rpartition("*")[2]) if "*" in claim_id else 1
        assert reply[:2] == [slots if held else 0, int(stood)]
        self.compare_told(reply[3:])

    def give_many(self, ids: list[str]) -> None:
        held = [claim_id in self.ledger.holders for claim_id in ids]
        sent = [self.ended(claim_id) for claim_id in ids]
        self.take_away(ids)
        reply = self.run(load("semaphore/release_many"), "", INTERVAL, "", *sent)
        assert reply[0] == "".join(str(int(holds)) for holds in held)
        self.compare_told(reply[1:])

    def take_away(self, ids: list[str]) -> None:
        """Release them in the ledger, in this order; then those who wait are served."""
        ledger = self.ledger
        self.changes_before = len(ledger.adaptation.changes)
        for claim_id in ids:
            holder, waiter = ledger.holders.pop(claim_id, None), ledger.waiting.get(claim_id)
            ledger.timed().discard(claim_id)
            if holder is not None:
                free(ledger, holder, self.now)
            elif waiter is not None:
                remove_waiter(ledger, waiter, self.now)
        self.note(ledger.serve(self.now))

    def compare_told(self, messages: list[str]) -> None:
        """The caller hears of each change, and why."""
        changes = [*self.ledger.adaptation.changes][self.changes_before :]
        assert messages == [f"adapted {each.new} {each.reason}" for each in changes]

    def freeze(self, verb: str, value: int | None) -> None:
        self.end_what_is_over()
        args = ("", INTERVAL, "", self.value, verb, value, 60)
        reply = self.run(load("semaphore/freeze"), *args)
        if self.ledger.closed:
            assert reply == ["closed", "for a while"]
            return
        now_us = microseconds(self.now)
        try:
            if verb == "thaw":
                self.ledger.adaptation.thaw(now_us)
            else:
                self.ledger.adaptation.freeze(now_us, value)
        except ValueError:
            assert reply == ["outside", self.options.min, self.options.max]
            return
        self.ledger._follow()
        self.note(self.ledger.serve(self.now))
        assert reply == ["done", self.ledger.value]

    def compare(self) -> None:
        super().compare()
        self.limits.add(self.ledger.value)
        record, window, value, changes = self.client.hmget(
            self.keys.state, ".adapt", ".window", ".value", ".changes"
        )
        assert int(value) == self.ledger.value
        # Somebody else's limit, which the documented key is for, is only written when it changes.
        assert int(self.client.get(self.keys.max)) == self.ledger.value
        mark, begin, _, _, *counted = read_window(window)
        if isinstance(self.options.algorithm, Errors):
            counted = counted[1:3]
        words = [*record.split(" "), begin, *counted]
        assert [*map(float, words)] == [*map(float, self.ledger.adaptation.dump().split(" "))]
        assert (mark == 2) == self.ledger.adaptation.frozen
        assert changes.splitlines() == [
            f"{each.at * 1_000_000:.0f} {each.old} {each.new} {each.reason}"
            for each in self.ledger.adaptation.changes
        ]


def rules(dice: random.Random, seed: int) -> Adaptive:
    least = dice.choice([1, 3])
    latency = Latency(dice.choice([0.01, 0.05]), dice.choice([2, 5]))
    algorithm = Errors() if seed % 3 == 2 else latency
    return Adaptive(dice.randint(least + 1, 6), least, dice.choice([6, 12]), algorithm=algorithm)


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_our_scripts_move_the_value_as_the_ledger_does(client: redis.Redis, seed: int) -> None:
    dice = random.Random(seed)
    pair = AdaptivePair(client, rules(dice, seed), dice)
    pair.overload_dice.seed(seed)
    pair.request("sw-x-0", 1, None, wait=False)  # its record begins with that
    issued = 0
    for step in range(200):
        pair.now = round(pair.now + dice.choice([0, 0.001, 0.01, 0.02, 0.5]), 6)
        pair.beat([])
        everyone = [str(claim_id) for claim_id in (*pair.ledger.holders, *pair.ledger.waiting)]
        action = dice.random()
        if action < 0.12:
            issued += 4
            ids = [f"sw-x-{issued + n}" for n in range(-3, 1)]
            pair.request_many(ids, dice.choice([None, None, 100.0]))
        elif action < 0.4 or not everyone:
            issued += 1
            slots = dice.choice([1, 1, 1, min(2, pair.options.min)])
            ttl = dice.choice([None, None, 0.5, 100.0])
            pair.request(f"sw-x-{issued}", slots, ttl, wait=dice.random() < 0.8)
        elif action < 0.55:
            single = [claim_id for claim_id in everyone if "*" not in claim_id]
            some = dice.sample(single, dice.randint(0, len(single)))
            pair.give_many(some or ["sw-x-nobody"])
        elif action < 0.85:
            pair.give(dice.choice([*everyone, "sw-x-nobody"]))
        elif action < 0.95:
            pair.beat(dice.sample(everyone, dice.randint(0, len(everyone))))
        elif action < 0.96:
            pair.freeze("freeze", dice.choice([None, 1, 3, 6, 13]))
        elif action < 0.98:
            pair.freeze("thaw", None)
        elif action < 0.99:
            # First all short ttls end, then all who are silent: scripts do these one by one.
            for seconds in (0.6, 20):
                pair.now += seconds
                pair.beat([])
        elif step > 100:
            (pair.reopen if pair.ledger.closed else pair.close)()
        pair.compare()
    assert len(pair.limits) > 1, "it has moved"
