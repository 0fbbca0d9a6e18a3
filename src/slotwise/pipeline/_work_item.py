"""WorkItem: one item of the source with its weight, group and lane."""

from __future__ import annotations

from typing import Any, Final

UNFINISHED: Final = object()


class WorkItem:
    """An item of the source, the slots it takes, the lane it runs in, and its result."""

    __slots__ = ("item", "key", "lane", "raised", "result", "weight")

    raised: type[BaseException]  # what its work raised; not set if it succeeded

    def __init__(self, item: Any, weight: int) -> None:
        self.item = item
        self.weight = weight
        self.lane = 0
        self.key: Any = None
        self.result: Any = UNFINISHED  # kept here only if results are taken in order
