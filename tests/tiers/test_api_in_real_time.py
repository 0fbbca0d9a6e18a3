"""An API's limits, shared by several processes, in real time: no window is above a rate.

How much of the budget is used is for benchmarks to measure: here the machine may be busy.
"""

from __future__ import annotations

import pytest
from benchmarks._api_limits import REQUESTS, TOKENS, run
from benchmarks._windows import fullest_window
from tests.redis._server import Server

pytestmark = pytest.mark.soak


@pytest.mark.timeout(120)
def test_no_window_is_above_the_rates_of_a_server(server: Server) -> None:
    """The benchmark, shorter: what the server writes down itself, in its order."""
    done = run(server.port, 1.0, "ours")
    for name, rate in (("requests", REQUESTS), ("tokens", TOKENS)):
        assert fullest_window(done["taken"][name], rate.count / rate.per, rate.burst) <= 1.0
    assert sum(each.units for each in done["taken"]["requests"]) == done["requested"]
