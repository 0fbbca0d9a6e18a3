"""State: apply the records of a journal to the ledger of a limit.

Every process that uses the limit applies the same records in the same order and so reaches the
same state: nothing here may depend on anything but the records. It reads no clock and no file,
and doesn't know who is alive. `State.VERBS` has what each verb of a record does.

A node is kept only while somebody holds or waits for something of it, or while what was taken
of its rate has not come back: a snapshot is as long as its claims, however many keys come and go. A
value that is a function of the key comes with the request, so that every process applies the same.

Processes of different releases share journals. So a change of these rules, or of the ledger's,
that gives another result for the same records needs another `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self, TypeAlias

from slotwise._core.adaptive import Change, Outcome
from slotwise._core.closing import Closure
from slotwise._core.control import Verb
from slotwise._core.paths import TierSpec
from slotwise._core.rates import Rate
from slotwise._ledger.declared import Declared as Declared
from slotwise._ledger.declared import DeclaredLedger
from slotwise._ledger.ended_claims import OrderedEndedClaims
from slotwise._ledger.path_nodes import FIRST, Node
from slotwise._ledger.rate_nodes import RateTier
from slotwise._ledger.times import microseconds
from slotwise.processes._claims import ProcessClaim, Request
from slotwise.processes._snapshots import fill, read_specs, read_value, take_snapshot

# Verb, time by the monotonic clock, wall clock time in microseconds, and the verb's arguments.
Record: TypeAlias = "list[Any]"

# What happened, and to which claim: "granted"; "released", "kicked" or "expired" for holders;
# "cancelled", "timed out", "closed" or "too many" for waiters; "owner died" for both.
ClaimEvent: TypeAlias = "tuple[str, ProcessClaim]"

# Keep at most this many unused nodes of a tier: making one takes time.
_FEW_NODES = 100

# Remember what at most this many keys of an adaptive tier have learnt, those used last.
_KEPT_KEYS = 100

# How many buckets a change checks, to forget the full ones: more than one, so that they become
# fewer.
_FORGET_AT_ONCE = 64


class State(DeclaredLedger[ProcessClaim]):
    """The ledger behind a name, and what else the file remembers of it."""

    __slots__ = (
        *("at", "boot", "closure", "ending", "fence", "has_rates", "holds_nothing", "moved"),
        *("name", "owners", "wall_us"),
    )

    # Between any two calls, beside the ledger's own invariants:
    #   S1  owners counts the holders and waiters of each process
    #   S2  it is closed if and only if it has a closure
    #   S3  fence is the largest token that was ever issued

    RULES = 10

    def __init__(self, name: str, specs: Sequence[TierSpec], boot: str) -> None:
        self.name = name
        self.boot = boot  # of the machine: nothing of an earlier one counts
        self.closure: Closure | None = None
        self.fence = 0
        self.owners: dict[str, tuple[int, int]] = {}  # number of claims, and the pid
        # While an adaptive value may be moved by a hold that ends: how that ended, for how long it
        # was held if its process knows, and the service's retry_after, in microseconds.
        self.ending: tuple[Outcome, int | None, int] | None = None
        # How adaptive values were moved by the last record: the tier, its key, and the change.
        self.moved: list[tuple[int, Any, Change]] = []
        self.at = 0.0  # the times of the last record
        self.wall_us = 0
        self._start(specs)

    def _start(self, specs: Sequence[TierSpec]) -> None:
        DeclaredLedger.__init__(self, specs)
        self.recent = OrderedEndedClaims(
            spec.value for spec in specs if isinstance(spec.value, Rate)
        )
        for tier in self.tiers:
            # A full bucket is forgotten at its time, everything else when nobody uses it.
            tier.keeps_idle = isinstance(tier, RateTier)
        self.has_rates = self.refills is not None
        self.holds_nothing = self.queue.widest is None

    # ------------------------------------------------------------- its tiers

    def index_of(self, name: str | None) -> int:
        """Return which tier has this name; without one it is that of a semaphore."""
        return 0 if name is None else [spec.name for spec in self.specs].index(name)

    def value_at(self, tier: str | None = None, key: str | None = None) -> Any:
        """Return the value of a tier, or of one key of it; None if that is unknown."""
        return self.tiers[self.index_of(tier)].value_of(key)

    # ------------------------------------------------------------ its use

    def is_idle(self, now: float) -> bool:
        """Return whether nobody uses it; a bucket that is not full is in use."""
        is_used = self.holders or self.waiting
        return not is_used and (self.refills is None or self.is_full(now))

    def is_due(self, now: float) -> bool:
        """Return whether a deadline has passed, a pause is over, or a bucket has enough."""
        has_times = self.deadlines is not None or bool(self.refills) or self.paused
        return has_times and self.next_deadline() <= now

    def remembers(self, now: float) -> bool:
        """Return whether its file has to be kept while nobody uses it."""
        return self.closed or self.can_be_settled(now) or self.is_worth_keeping(now)

    def can_be_settled(self, now: float) -> bool:
        """Return whether what some ended claim took of a rate can still be corrected."""
        newest = next(reversed(self.recent.values()), None)
        return newest is not None and newest.until > now

    def can_settle(self, acquisition_id: str, now: float) -> bool:
        """Return whether the costs of an acquisition can be corrected."""
        ended = self.recent.get(acquisition_id)
        return acquisition_id in self.holders or (ended is not None and ended.until > now)

    # --------------------------------------------------------------- records

    def apply(self, record: Record) -> list[ClaimEvent]:
        """Apply a record, and return the events.

        Raises:
            ValueError, SemaphoreClosed: the ledger refused, and nothing has changed.
        """
        verb, now, wall_us, *args = record
        self.wall_us = wall_us
        self.moved.clear()
        self.ending = None
        apply = self.VERBS.get(verb)
        events = (
            self._control(verb, now, wall_us, *args)
            if apply is None
            else apply(self, now, wall_us, *args)
        )
        if self.attention:
            while self.unfinished:  # nobody else can continue it
                events += self._granted(self.serve(now), now, wall_us)
            # Forget buckets that have filled up, and costs that can't be corrected any more.
            self.recent.forget_old(now)
            for tier in self.tiers:
                if isinstance(tier, RateTier):
                    tier.forget(now, now, 0, _FORGET_AT_ONCE)
        claim: Any
        for event, claim in events:
            if event != "granted":
                self._forget_idle(claim.nodes)
        self.at = now
        return events

    def _declare(self, now: float, _wall_us: int, specs: Any) -> list[ClaimEvent]:
        """Replace the tiers; nobody holds or waits, and every bucket is full."""
        closed, holds, times_all = self.closed, self.holds, self.times_all
        pauses = {spec.name: tier.pauses for spec, tier in zip(self.specs, self.tiers, strict=True)}
        self._start(read_specs(specs))
        self.holds, self.times_all = holds, times_all
        for spec, tier in zip(self.specs, self.tiers, strict=True):
            for key, until in pauses.get(spec.name, {}).items():
                self.pause(tier.index, until, key)
        if closed:
            self.close(now)
        return []

    def _request(
        self,
        now: float,
        wall_us: int,
        acquisition_id: str,
        wanted: Sequence[Any],
        ttl: float | None,
        wait_until: float | None,
        pid: int,
        label: str | None,
        grace: float = 0.0,
    ) -> list[ClaimEvent]:
        """Grant a newcomer what it wants, or queue it."""
        claim = ProcessClaim(acquisition_id, wanted, ttl, pid, label, wall_us, grace)
        for tier, of_key in claim.values:
            self.learn(tier, claim.path[tier], of_key, now)
        granted = self.request(claim, claim.path, now, wait_until=wait_until, weight=claim.weight)
        self._count(claim)
        return self._granted(granted, now, wall_us)

    def _replace(
        self, now: float, wall_us: int, acquisition_id: str, wanted: Sequence[Any], *rest: Any
    ) -> list[ClaimEvent]:
        """Kick the longest holders, and give a newcomer their slots, now or after their grace."""
        first = Request(*wanted)._replace(head_start=FIRST)
        replaced = self.replaceable(1 if first.needs is None else first.needs[0])
        # It takes what is free, and those that waited for that get what the others give back.
        granted = self._request(now, wall_us, acquisition_id, first, *rest)
        events: list[ClaimEvent] = []
        for each in replaced:
            if each.grace:
                events += self._kick(now, wall_us, each.key)
                continue
            self._note_hold(each, wall_us)
            del self.holders[each.key]
            self._free(each, now)
            self._uncount(each)
            events.append(("kicked", each))
        return [*events, *granted, *self._granted(self.serve(now), now, wall_us)]

    def _release(
        self,
        now: float,
        wall_us: int,
        acquisition_id: str,
        outcome: Outcome = "ok",
        held_us: int | None = None,
        retry_after_us: int = 0,
    ) -> list[ClaimEvent]:
        self.ending = outcome, held_us, retry_after_us
        return self._end_hold(now, wall_us, acquisition_id, "released")

    def _kick(self, now: float, wall_us: int, acquisition_id: str) -> list[ClaimEvent]:
        """End a hold; if it has a grace, its holder is told, and has that long to release it."""
        claim = self.holders.get(acquisition_id)
        if claim is None or not claim.grace:
            return self._end_hold(now, wall_us, acquisition_id, "kicked")
        ends_at = now + claim.grace
        if claim.expires_at is None or ends_at < claim.expires_at:
            claim.expires_at = ends_at
            self.timed().set(acquisition_id, ends_at)
        claim.is_kicked = True
        return [("kicked", claim)]

    def _end_hold(
        self, now: float, wall_us: int, acquisition_id: str, event: str
    ) -> list[ClaimEvent]:
        claim = self.holders.get(acquisition_id)
        if claim is None:
            return []
        self._note_hold(claim, wall_us)
        granted = self.release(acquisition_id, now)
        self._uncount(claim)
        ended = [(event, claim)]
        return [*ended, *self._granted(granted, now, wall_us)] if granted else ended

    def _withdraw(
        self, now: float, wall_us: int, acquisition_id: str, undelivered: bool = False
    ) -> list[ClaimEvent]:
        """End a wait, or a hold if it was granted meanwhile.

        What an ``undelivered`` grant took of rates goes back: nobody has seen it.
        """
        claim = self.waiting.get(acquisition_id)
        event = "cancelled"
        if claim is not None:
            granted = self.cancel(acquisition_id, now)
        elif undelivered:
            claim, event = self.holders.get(acquisition_id), "released"
            granted = self.undo_grant(acquisition_id, now)
        else:
            return self._end_hold(now, wall_us, acquisition_id, "released")
        ended = []
        if claim is not None:
            self._uncount(claim)
            ended.append((event, claim))
        return [*ended, *self._granted(granted, now, wall_us)]

    def _expire(self, now: float, wall_us: int) -> list[ClaimEvent]:
        """End the holds and waits whose deadline has passed."""
        waited = bool(self.waiting)
        self.ending = "dropped", None, 0
        holders, waiters, granted = self.expire(now)
        for claim in holders:
            self._note_hold(claim, wall_us, waited=waited)
        for claim in (*holders, *waiters):
            self._uncount(claim)
        return [
            *(("expired", claim) for claim in holders),
            *(("timed out", claim) for claim in waiters),
            *self._granted(granted, now, wall_us),
        ]

    def _drop_dead(
        self, now: float, wall_us: int, owners: list[str], undelivered: Sequence[str] = ()
    ) -> list[ClaimEvent]:
        """End the holds and waits of dead processes; some were granted after their process died."""
        dead = frozenset(owners)
        waiters = [claim for claim in self.waiting.values() if claim.owner in dead]
        holders = [claim for claim in self.holders.values() if claim.owner in dead]
        # Waiters first, so that none of them is granted anything.
        granted = self.cancel_all([claim.key for claim in waiters], now)
        for acquisition_id in undelivered:
            granted += self.undo_grant(acquisition_id, now)
        for claim in holders:
            if claim.key in self.holders:
                granted += self.release(claim.key, now)
        for claim in (*waiters, *holders):
            self._uncount(claim)
        return [
            *(("owner died", claim) for claim in (*waiters, *holders)),
            *self._granted(granted, now, wall_us),
        ]

    # What controls the limit: each has the name of a tier, and a key; both are None for all of it.

    def _settle(
        self,
        now: float,
        wall_us: int,
        _tier: str | None,
        _key: str | None,
        acquisition_id: str,
        costs: dict[str, int],
    ) -> list[ClaimEvent]:
        """Correct what an acquisition took of rates."""
        by_index = {self.index_of(name): cost for name, cost in costs.items()}
        return self._granted(self.charge(acquisition_id, by_index, now), now, wall_us)

    def _control(
        self,
        verb: Verb,
        now: float,
        wall_us: int,
        tier: str | None,
        key: str | None,
        *args: Any,
    ) -> list[ClaimEvent]:
        """Change a tier, or one key of it; a refill of what is no rate of it is left alone."""
        if verb == "refill" and all(spec.name != tier for spec in self.specs):
            return []
        index = self.index_of(tier)
        which = self.tiers[index]
        if verb == "resize":
            written, *declared = args  # what the caller thought it was
            args = (read_value(written), *declared)
        if which.adaptive is not None:
            if key not in which.nodes and (key is not None or not self.specs[index].keyed):
                which.make(key, now)  # before it is told the time
            self._tell_wall_clock(which.nodes.values(), now)
        refused, granted = self.control(verb, index, key, args, now)
        for claim in refused:
            self._uncount(claim)
        return [
            *(("too many", claim) for claim in refused),
            *self._granted(granted, now, wall_us),
        ]

    def _close(
        self, now: float, _wall_us: int, _tier: str | None, _key: str | None, reason: str | None
    ) -> list[ClaimEvent]:
        self.closure = Closure(reason)
        waiters = self.close(now)
        for claim in waiters:
            self._uncount(claim)
        return [("closed", claim) for claim in waiters]

    def _reopen(
        self, now: float, wall_us: int, _tier: str | None, _key: str | None
    ) -> list[ClaimEvent]:
        self.closure = None
        self.reopen()
        return self._granted(self.end_pauses(now), now, wall_us)

    VERBS: ClassVar[dict[str, Callable[..., list[ClaimEvent]]]] = {
        "close_everywhere": _close,
        "declare": _declare,
        "drop dead": _drop_dead,
        "expire": _expire,
        "kick": _kick,
        "release": _release,
        "reopen": _reopen,
        "replace": _replace,
        "request": _request,
        "settle": _settle,
        "withdraw": _withdraw,
    }

    # ------------------------------------------------------------ bookkeeping

    def _granted(
        self, claims: Iterable[ProcessClaim], now: float, wall_us: int
    ) -> list[ClaimEvent]:
        """Issue the fencing tokens, in the order of the grants."""
        events: list[ClaimEvent] = []
        for claim in claims:
            self.fence = claim.token = max(self.fence + 1, wall_us)
            claim.granted_at = now
            claim.granted_us = wall_us
            claim.expires_at = None if claim.ttl is None else now + claim.ttl
            events.append(("granted", claim))
            if self.holds_nothing:
                self._uncount(claim)
        return events

    def _note_hold(self, claim: ProcessClaim, wall_us: int, *, waited: bool = False) -> None:
        """Note that a hold ends: its length counts if somebody waits, or did until now."""
        if self.waiting or waited or self.times_all:
            self.holds.note((wall_us - claim.granted_us) / 1e6)

    def _count(self, claim: ProcessClaim) -> None:
        count, _ = self.owners.get(claim.owner, (0, 0))
        self.owners[claim.owner] = count + 1, claim.pid

    def _uncount(self, claim: ProcessClaim) -> None:
        count, pid = self.owners[claim.owner]
        if count == 1:
            del self.owners[claim.owner]
        else:
            self.owners[claim.owner] = count - 1, pid

    def _ending_of(self, claim: ProcessClaim, now: float) -> tuple[int, Outcome, int]:  # noqa: ARG002
        outcome, held_us, retry_after_us = self.ending or ("ignored", None, 0)
        if claim.is_kicked:
            outcome = "ignored"  # its grace ended, and not its ttl
        if held_us is None:
            held_us = max(self.wall_us - claim.granted_us, 0)
        return held_us, outcome, retry_after_us

    def _count_end(self, claim: ProcessClaim, now: float) -> None:
        self._tell_wall_clock(claim.nodes, now)
        super()._count_end(claim, now)

    def _follow(self, node: Node) -> None:
        super()._follow(node)
        assert node.adaptation is not None
        change = node.adaptation.take_change()
        if change is not None:
            self.moved.append((node.tier, node.key, change))

    def _tell_wall_clock(self, nodes: Iterable[Any], now: float) -> None:
        """Give changes the record's wall clock time."""
        epoch_us = self.wall_us - microseconds(now)
        for node in nodes:
            if node.adaptation is not None:
                node.adaptation.epoch_us = epoch_us

    def _forget_idle(self, nodes: Iterable[Any]) -> None:
        """Forget nodes that nobody uses, unless few are known: they may be used again soon.

        Where each key has its own value, that comes with the next request.
        """
        for node in nodes:
            tier = self.tiers[node.tier]
            if tier.adaptive is not None:
                # Every process forgets the same: what a key has learnt is in snapshots.
                tier.keep_adapted(node, _KEPT_KEYS)
            elif len(tier.nodes) > _FEW_NODES or tier.value is None:
                tier.drop_if_idle(node)

    # --------------------------------------------------------------- snapshots

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return take_snapshot(self)

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """Return the state that a snapshot was taken of."""
        state = cls(snapshot["name"], read_specs(snapshot["tiers"]), snapshot["boot"])
        fill(state, snapshot)
        return state
