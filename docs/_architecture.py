"""Draw docs/architecture.svg: the layers of the package, narrow at the top.

Run it after a layer has changed: ``python docs/_architecture.py``. A test compares the
picture with what this script draws, and its layers with the import rules.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

# From the top: who is allowed to import what is below, and nothing above.
LAYERS = [
    [("_cli", "the slotwise command")],
    [("web", "a page in the browser")],
    [("_admin", "open what a url names, look at its limits, steer them")],
    [("purge", "delete old files")],
    [("integrations", "functions, web servers, HTTP clients, task queues, tests")],
    [("tiers", "several limits at one instant"), ("pipeline", "bounded work")],
    [("_urls", "semaphore(name, value, url)"), ("_bounded", "a guard of memory, a loop thread")],
    [
        ("memory", "tasks and threads"),
        ("processes", "one machine"),
        ("redis", "a fleet"),
        ("effects", "virtual time"),
    ],
    [("_wait", "lock, clock, alarms, wakers")],
    [("_ledger", "who gets a slot: the rules")],
    [("instrumentation", "hooks, metrics")],
    [("_core", "interfaces, results, checks, messages")],
    [("errors", "every exception")],
]

_WIDTH, _HEIGHT, _GAP = 760, 50, 10
_FILLS = {"_ledger": "#fde9c9", "memory": "#dbe9fb", "processes": "#dbe9fb", "redis": "#dbe9fb"}


def draw() -> str:
    rows = []
    for level, layer in enumerate(LAYERS):
        y = _GAP + level * (_HEIGHT + _GAP)
        width = (_WIDTH - _GAP * (len(layer) + 1)) / len(layer)
        for place, (name, words) in enumerate(layer):
            x = _GAP + place * (width + _GAP)
            fill = _FILLS.get(name, "#f1f1f1")
            middle = x + width / 2
            size = f'width="{width:.0f}" height="{_HEIGHT}"'
            rows += [
                f'<rect x="{x:.0f}" y="{y}" {size} rx="6" fill="{fill}" stroke="#888"/>',
                f'<text x="{middle:.0f}" y="{y + 21}" font-weight="bold">{escape(name)}</text>',
                f'<text x="{middle:.0f}" y="{y + 39}" font-size="12">{escape(words)}</text>',
            ]
    height = _GAP + len(LAYERS) * (_HEIGHT + _GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        ' font-family="sans-serif" font-size="15" text-anchor="middle" fill="#222">'
        "<title>The layers of slotwise: each imports only what is below it</title>"
    )
    return "\n".join([head, *rows, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("architecture.svg").write_text(draw())
