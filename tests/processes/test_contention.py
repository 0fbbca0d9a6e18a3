"""Many processes and few slots, counted by the test alone."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from tests import _fresh_processes

from slotwise import SemaphoreStats
from slotwise.processes import ProcessSemaphore

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]

PROCESSES, ROUNDS, VALUE = 8, 200, 3


def test_never_over_the_value_and_tokens_in_order(directory: Path) -> None:
    done = _fresh_processes.run(
        [
            *(sys.executable, "-m", "tests.processes._contention", str(directory)),
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

    # A hold lasts from when the caller had it to right before its release.
    starts = [(had, 1) for _, had, _, _, _ in log]
    ends = [(gave, -1) for _, _, gave, _, _ in log]
    inside = most = 0
    for _, step in sorted(starts + ends):
        inside += step
        most = max(most, inside)
    assert most == VALUE

    # No two held the same slot at once.
    for number in range(1, VALUE + 1):
        holds = sorted((had, gave) for _, had, gave, _, slot in log if slot == number)
        assert all(gave <= had for (_, gave), (had, _) in pairwise(holds))

    # A call made after another was granted has a larger token.
    by_token = sorted(log, key=lambda hold: hold[3])
    assert len({hold[3] for hold in log}) == len(log)
    latest_call = 0
    for called, had, _, _, _ in by_token:
        assert had > latest_call, "it was granted before an earlier token was requested"
        latest_call = max(latest_call, called)

    assert ProcessSemaphore.existing("s", directory=directory).stats_sync() == SemaphoreStats(
        0, VALUE
    )
