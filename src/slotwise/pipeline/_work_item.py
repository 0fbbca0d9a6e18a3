"""WorkItem: one item of the source with its weight, group and lane."""

from __future__ import annotations

from typing import Any


class WorkItem:
    """An item of the source, the slots it takes and the lane it runs in."""

    __slots__ = ("item", "key", "lane", "weight")

    def __init__(self, item: Any, weight: int) -> None:
        self.item = item
        self.weight = weight
        self.lane = 0
        self.key: Any = None
