"""Trees to purge, always below tmp_path."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from slotwise.purge._scaling import WorkerScaler
from slotwise.purge._workers import Workers

OLD = 1_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory that is purged."""
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside it, with an old file that must survive everything."""
    outside = tmp_path / "outside"
    outside.mkdir()
    precious = outside / "precious"
    precious.write_bytes(b"x")
    os.utime(precious, (OLD, OLD))
    return outside


@pytest.fixture
def old() -> Callable[..., Path]:
    """Make a file, with its directories, that is old."""

    def make(path: Path, size: int = 0) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (OLD, OLD))
        return path

    return make


@pytest.fixture
def new() -> Callable[..., Path]:
    """Make a file, with its directories, that is new."""

    def make(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    return make


@pytest.fixture
def left() -> Callable[[Path], set[str]]:
    """Everything that is below a directory."""

    def names(root: Path) -> set[str]:
        return {str(path.relative_to(root)) for path in root.rglob("*")}

    return names


@pytest.fixture
def workers_of(monkeypatch) -> Callable[[int], None]:
    """Let purges have so many workers all the time.

    From the first moment, too: a small tree is done before the watch has looked once.
    """

    def fix(workers: int) -> None:
        begin = Workers.__init__

        def complete(self, run, most):
            begin(self, run, most)
            self.wanted = min(workers, most)

        monkeypatch.setattr(Workers, "__init__", complete)
        monkeypatch.setattr(WorkerScaler, "look", lambda self, *_, **__: min(workers, self.most))

    return fix


@pytest.fixture(autouse=True)
def no_descriptor_is_left_open(tmp_path: Path) -> Iterator[None]:
    """Of what this test has made: threads of other tests open and close theirs."""
    yield
    left = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - there are hundreds
        with suppress(FileNotFoundError):
            left.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
    assert [path for path in left if path.startswith(str(tmp_path))] == []


@pytest.fixture(autouse=True)
def process_driver_keeps_the_real_os(monkeypatch) -> None:
    """Tests here replace functions of `os`; a driver's thread of an earlier test calls them too."""
    real = types.ModuleType("os")
    real.__dict__.update(os.__dict__)
    for name, module in [*sys.modules.items()]:
        if name.startswith("slotwise.processes.") and getattr(module, "os", None) is os:
            monkeypatch.setattr(module, "os", real)
