"""PathState: the ledger of tiers, as their file has it.

A node is there only while somebody holds or waits for something of it: the file is as long
as its claims, however many keys come and go. A value that is a function of the key comes with
the request, so that every process applies the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

from slotwise._core.closing import Closure
from slotwise._core.messages import display, occupancy, too_many_slots
from slotwise._core.paths import Needs, Path, TierSpec
from slotwise._ledger.path_nodes import LargePathClaim
from slotwise._ledger.paths import PathLedger
from slotwise._ledger.paths_restore import parked_groups, restore_holders, restore_waiters
from slotwise.errors import ValueConflict
from slotwise.processes._base_state import (
    CLAIM_SLOTS,
    BaseState,
    Event,
    ProcessClaim,
    Record,
)
from slotwise.processes._path_checks import check_path_record, check_path_snapshot

# What a caller thinks the tiers are, narrow to wide.
Declared = tuple[TierSpec, ...]


class PathRequest(NamedTuple):
    """What is wanted of tiers."""

    path: Path
    needs: Needs | None = None
    # The values of keys where each key has its own: (tier, value).
    values: tuple[tuple[int, int], ...] = ()


class ProcessPathClaim(ProcessClaim, LargePathClaim):
    """The claim of a holder or waiter of a path."""

    __slots__ = (*CLAIM_SLOTS, "path", "values")

    path: Path
    values: Sequence[tuple[int, int]]

    @property
    def wanted(self) -> PathRequest:
        return PathRequest(self.path, self.needs)  # what came with it has been learnt

    def _want(self, wanted: Any) -> None:
        path, needs, self.values = wanted
        self.path = tuple(path)
        self.needs = None if needs is None else tuple(needs)


class PathState(BaseState[ProcessPathClaim], PathLedger[ProcessPathClaim]):
    """What the file of tiers has. What is wanted is a PathRequest, what is declared the tiers."""

    __slots__ = (
        *("_accepted", "_characters", "boot", "closure", "fence", "former_values", "name"),
        *("owners", "specs"),
    )

    RULES = 1
    CLAIM = ProcessPathClaim
    IS = "are"

    def __init__(self, name: str, specs: Sequence[TierSpec], boot: str) -> None:
        self._set_up(name, boot)
        self._characters = 0  # of the keys of all claims
        self._start(specs)

    def _start(self, specs: Sequence[TierSpec]) -> None:
        PathLedger.__init__(self, [None if spec.by_key else spec.value for spec in specs])
        for tier in self.tiers:
            tier.keeps_idle = False
        self.specs = tuple(specs)  # as they were declared
        # What each tier was resized from, and is still accepted.
        self.former_values: list[list[int]] = [[] for _ in specs]
        self._accepted: Declared | None = None  # what was accepted last

    @classmethod
    def new(cls, name: str, declared: Declared, boot: str) -> Self:
        return cls(name, declared, boot)

    @staticmethod
    def title_of(name: str | None) -> str:
        return "private tiers" if name is None else f"the tiers of {display(name)}"

    @property
    def max_slots(self) -> int:
        """That of the widest tier with a limit."""
        return next((tier.value for tier in reversed(self.tiers) if tier.value), 0)

    @property
    def is_resized(self) -> bool:
        pairs = zip(self.tiers, self.specs, strict=True)
        return any(
            tier.own_values or (not spec.by_key and tier.value != spec.value)
            for tier, spec in pairs
        )

    @property
    def remembers(self) -> bool:
        return self.is_resized or self.closed

    @property
    def size(self) -> int:
        # A character can take up six bytes of JSON.
        return 200 * (len(self.holders) + len(self.waiting)) + 6 * self._characters

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

    def declaration(self, declared: Declared | None) -> list[list[Any]] | None:
        if declared is None or self.accepts(declared):
            return None
        if not self.idle:
            raise self.conflict(declared)
        return _write_specs(declared)

    def value_to_record(self, declared: Declared | None) -> None:  # noqa: ARG002
        return None  # "declare" has said it

    def conflict(self, declared: Declared) -> ValueConflict:
        return ValueConflict(
            f"the tiers of {display(self.name)} are in use as {_words(self._current_specs())}, not"
            f" {_words(declared)}; resize() changes the value of a tier in use"
        )

    def _current_specs(self) -> list[TierSpec]:
        pairs = zip(self.specs, self.tiers, strict=True)
        return [replace(spec, value=tier.value or 0) for spec, tier in pairs]

    def _declare(self, now: float, _wall_us: int, specs: Any) -> list[Event]:
        """Have other tiers from now on; nobody holds or waits."""
        if not self.idle:
            raise ValueError("somebody holds or waits")
        closed = self.closed
        self._start(_read_specs(specs))
        if closed:
            self.close(now)
        return []

    # ---------------------------------------------------------------- requests

    def is_free(self, wanted: PathRequest, declared: Declared | None) -> bool:
        if not self.holders and not self.waiting:
            return True
        if not self.accepts(declared):
            return False
        path, needs, _ = wanted
        if path in self.groups:
            return False
        for tier, key in zip(self.tiers, path, strict=True):
            node = tier.nodes.get(key)
            if node is not None:
                need = 1 if needs is None else needs[tier.index]
                if node.in_use + node.kept + need > node.value or node.first_parked() is not None:
                    return False
        return True

    def never_fits(
        self, wanted: PathRequest, declared: Declared | None, title: str
    ) -> ValueError | None:
        path, needs, values = wanted
        if needs is None:
            return None
        told = dict(values)
        accepted = declared is None or self.accepts(declared)
        for index, (key, need) in enumerate(zip(path, needs, strict=True)):
            if accepted:
                value = self.tiers[index].value_of(key)
            else:
                assert declared is not None
                value = None if declared[index].by_key else declared[index].slots
            value = told.get(index, 0) if value is None else value
            if value and need > value:
                spec = self.specs[index] if declared is None else declared[index]
                return too_many_slots(f"{spec.node(key)} of {title}", need, value)
        return None

    def fullness(self, wanted: PathRequest) -> str:
        """Say which tier is in the way."""
        path, needs, _ = wanted
        for spec, tier, key in zip(self.specs, self.tiers, path, strict=True):
            node = tier.nodes.get(key)
            need = 1 if needs is None else needs[tier.index]
            if node is None:
                continue
            if node.in_use + node.kept + need > node.value or node.first_parked() is not None:
                full = occupancy(value=node.value, held=node.in_use, waiting=node.waiting)
                if node.in_use + need <= node.value:
                    full += ", the rest kept for an older request"
                elif need > 1:
                    full += f", and {need} are needed"
                return f"{spec.node(key)}: {full}"
        return "nothing of it"

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
        return self.request(claim, claim.path, now, wait_until=wait_until)

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

    # ------------------------------------------------------------- controlling

    def _resize(
        self, now: float, wall_us: int, tier: int, value: int, key: str | None
    ) -> list[Event]:
        which = self.tiers[tier]
        if key is None and which.value is not None and which.value not in self.former_values[tier]:
            self.former_values[tier].append(which.value)
        refused, granted = self.resize(tier, value, key, now, one=key is not None)
        self._accepted = None
        return self._refused(refused, granted, now, wall_us)

    def _shut(self, now: float) -> list[ProcessPathClaim]:
        return self.close(now)

    def _open(self, now: float) -> list[ProcessPathClaim]:  # noqa: ARG002 - of the semaphores
        self.reopen()
        return []

    def _forget_all(self) -> None:
        values = [(tier.value, tier.own_values) for tier in self.tiers]
        former_values = self.former_values
        self._start(self.specs)
        self.former_values = former_values
        for tier, (value, own_values) in zip(self.tiers, values, strict=True):
            tier.value, tier.own_values = value, own_values
        self._characters = 0

    VERBS: ClassVar[dict[str, Callable[..., list[Event]]]] = {
        **BaseState.VERBS,
        "declare": _declare,
        "resize": _resize,
    }

    def apply(self, record: Record) -> list[Event]:
        verb, now, wall_us, *args = record
        events = self.VERBS[verb](self, now, wall_us, *args)
        while self.unfinished:  # nobody else can go on with it
            events += self._granted(self.settle(now), now, wall_us)
        claim: Any
        for event, claim in events:
            if event != "granted":
                for node in claim.nodes:
                    if node.key is not None:
                        self.tiers[node.tier].drop_if_idle(node)
        return events

    def _count(self, claim: ProcessPathClaim) -> None:
        super()._count(claim)
        for key in claim.path:
            if key is not None:
                self._characters += len(key)

    def _uncount(self, claim: ProcessPathClaim) -> None:
        super()._uncount(claim)
        for key in claim.path:
            if key is not None:
                self._characters -= len(key)

    # --------------------------------------------------------------- snapshots

    def snapshot(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tiers": _write_specs(self.specs),
            "values": [
                [tier.value, former, tier.own_values]
                for tier, former in zip(self.tiers, self.former_values, strict=True)
            ],
            # Of keys that are in use and whose value came with a request.
            "learnt": [
                [tier.index, key, tier.value_of(key)]
                for tier in self.tiers
                if tier.value is None
                for key in sorted(tier.nodes, key=str)
            ],
            "boot": self.boot,
            "closure": None if self.closure is None else [self.closure.reason],
            "fence": self.fence,
            "ticket": self.queue.last_ticket,
            "holders": [
                [
                    *claim.arguments(),
                    *(claim.granted_us, claim.token, claim.expires_at, _write_numbers(claim)),
                ]
                for claim in self.holders.values()
            ],
            "waiting": [
                [*claim.arguments(), claim.ticket, self.deadline_of(claim.key)]
                for claim in self.waiting.values()
            ],
            "parked": parked_groups(self),
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        check_path_snapshot(snapshot)
        state = cls(snapshot["name"], _read_specs(snapshot["tiers"]), snapshot["boot"])
        state.fence = snapshot["fence"]
        state.queue.last_ticket = snapshot["ticket"]
        for tier, former, (value, known, own) in zip(
            state.tiers, state.former_values, snapshot["values"], strict=True
        ):
            tier.value, tier.own_values = value, own
            former += known
        for index, key, value in snapshot["learnt"]:
            state.learn(index, key, value)
        held = []
        for *fields, granted_us, token, expires_at, numbers in snapshot["holders"]:
            claim = ProcessPathClaim(*fields)
            claim.granted_us, claim.token, claim.expires_at = granted_us, token, expires_at
            held.append((claim, claim.path, [range(*each) for each in numbers], expires_at))
            state._count(claim)
        restore_holders(state, held)
        if snapshot["closure"] is not None:
            state.closure = Closure(*snapshot["closure"])
            state.close()
        waiting = []
        for *fields, ticket, wait_until in snapshot["waiting"]:
            claim = ProcessPathClaim(*fields)
            waiting.append((claim, claim.path, ticket, wait_until))
            state._count(claim)
        restore_waiters(state, waiting, snapshot["parked"])
        return state

    check_record = staticmethod(check_path_record)


def _shape(spec: TierSpec) -> tuple[str, bool, bool, str | None]:
    return spec.name, spec.keyed, spec.by_key, spec.key_of


def _write_specs(specs: Sequence[TierSpec]) -> list[list[Any]]:
    return [[s.name, s.slots, s.keyed, s.by_key, s.key_of] for s in specs]


def _read_specs(written: Sequence[Sequence[Any]]) -> list[TierSpec]:
    return [TierSpec(*fields) for fields in written]


def _write_numbers(claim: ProcessPathClaim) -> list[tuple[int, int]]:
    if claim.needs is None:
        return [(claim._slot_number, claim._slot_number + 1)]
    return [(numbers.start, numbers.stop) for numbers in claim.ranges]


def _words(specs: Sequence[TierSpec]) -> str:
    return ", ".join(spec.words for spec in specs)
