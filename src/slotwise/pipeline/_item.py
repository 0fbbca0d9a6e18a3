"""Start: one item on its way from the source to its end."""

from __future__ import annotations

from typing import Any


class Item:
    """An item, and what it takes and was given."""

    __slots__ = ("item", "key", "lane", "weight")

    def __init__(self, item: Any, weight: int) -> None:
        self.item = item
        self.weight = weight
        self.lane = 0
        self.key: Any = None
