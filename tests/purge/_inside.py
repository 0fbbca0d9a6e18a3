"""What tests look at inside a run and its gates; everything else is seen in reports and files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slotwise.purge._tree import DirectoryNode
from slotwise.purge._walk import Walker


def before_entering(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[DirectoryNode, str], object]
) -> None:
    """Call ``act(parent, name)`` right before a worker opens a directory."""
    enter = Walker._enter

    def acting(self: Walker, parent: DirectoryNode, name: str, listings: int) -> Any:
        act(parent, name)
        return enter(self, parent, name, listings)

    monkeypatch.setattr(Walker, "_enter", acting)
