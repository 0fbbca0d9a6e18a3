"""Names that change all the time leave nothing behind, on all drivers together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.redis._server import Server
from tests.soak._seconds import SECONDS
from tests.soak._stage import ROOT

IDLE = 60  # after which a name is forgotten, files and keys too


@pytest.mark.soak
@pytest.mark.timeout(10 * SECONDS + 120)
def test_nothing_grows_while_names_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = 5 * SECONDS
    with Server(tmp_path / "server") as server:
        arguments = [server.url, str(tmp_path / "files"), str(seconds)]
        program = [sys.executable, "-m", "tests.soak._changing_names", *arguments]
        done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    sizes = [json.loads(line) for line in done.stdout.splitlines()]
    settled = next(size for size in sizes if size["at"] > min(0.5 * seconds, 2 * IDLE))
    with capsys.disabled():
        print("\nchanging names", settled, sizes[-1], sep="\n    ")  # noqa: T201
    assert {size["keys without expiry"] for size in sizes} == {0}
    watched = ["descriptors", "threads"]
    if settled["at"] > 1.5 * IDLE:  # the first ones have been forgotten
        watched += ["resident KiB", "files", "keys"]
    rates = [size["names"] / size["at"] for size in (settled, sizes[-1])]
    faster = max(1.0, rates[1] / rates[0])  # a machine that is less busy has more names a minute
    grown = {
        what: (settled[what], sizes[-1][what])
        for what in watched
        if sizes[-1][what] > 1.1 * faster * settled[what] + 10
    }
    assert grown == {}
