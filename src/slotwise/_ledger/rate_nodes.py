"""RateNode: one key of a tier with a rate: what is left of it, which comes back by time.

Who gets it is decided by the rules of all nodes, in `paths`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import floor
from typing import Any

from slotwise._core.rates import Rate
from slotwise._ledger.deadlines import NEVER
from slotwise._ledger.path_nodes import BaseNode, Group
from slotwise._ledger.shrinking import shrink
from slotwise._ledger.tier_nodes import TierNodes
from slotwise._ledger.times import microseconds

_TAKEN: Sequence[range] = (range(1),)


class RateNode(BaseNode):
    """A bucket: how many parts were in it, and at which microsecond.

    If the clock steps back, refilling continues from there; a step forward can only fill it.
    """

    __slots__ = ("at", "level", "rate", "refill_at")

    in_use = 0  # nothing comes back by a release

    def __init__(self, tier: int, key: Hashable, rate: Rate, now: float) -> None:
        self.rate = rate
        self.level = rate.full  # negative while there is debt
        self.at = microseconds(now)
        super().__init__(tier, key, rate.burst, now)
        self.refill_at = NEVER  # when it is looked at because of the time, if it is

    @property
    def used(self) -> float:
        """Until when it is in use: until it is full."""
        return self.full_at

    @used.setter
    def used(self, when: float) -> None:
        """Do nothing: only taking from a bucket puts it in use, not giving back."""

    def refill(self, now: float) -> None:
        """Add what has come back by now."""
        # Called several times at the same instant.
        at = int(now * 1_000_000 + 0.5)  # `microseconds`, inlined
        if at != self.at:
            self.level = self.level_at(now)
            self.at = at

    def level_at(self, now: float) -> int:
        elapsed = microseconds(now) - self.at
        if elapsed <= 0 or self.level >= self.rate.full:
            return self.level
        return min(self.level + elapsed * self.rate.gain, self.rate.full)

    def has_room(self, need: int, now: float, group: Group | None = None) -> bool:
        if int(now * 1_000_000 + 0.5) != self.at:
            self.refill(now)
        if self.paused_until > now:
            return False
        if self.kept and self.kept_for is not group:
            need += self.kept
        return need * self.rate.unit <= self.level

    def ready_at(self, need: int, group: Group) -> float:
        """When there will be room for that, if nobody takes any; `NEVER` if time is not enough."""
        kept = 0 if self.kept_for is group else self.kept
        if need + kept > self.rate.burst:
            return NEVER
        missing = (need + kept) * self.rate.unit - self.level
        return max((self.at - -missing // self.rate.gain) / 1_000_000, self.paused_until)

    @property
    def full_at(self) -> float:
        """When it will be full, if nobody takes anything."""
        return (self.at - (self.level - self.rate.full) // self.rate.gain) / 1_000_000

    def take(self, need: int, now: float = 0.0) -> Sequence[range]:
        self.charge(need, now)
        return _TAKEN

    def charge(self, units: int, now: float) -> None:
        """Take ``units``, room or not; a negative number gives some back."""
        self.refill(now)
        self.level = min(self.level - units * self.rate.unit, self.rate.full)

    def fill(self, now: float) -> None:
        """Forgive debt, and fill the bucket."""
        self.refill(now)
        self.level = self.rate.full

    def change_rate(self, rate: Rate, now: float) -> None:
        """Continue with another rate: the level stays, cut to the new burst.

        A full bucket stays full, like one that was forgotten because it was full.
        """
        self.refill(now)
        whole, rest = divmod(self.level, self.rate.unit)
        # To the nearest part, in doubles, as the scripts on a server do it.
        parts = whole * rate.unit + floor(rest / self.rate.unit * rate.unit + 0.5)
        was_full = self.level == self.rate.full
        self.rate = rate
        self.value = rate.burst
        self.level = rate.full if was_full else min(parts, rate.full)

    def retire(self, now: float) -> bool:
        self.refill(now)
        return not self.waiting and not self.kept and self.level >= self.rate.full


class RateTier(TierNodes):
    """The nodes of a tier with a rate."""

    __slots__ = ()

    def __init__(self, index: int, rate: Rate) -> None:
        super().__init__(index, rate, RateNode)

    def most(self, key: Hashable) -> int:
        rate: Rate = self.value_of(key)
        return rate.burst

    def _change_node(self, node: RateNode, value: Rate, now: float) -> None:
        node.change_rate(value, now)

    def forget(self, now: float, before: float, too_many: int, looks: int) -> tuple[int, bool]:
        forgotten, more = super().forget(now, before, too_many, looks)
        if forgotten:  # far more keys may have been in use than are kept when they are full
            shrink(self.nodes)  # under the lock: with rates there is no quick lane
        return forgotten, more

    def drop_if_idle(self, node: Any) -> None:
        """A bucket is forgotten by `forget`, once it is full."""
