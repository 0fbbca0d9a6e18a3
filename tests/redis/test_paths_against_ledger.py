"""The scripts of paths and the ledger of paths, one random sequence: after every step they agree.

The ledger is the oracle: who holds which slot number, who waits, in which order,
parked where, which slots are kept for whom, and what is unfinished. The test's
clock is passed to both. `PATIENCE` and `LOOKS` are small here, so that waiters
become overdue and work is left over within a few steps.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable, Sequence
from functools import cache
from math import ceil, inf
from typing import Any

import pytest
import redis
from tests._effort import seeds
from tests.ledger.invariants import check
from tests.redis._eval import evaluate, keys_that_stay, read_keys
from tests.redis._inside import free, remove_waiter
from tests.redis._keys import PATH_KINDS as KINDS
from tests.redis._keys import KeySet, PathKeys, SemaphoreKeys
from tests.redis._server import FAKE_CLOCK

from slotwise._core.overload import Overload, overload_of
from slotwise._core.paths import RankedNeeds
from slotwise._core.rates import Rate
from slotwise._ledger import path_queue as rules
from slotwise._ledger.estimates import HoldTimes
from slotwise._ledger.path_estimates import path_in
from slotwise._ledger.path_nodes import Group, PathClaim, tie_of
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.rate_nodes import RateNode
from slotwise.redis._protocol import write_wait
from slotwise.redis._scripts import load
from slotwise.redis._writing import (
    read_needs,
    read_node,
    write_needs,
    write_node,
    write_path,
    write_value,
)

pytestmark = pytest.mark.usefixtures("x_listens")

INTERVAL = 15.0
# The keys of a semaphore, by the names that tiers have.
KINDS_OF_LINE = ("state", "holders", "waiters", "ttls", "queue", "numbers", "max")
NOTE_QUICK = "redis.call('INCR', 'quick') redis.call('EXPIRE', 'quick', 3600) return"
NOTE_WHO_IS_TOLD = """
  for _, due in pairs(R.dues.told) do
    redis.call('SET', 'told ' .. due[1], due[2], 'EX', 3600)
  end
