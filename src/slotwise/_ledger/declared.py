"""DeclaredLedger: the ledger behind a name, and what its users have declared of it.

It says who may use it as they declare it, and what those are told that can't get anything. Who gets
something is decided in `paths`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias

from slotwise._core.control import Verb
from slotwise._core.messages import limit_full, occupancy, rules_conflict, value_conflict
from slotwise._core.overload import Overload, too_late
from slotwise._core.paths import (
    SEMAPHORE_PATH,
    TierSpec,
    fair_tiers,
    is_semaphore,
    most_of,
    part_of,
    specs_in_use,
    tiers_conflict,
)
from slotwise._core.rates import Rate
from slotwise._ledger import path_fullness
from slotwise._ledger.estimates import HoldTimes
from slotwise._ledger.path_estimates import path_in
from slotwise._ledger.path_fullness import path_stats
from slotwise._ledger.path_nodes import Path
from slotwise._ledger.paths import C, PathLedger
from slotwise._ledger.times import microseconds
from slotwise.errors import LimitFull, ValueConflict

# What a caller thinks the tiers are, narrow to wide; None accepts any.
Declared: TypeAlias = "tuple[TierSpec, ...] | None"


class DeclaredLedger(PathLedger[C]):
    """A ledger with the tiers that it was declared with, and how long its slots are held."""

    __slots__ = ("_accepted", "former_values", "holds", "specs", "times_all")

    def __init__(self, specs: Sequence[TierSpec], holders: dict[Hashable, C] | None = None) -> None:
        values = [None if spec.by_key else spec.adaptive or spec.value for spec in specs]
        fair = (None, None) if is_semaphore(specs) else fair_tiers(specs)
        super().__init__(values, *fair, holders)
        self.specs = tuple(specs)  # as they were declared
        # What each tier was resized from, and is still accepted.
        self.former_values: list[list[int | Rate]] = [[] for _ in specs]
        self._accepted: Declared = self.specs  # what was accepted last
        # Timed only while somebody waits, or with `times_all`: nothing that is granted depends on
        # it.
        self.holds = HoldTimes()
        self.times_all = False

    # ------------------------------------------------------------- its tiers

    @property
    def is_resized(self) -> bool:
        """Whether a value is not the declared one, or an adaptive one is frozen."""
        return any(
            tier.own_values
            or tier.is_frozen
            or tier.frozen_keys
            or (not spec.by_key and tier.value != spec.value)
            for tier, spec in zip(self.tiers, self.specs, strict=True)
        )

    def is_worth_keeping(self, now: float) -> bool:
        """Whether forgetting it while nobody uses it would lose what was changed or learnt."""
        if self.paused or self.is_resized:
            return True
        return self.has_adaptive and any(
            node.adaptation is not None and node.adaptation.is_worth_keeping(microseconds(now))
            for tier in self.tiers
            for node in tier.nodes.values()
        )

    def is_same_shape(self, declared: Sequence[TierSpec]) -> bool:
        """Whether these tiers have the same names, and keys where they have."""
        ours, theirs = (
            [
                (s.name, s.keyed, s.by_key, s.key_of, s.fair, isinstance(s.value, Rate))
                for s in specs
            ]
            for specs in (self.specs, declared)
        )
        return ours == theirs

    def accepts(self, declared: Declared) -> bool:
        """Whether somebody who declares these tiers may use it as it is."""
        if declared is None or declared is self._accepted:
            return True
        if not self.is_same_shape(declared):
            return False
        for spec, own, tier, former in zip(
            declared, self.specs, self.tiers, self.former_values, strict=True
        ):
            if spec.rules != own.rules:
                return False
            if not spec.by_key and spec.value not in (tier.value, own.value, *former):
                return False
        self._accepted = declared
        return True

    def conflict(
        self, name: str | None, declared: Sequence[TierSpec], in_line: int = 0
    ) -> ValueConflict:
        """Return the error of somebody who declares other tiers while it is in use."""
        if not is_semaphore(self.specs):
            used = specs_in_use(self.specs, [tier.value for tier in self.tiers])
            return tiers_conflict(name, used, declared)
        [given], [known] = declared, self.specs
        [node] = path_stats(self, SEMAPHORE_PATH, 0.0)
        if known.adaptive is not None or given.adaptive is not None:
            return rules_conflict(name, given.adaptive, known.adaptive, node.value)
        waiting = node.waiting + in_line
        return value_conflict(
            name, given.slots, value=node.value, held=node.active, waiting=waiting
        )

    def control(
        self, verb: Verb, tier: int, key: Hashable, args: Sequence[Any], now: float
    ) -> tuple[list[C], list[C]]:
        """`PathLedger.control`; a resize may say besides what its caller thought the value was."""
        if verb == "resize":
            args, declared = args[:1], args[1:]
            which, former = self.tiers[tier], self.former_values[tier]
            if key is None and which.adaptive is None:
                former[:] = dict.fromkeys((*former, which.value, *declared))
            self._accepted = None
        return super().control(verb, tier, key, args, now)

    # ------------------------------------------------------- what a newcomer is told

    def never_fits(
        self,
        name: str | None,
        path: Sequence[Any],
        needs: Sequence[int] | None,
        told: Iterable[tuple[int, int]] = (),
    ) -> ValueError | None:
        """Return the error of a request that can never be granted, if that is so.

        ``told`` are values of keys that are not known yet, by the index of the tier.
        """
        if needs is None:
            return None
        values = dict(told)
        for spec, tier, key, need in zip(self.specs, self.tiers, path, needs, strict=True):
            known = tier.value_of(key)
            value = values.get(tier.index, 0) if known is None else known
            most = most_of(value) if spec.adaptive is None else spec.adaptive.min
            if most and need > most:
                which = part_of(self.specs, name, tier.index, key)
                return path_fullness.never_fits(which, need, value, spec.adaptive)
        return None

    def fullness(
        self,
        path: Path,
        needs: Sequence[int] | None,
        now: float,
        oldest: Callable[[], str],
        in_line: int = 0,
    ) -> str:
        """Return which tier has no room, and why; ``oldest`` names holders of a semaphore."""
        if not is_semaphore(self.specs):
            return path_fullness.fullness(self, self.specs, path, needs, now)
        [node] = path_stats(self, path, now)
        return occupancy(
            value=node.value,
            held=node.active,
            waiting=node.waiting + in_line,
            oldest=oldest(),
            paused_for=node.paused_for,
        )

    def estimate(
        self, path: Path, needs: Sequence[int] | None, now: float, in_line: int = 0
    ) -> float | None:
        """Return in how many seconds a newcomer would get a path; None if unknown."""
        return path_in(self, path, needs, now, self.holds.mean, in_line)

    def too_full(
        self,
        title: str,
        overload: Overload,
        path: Path,
        needs: Sequence[int] | None,
        timeout: float | None,
        now: float,
        oldest: Callable[[], str],
        in_line: int = 0,
    ) -> LimitFull | None:
        """Return the error of a newcomer that would have to wait, if it may not."""
        nodes = [tier.nodes.get(key) for tier, key in zip(self.tiers, path, strict=True)]
        at_nodes = [0 if node is None else node.waiting + in_line for node in nodes]
        waiting, patience = overload.exceeded(len(self.waiting) + in_line, at_nodes), None
        if waiting is None and not overload.sheds:
            return None
        estimate = self.estimate(path, needs, now, in_line)
        if waiting is None:
            waiting, patience = max(at_nodes), timeout
            if not too_late(estimate, patience):
                return None
        full = self.fullness(path, needs, now, oldest, in_line)
        return limit_full(title, full, waiting=waiting, estimate=estimate, timeout=patience)

    def replaceable(self, slots: int) -> list[C]:
        """Return whose slots a newcomer would take over, the longest hold first.

        Nobody's, if all together hold too few.
        """
        node = self.tiers[0].nodes.get(None)
        if self.paused or node is None:
            return []
        missing = slots + node.in_use - node.value
        if self.line or self.waiting:  # what is free is left to them
            missing = max(missing, slots)
        chosen = []
        for each in list(self.holders.values()):  # a release on the quick lane takes no lock
            if missing <= 0:
                break
            if not each.is_kicked:
                chosen.append(each)
                missing -= each.slots
        return chosen if missing <= 0 else []
