"""Many processes, few slots; what happened is counted by nobody but the test."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from slotwise import SemaphoreStats
from slotwise.processes import ProcessSemaphore

ROOT = Path(__file__).parents[2]

PROCESSES, ROUNDS, VALUE = 8, 200, 3


def test_never_over_the_value_and_tokens_in_order(directory: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.processes._storm", str(directory)),
            *map(str, (PROCESSES, ROUNDS, VALUE)),
        ],
        cwd=ROOT,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0
    log = [
        json.loads(line)
        for path in directory.parent.glob("log-*")
        for line in path.read_text().splitlines()
    ]
    assert len(log) == PROCESSES * ROUNDS

    # A stay began when it was had and ended when it was about to be given back.
    comings = [(had, 1) for _, had, _, _, _ in log]
    goings = [(gave, -1) for _, _, gave, _, _ in log]
    inside = most = 0
    for _, step in sorted(comings + goings):
        inside += step
        most = max(most, inside)
    assert most == VALUE

    # No two had the same slot at once.
    for number in range(1, VALUE + 1):
        stays = sorted((had, gave) for _, had, gave, _, slot in log if slot == number)
        assert all(gave <= had for (_, gave), (had, _) in pairwise(stays))

    # Who called when another had its slot already has a larger token.
    by_token = sorted(log, key=lambda stay: stay[3])
    assert len({stay[3] for stay in log}) == len(log)
    latest_call = 0
    for called, had, _, _, _ in by_token:
        assert had > latest_call, "it was had before an earlier token was called for"
        latest_call = max(latest_call, called)

    assert ProcessSemaphore.existing("s", directory=directory).stats_sync() == SemaphoreStats(
        0, VALUE
    )
