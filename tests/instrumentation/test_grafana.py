"""The dashboard and the alerts ask for what is exported."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from slotwise import MemorySemaphore, Rate, RateLimit
from slotwise._admin.backends import open_backend
from slotwise._cli.export import render
from slotwise.instrumentation.prometheus import Collector
from slotwise.processes import ProcessSemaphore

DOCS = Path(__file__).parents[2] / "docs"
_SERIES = re.compile(r"\b(slotwise_[a-z_]+)(?:\{([^}]*)\})?")


def _exported(folder: Path) -> dict[str, set[str]]:
    """The labels of every series that a program or the exporter has."""
    registry, collector = CollectorRegistry(), Collector()
    registry.register(collector)
    try:
        rate = RateLimit("rate", Rate(1, per=60, burst=1), url=f"process://{folder}")
        with MemorySemaphore(1, name="api"), ProcessSemaphore(1, name="api", directory=folder):
            rate.acquire_sync()
            page = render(open_backend(f"process://{folder}"))
        lines = (generate_latest(registry).decode() + page).splitlines()
    finally:
        collector.close()
    found: dict[str, set[str]] = {}
    for line in lines:
        if not line.startswith("#"):
            name, _, labels = line.partition("{")
            found.setdefault(name.split()[0], set()).update(re.findall(r'(\w+)="', labels))
    return found


def _asked(query: str) -> dict[str, set[str]]:
    """The series in a query, and the labels that it chooses them by."""
    found: dict[str, set[str]] = {}
    for name, labels in _SERIES.findall(query):
        found.setdefault(name, set()).update(re.findall(r"(\w+)[=!]", labels))
    return found


def test_every_query_of_the_dashboard_asks_for_what_is_exported(tmp_path: Path) -> None:
    exported = _exported(tmp_path)
    board = json.loads((DOCS / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in board["templating"]["list"]]
    asked = {name for query in queries for name in _asked(query)}
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in exported}
    assert {re.sub("_bucket$", "", name) for name in asked} == families  # for all of it
    for query in queries:
        for name, labels in _asked(query).items():
            assert labels <= exported[name], query


def test_every_alert_of_the_docs_asks_for_what_is_exported(tmp_path: Path) -> None:
    exported = _exported(tmp_path)
    asked = _asked((DOCS / "operations.md").read_text())
    assert len(asked) > 4
    for name, labels in asked.items():
        assert labels <= exported[name], name
