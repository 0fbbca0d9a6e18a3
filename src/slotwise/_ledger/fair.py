"""FairOrder: start-time fair queueing over the keys of one tier.

The rule is in `paths` (9). This module only keeps its numbers: the virtual time, and for each key
the tag of its next request. They are doubles, and the scripts on a server compute the same ones by
the same steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise._ledger.path_nodes import BaseNode

_pushes = count()


class Share:
    """A key that somebody waits for."""

    __slots__ = ("key", "nodes", "tag", "waiting", "weight")

    def __init__(self, key: Hashable, tag: float, weight: float) -> None:
        self.key = key
        self.tag = tag  # of its next request
        self.weight = weight
        self.waiting = 0
        # How many of its groups wait at which node of other tiers, where other keys may wait too.
        self.nodes: Counter[BaseNode] = Counter()


class FairOrder:
    """Decides whose turn it is, by what each key was granted while somebody waited.

    The keys of ``tier`` take turns; the slots or units of ``cost_tier`` count, or each request as
    one if it is None.
    """

    __slots__ = ("_tags_by_age", "cost_tier", "shares", "tags", "tier", "time")

    # Between any two calls:
    #   F1  a key has a share exactly while somebody waits for it
    #   F2  a key has a tag in `tags` only while nobody waits for it, and if it is after `time`
    #   F3  while nobody waits at all, time is 0 and nothing is remembered

    def __init__(self, tier: int, cost_tier: int | None) -> None:
        self.tier = tier
        self.cost_tier = cost_tier
        self.time = 0.0  # the tag of the latest grant
        self.shares: dict[Hashable, Share] = {}
        self.tags: dict[Hashable, float] = {}
        self._tags_by_age: list[tuple[float, int, Hashable]] = []

    def tag_of(self, key: Hashable) -> float:
        """Return the tag of a newcomer with this key."""
        share = self.shares.get(key)
        return max(self.time, self.tags.get(key, 0.0)) if share is None else share.tag

    def share_of(self, key: Hashable, weight: float) -> Share:
        """The share of a key that somebody begins to wait for."""
        share = self.shares.get(key)
        if share is None:
            self.shares[key] = share = Share(key, self.tag_of(key), weight)
            self.tags.pop(key, None)
        share.weight = weight  # the latest request has the latest weight
        return share

    def move(self, share: Share, old: BaseNode | None, new: BaseNode | None) -> None:
        """Note that a group of a key is parked elsewhere; None if it is not parked."""
        if new is not None and new.tier != self.tier:
            share.nodes[new] += 1
        if old is not None and old.tier != self.tier:
            share.nodes[old] -= 1
            if not share.nodes[old]:
                del share.nodes[old]

    def leave(self, share: Share) -> None:
        """Count one less."""
        share.waiting -= 1
        if not share.waiting:
            del self.shares[share.key]
            self._remember(share.key, share.tag)

    def count(self, key: Hashable, cost: int, weight: float) -> None:
        """Count a grant, while somebody waits."""
        share = self.shares.get(key)
        start = self.tag_of(key)
        self.time = max(self.time, start)
        tag = max(self.time, start + cost / weight)
        if share is None:
            self._remember(key, tag)
        else:
            share.tag = tag
        self._forget_old()

    def restore(
        self,
        time: float,
        tags: Mapping[Hashable, float],
        shares: Mapping[Hashable, tuple[float, float]],
    ) -> None:
        """Continue where another one was: its time, tags, and shares' tags and weights."""
        self.reset()
        self.time = time
        for key, tag in tags.items():
            self._remember(key, tag)
        for key, (tag, weight) in shares.items():
            self.shares[key].tag, self.shares[key].weight = tag, weight

    def reset(self) -> None:
        """Forget everything: nobody waits any more."""
        self.time = 0.0
        self.tags.clear()
        self._tags_by_age.clear()

    def _remember(self, key: Hashable, tag: float) -> None:
        if tag > self.time:
            self.tags[key] = tag
            heappush(self._tags_by_age, (tag, next(_pushes), key))

    def _forget_old(self) -> None:
        """Forget tags that are not after the time: they make no difference."""
        by_age = self._tags_by_age
        while by_age and by_age[0][0] <= self.time:
            tag, _, key = heappop(by_age)
            if self.tags.get(key) == tag:
                del self.tags[key]
