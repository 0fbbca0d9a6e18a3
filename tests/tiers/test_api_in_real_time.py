"""An API's limits, shared by several processes, in real time: no window is above a rate.

How much of the budget is used is for benchmarks to measure: here the machine may be busy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from operator import itemgetter
from pathlib import Path

import pytest
from benchmarks._api_limits import REQUESTS, TOKENS, run
from benchmarks._windows import Taken, fullest_window
from tests.redis._server import Server
from tests.tiers import _api_worker


def test_no_window_is_above_the_rates_of_a_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.tiers._api_worker", f"process://{tmp_path}", "1.0"]
    processes = [
        subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE) for seed in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    # One that reads a snapshot of the file doesn't see what led to it, a refund for instance. What
    # is done is seen by whoever does it.
    taken: Counter[tuple[float, int, bool, int]] = Counter()
    for output in outputs:
        taken |= Counter(map(tuple, json.loads(output)))
    for tier, rate in ((1, _api_worker.REQUESTS), (2, _api_worker.TOKENS)):
        of_tier = [
            Taken(at, units, grant)
            for at, units, grant, where in sorted(taken.elements(), key=itemgetter(0))
            if where == tier
        ]
        assert of_tier
        assert fullest_window(of_tier, rate.count / rate.per, rate.burst) <= 1.0


@pytest.mark.timeout(120)
def test_no_window_is_above_the_rates_of_a_server(server: Server) -> None:
    """The benchmark, shorter: what the server writes down itself, in its order."""
    done = run(server.port, 1.0, "ours")
    for name, rate in (("requests", REQUESTS), ("tokens", TOKENS)):
        assert fullest_window(done["taken"][name], rate.count / rate.per, rate.burst) <= 1.0
    assert sum(each.units for each in done["taken"]["requests"]) == done["requested"]
