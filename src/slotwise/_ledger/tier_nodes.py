"""TierNodes: the nodes of one tier: how they are made, changed and forgotten.

Nodes are defined in `path_nodes`; `paths` decides who gets something of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush, heapreplace
from typing import Any

from slotwise._core.adaptive import Adaptive
from slotwise._ledger.adaptation import adaptation
from slotwise._ledger.path_nodes import UNLIMITED, BaseNode
from slotwise._ledger.times import microseconds

# For each key of a tier, this many changes of its value are kept: there may be very many keys.
CHANGES_OF_A_KEY = 20


class ValueUnknown(LookupError):
    """A key appears in a tier where each has its own value: `PathLedger.learn` it first."""

    def __init__(self, tier: int, key: Hashable) -> None:
        super().__init__(tier, key)
        self.tier = tier
        self.key = key


class TierNodes:
    """The nodes of one tier: those in use, and those that are idle and only remembered."""

    __slots__ = (
        *("_ages", "_made", "_node", "adaptive", "frozen_at", "frozen_keys", "index", "is_frozen"),
        *("keeps_idle", "max_idle", "nodes", "own_values", "pauses", "value"),
    )

    def __init__(self, index: int, value: Any, node: Callable[..., Any]) -> None:
        self.index = index
        self._node = node
        # How the value of each node moves by itself, if it does; and which are frozen: all, those
        # to come at this value, or where they start if it is None; and some keys.
        self.adaptive: Adaptive | None = value if isinstance(value, Adaptive) else None
        if self.adaptive is not None:
            value = self.adaptive.start
        self.is_frozen = False
        self.frozen_at: int | None = None
        self.frozen_keys: set[Hashable] = set()
        # An int, 0 for no limit; None if each key has its own, which has to be learnt; or a Rate.
        self.value = value
        self.nodes: dict[Hashable, Any] = {}
        self.keeps_idle = True  # False: whoever ends a claim calls `drop_if_idle`
        self.max_idle = UNLIMITED  # beyond that the longest idle are forgotten
        self.own_values: dict[Hashable, Any] = {}  # of keys with another value
        # Until when keys are paused; under None, all of them, including later ones.
        self.pauses: dict[Hashable, float] = {}
        # A heap of (when it was used, a number, node). The time may be older than `used`, never
        # later, so the first entry that agrees with `used` is the longest idle. Of two nodes last
        # used at one instant, the one made first comes first.
        self._ages: list[tuple[float, int, BaseNode]] = []
        self._made = 0

    def value_of(self, key: Hashable) -> Any:
        """The value of a key, 0 for no limit; None if that is not known."""
        if self.adaptive is not None:
            node = self.nodes.get(key)
            return (self.frozen_at or self.value) if node is None else node.value
        value = self.own_values.get(key, self.value)
        if value is None and key in self.nodes:
            node = self.nodes[key]
            value = 0 if node.value == UNLIMITED else node.value
        return value

    def most(self, key: Hashable) -> int:
        """The most that a request may need of a key."""
        if self.adaptive is not None:
            return self.adaptive.min  # it may fall to that
        return self.value_of(key) or UNLIMITED

    def make(self, key: Hashable, now: float, value: int | None = None) -> Any:
        """A node for a key that has none, with ``value`` if neither tier nor key has one."""
        known = self.value_of(key)
        if known is None:
            known = value
        if known is None:
            raise ValueUnknown(self.index, key)
        self.nodes[key] = node = self._node(self.index, key, known or UNLIMITED, now)
        if self.adaptive is not None:
            node.adaptation = moving = adaptation(self.adaptive, microseconds(now))
            if key is not None:
                moving.keep_changes(CHANGES_OF_A_KEY)
            if self.is_frozen:
                moving.begin_frozen(self.frozen_at)
        if self.pauses:
            node.paused_until = self.paused_until(key)
        if key is not None and self.keeps_idle:  # a tier without keys has one node, always
            self._made += 1
            heappush(self._ages, (now, self._made, node))
        return node

    def change(self, value: Any, key: Hashable, now: float, *, one: bool) -> list[BaseNode]:
        """Give a tier, or with ``one`` one key, another value; return the nodes with that value."""
        if one:
            self.own_values[key] = value
            nodes = [self.nodes[key]] if key in self.nodes else []
        else:
            self.value = value
            nodes = [node for node in self.nodes.values() if node.key not in self.own_values]
        for node in nodes:
            self._change_node(node, value, now)
        return nodes

    def _change_node(self, node: Any, value: Any, now: float) -> None:  # noqa: ARG002 - of rates
        node.value = value or UNLIMITED

    def pause(self, key: Hashable, until: float) -> list[Any]:
        """Pause a key until then, with None all of them; return the nodes.

        If there are several pauses, the one that ends last counts.
        """
        self.pauses[key] = max(until, self.pauses.get(key, 0.0))
        return self._renew_pauses(key)

    def paused_until(self, key: Hashable) -> float:
        """Until when a key is paused, known or not; 0.0 if it isn't."""
        if not self.pauses:
            return 0.0
        return max(self.pauses.get(None, 0.0), self.pauses.get(key, 0.0))

    def end_pauses(self, now: float) -> list[Any]:
        """End the pauses whose time has come; return the nodes that they were of."""
        ended = [key for key, until in self.pauses.items() if until <= now]
        for key in ended:
            del self.pauses[key]
        return [node for key in ended for node in self._renew_pauses(key)]

    def _renew_pauses(self, key: Hashable) -> list[Any]:
        known = self.nodes
        nodes = [*known.values()] if key is None else [known[key]] if key in known else []
        for node in nodes:
            node.paused_until = self.paused_until(node.key)
        return nodes

    # ------------------------------------------------------------- adapting

    def freeze(self, value: int | None, key: Hashable, now: float, *, one: bool) -> list[Any]:
        """Freeze at a value, or with None at the current one; return the nodes that are frozen now.

        With ``one`` it is that of one key.
        """
        assert self.adaptive is not None
        if value is not None:
            self.adaptive.check_value(value)
        if one:
            nodes = [self.nodes.get(key) or self.make(key, now)]
            self.frozen_keys.add(key)
        else:
            self.is_frozen, self.frozen_at = True, value
            nodes = [*self.nodes.values()]
        for node in nodes:
            node.adaptation.freeze(microseconds(now), value)
        return nodes

    def thaw(self, key: Hashable, now: float, *, one: bool) -> None:
        """Move again, or with ``one`` one key."""
        if one:
            nodes = [self.nodes[key]] if key in self.nodes else []
            self.frozen_keys.discard(key)
        else:
            self.is_frozen, self.frozen_at = False, None
            self.frozen_keys.clear()
            nodes = [*self.nodes.values()]
        for node in nodes:
            node.adaptation.thaw(microseconds(now))

    def keep_adapted(self, node: Any, most: int) -> None:
        """Forget the longest idle keys beyond ``most``; this one may be idle now.

        The order of the nodes is that in which they were last seen in use.
        """
        if node.waiting or node.in_use or node.key not in self.nodes:
            return
        self.nodes[node.key] = self.nodes.pop(node.key)
        for _ in range(len(self.nodes) - most):
            oldest = next(iter(self.nodes.values()))
            self.nodes.pop(oldest.key)
            if oldest.waiting or oldest.in_use or oldest.key in self.frozen_keys:
                self.nodes[oldest.key] = oldest

    # ------------------------------------------------------------ forgetting

    def drop_if_idle(self, node: Any) -> None:
        """Forget a node at once if nobody holds or waits for anything of it."""
        if node.key is not None and not node.waiting and not node.in_use:
            self.nodes.pop(node.key, None)

    def forget(self, now: float, before: float, too_many: int, looks: int) -> tuple[int, bool]:
        """Forget nodes unused since ``before``, and the ``too_many`` that are idle for longest.

        Those that are held or waited for stay. At most ``looks`` are examined. Return how many were
        forgotten, and whether there are more to examine.
        """
        ages, in_use = self._ages, []
        forgotten = 0
        while ages and looks:
            when, tie, node = ages[0]
            if when > now or (when > before and forgotten >= too_many):
                break
            looks -= 1
            if node.used > when:
                heapreplace(ages, (node.used, tie, node))
            elif node.key not in self.frozen_keys and node.retire(now):
                heappop(ages)
                del self.nodes[node.key]
                forgotten += 1
            else:
                in_use.append((now, *heappop(ages)[1:]))
        for entry in in_use:  # it will not be idle for longer than from now on
            heappush(ages, entry)
        return forgotten, bool(ages) and not looks
