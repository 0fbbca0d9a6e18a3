"""A process that is killed in the middle of a change leaves the old state or the new one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import _fresh_processes

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]


def crashes(directory: Path, verb: str) -> list[dict[str, Any]]:
    directory.mkdir(mode=0o700)
    done = _fresh_processes.run(
        [sys.executable, "-m", "tests.processes._crash", str(directory), verb],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(each["killed"] for each in seen) >= 8, "every call of the change was a chance to die"
    assert any(each["how"] == "amid" and each["killed"] for each in seen)
    return seen


def in_order(outcomes: list[bool]) -> bool:
    """False until some step, and True from there on."""
    return outcomes == sorted(outcomes)


@pytest.mark.parametrize("verb", ["acquire", "create", "release"])
def test_killed_while_acquiring_or_releasing_takes_nothing(directory: Path, verb: str) -> None:
    for each in crashes(directory, verb):
        # What the dead child held, if anything, is free again; the rest is as before.
        assert (each["held"], each["value"]) == ((0 if verb == "create" else 1), 3), each


@pytest.mark.parametrize("verb", ["kick", "compact"])
def test_killed_while_freeing_a_slot_has_freed_it_or_not(directory: Path, verb: str) -> None:
    seen = crashes(directory, verb)
    for each in seen:
        assert each["held"] == (1 if each["mine"] else 0), each
    freed = [not each["mine"] for each in seen if each["how"] == "after"]
    assert freed[0] is False
    assert in_order(freed)
    assert seen[-1]["mine"] is False


def test_killed_while_resizing_has_resized_or_not(directory: Path) -> None:
    seen = crashes(directory, "resize")
    assert {(each["mine"], each["held"]) for each in seen} == {(True, 1)}
    resized = [each["value"] == 5 for each in seen if each["how"] == "after"]
    assert {each["value"] for each in seen} == {3, 5}
    assert in_order(resized)
