"""How a process finds out that its file was deleted or replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwise.processes._directory import OpenDirectory
from slotwise.processes._locked_file import LockedFile


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def file(directory: Path) -> Iterator[LockedFile]:
    opened = LockedFile(OpenDirectory(directory), "s.slots", 1)
    opened.open(create=True)
    yield opened
    opened.close()
    opened.directory.close()


def deleted(path: Path) -> None:
    path.unlink()


def deleted_and_created(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.touch()


def replaced(path: Path) -> None:
    (path.parent / "other").touch()
    (path.parent / "other").rename(path)


def directory_moved(path: Path) -> None:
    path.parent.rename(path.parent.parent / "moved")


def directory_replaced(path: Path) -> None:
    directory_moved(path)
    path.parent.mkdir(mode=0o700)
    path.touch()


@pytest.mark.parametrize(
    "displace", [deleted, deleted_and_created, replaced, directory_moved, directory_replaced]
)
def test_whatever_displaces_the_file_is_noticed_at_once(
    file: LockedFile, displace: Callable[[Path], None]
) -> None:
    assert file.is_in_place()
    displace(Path(file.path))
    assert not file.is_in_place()
