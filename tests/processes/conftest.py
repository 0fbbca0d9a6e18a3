"""A directory for each test, and workers that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.redis._client import Worker

from slotwise.processes import ProcessSemaphore


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@pytest.fixture
def make(directory: Path) -> Callable[..., ProcessSemaphore]:
    def make(value: int = 1, **options: Any) -> ProcessSemaphore:
        return ProcessSemaphore(value=value, directory=directory, **{"name": "s", **options})

    return make


@pytest.fixture
def worker(directory: Path) -> Iterator[Callable[..., Worker]]:
    """Return a function that starts workers, which are ended after the test."""
    with ExitStack() as running:

        def start(value: int = 1, **options: Any) -> Worker:
            options = {"name": "s", "value": value, "directory": str(directory), **options}
            return running.enter_context(Worker(module="tests.processes._worker", **options))

        yield start