"""


@cache
def with_bounds(name: str, patience: int, looks: int, *, quick: bool) -> str:
    """Return a script with these bounds, which writes down whom it tells.

    It counts the calls in which its quick half decides, or without that goes on with the rules.
    """
    source = load(name).source.decode()
    for verb, found in (("request", "granted"), ("release", "released")):
        half, call = f"if fine and {found} then return", f"pcall(R.quick.{verb})"
        assert (half in source) is (call in source) is (verb == name)
        source = source.replace(half, f"if fine and {found} then {NOTE_QUICK}")
        if not quick:
            source = source.replace(call, "false")
    assert f"R.PATIENCE = {rules_as_written.PATIENCE}\n" in source
    for word, value in (("PATIENCE", patience), ("LOOKS", looks)):
        source, found = re.subn(rf"R\.{word} = \d+", f"R.{word} = {value}", source)
        assert found == 1
    return source.replace(
        "function R.buckets.tell_due()\n", f"function R.buckets.tell_due()\n{NOTE_WHO_IS_TOLD}"
    )


class Pair:
    """One set of tiers twice: a ledger here, and the keys on a server."""

    now = round(time.time(), 3)  # when each of them begins

    def __init__(
        self,
        client: redis.Redis,
        values: Sequence[int | Rate],
        patience: int,
        looks: int,
        fair_by: int | None = None,
        fair_cost: int | None = None,
        *,
        quick: bool = True,
    ) -> None:
        self.client = client
        self.ledger: PathLedger[PathClaim] = PathLedger(values, fair_by, fair_cost)
        names = ["s*", "m*", "l"][: len(values)]
        if fair_by is not None:
            names[fair_by] += "="
        if fair_cost is not None:
            names[fair_cost] += "+"
        self.shape = ",".join(names)
        self.declared = ",".join(map(write_value, values))
        self.is_line = len(values) == 1  # a semaphore
        self.pattern = ""
        self.keys: KeySet = PathKeys(FAKE_CLOCK, "t")
        kinds = KINDS
        if self.is_line:
            self.keys, kinds = SemaphoreKeys(FAKE_CLOCK, "s"), KINDS_OF_LINE
            self.shape, self.pattern = "", self.keys.notification.decode()
        self.key = {kind: key.decode() for kind, key in zip(kinds, self.keys.all, strict=True)}
        self.patience, self.looks, self.quick = patience, looks, quick
        self.silent_at: dict[str, float] = {}
        self.ttls: dict[str, float | None] = {}
        self.ttl_ends: dict[str, float] = {}
        self.paths: dict[str, tuple[str, ...]] = {}
        self.tokens: list[int] = []
        # How often the rare things happened.
        self.estimated = self.told = 0
        self.kept = self.left_over = self.refused = self.blocked = self.settled = 0
        self.resized = False
        self.overload_dice: random.Random | None = None  # if some requests may not wait

    # ------------------------------------------------------- the server's side

    def run(self, name: str, *args: object) -> Any:
        texts = ["" if arg is None else str(arg) for arg in args]
        keys = self.keys.all
        source = with_bounds(name, self.patience, self.looks, quick=self.quick)
        reply = evaluate(self.client, source, len(keys), *keys, f"{self.now:.6f}", "", *texts)
        assert "reset" not in str(reply), reply
        return reply

    def control(self, verb: str, *args: object) -> Any:
        told = ("x", self.pattern, INTERVAL, self.shape, self.declared)
        return self.run("control", *told, verb, *args)

    def heartbeat(self, holders: Sequence[str] = (), waiters: Sequence[str] = ()) -> Any:
        counts = (len(holders), len(waiters))
        [reply] = self.run("heartbeat", "", INTERVAL, self.pattern, *counts, *holders, *waiters)
        return reply

    # ------------------------------------------------------- the ledger's side

    def claim_of(self, claim_id: str, ttl: float | None) -> PathClaim:
        found = re.search(r"\^(-?\d+)\*", claim_id)
        needs = read_needs(claim_id, len(self.ledger.tiers))
        if needs is None and self.ledger.refills is not None:
            needs = (1,) * len(self.ledger.tiers)
        return PathClaim(claim_id, needs, ttl, int(found[1]) if found else 0)

    def end_what_is_over(self) -> None:
        self.note(self.ledger.expire(self.now)[2])

    def end_many(self) -> None:
        """End what is over if it is more than one call ends: only the last of them serves."""
        everyone = [*self.ledger.holders, *self.ledger.waiting]
        ends = [min(self.silent_at[i], self.ttl_ends.get(i, inf)) for i in map(str, everyone)]
        over = sum(end <= self.now for end in ends)
        if over <= 10:
            return
        is_over = True
        while is_over:
            self.heartbeat()
            sets = [self.key[kind] for kind in ("holders", "waiters", "ttls")]
            is_over = any(self.client.zcount(each, "-inf", f"{self.now:.6f}") for each in sets)
        self.end_what_is_over()

    def note(self, granted: list[PathClaim]) -> None:
        if self.ledger.queue.widest is None:
            return  # of rates alone nothing is held
        for claim in granted:
            claim_id = str(claim.key)
            ttl = self.ttls[claim_id]
            self.ttl_ends[claim_id] = float("inf") if ttl is None else self.now + ttl
            self.renew(claim_id)

    def renew(self, claim_id: str) -> None:
        end = min(self.silent_at[claim_id], self.ttl_ends.get(claim_id, float("inf")))
        self.ledger.timed().set(claim_id, end)

    def is_unfinished(self) -> bool:
        nodes = (node for tier in self.ledger.tiers for node in tier.nodes.values())
        looked_at = [(node, node.first_parked()) for node in nodes if node.look is not None]
        return any(
            first is not None and node.has_room(first.need(node), self.now, first)
            for node, first in looked_at
        )

    # --------------------------------------------------------------- the verbs

    def request(
        self, claim_id: str, path: tuple[str, ...], ttl: float | None, *, wait: bool
    ) -> None:
        overload = self.some_overload() if wait else None
        self.ttls[claim_id], self.paths[claim_id] = ttl, path
        self.silent_at[claim_id] = self.now + INTERVAL
        self.end_what_is_over()
        args = (self.shape, self.declared, INTERVAL, "-" if ttl is None else ttl)
        mode = write_wait(overload) if wait else "try"
        told = (self.weights((path,)), claim_id, write_path(path))
        due = "due" if self.ledger.queue.widest is not None else "due settle"
        own = (mode, "", "host 1 x y", due, *told)
        reply = self.run("request", *args, *own)
        claim = self.claim_of(claim_id, ttl)
        needs = claim.needs
        if needs is not None and (unfit := self.ledger.unfit(needs, path)) is not None:
            self.note(self.ledger.serve(self.now))
            assert reply[:3] == ["refused", unfit.most(path[unfit.index]), unfit.index]
            return
        if overload is not None:
            granted = self.ledger.serve(self.now)
            if self.ledger.try_request(claim, path, self.now, self.weight_of(path)):
                granted.append(claim)
            elif (waiting := overload.exceeded(*self.waiting_on(path))) is not None:
                self.note(granted)
                assert (reply[0], reply[5]) == ("full", waiting)
                return
            else:
                self.wait(claim, path)
                if claim.head_start and self.ledger.unfinished:
                    granted += self.ledger.serve(self.now)
        elif wait:
            granted = self.ledger.request(
                *(claim, path, self.now),
                wait_until=self.silent_at[claim_id],
                weight=self.weight_of(path),
            )
        else:
            granted = self.ledger.serve(self.now)
            if self.ledger.try_request(claim, path, self.now, self.weight_of(path)):
                granted.append(claim)
        self.note(granted)
        if claim in granted:
            assert reply[0] == "granted"
            self.tokens.append(reply[2])
        else:
            assert reply[0] == ("queued" if wait else "busy")
        if reply[0] == "queued" and not self.is_unfinished():
            soonest = min(self.ledger.next_deadline(), self.now + INTERVAL)
            assert reply[1] <= ceil((soonest - self.now) * 1000) + 1

    def weight_of(self, path: tuple[str, ...]) -> float:
        fair = self.ledger.queue.fair
        return 1.0 if fair is None else [1.0, 3.0, 0.7, 1 / 3][len(path[fair.tier]) % 4]

    def weights(self, paths: Iterable[tuple[str, ...]]) -> str:
        fair = self.ledger.queue.fair
        if fair is None:
            return self.pattern
        return " ".join(
            f"{write_node(fair.tier, path[fair.tier])}|{self.weight_of(path)!r}" for path in paths
        )

    def some_overload(self) -> Overload | None:
        dice = self.overload_dice
        if dice is None or dice.random() < 0.7:
            return None
        most = [dice.choice([None, None, None, None, 0, 1, 3, 6]) for _ in self.ledger.tiers]
        return overload_of(dice.choice([None, None, 0, 1, 3, 6]), None, most)

    def wait(self, claim: PathClaim, path: tuple[str, ...]) -> None:
        """What `PathLedger.request` does with one that doesn't fit."""
        self.ledger.attention = True
        nodes = self.ledger._nodes(path, self.now)
        assert self.ledger.queue.wait(claim, path, nodes, self.now, self.weight_of(path))
        self.ledger.timed().set(claim.key, self.silent_at[str(claim.key)])

    def waiting_on(self, path: tuple[str, ...]) -> tuple[int, list[int]]:
        nodes = [tier.nodes.get(key) for tier, key in zip(self.ledger.tiers, path, strict=True)]
        return len(self.ledger.waiting), [0 if node is None else node.waiting for node in nodes]

    def request_many(self, requests: dict[str, tuple[str, ...]]) -> None:
        self.end_what_is_over()
        args: list[object] = [self.shape, self.declared, INTERVAL, "-"]
        overload = self.some_overload()
        args += (write_wait(overload), "", "host 1 x y", "", self.weights(requests.values()))
        for claim_id, path in requests.items():
            self.ttls[claim_id], self.paths[claim_id] = None, path
            self.silent_at[claim_id] = self.now + INTERVAL
            args += (claim_id, write_path(path))
        each, *replies = self.run("request", *args)
        assert each == "each"
        self.note(self.ledger.serve(self.now))  # once, and not for each
        for (claim_id, path), reply in zip(requests.items(), replies, strict=True):
            claim = self.claim_of(claim_id, None)
            if claim.needs is not None and self.ledger.unfit(claim.needs, path) is not None:
                assert reply[0] == "refused"
            elif self.ledger.try_request(claim, path, self.now, self.weight_of(path)):
                self.note([claim])
                assert reply[0] == "granted"
                self.tokens.append(reply[2])
            elif overload and overload.exceeded(*self.waiting_on(path)) is not None:
                assert reply[0] == "full"
            else:
                self.wait(claim, path)
                assert reply[0] == "queued"

    def estimate(self, path: tuple[str, ...], needs: tuple[int, ...]) -> None:
        """The script says what the rule says, of the hold times that the server has."""
        self.end_what_is_over()
        written = write_path(path) + ("" if max(needs) == 1 else write_needs(needs))
        *_, estimate = self.run("inspect", self.pattern, "estimate", written)[:5]
        if not self.client.hexists(self.key["state"], ".shape"):
            assert estimate == "0"  # nobody has ever been there
            return
        if self.ledger.unfit(needs, path) is not None:
            assert estimate == "refused"
            return
        mean = HoldTimes(*map(float, self.read_hold())).mean
        expected = path_in(self.ledger, path, needs, self.now, mean)
        # Sums of fractions depend on their order in the last digit.
        assert (float(estimate) if estimate else None) == pytest.approx(expected, abs=2e-6)
        self.estimated += expected is not None and expected > 0

    def read_hold(self) -> list[str]:
        text = self.client.hget(self.key["state"], ".hold")
        return [] if text is None else text.split()[-2:]

    def give(self, ids: list[str], *, count: bool = True) -> None:
        is_over = self.ledger.next_end() <= self.now
        silent = [i for i in ids if i in self.ledger.holders and self.silent_at[i] <= self.now]
        self.end_what_is_over()
        holders, waiting = self.ledger.holders, self.ledger.waiting
        digits = ["1" if each in holders else "2" if each in waiting else "0" for each in ids]
        # All of them, and only then is anything granted.
        for claim_id in ids:
            if claim_id in holders:
                self.ledger.timed().discard(claim_id)
                free(self.ledger, holders.pop(claim_id), self.now)
            elif claim_id in waiting:
                remove_waiter(self.ledger, waiting[claim_id], self.now)
        self.note(self.ledger.serve(self.now))
        reply = self.run("release", "", self.pattern, "count" if count else "", *ids)
        # The quick half of a release gives back what a silent one has, if nobody waits for that.
        assert reply[0] == "".join(digits) or (reply[0], ids) == ("1", silent)
        assert "unfinished" in reply or not self.is_unfinished()
        if is_over and not self.ledger.unfinished:
            self.heartbeat()  # and it ends no others

    def beat(self, ids: list[str]) -> None:
        holders = [claim_id for claim_id in ids if claim_id in self.ledger.holders]
        waiters = [claim_id for claim_id in ids if claim_id in self.ledger.waiting]
        lost = []
        for claim_id in holders:
            if self.ttl_ends[claim_id] > self.now:
                self.silent_at[claim_id] = self.now + INTERVAL
                self.renew(claim_id)
            else:
                lost.append(f"lost {claim_id}")
        for claim_id in waiters:
            self.silent_at[claim_id] = self.now + INTERVAL
            self.renew(claim_id)
        self.end_what_is_over()
        reply = self.heartbeat(holders, waiters)
        assert reply[1:] == lost
        assert reply[0] == 0 or not self.is_unfinished()

    def settle(self, claim_id: str, costs: dict[int, int]) -> None:
        self.end_what_is_over()
        text = ",".join(f"{tier}={cost}" for tier, cost in costs.items())
        _, *reply = self.control("settle", claim_id, text)
        try:
            self.note(self.ledger.charge(claim_id, costs, self.now))
        except LookupError:
            assert reply[0] == 0
            self.note(self.ledger.serve(self.now))  # the script goes on with what is unfinished
        else:
            assert reply[0] == 1
            self.settled += 1

    def withdraw(self, claim_id: str) -> None:
        """Release what nobody knows it was granted."""
        known = self.ledger.recent.get(claim_id)
        if known is not None and known.until <= self.now:
            claim_id = "sw-x-nobody"  # it is too late
        self.end_what_is_over()
        if claim_id in self.ledger.waiting:
            remove_waiter(self.ledger, self.ledger.waiting[claim_id], self.now)
            self.note(self.ledger.serve(self.now))
        else:
            self.note(self.ledger.undo_grant(claim_id, self.now))
        self.run("release", "", "", "", f"~{claim_id}")

    def fill(self, tier: int, key: str | None) -> None:
        self.end_what_is_over()
        self.note(self.ledger.refill_tier(tier, key, self.now))
        self.control("refill", write_node(tier, key))

    def resize(self, tier: int, value: int | Rate, key: str | None) -> None:
        self.end_what_is_over()
        self.resized = True
        node = "" if key is None else write_node(tier, key)
        reply = self.control("resize", tier, node, write_value(value), 60, "")
        refused, granted = self.ledger.resize(tier, value, key, self.now, one=key is not None)
        self.note(granted)
        told = [each.split(" ")[1] for each in reply if each.startswith("refused ")]
        assert told == [claim.key for claim in refused]
        self.refused += len(told)
        reply = [each for each in reply if not each.startswith(("refused ", "granted ", "due "))]
        assert reply[:2] == ["done", ""]
        assert reply[2:] == ["unfinished"] or not self.is_unfinished()

    def close(self) -> None:
        self.end_what_is_over()
        refused = [claim.key for claim in self.ledger.close(self.now)]
        reply = self.control("close", "for a while")
        told = {each for each in reply if each.startswith("closed ")}
        expected = {f"closed {claim_id} for a while" for claim_id in refused}
        assert told <= expected
        assert told == expected or "unfinished" in reply
        while self.client.exists(self.key["waiters"]):  # the rest of very many
            self.heartbeat()
        args = (self.shape, self.declared, INTERVAL, "-", "wait", "", "host 1 x y", "due", "")
        late = write_path((None,) if self.is_line else ("a", "m", ""))
        reply = self.run("request", *args, "sw-x-late", late)
        assert reply == ["closed", "for a while"]

    def kick(self, claim_id: str) -> None:
        self.end_what_is_over()
        claim = self.ledger.holders.get(claim_id)
        slots = 0 if claim is None else 1 if claim.needs is None else claim.needs[-1]
        self.note(self.ledger.release(claim_id, self.now))
        reply = self.control("kick", claim_id)
        assert reply[:2] == ["done", slots]
        assert (f"kicked {claim_id}" in reply) is (claim is not None)

    def reopen(self) -> None:
        self.end_what_is_over()
        was_closed = self.ledger.closed
        self.ledger.reopen()
        if self.ledger.paused:
            self.note(self.ledger.end_pauses(self.now))
        reply = self.control("reopen")
        assert reply[1] == was_closed
        assert "unfinished" in reply or not self.is_unfinished()

    def pause(self, tier: int, length: float, key: str | None) -> None:
        self.end_what_is_over()
        self.resized = True  # what is kept is loosened likewise
        node = str(tier) if key is None else write_node(tier, key)
        reply = self.control("pause", node, length)
        self.ledger.pause(tier, round(self.now + length, 6), key)
        waits_here = [each for each in reply if each.startswith("look ")]
        assert len(waits_here) == bool(self.ledger.waiting)
        assert reply[0] == "done"

    def pause_perhaps(self, dice: random.Random, keys: Sequence[Sequence[str | None]]) -> None:
        action = dice.random()
        if action < 0.06:
            tier = dice.randrange(3)
            key = dice.choice([None, *keys[tier]])
            self.pause(tier, dice.choice([0.000001, 0.25, 0.5, 3.0]), key)
            self.compare()
        elif action < 0.08:
            self.reopen()
            self.compare()

    # ------------------------------------------------------------ do they agree

    def read_keys(self) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
        """Return the fields of the state, and the members and scores of all else."""
        kinds = [kind for kind in self.key if kind != "max"]
        found, _ = read_keys(self.client, *[self.key[kind] for kind in kinds])
        members = dict(zip(kinds, found, strict=True))
        state = members.pop("state")
        taken = [members.pop("taken0", {}), members.pop("taken1", {})]
        current = int(self.now // 60) % 2  # written now; the other one was, until a minute ago
        self.ended = taken[1 - current] | taken[current]
        return state, {
            kind: {member: float(score) for member, score in scores.items()}
            for kind, scores in members.items()
        }

    def contents(self) -> Any:
        """All that is on the server, and what was granted."""
        value = self.client.get(self.key["max"]) if self.is_line else None
        return *self.read_keys(), value, self.tokens

    def compare(self) -> None:
        ledger = self.ledger
        nodes: list[str] = []
        if self.client.hexists(self.key["state"], ".rated"):
            # Buckets get the new rate of their tier when they are read.
            self.end_what_is_over()
            nodes = self.run("inspect", "", "nodes", "")[9:]
        check(ledger, self.now, resized=self.resized)
        state, members = self.read_keys()
        state |= zip(nodes[::2], nodes[1::2], strict=True)
        pauses = dict(each.rsplit("=", 1) for each in state.get(".pauses", "").split())
        now_us = round(self.now * 1_000_000)
        assert {name: int(us) for name, us in pauses.items() if int(us) > now_us} == {
            str(tier.index) if each is None else write_node(tier.index, each): round(until * 1e6)
            for tier in ledger.tiers
            for each, until in tier.pauses.items()
        }
        self.written_shares = {}  # what the nodes of fair order say behind their records
        for each in [each for each in state if each[0].isdigit()]:
            state[each], has_share, share = state[each].partition("=")
            if has_share:
                self.written_shares[each] = share
        claims = {each: state[each].split(" ") for each in state if each.startswith("sw-")}
        assert set(claims) == {*ledger.holders, *ledger.waiting}
        taken: dict[str, list[int]] = {}  # the slot numbers of the widest tier
        widest = ledger.queue.widest
        for claim_id, (_, _, ticket, granted, numbers, _, path, *owner) in claims.items():
            path = path.partition("*")[0]
            assert path == write_path(self.paths[claim_id])
            assert owner == ["host", "1", "x", "y"]
            assert granted.startswith("-") is (claim_id in ledger.waiting)
            if claim_id in ledger.waiting:
                assert int(ticket) == ledger.waiting[claim_id].ticket
            else:
                own = numbers_in(numbers)
                taken.setdefault(path.split(",")[widest or 0], []).extend(own)
                assert own == [*ledger.holders[claim_id].numbers]
        assert int(state.get(".ticket", 0)) == ledger.queue.last_ticket
        assert set(members["holders"]) == self.holding()
        assert set(members["waiters"]) == set(ledger.waiting)
        assert set(members["ttls"]) == {
            claim_id for claim_id in ledger.holders if self.ttls[str(claim_id)] is not None
        }

        names = {
            node: write_node(tier.index, node.key)
            for tier in ledger.tiers
            for node in tier.nodes.values()
        }
        records = {each: state[each].split(" ") for each in state if each[0].isdigit()}
        assert {node: record[:4] for node, record in records.items()} == self.nodes(names, state)
        if self.is_line:
            line = [claim.key for group in ledger.groups.values() for claim in in_turn(group)]
            assert [*members["queue"]] == line
        else:
            self.compare_queue(state, members, names)

        free: dict[str, list[int]] = {}
        for node, number in (each.split(" ") for each in members["numbers"]):
            free.setdefault(node, []).extend(numbers_in(number))
        for node in {*taken, *free}:
            every = sorted(taken.get(node, []) + free.get(node, []))
            assert every == list(range(1, int(records[node][4]) + 1)), "each once, none missing"
        ended = {each: text.split(" ") for each, text in self.ended.items()}
        ended = {each: known for each, known in ended.items() if int(known[0]) > now_us}
        for claim_id, (_, _, charges) in ended.items():
            known = ledger.holders.get(claim_id) or ledger.recent.get(claim_id)
            if known is not None:
                assert [*known.needs] == [*map(int, charges.split("."))]
        recent = {each: ledger.recent.get(each) for each in ledger.recent}
        correctable = {each for each, known in recent.items() if known.until > self.now}
        assert correctable <= {*ended}
        assert not keys_that_stay(self.client)

    def holding(self) -> set[str]:
        """The members of the key with the holders; of a semaphore, one of each slot."""
        parts = {
            f"{claim.key}#{number}"
            for claim in self.ledger.holders.values()
            for number in range(2, (claim.needs or (1,))[0] + 1 if self.is_line else 0)
        }
        return {*map(str, self.ledger.holders), *parts}

    def compare_queue(
        self, state: dict[str, str], members: dict[str, dict[str, float]], names: dict[Any, str]
    ) -> None:
        """Compare the groups and where they are parked."""
        ledger = self.ledger
        line: dict[str, list[str]] = {}
        for record in members["queue"]:
            path, _, claim_id = record.split(" ")
            line.setdefault(path, []).append(claim_id)
        assert line == {
            write_path(group.path): [claim.key for claim in in_turn(group)]
            for group in ledger.groups.values()
        }
        places = {
            write_path(group.path): (names[group.parked_at], group.ticket)
            for group in ledger.groups.values()
        }
        parked, texts = {}, {}
        for record in members["parked"]:
            node, text, path, *ids = record.split(" ")
            if len(ids) == 2:
                assert ledger.queue.fair is not None
                continue  # the record of a key
            node = node.partition("!")[0]
            assert ids == [line[path][0]]
            parked[path] = (node, int(text.rpartition(".")[2]))
            texts[path] = text
        assert parked == places
        groups = {each[1:]: state[each] for each in state if each[0] == ">"}
        assert groups == {
            path: f"{node} {texts[path]} {line[path][0]}" for path, (node, _) in places.items()
        }
        fair = ledger.queue.fair
        if fair is not None:
            assert float(state.get(".time", 0)) == fair.time
            shares = {each: text.split(" ") for each, text in self.written_shares.items()}
            assert {name: (float(tag), float(w)) for name, (tag, w, _) in shares.items()} == {
                write_node(fair.tier, each): (share.tag, share.weight)
                for each, share in fair.shares.items()
            }
            assert members["shares"] == {
                write_node(fair.tier, each): tag for each, tag in fair.tags.items()
            }

        # Either may have a node on its list at which nothing will be found to do.
        unfinished = {*members["unfinished"]}
        for node, name in names.items():
            first = node.first_parked()
            if first is not None and (node.look is not None) is not (name in unfinished):
                assert not node.has_room(first.need(node), self.now, first)
        self.left_over += ledger.unfinished
        passed = [int(ticket) for ticket in members["passed"]]
        assert passed == sorted(ledger.queue.passing)

    def nodes(self, names: dict[Any, str], state: dict[str, str]) -> dict[str, list[str]]:
        """Return the records of nodes that there should be."""
        nodes = {}
        for tier in self.ledger.tiers:
            for node_key, own in tier.own_values.items():
                nodes[write_node(tier.index, node_key)] = ["0", "0", write_value(own), "-"]
            for node in tier.nodes.values():
                if isinstance(node, RateNode):
                    self.compare_bucket(node, names[node], nodes, state)
                elif node.in_use or node.waiting:
                    kept = "-" if node.kept_for is None else str(node.kept_for.ticket)
                    kept += f"*{node.kept}" if node.kept > 1 else ""
                    first = node.first_parked()
                    self.blocked += (
                        first is not None and node.look is None and node.has_room(1, self.now)
                    )
                    self.kept += node.kept_for is not None
                    own = str(tier.own_values.get(node.key, "-"))
                    nodes[names[node]] = [str(node.in_use), str(node.waiting), own, kept]
        return nodes

    def compare_bucket(
        self, node: RateNode, name: str, nodes: dict[str, list[str]], state: dict[str, str]
    ) -> None:
        node.refill(self.now)
        text = state.get(name)
        if text is None:
            assert node.level == node.rate.full
            assert not node.waiting
            return
        _, waiting, own, kept, _, level, at = text.split(" ")
        gained = (node.at - int(at)) * node.rate.gain
        assert min(int(level) + max(gained, 0), node.rate.full) == node.level
        assert int(waiting) == node.waiting
        nodes[name] = ["0", waiting, own, kept]
        kept_for = "-" if node.kept_for is None else str(node.kept_for.ticket)
        assert kept == kept_for + (f"*{node.kept}" if node.kept > 1 else "")
        self.kept += node.kept_for is not None
        first = node.first_parked()
        # One that the script has still to look at gets its time then.
        left = self.client.zscore(self.key["unfinished"], name)
        if first is not None and node.look is None and left is None:
            when = self.client.zscore(self.key["refills"], name)
            ready = node.ready_at(first.need(node), first)
            if ready < inf:
                assert when <= round(ready * 1_000_000)
            # Else time alone is not enough: a time from before that makes it look in vain.
            if when is not None:  # its process knows when to come back
                head = state[f">{write_path(first.path)}"].split(" ")[2]
                assert int(self.client.get(f"told {head}") or 0) == when
                self.told += 1


def in_turn(group: Group) -> list[PathClaim]:
    return sorted(group.waiters.values(), key=lambda claim: (claim.rank, tie_of(claim)))


def numbers_in(text: str) -> list[int]:
    """The numbers of a text like "1-3,7"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def some_of(dice: random.Random, pair: Pair) -> list[str]:
    """Ids to be ended: mostly of a holder, so that those who wait grow old."""
    ids = [str(each) for each in pair.ledger.holders]
    if dice.random() < 0.15:
        ids += [str(each) for each in pair.ledger.waiting]
    return dice.sample(ids, min(len(ids), dice.choice([1, 1, 1, 2, 5]))) or ["sw-x-nobody"]


class _AsWritten:
    PATIENCE = rules.PATIENCE


rules_as_written = _AsWritten()


def play(
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    order: str = "fifo",
) -> Pair:
    """A random sequence, compared after every step; in one of four, few have to wait."""
    dice, calm = random.Random(f"{order} {seed}" if order != "fifo" else seed), seed % 4 == 3
    patience, looks = dice.choice([(1, 64), (100, 64), (2, 1), (0, 2), (1, 3)])
    monkeypatch.setattr(rules, "PATIENCE", patience)
    monkeypatch.setattr(rules, "LOOKS", looks)
    values = [dice.choice([1, 1, 2, 0]), dice.choice([1, 2, 3]), dice.choice([0, 2, 2, 3, 5])]
    if calm:
        values = [4, 0, 9]
    fair_by = dice.choice([0, 0, 1]) if order == "fair" else None
    pair = Pair(client, values, patience, looks, fair_by)
    pair.overload_dice = random.Random(seed) if seed % 3 == 1 else None
    has_head_starts = order != "fifo" and dice.random() < 0.6
    users = ["", "a b", "{x}", "a,b:c>", "\ud800", "\0", "!"][: dice.choice([2, 4, 7])]
    assert [read_node(write_node(3, user).encode()) for user in users] == [(3, u) for u in users]
    issued = 0
    # Small needs too, so that many fit, and in some sequences one slot of each alone.
    sizes = [1] if calm else dice.choice([[1], [1, 1, 1, 2], [1, 2, 3]])

    def new_id(*, alone: bool = False) -> str:
        nonlocal issued
        issued += 1
        needs = RankedNeeds([dice.choice(sizes) for _ in range(3)])
        if alone and has_head_starts and dice.random() < 0.4:
            # No two have the same rank: elsewhere that would take luck.
            needs.head_start = dice.choice([-1, 1]) * dice.choice([0, 1, 3]) * 500_000 + issued * 7
        return f"sw-x-{issued}" + write_needs(needs)

    pauses = random.Random(f"pauses {seed}")
    for _ in range(140):
        pair.now = round(pair.now + dice.choice([0, 0, 0.001, 0.5, 2]), 6)
        pair.end_many()
        if seed % 2:
            pair.pause_perhaps(pauses, (users, ["m", "n"], ()))
        everyone = [str(each) for each in (*pair.ledger.holders, *pair.ledger.waiting)]
        action = dice.random()
        if action < 0.1:
            ids = [new_id() for _ in range(dice.choice([2, 3, 8]))]
            models = ["m", "n"]
            pair.request_many({i: (dice.choice(users), dice.choice(models), None) for i in ids})
        elif action < 0.5:
            path = (dice.choice(users), dice.choice(["m", "n"]), None)
            ttl = dice.choice([None, None, 1.0, 20.0])
            pair.request(new_id(alone=True), path, ttl, wait=dice.random() < 0.9)
        elif action < 0.78:
            pair.give(some_of(dice, pair))
        elif action < 0.9:
            pair.beat(dice.sample(everyone, dice.randint(0, len(everyone))))
        elif action < 0.98:
            tier = dice.randrange(3)
            key = dice.choice([None, *(users, ["m", "n"], [None])[tier]])
            pair.resize(tier, dice.choice([0, 5] if calm else [0, 1, 1, 2, 3, 4]), key)
        elif action < 0.99:
            pair.now += 20
            pair.end_many()
            pair.beat([])
        else:
            pair.close()
            pair.compare()
            pair.give(some_of(dice, pair))
            pair.compare()
            pair.reopen()
        pair.compare()
        if pair.overload_dice is not None:
            path = (dice.choice(users), dice.choice(["m", "n"]), None)
            pair.estimate(path, tuple(dice.choice(sizes) for _ in range(3)))
            pair.compare()
    assert pair.tokens == sorted(set(pair.tokens)), "tokens increase strictly"
    return pair


@pytest.mark.parametrize("seed", seeds(3, 14))
def test_the_scripts_of_paths_decide_as_the_ledger_does(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    play(client, monkeypatch, seed)


@pytest.mark.parametrize("seed", [*seeds(2, 8), 1049, 1835])
@pytest.mark.parametrize("order", ["fair", "head starts"])
def test_the_scripts_give_turns_as_the_ledger_does(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, order: str, seed: int
) -> None:
    play(client, monkeypatch, seed, order)


RATES = [
    Rate(1, per=1, burst=1),
    Rate(2, per=1, burst=3),
    Rate(7, per=3, burst=4),
    Rate(1000, per=1, burst=3),
]


def play_rates(
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    order: str = "fifo",
) -> Pair:
    """The same with rates, of which what was taken is corrected, filled and given back."""
    dice, calm = random.Random(f"{order} {seed}" if order != "fifo" else seed), seed % 4 == 3
    patience, looks = dice.choice([(1, 64), (100, 64), (1, 2)])
    monkeypatch.setattr(rules, "PATIENCE", patience)
    monkeypatch.setattr(rules, "LOOKS", looks)
    values = [dice.choice(RATES), dice.choice([2, 3, *RATES]), dice.choice([0, 2, 3])]
    dice.shuffle(values)
    if seed % 4 == 0:
        values = [dice.choice(RATES) for _ in values]  # of rates alone nothing is held
    if calm:
        values = [Rate(2, per=1, burst=40), Rate(7, per=3, burst=50), *values[2:]]
        if seed % 2:
            values[2] = 9
    rates = [tier for tier, value in enumerate(values) if isinstance(value, Rate)]
    fair_by = dice.choice([0, 0, 1]) if order == "fair" else None
    fair_cost = dice.choice([None, *rates]) if order == "fair" else None
    pair = Pair(client, values, patience, looks, fair_by, fair_cost)
    pair.overload_dice = random.Random(seed) if seed % 3 == 1 else None
    has_head_starts = order != "fifo" and dice.random() < 0.6
    users, issued = ["a", "b c", "d"], 0
    seen: list[str] = []
    pauses = random.Random(f"pauses {seed}")
    for _ in range(120):
        later = dice.choice([0, 0, 0.000001, 0.25, 0.5, 1])
        soonest = pair.ledger.next_deadline()
        if dice.random() < 0.2 and soonest < pair.now + 5:
            pair.now = max(pair.now, soonest)
        else:
            pair.now = round(pair.now + later, 6)
        pair.end_many()
        action = dice.random()
        everyone = [str(each) for each in (*pair.ledger.holders, *pair.ledger.waiting)]
        keys = (users, ["m", "n"], [None])
        if seed % 2:
            pair.pause_perhaps(pauses, (*keys[:2], ()))
            everyone = [str(each) for each in (*pair.ledger.holders, *pair.ledger.waiting)]
        if action < 0.45:
            issued += 1
            needs = RankedNeeds([dice.choice([1, 1, 2, 3]) for _ in range(3)])
            if calm:
                needs = RankedNeeds([*needs[:2], 1])
            if has_head_starts and dice.random() < 0.4:
                needs.head_start = dice.choice([-1, 1]) * dice.choice([0, 1, 3]) * 500_000
                needs.head_start += issued * 7  # no two have the same rank
            seen.append(f"sw-x-{issued}" + write_needs(needs))
            path = (dice.choice(users), dice.choice(["m", "n"]), None)
            pair.request(seen[-1], path, dice.choice([None, None, 2.0]), wait=dice.random() < 0.9)
        elif action < 0.62:
            pair.give(some_of(dice, pair))
        elif action < 0.72 and seen:
            pair.settle(dice.choice(seen[-12:]), {dice.choice(rates): dice.choice([0, 1, 2, 4])})
        elif action < 0.77 and everyone + seen:
            pair.withdraw(dice.choice(everyone + seen[-3:]))
        elif action < 0.8:
            tier = dice.choice(rates)
            pair.fill(tier, dice.choice(keys[tier]))
        elif action < 0.88:
            pair.beat(dice.sample(everyone, dice.randint(0, len(everyone))))
        elif action < 0.96 and not calm:
            tier = dice.randrange(3)
            new = dice.choice(RATES) if tier in rates else dice.choice([0, 1, 2, 3])
            pair.resize(tier, new, dice.choice([None, *keys[tier]]))
        else:
            pair.now += dice.choice([20, 70])
            pair.end_many()
            pair.beat([])
        pair.compare()
    return pair


@pytest.mark.parametrize("seed", [*seeds(1, 5), 122, 1010, 1836])
@pytest.mark.parametrize("order", ["fifo", "fair", "head starts"])
def test_the_scripts_count_rates_as_the_ledger_does(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, order: str, seed: int
) -> None:
    play_rates(client, monkeypatch, seed, order)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(10))
@pytest.mark.parametrize("order", ["fifo", "fair", "head starts"])
def test_the_scripts_agree_with_the_ledger_over_very_many_steps(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, order: str, chunk: int
) -> None:
    """200,000 steps of slots in each order, and 120,000 of rates, in all chunks."""
    for seed in range(1000 + 143 * chunk, 1000 + 143 * (chunk + 1)):
        client.flushall()
        play(client, monkeypatch, seed, order)
    for seed in range(1000 + 100 * chunk, 1000 + 100 * (chunk + 1)):
        client.flushall()
        play_rates(client, monkeypatch, seed, order)


def test_random_sequences_come_to_overdue_heads_and_unfinished_work(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = []
    for seed in (11, 12, 29):
        client.flushall()
        pairs.append(play(client, monkeypatch, seed))
    for rare in ("kept", "left_over", "refused", "blocked"):
        assert sum(getattr(pair, rare) for pair in pairs) > 1, rare


def test_a_head_whose_turn_comes_by_a_grant_elsewhere_is_told_its_own_time(
    client: redis.Redis,
) -> None:
    pair = Pair(client, [0, Rate(1, per=1, burst=3), 0], 100, 64, fair_by=0)
    for claim_id, path in {
        "sw-x-1*1.3.1": ("x", "n", None),  # takes all that is there
        "sw-x-2*1.3.1": ("a", "n", None),
        "sw-x-3*1.1.1": ("b", "n", None),
        "sw-x-4*1.1.1": ("a", "m", None),  # has the next turn of a
    }.items():
        pair.request(claim_id, path, None, wait=True)
        pair.compare()
    assert pair.told > 0
    [(_, when)] = client.zrange(pair.key["refills"], 0, -1, withscores=True)
    assert when == round((pair.now + 1) * 1_000_000)


def test_the_first_waiter_at_a_rate_is_told_by_the_next_call_when_another_goes_elsewhere(
    client: redis.Redis,
) -> None:
    pair = Pair(client, [3, Rate(1, per=1, burst=3), 0], 100, 64)
    for claim_id, path in {
        "sw-x-1*1.3.1": ("x", "n", None),  # takes all that is there
        "sw-x-2^-500000*1.1.1": ("a", "n", None),
        "sw-x-3^-1000000*1.1.1": ("b", "n", None),
        "sw-x-4*2.1.1": ("a", "m", None),
        "sw-x-5*3.1.1": ("a", "n", None),  # comes before the first one, and lacks another node
        "sw-x-6*1.1.1": ("c", "m", None),
    }.items():
        pair.request(claim_id, path, None, wait=True)
        pair.compare()
