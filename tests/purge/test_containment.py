"""Directories and roots that are moved during the walk; directories too deep for a path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.purge import _inside

from slotwise.purge import purge

LONG_NAME = "n" * 200
LEVELS = 30  # 6,000 characters: more than a path may have


@pytest.fixture
def before_entering(monkeypatch):
    """Do something right before a worker opens the directory of a certain depth."""

    def arrange(depth: int, act) -> None:
        def at_that_depth(parent, _) -> None:
            if parent.depth + 1 == depth:
                act()

        _inside.before_entering(monkeypatch, at_that_depth)

    return arrange


def chain(root: Path) -> None:
    """Directories with long names, and an old file in the last of them."""
    fd = os.open(root, os.O_RDONLY)
    for level in range(LEVELS):
        name = f"top{level}" if not level else LONG_NAME
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("old", os.O_CREAT, dir_fd=fd))
    os.utime("old", (1, 1), dir_fd=fd)
    os.close(fd)


def has_old_file(top: Path) -> bool:
    return any("old" in files for _, _, files, _ in os.fwalk(top))


def test_directories_too_deep_for_a_path_are_purged(root) -> None:
    chain(root)
    report = purge(root, remove_empty_dirs=True)
    assert (report.files_purged, report.empty_dirs_deleted, report.errors) == (1, LEVELS, {})


def test_one_too_deep_for_a_path_is_not_entered_once_an_ancestor_was_moved_out(
    root, outside, before_entering
) -> None:
    chain(root)
    before_entering(LEVELS, lambda: (root / "top0").rename(outside / "top0"))
    report = purge(root, remove_empty_dirs=True)
    assert has_old_file(outside / "top0")
    assert report.errors == {"ESTALE": 1}


def test_a_root_that_is_renamed_is_purged_all_the_same(root, old, before_entering) -> None:
    old(root / "a" / "b" / "x")
    before_entering(2, lambda: root.rename(root.parent / "renamed"))
    report = purge(root, remove_empty_dirs=True)
    assert (report.files_purged, report.empty_dirs_deleted, report.errors) == (1, 2, {})
    assert list((root.parent / "renamed").iterdir()) == []


def test_what_was_moved_to_the_old_name_of_a_renamed_root_is_not_below_it(
    root, old, before_entering
) -> None:
    old(root / "a" / "b" / "x")
    renamed = root.parent / "renamed"

    def take_its_place() -> None:
        root.rename(renamed)
        root.mkdir()
        (renamed / "a").rename(root / "a")

    before_entering(2, take_its_place)
    report = purge(root, remove_empty_dirs=True)
    assert (root / "a" / "b" / "x").exists()
    assert report.errors == {"ESTALE": 1}
