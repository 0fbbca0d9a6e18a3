"""A directory for each test, and workers that use it."""

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
def directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "slots"
    yield directory
    process = process_module._processes.get(directory)
    if process is not None:  # or hundreds of tests would have their files open
        for file in list(process.files.values()):
            if not process.retire(file):  # it is held: nobody is to look after it any more
                file.abandon()
                process.files.pop(file.claims.key, None)


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
