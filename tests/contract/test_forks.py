"""A fork amid busy threads: the child finds every lock free and every timer running."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import _fresh_processes
from tests.redis._server import Server

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]


def fork_amid_busy_threads(folder: Path, server: Server, children: int) -> None:
    program = [sys.executable, "-m", "tests.contract._forks"]
    done = _fresh_processes.run(
        [*program, str(folder), server.url, str(children)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    # Nothing failed aside either: no timer, no thread, no renewal.
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_children_forked_amid_busy_threads_can_use_all_drivers(
    tmp_path: Path, server: Server
) -> None:
    fork_amid_busy_threads(tmp_path / "slots", server, 600)
