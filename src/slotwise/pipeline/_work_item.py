"""WorkItem: one item of the source with its weight, group and worker."""

from __future__ import annotations

from typing import Any, Final

UNFINISHED: Final = object()


class WorkItem:
    """An item of the source, the slots it takes, the worker of its group, and its result."""

    __slots__ = ("item", "key", "raised", "result", "weight", "worker")

    raised: type[BaseException]  # what its work raised; not set if it succeeded

    def __init__(self, item: Any, weight: int) -> None:
        self.item = item
        self.weight = weight
        self.worker = 0  # the number of the worker of its group
        self.key: Any = None
        self.result: Any = UNFINISHED  # kept here only if results are taken in order
