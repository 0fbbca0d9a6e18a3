"""The named trackers whose rates are not full, or that are paused.

What was taken of a rate, and a pause, must not be forgotten when nobody has an object of the name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise.memory._path_tracker import PathTracker

unfilled: dict[str, PathTracker] = {}  # some are full meanwhile
