"""Random trees and random flags: a dry run, a real run and an obvious model agree."""

from __future__ import annotations

import json
import math
import os
import random
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from tests._effort import TIMES

from slotwise.purge import _walk, _workers, purge

OLD, DEEPEST = 1_000_000_000, 4
NAMES = ("a", "b", "c", "keep", "keep.log", "x.log", "y.log", "z")
KINDS = ("old", "old", "old", "new", "link", "fifo")
COUNTS = ("files_scanned", "files_to_purge", "files_purged", "dirs_scanned", "empty_dirs_deleted")
SKIPPED = ("symlinks_skipped", "special_files_skipped")


def random_tree(dice: random.Random, depth: int = 1) -> dict[str, Any]:
    """Names to kinds of files, or to further trees; many directories have nothing in them."""
    tree: dict[str, Any] = {}
    for name in dice.sample(NAMES, dice.choice((0, 1, 2, 4, 6))):
        if depth < DEEPEST and dice.random() < 0.6:
            tree[name] = random_tree(dice, depth + 1)
        else:
            tree[name] = dice.choice(KINDS)
    return tree


def random_flags(dice: random.Random) -> dict[str, Any]:
    return {
        "remove_empty_dirs": dice.random() < 0.8,
        "min_depth": dice.choice((0, 0, 0, 1, 2, 3)),
        "include": dice.choice(((), (), ("*.log",), ("a/*", "?"))),
        "exclude": dice.choice(((), (), ("keep*",), ("a/b",), ("b", "c/*.log"))),
        "max_empty_dirs_to_delete": dice.choice((0, 0, 1, 3)),
        "max_files_to_delete": dice.choice((0, 0, 0, 2)),
        "max_concurrency_scanning": dice.choice((1, 2, 100)),
        "max_concurrency_deletion": dice.choice((1, 2, 100)),
    }


def plant(tree: dict[str, Any], at: Path, outside: Path) -> None:
    at.mkdir()
    for name, what in tree.items():
        path = at / name
        if isinstance(what, dict):
            plant(what, path, outside)
        elif what == "link":
            path.symlink_to(outside)
        elif what == "fifo":
            os.mkfifo(path)
        else:
            path.write_bytes(b"x")
            if what == "old":
                os.utime(path, (OLD, OLD))


@dataclass
class Model:
    """What goes without any cap, by the letter of the rules."""

    flags: dict[str, Any]
    files: set[str] = field(default_factory=set)
    directories: set[str] = field(default_factory=set)

    def means(self, which: str, path: str) -> bool:
        # The patterns above have at most one slash, and "*" nothing to stop at.
        return any(
            fnmatchcase(path if "/" in pattern else path.rpartition("/")[2], pattern)
            and ("/" not in pattern or path.count("/") == pattern.count("/"))
            for pattern in self.flags[which]
        )

    def goes(self, tree: dict[str, Any], below: str = "", depth: int = 0) -> bool:
        """Whether a directory goes; what goes in it is noted."""
        stays = not self.flags["remove_empty_dirs"] or depth < max(1, self.flags["min_depth"])
        for name, what in tree.items():
            path = f"{below}{name}"
            if self.means("exclude", path):
                stays = True
            elif isinstance(what, dict):
                if not self.goes(what, f"{path}/", depth + 1):
                    stays = True
            elif (
                what == "old"
                and depth + 1 >= self.flags["min_depth"]
                and (not self.flags["include"] or self.means("include", path))
            ):
                self.files.add(path)
            else:
                stays = True
        if not stays:
            self.directories.add(below.rstrip("/"))
        return not stays


def paths_in(root: Path) -> set[str]:
    found = set()
    for at, directories, files in os.walk(root):
        found |= {os.path.relpath(os.path.join(at, name), root) for name in directories + files}  # noqa: PTH118
    return found


@pytest.mark.parametrize("workers", [1, 8], ids=["one worker", "a crowd"])
@pytest.mark.parametrize("audited", [False, True], ids=["plain", "audited"])
def test_a_dry_run_a_real_run_and_the_model_agree(
    tmp_path: Path, outside: Path, monkeypatch, workers_of, workers: int, audited: bool
) -> None:
    workers_of(workers)
    for seed in range(20 * TIMES):
        dice = random.Random(f"{seed} {workers} {audited}")
        tree, flags = random_tree(dice), random_flags(dice)
        monkeypatch.setattr(_workers, "_SMALLEST_STACK", dice.choice((1, 2, 4, 1024)))
        monkeypatch.setattr(_workers, "_STACK_PER_WORKER", 0)
        monkeypatch.setattr(_walk, "BATCH", dice.choice((1, 3, 1000)))
        root, audit = tmp_path / f"{seed}", tmp_path / f"{seed}.audit"
        plant(tree, root, outside)
        before = paths_in(root)
        dry = purge(root, dry_run=True, **flags).as_dict()
        assert paths_in(root) == before
        real = purge(root, audit=audit if audited else None, **flags).as_dict()
        gone = before - paths_in(root)
        model = Model(flags)
        model.goes(tree)
        context = (seed, tree, flags)

        assert gone <= model.files | model.directories, context
        assert real["errors"] == dry["errors"] == {}, context
        files, directories = gone & model.files, gone & model.directories
        assert real["files_purged"] == real["bytes_freed"] == len(files), context
        assert real["empty_dirs_deleted"] == len(directories), context
        most_files, most_directories = (
            flags["max_files_to_delete"],
            flags["max_empty_dirs_to_delete"],
        )
        assert len(files) == min(len(model.files), most_files or math.inf), context
        # A cap of files decides by chance which directories become empty.
        if not most_files:
            most = min(len(model.directories), most_directories or math.inf)
            assert len(directories) == most, context
            assert [dry[count] for count in (*COUNTS, *SKIPPED)] == [
                real[count] for count in (*COUNTS, *SKIPPED)
            ], context
        if audited:
            lines = [json.loads(line) for line in audit.read_text().splitlines()]
            assert {os.path.relpath(line["path"], root) for line in lines} == gone, context
            assert len(lines) == len(gone), context
    assert (outside / "precious").exists()
