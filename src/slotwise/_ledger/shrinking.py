"""shrink: free the memory of a table that was once much larger.

A dict keeps its size when entries are deleted, until many new ones have come.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from sys import getsizeof
from typing import Any

_FEW = 1000  # entries; a table for this many may stay
_MOST_BYTES = 400  # for each entry, of a dict that is well used; some have a list besides


def shrink(table: MutableMapping[Any, Any]) -> None:
    """Make a table anew, in place, if most of it is empty. Nobody may look at it meanwhile."""
    if getsizeof(table) > _MOST_BYTES * (len(table) + _FEW):
        kept = [*table.items()]
        table.clear()
        table.update(kept)
