"""PathState: the ledger of tiers, as their file has it.

A node is written only while somebody holds or waits for something of it, or while what was taken
of its rate has not come back: the file is as long as its claims, however many keys come and go. A
value that is a function of the key comes with the request, so that every process applies the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, Self

from slotwise._core.paths import (
    TierSpec,
    fair_tiers,
    most_of,
    part_of,
    specs_in_use,
    tiers_conflict,
)
from slotwise._core.rates import Rate
from slotwise._ledger import path_fullness
from slotwise._ledger.path_estimates import path_in
from slotwise._ledger.path_fullness import has_room_at_once
from slotwise._ledger.path_nodes import Node
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.rate_nodes import RateTier
from slotwise._ledger.times import microseconds
from slotwise.errors import ValueConflict
from slotwise.processes._base_state import BaseState, ClaimEvent, Record
from slotwise.processes._path_claims import EndedPathClaims, PathRequest, ProcessPathClaim
from slotwise.processes._path_snapshots import (
    fill_from_snapshot,
    keep_rates,
    put_adapted_back,
    take_adapted,
    take_snapshot,
)
from slotwise.processes._path_values import read_specs, read_value, write_specs

# Keep at most this many unused nodes of a tier: making one takes time.
_FEW_NODES = 100

# Remember what at most this many keys of an adaptive tier have learnt, those used last.
_KEPT_KEYS = 100

# How many buckets a change checks, to forget the full ones: more than one, so that they become
# fewer.
_FORGET_AT_ONCE = 64

# What a caller thinks the tiers are, narrow to wide.
Declared = tuple[TierSpec, ...]


class PathState(BaseState[ProcessPathClaim], PathLedger[ProcessPathClaim]):
    """What the file of tiers has. What is wanted is a PathRequest, what is declared the tiers."""

    __slots__ = (
        *("_accepted", "at", "boot", "closure", "ending", "fence", "former_values", "has_rates"),
        *("holds", "holds_nothing", "moved", "name", "owners", "specs", "times_all", "wall_us"),
    )

    RULES = 5
    CLAIM = ProcessPathClaim

    def __init__(self, name: str, specs: Sequence[TierSpec], boot: str) -> None:
        self._set_up(name, boot)
        self.at = 0.0  # the time of the last record
        self._start(specs)

    def _start(self, specs: Sequence[TierSpec]) -> None:
        values = [None if spec.by_key else spec.adaptive or spec.value for spec in specs]
        PathLedger.__init__(self, values, *fair_tiers(specs))
        self.recent = EndedPathClaims(spec.value for spec in specs if isinstance(spec.value, Rate))
        for tier in self.tiers:
            # A full bucket is forgotten at its time, everything else when nobody uses it.
            tier.keeps_idle = isinstance(tier, RateTier)
        self.has_rates = self.refills is not None
        self.holds_nothing = self.queue.widest is None
        self.specs = tuple(specs)  # as they were declared
        # What each tier was resized from, and is still accepted.
        self.former_values: list[list[int | Rate]] = [[] for _ in specs]
        self._accepted: Declared | None = None  # what was accepted last

    @classmethod
    def new(cls, name: str, declared: Declared, boot: str) -> Self:
        return cls(name, declared, boot)

    @property
    def adapts(self) -> bool:
        return self.has_adaptive

    @property
    def is_resized(self) -> bool:
        pairs = zip(self.tiers, self.specs, strict=True)
        return any(
            tier.own_values
            or tier.is_frozen
            or tier.frozen_keys
            or (not spec.by_key and tier.value != spec.value)
            for tier, spec in pairs
        )

    def is_idle(self, now: float) -> bool:
        """A bucket that is not full is in use."""
        return super().is_idle(now) and (self.refills is None or self.is_full(now))

    def is_due(self, now: float) -> bool:
        has_times = self.deadlines is not None or bool(self.refills) or self.paused
        return has_times and self.next_deadline() <= now

    @property
    def is_paused(self) -> bool:
        return self.paused

    def remembers(self, now: float) -> bool:
        if self.is_resized or self.closed or self.paused or self.can_be_settled(now):
            return True
        return self.has_adaptive and any(
            node.adaptation is not None and node.adaptation.is_worth_keeping(microseconds(now))
            for tier in self.tiers
            for node in tier.nodes.values()
        )

    def can_be_settled(self, now: float) -> bool:
        newest = next(reversed(self.recent.values()), None)
        return newest is not None and newest.until > now

    # --------------------------------------------------------------- the tiers

    def is_same_shape(self, declared: Declared) -> bool:
        """Return whether these tiers have the same names, and keys where they have."""
        return [*map(_shape, declared)] == [*map(_shape, self.specs)]

    def accepts(self, declared: Declared | None) -> bool:
        if declared is None or declared is self._accepted:
            return True
        if not self.is_same_shape(declared):
            return False
        for spec, own, tier, former in zip(
            declared, self.specs, self.tiers, self.former_values, strict=True
        ):
            if not spec.by_key and spec.value not in (tier.value, own.value, *former):
                return False
        self._accepted = declared
        return True

    def declaration(self, declared: Declared | None, now: float) -> list[list[Any]] | None:
        if declared is None or self.accepts(declared):
            return None
        if not self.is_idle(now):
            raise self.conflict(declared)
        return write_specs(declared)

    def value_to_record(self, declared: Declared | None) -> None:  # noqa: ARG002
        return None  # "declare" has written it

    def conflict(self, declared: Declared) -> ValueConflict:
        used = specs_in_use(self.specs, [tier.value for tier in self.tiers])
        return tiers_conflict(self.name, used, declared)

    def _declare(self, now: float, _wall_us: int, specs: Any) -> list[ClaimEvent]:
        """Replace the tiers; nobody holds or waits, and every bucket is full."""
        closed = self.closed
        pauses = {spec.name: tier.pauses for spec, tier in zip(self.specs, self.tiers, strict=True)}
        self._start(read_specs(specs))
        for spec, tier in zip(self.specs, self.tiers, strict=True):
            for key, until in pauses.get(spec.name, {}).items():
                self.pause(tier.index, until, key)
        if closed:
            self.close(now)
        return []

    # ---------------------------------------------------------------- requests

    def is_free(self, wanted: PathRequest, declared: Declared | None, now: float) -> bool:
        if self.refills is None and not self.holders and not self.waiting and not self.paused:
            return True
        if not self.accepts(declared):
            return self.is_idle(now)
        path, needs = wanted.path, wanted.needs
        turn = self.queue.turn_of_newcomer(wanted.head_start, path, self.queue.next_ticket(now))
        group = self.groups.get(path)
        if group is not None and group.turn < turn:
            return False
        for tier, key in zip(self.tiers, path, strict=True):
            node = tier.nodes.get(key)
            if tier.paused_until(key) > now:
                return False
            if node is not None:
                need = 1 if needs is None else needs[tier.index]
                if not has_room_at_once(node, need, now, turn):
                    return False
        return True

    def takes_at_once(self, wanted: PathRequest, declared: Declared | None) -> bool:
        return (
            not self.attention  # so it is open, not paused, has no rates, and nobody waits
            and not self.holders
            and declared is self._accepted
            and wanted.needs is None
        )

    def never_fits(
        self, wanted: PathRequest, declared: Declared | None, name: str | None
    ) -> ValueError | None:
        path, needs, values, *_ = wanted
        if needs is None:
            return None
        told = dict(values)
        accepted = declared is None or self.accepts(declared)
        for index, (key, need) in enumerate(zip(path, needs, strict=True)):
            specs = self.specs if accepted or declared is None else declared
            adaptive = specs[index].adaptive
            if adaptive is not None:
                if need > adaptive.min:
                    which = part_of(specs, name, index, key)
                    return path_fullness.never_fits(which, need, None, adaptive)
                continue
            if accepted:
                value = self.tiers[index].value_of(key)
            else:
                assert declared is not None
                value = None if declared[index].by_key else declared[index].value
            value = told.get(index, 0) if value is None else value
            if value and need > most_of(value):
                which = part_of(specs, name, index, key)
                return path_fullness.never_fits(which, need, value, None)
        return None

    def estimate(self, wanted: PathRequest, now: float) -> float | None:
        mean = self.holds.mean
        return None if self.closed else path_in(self, wanted.path, wanted.needs, now, mean)

    def fullness(self, wanted: PathRequest, now: float) -> str:
        """Return which tier has no room, and why."""
        return path_fullness.fullness(self, self.specs, wanted.path, wanted.needs, now)

    def waiting_at(self, wanted: PathRequest) -> list[int]:
        nodes = [tier.nodes.get(key) for tier, key in zip(self.tiers, wanted.path, strict=True)]
        return [0 if node is None else node.waiting for node in nodes]

    def _enter(
        self, claim: ProcessPathClaim, value: None, now: float, wait_until: float | None
    ) -> list[ProcessPathClaim]:
        assert value is None
        for tier, of_key in claim.values:
            self.learn(tier, claim.path[tier], of_key, now)
        if not self.attention and claim.needs is None and self._take_at_once(claim, now):
            return [claim]
        return self.request(claim, claim.path, now, wait_until=wait_until, weight=claim.weight)

    def _take_at_once(self, claim: ProcessPathClaim, now: float) -> bool:
        """Do what `request` does while nobody waits, in fewer steps; False if a tier is full."""
        nodes: list[Any] = []
        number = 0
        for tier, key in zip(self.tiers, claim.path, strict=True):
            node = tier.nodes.get(key) or tier.make(key, now)
            taken = node.take_one()
            if taken is None:
                for other in nodes:
                    other.put_back_one(number)
                return False
            number = taken
            nodes.append(node)
        claim.nodes = nodes
        self.queue.last_ticket += 1
        self._file(claim, number, now)
        return True

    def release(self, key: Hashable, now: float = 0.0) -> list[ProcessPathClaim]:
        claim = self.holders.get(key)
        if self.attention or claim is None or claim.needs is not None:
            return super().release(key, now)
        del self.holders[key]  # nobody waits, so nobody is to be looked for
        if self.deadlines is not None:
            self.deadlines.discard(key)
        for node in claim.nodes:
            node.put_back_one(claim._slot_number)
        return []

    def _cancel_all(
        self, waiters: Sequence[ProcessPathClaim], now: float
    ) -> list[ProcessPathClaim]:
        return self.cancel_all([claim.key for claim in waiters], now)

    # ------------------------------------------------------------------- rates

    def can_settle(self, acquisition_id: str, now: float) -> bool:
        """Return whether the costs of an acquisition can be corrected."""
        ended = self.recent.get(acquisition_id)
        return acquisition_id in self.holders or (ended is not None and ended.until > now)

    def index_of_rate(self, name: str) -> int | None:
        """Return which tier has the rate of that name, if one has."""
        rates = (spec.name if isinstance(spec.value, Rate) else None for spec in self.specs)
        return next((index for index, each in enumerate(rates) if each == name), None)

    def _charge(
        self, now: float, wall_us: int, acquisition_id: str, costs: list[tuple[int, int]]
    ) -> list[ClaimEvent]:
        """Correct what an acquisition took of rates: tiers, and what it took of them."""
        return self._granted(self.charge(acquisition_id, dict(costs), now), now, wall_us)

    def _refill(self, now: float, wall_us: int, tier: int, key: str | None) -> list[ClaimEvent]:
        return self._granted(self.refill_tier(tier, key, now), now, wall_us)

    def _withdraw(
        self, now: float, wall_us: int, acquisition_id: str, undelivered: bool = False
    ) -> list[ClaimEvent]:
        """Give back what was taken of rates by a grant that nobody has seen."""
        if not undelivered or acquisition_id in self.waiting:
            return super()._withdraw(now, wall_us, acquisition_id)
        claim = self.holders.get(acquisition_id)
        granted = self._undo_grant(acquisition_id, now)
        ended: list[ClaimEvent] = []
        if claim is not None:
            self._uncount(claim)
            ended.append(("released", claim))
        return [*ended, *self._granted(granted, now, wall_us)]

    def _undo_grant(self, acquisition_id: str, now: float) -> list[ProcessPathClaim]:
        return self.undo_grant(acquisition_id, now)

    def _granted(
        self, claims: Iterable[ProcessPathClaim], now: float, wall_us: int
    ) -> list[ClaimEvent]:
        if self.holds_nothing:
            for claim in claims:
                self._uncount(claim)
        return super()._granted(claims, now, wall_us)

    def _forget_full(self, now: float) -> None:
        """Forget buckets that have filled up, and costs that can't be corrected any more."""
        self.recent.forget_old(now)
        for tier in self.tiers:
            if isinstance(tier, RateTier):
                tier.forget(now, now, 0, _FORGET_AT_ONCE)

    # ---------------------------------------------------------------- adapting

    def _count_end(self, claim: ProcessPathClaim, now: float) -> None:
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

    def _freeze(
        self, now: float, wall_us: int, tier: int, value: int | None, key: str | None
    ) -> list[ClaimEvent]:
        """Keep the value of a tier, of all its keys, or of one."""
        which = self.tiers[tier]
        if key is not None and key not in which.nodes:
            which.make(key, now)  # before it is told the time
        self._tell_wall_clock(which.nodes.values(), now)
        granted = self.freeze(tier, value, key, now, one=key is not None)
        return self._granted(granted, now, wall_us)

    def _thaw(self, now: float, _wall_us: int, tier: int, key: str | None) -> list[ClaimEvent]:
        self.tiers[tier].thaw(key, now, one=key is not None)
        return []

    # ------------------------------------------------------------- controlling

    def _resize(
        self, now: float, wall_us: int, tier: int, written: Any, key: str | None
    ) -> list[ClaimEvent]:
        which, value = self.tiers[tier], read_value(written)
        if which.adaptive is not None:
            return self._freeze(now, wall_us, tier, value, key)
        if key is None and which.value is not None and which.value not in self.former_values[tier]:
            self.former_values[tier].append(which.value)
        refused, granted = self.resize(tier, value, key, now, one=key is not None)
        self._accepted = None
        return self._refused(refused, granted, now, wall_us)

    def _pause(
        self, _now: float, _wall_us: int, tier: int, until: float, key: str | None
    ) -> list[ClaimEvent]:
        self.pause(tier, until, key)
        return []

    def _shut(self, now: float) -> list[ProcessPathClaim]:
        return self.close(now)

    def _open(self, now: float) -> list[ProcessPathClaim]:
        self.reopen()
        return self.end_pauses(now)

    def _forget_all(self) -> None:
        values = [(tier.value, tier.own_values) for tier in self.tiers]
        former_values = self.former_values
        self._start(self.specs)
        self.former_values = former_values
        for tier, (value, own_values) in zip(self.tiers, values, strict=True):
            tier.value, tier.own_values = value, own_values

    def _reboot(self, now: float, wall_us: int, boot: str) -> list[ClaimEvent]:
        """Keep what was taken of rates over a reboot; refilling continues from now."""
        for claim in self.holders.values():
            self.recent.remember(claim, self.at)
        put_back = keep_rates(self)
        adapted = take_adapted(self)
        events = super()._reboot(now, wall_us, boot)
        put_back(now)
        put_adapted_back(self, adapted)
        for tier in self.tiers:
            for node in tier.nodes.values():
                if node.adaptation is not None:  # what was measured by the old clock is forgotten
                    node.adaptation.change_clock(microseconds(now))
                    node.value = node.adaptation.limit
        return events

    VERBS: ClassVar[dict[str, Callable[..., list[ClaimEvent]]]] = {
        **BaseState.VERBS,
        "charge": _charge,
        "declare": _declare,
        "freeze": _freeze,
        "pause": _pause,
        "reboot": _reboot,
        "refill": _refill,
        "resize": _resize,
        "thaw": _thaw,
        "withdraw": _withdraw,
    }

    def apply(self, record: Record) -> list[ClaimEvent]:
        verb, now, wall_us, *args = record
        self.wall_us = wall_us
        if self.moved:
            self.moved.clear()
        events = self.VERBS[verb](self, now, wall_us, *args)
        if self.attention:
            while self.unfinished:  # nobody else can continue it
                events += self._granted(self.serve(now), now, wall_us)
            if self.has_rates:
                self._forget_full(now)
        claim: Any
        for event, claim in events:
            if event != "granted":
                self._forget_idle(claim.nodes)
        self.at = now
        return events

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
        return take_snapshot(self)

    def value_at(self, tier: int, key: str | None) -> int:
        value: int = self.tiers[tier].value_of(key)
        return value

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        state = cls(snapshot["name"], read_specs(snapshot["tiers"]), snapshot["boot"])
        fill_from_snapshot(state, snapshot)
        return state


def _shape(spec: TierSpec) -> tuple[object, ...]:
    is_rate = isinstance(spec.value, Rate)
    return spec.name, spec.keyed, spec.by_key, spec.key_of, spec.fair, is_rate, spec.rules
