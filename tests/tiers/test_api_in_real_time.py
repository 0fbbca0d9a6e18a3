"""An API's limits, shared by several processes, in real time: no window is above a rate.

How much of the budget is used is for benchmarks to measure: here the machine may be busy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
from benchmarks._api_limits import REQUESTS, TOKENS, run
from benchmarks._windows import Taken, fullest_window
from tests import _fresh_processes
from tests.redis._server import Server
from tests.tiers import _api_worker

pytestmark = pytest.mark.soak

Change = tuple[float, int, bool, int]  # when, units, whether by a grant, tier


def test_no_window_is_above_the_rates_of_a_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.tiers._api_worker", f"process://{tmp_path}", "1.0"]
    processes = [
        _fresh_processes.Popen([*command, str(seed)], stdout=subprocess.PIPE) for seed in range(3)
    ]
    histories = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    taken = _put_together(histories)
    for tier, rate in ((1, _api_worker.REQUESTS), (2, _api_worker.TOKENS)):
        of_tier = [Taken(at, units, grant) for at, units, grant, where in taken if where == tier]
        assert of_tier
        assert fullest_window(of_tier, rate.count / rate.per, rate.burst) <= 1.0


def _put_together(histories: list[list[Change]]) -> list[Change]:
    """Return what all processes have done, in the order in which it was done.

    A process that reads a snapshot of the file doesn't see what led to it, a refund for instance.
    But whatever is done at one time is done by one process, which sees all of it, in its order.
    """
    at_once: dict[float, list[Change]] = {}
    for history in histories:
        for at, changes in groupby(history, key=itemgetter(0)):
            at_once[at] = max(at_once.get(at, []), list(changes), key=len)
    return [change for at in sorted(at_once) for change in at_once[at]]


def test_what_is_done_at_one_time_is_put_together_in_its_order() -> None:
    grant, refund, later = (1.0, 46, True, 2), (1.0, -46, False, 2), (2.0, 1, True, 2)
    read_a_snapshot = [grant, later]
    did_it = [grant, refund, grant]
    assert _put_together([read_a_snapshot, did_it]) == [grant, refund, grant, later]


@pytest.mark.timeout(120)
def test_no_window_is_above_the_rates_of_a_server(server: Server) -> None:
    """The benchmark, shorter: what the server writes down itself, in its order."""
    done = run(server.port, 1.0, "ours")
    for name, rate in (("requests", REQUESTS), ("tokens", TOKENS)):
        assert fullest_window(done["taken"][name], rate.count / rate.per, rate.burst) <= 1.0
    assert sum(each.units for each in done["taken"]["requests"]) == done["requested"]
