"""What tests look at inside a run and its gates; everything else is seen in reports and files."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any

import pytest

from slotwise.purge import Run
from slotwise.purge._files import Files
from slotwise.purge._gates import Gates, WorkerGate
from slotwise.purge._tally import Tally
from slotwise.purge._tree import DirectoryNode
from slotwise.purge._walk import Walker


def queue_of(gate: WorkerGate) -> Sized:
    """Who waits to enter."""
    return gate._waiting


def begin_all(run: Run) -> None:
    """As if every known directory had a worker."""
    run.workers._stack.clear()


def purge_names(run: Run, node: DirectoryNode, names: list[str]) -> Any:
    """Purge these names of a directory as a worker does; return what is left to do."""
    return Files(run, Tally(), Gates(run.gates))._purge(node, names)


def before_entering(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[DirectoryNode, str], object]
) -> None:
    """Call ``act(parent, name)`` right before a worker opens a directory."""
    enter = Walker._enter

    def acting(self: Walker, parent: DirectoryNode, name: str, listings: int) -> Any:
        act(parent, name)
        return enter(self, parent, name, listings)

    monkeypatch.setattr(Walker, "_enter", acting)
