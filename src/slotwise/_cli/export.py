"""``slotwise export``: serve metrics of limits to Prometheus, as seen from outside.

For fleets whose code can't be changed. What a single process sees of its limits is exported
by `slotwise.instrumentation` in that process, under the same metric names.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from slotwise._admin.backends import Backend, open_backend
from slotwise._admin.hosts import REFUSED, is_ours, own_hosts
from slotwise._admin.snapshot import SharedSnapshot, Survey, survey
from slotwise._admin.tier_view import TierView
from slotwise._cli.flags import HOST, URL, Command, port_flag
from slotwise._cli.output import print_error
from slotwise._cli.signals import handling
from slotwise.errors import SlotwiseError

_FAMILIES = {
    "limit": "How many slots the limit has, each key of a keyed tier; 0 means unlimited",
    "rate_limit": "What comes back of a rate in a second, of each key of a keyed tier",
    "rate_burst": "The most of a rate that is saved up, of each key of a keyed tier",
    "rate_level": "What is left of a rate, of a keyed tier the least of all keys; below 0 is debt",
    "held": "Slots held, by all processes",
    "waiting": "Requests that wait, of all processes",
    "closed": "1 if it is closed everywhere",
    "paused": "1 if it is paused, or a key of the tier is",
    "frozen": "1 if an adaptive value is kept where it is, of a keyed tier also that of one key",
}


def export(given: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    backend = open_backend(given.url)
    try:
        server = _MetricsServer((given.host, given.port), backend)
    except OSError as error:
        print_error("export", f"can't listen at {given.host}:{given.port}: {error.strerror}")
        return 1
    with suppress(SlotwiseError):  # a scrape will report it, and the server may come back
        backend.look()  # now, since the first look at a server searches it for names
    host, number = server.server_address[:2]
    shown = f"[{host!s}]" if ":" in str(host) else host
    thread = threading.Thread(target=server.serve_forever, name="slotwise-export")
    ended = threading.Event()
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    with server, handling(lambda _: ended.set(), *signals):
        thread.start()
        sys.stdout.write(f"serving http://{shown!s}:{number}/metrics (Ctrl-C ends it)\n")
        sys.stdout.flush()
        ended.wait()
        server.shutdown()
        thread.join()
    return 0


class _MetricsServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], backend: Backend) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.page = SharedSnapshot(lambda: render(backend))
        self.hosts = own_hosts(address[0])


class _Handler(BaseHTTPRequestHandler):
    server: _MetricsServer
    server_version = "slotwise"
    sys_version = ""

    def do_GET(self) -> None:
        if not is_ours(self.headers.get("Host", ""), self.server.hosts):
            self.send_error(403, explain=REFUSED)
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = self.server.page.get().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Don't log scrapes, which come every few seconds."""


def render(backend: Backend) -> str:
    """Return the metrics of one snapshot, or ``slotwise_up 0`` if that fails."""
    lines: list[str] = []
    up = False
    try:
        seen = survey(backend)
        series, up = list(_series(seen, backend.scope)), not seen.errors
        for family, words in _FAMILIES.items():
            lines += _head(family, words)
            lines += [
                f"slotwise_{family}{_labels(labels)} {values[family]}"
                for labels, values in series
                if family in values
            ]
    except SlotwiseError as error:
        print_error("export", error)
    lines += [*_head("up", "1 if the limits could be read"), f"slotwise_up {up:d}", ""]
    return "\n".join(lines)


def _series(seen: Survey, scope: str) -> Iterator[tuple[Mapping[str, str], Mapping[str, float]]]:
    for name, stats in sorted(seen.semaphores.items()):
        yield (
            {"name": name, "scope": scope, "tier": ""},
            {
                "limit": stats.max_slots,
                "held": stats.acquired_slots,
                "waiting": stats.waiting,
                "closed": int(stats.closed),
                "paused": int(stats.paused_for > 0),
                "frozen": int(stats.frozen),
            },
        )
    for name, each in sorted(seen.tiers.items()):
        for tier in each.tiers:
            yield (
                {"name": name, "scope": scope, "tier": tier.spec.name},
                _amounts(tier)
                | {
                    "waiting": tier.total.waiting,
                    "closed": int(bool(each.closed)),
                    "paused": int(any(part.paused_for > 0 for part in (tier.total, *tier.keys))),
                    "frozen": int(any(part.frozen for part in (tier.total, *tier.keys))),
                },
            )


def _amounts(tier: TierView) -> dict[str, float]:
    """The value of a tier and what is held of it; or its rate, and what is left of that."""
    counts = tier.total
    rate = counts.rate
    if rate is None:
        return {"limit": counts.value, "held": counts.held}
    levels = [each.level for each in (counts, *tier.keys) if each.level is not None]
    return {
        "rate_limit": rate.count / rate.per,
        "rate_burst": counts.value,
        "rate_level": min(levels, default=counts.value),
    }


def _head(family: str, words: str) -> list[str]:
    return [f"# HELP slotwise_{family} {words}", f"# TYPE slotwise_{family} gauge"]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


COMMANDS = (
    Command(
        "export",
        export,
        HOST,
        port_flag(9184),
        URL,
        details="It serves /metrics and nothing else, at most one snapshot a second, however many\n"
        "scrape it. A key of a tier is never a label: tiers are exported with all their keys\n"
        "together. There is no password: keep it on loopback, where it answers only requests\n"
        "that name a loopback host, or behind a proxy that asks for one.",
        examples="  slotwise export --url redis://cache:6379\n"
        "  slotwise export --port 9200 &  curl -s http://127.0.0.1:9200/metrics",
    ),
)
