"""``slotwise export``, scraped over HTTP."""

from __future__ import annotations

import re
import signal
import socket
from http.client import HTTPConnection
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cli._shell import Shell, end, line_of, until
from tests.redis._server import Server

from slotwise import Rate, Tier, Tiers, semaphore
from slotwise._admin.backends import open_backend
from slotwise._cli.export import render

pytestmark = pytest.mark.timeout(60)


def scrape(url: str) -> dict[tuple[str, ...], float]:
    with urlopen(url, timeout=30) as reply:
        text = reply.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_shows_what_all_processes_hold(any_shell: Shell) -> None:
    hostile = 'api"\\ {x="1"}'
    limit = semaphore(hostile, 3, any_shell.url)
    scope = "redis" if "redis" in any_shell.url else "process"
    with limit.cm(2):
        process = any_shell.start("export", "--port", "0")
        url = re.findall(r"http://\S+", line_of(process))[0]
        seen = scrape(url)
        assert seen["slotwise_limit", hostile, scope, ""] == 3
        assert seen["slotwise_held", hostile, scope, ""] == 2
        assert seen["slotwise_waiting", hostile, scope, ""] == 0
        assert seen["slotwise_paused", hostile, scope, ""] == 0
        assert seen["slotwise_frozen", hostile, scope, ""] == 0
        assert seen["slotwise_up",] == 1
        with pytest.raises(HTTPError) as refused:
            urlopen(url.replace("/metrics", "/"), timeout=30)
        refused.value.close()
        assert refused.value.code == 404
        process.send_signal(signal.SIGTERM)
        assert end(process)[0] == 0


def test_a_rate_has_families_of_its_own_and_no_slots(any_shell: Shell) -> None:
    rates = (Tier("tokens", rate=Rate(10, per=5, burst=100)),)
    rates += (Tier("user", rate=Rate(1, per=3600, burst=9), keyed=True),)
    tiers = Tiers(*rates, Tier("all", 3), name="api", url=any_shell.url)
    scope = "redis" if "redis" in any_shell.url else "process"
    with tiers.cm(user="ann", costs={"user": 5}) as acquired:
        tiers.settle_sync(acquired, tokens=10_000, user=11)  # more than it asked for: debt
        seen = {}
        for line in render(open_backend(any_shell.url)).splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                seen[name] = float(value)
    labels = {tier: f'{{name="api",scope="{scope}",tier="{tier}"}}' for tier in ("tokens", "user")}
    assert [name for name in seen if "limit{" in name and "rate" not in name] == [
        f'slotwise_limit{{name="api",scope="{scope}",tier="all"}}'
    ]
    assert not any(f"slotwise_held{each}" in seen for each in labels.values())
    assert seen[f"slotwise_rate_limit{labels['tokens']}"] == 2
    assert seen[f"slotwise_rate_burst{labels['tokens']}"] == 100
    assert seen[f"slotwise_rate_level{labels['tokens']}"] < 0
    assert seen[f"slotwise_rate_burst{labels['user']}"] == 9
    assert -2 <= seen[f"slotwise_rate_level{labels['user']}"] < -1  # of its emptiest key


def test_on_loopback_only_requests_for_loopback_are_answered(shell: Shell) -> None:
    process = shell.start("export", "--port", "0")
    url = re.findall(r"http://\S+", line_of(process))[0]
    port = urlsplit(url).port
    for host, code in {
        f"LOCALHOST:{port}": 200,
        "127.0.0.1": 200,
        "[::1]:9184": 200,
        f"rebound.example:{port}": 403,
        "127.0.0.1.example": 403,
        "[": 403,
        "": 403,
    }.items():
        connection = HTTPConnection("127.0.0.1", port or 0, timeout=30)
        connection.request("GET", "/metrics", headers={"Host": host})
        reply = connection.getresponse()
        assert (host, reply.status) == (host, code)
        assert (b"slotwise_up" in reply.read()) == (code == 200)
        connection.close()


@pytest.mark.soak
def test_a_scrape_of_a_server_is_one_script_and_no_scan(redis_shell: Shell, server: Server) -> None:
    # A name that no other test uses: this process would not note it again for half a minute.
    redis_shell.occupy("scraped")
    process = redis_shell.start("export", "--port", "0")
    url = re.findall(r"http://\S+", line_of(process))[0]
    with server.client(decode_responses=True) as client:
        until(lambda: client.exists("adv-sem:names"), "the note of the name")
        client.config_resetstat()
        assert scrape(url)["slotwise_held", "scraped", "redis", ""] == 1
        stats = client.info("commandstats")
    assert "cmdstat_scan" not in stats
    # A heartbeat of the holder may come between.
    assert stats["cmdstat_evalsha"]["calls"] <= 2  # type: ignore[index]


def test_a_port_that_is_taken_is_one_line_and_exit_1(shell: Shell) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        ran = shell.here("export", "--port", listening.getsockname()[1])
    assert ran.returncode == 1
    assert "can't listen" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
