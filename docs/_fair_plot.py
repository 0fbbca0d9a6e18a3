"""Draw fair-between-tenants.svg: how long small tenants wait behind a large one, FIFO and fair.

Run it to write the picture anew; a test compares the two. Nothing is measured: the ledger decides
who is next, and the time is counted by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slotwise._ledger.path_nodes import PathClaim
from slotwise._ledger.paths import PathLedger

SLOTS = 4
CROWD = 240  # requests of tenant A, all at once
SECONDS = 60  # for so long, B asks every 3 s
EVERY = 3

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 300, 56, 24, 16, 48


def waits(*, fair: bool) -> list[tuple[int, int]]:
    """When B asked, and how long it waited; each request holds its slot for a second."""
    ledger: PathLedger[PathClaim] = PathLedger((0, SLOTS), fair_by=0 if fair else None)
    asked: dict[object, int] = {}
    waited: dict[object, int] = {}
    until: dict[object, int] = {}

    def note(granted: Sequence[PathClaim], now: int) -> None:
        for claim in granted:
            waited[claim.key] = now - asked[claim.key]
            until[claim.key] = now + 1

    def ask(tenant: str, number: int, now: int) -> None:
        claim = PathClaim((tenant, number))
        asked[claim.key] = now
        note(ledger.request(claim, (tenant, None), float(now)), now)

    for number in range(CROWD):
        ask("a", number, 0)
    now = 0
    while ledger.holders:
        if now and now <= SECONDS and now % EVERY == 0:
            ask("b", now, now)
        now += 1
        for key in [key for key, end in until.items() if end == now]:
            del until[key]
            note(ledger.release(key, float(now)), now)
    return [(number, waited["b", number]) for number in range(EVERY, SECONDS + 1, EVERY)]


def draw() -> str:
    """Return the picture as SVG."""
    series = {"FIFO": waits(fair=False), "fair": waits(fair=True)}
    most = max(wait for points in series.values() for _, wait in points)

    def at(second: float, wait: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * second / SECONDS
        return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * wait / most

    colours = {"FIFO": "#c0392b", "fair": "#1f6fb2"}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        '<g font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for second in range(0, SECONDS + 1, 10):
        x, y = at(second, 0)
        lines.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{second}</text>')
    for wait in range(0, most + 1, 10):
        x, y = at(0, wait)
        end = at(SECONDS, wait)[0]
        lines.append(f'<path d="M{x:.1f} {y:.1f}H{end:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{wait}</text>')
    for number, (name, points) in enumerate(series.items()):
        path = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in points)
        colour, y = colours[name], TOP + 18 * number
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<text x="{WIDTH - 90}" y="{y + 4}" fill="{colour}">{name}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    bottom = f"when B asks: seconds after A queued {CROWD} requests"
    turned = f"translate(16 {HEIGHT / 2:.0f}) rotate(-90)"
    lines += [
        f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{bottom}</text>',
        f'<text transform="{turned}" text-anchor="middle">B waits (s)</text>',
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("fair-between-tenants.svg").write_text(draw())
