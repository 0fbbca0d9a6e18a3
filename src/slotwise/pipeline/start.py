"""Start: one item on its way from the source to its end."""

from __future__ import annotations

from typing import Any

from slotwise.values import AcquisitionResult


class Start:
    """An item, and what it takes and was given."""

    __slots__ = ("acquisition", "cell", "item", "key", "lane", "weight")

    def __init__(self, item: Any, weight: int) -> None:
        self.item = item
        self.weight = weight
        self.acquisition: AcquisitionResult | None = None
        self.cell: list[Any] | None = None  # its place among ordered results
        self.lane = 0
        self.key: Any = None
