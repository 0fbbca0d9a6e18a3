"""The trackers with a name whose rates are not full: they outlive the objects of their name.

What was taken of a rate is not forgotten when nobody has an object of the name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise.memory._path_tracker import PathTracker

unfilled: dict[str, PathTracker] = {}  # some are full meanwhile
