"""A folder for each test, and workers that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.redis._client import Worker

from slotwise.processes import ProcessSemaphore
from slotwise.processes import _process as process_module


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "slots"
    yield folder
    process = process_module._processes.get(folder)
    if process is not None:  # or hundreds of tests would have their files open
        for room in list(process.rooms.values()):
            process.retire(room)


@pytest.fixture
def make(folder: Path) -> Callable[..., ProcessSemaphore]:
    def make(value: int = 1, **options: Any) -> ProcessSemaphore:
        return ProcessSemaphore(value=value, directory=folder, **{"name": "s", **options})

    return make


@pytest.fixture
def worker(folder: Path) -> Iterator[Callable[..., Worker]]:
    """Starts processes that do what they are told, and ends them after the test."""
    with ExitStack() as running:

        def start(value: int = 1, **options: Any) -> Worker:
            options = {"name": "s", "value": value, "directory": str(folder), **options}
            return running.enter_context(Worker(module="tests.processes._worker", **options))

        yield start
