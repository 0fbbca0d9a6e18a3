"""What messages are made of: amounts, times, who somebody is, and what to type next."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Collection

from slotwise._core.redaction import redact
from slotwise._core.stats import Claimant


def command_hint(*words: str, url: str | None) -> str:
    """Return what to type to run a command at the place that ``--url`` named."""
    if url is not None:
        has_password = "@" in url or redact(url) != url
        words += ("--url", "..." if has_password else url)
    return shlex.join(["slotwise", *words])


def similar(wanted: str, known: Collection[str]) -> str:
    """Return ``; did you mean 'api'?``, or nothing."""
    from difflib import get_close_matches  # rarely needed, and slow to import

    near = get_close_matches(wanted, known, n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def describe_claimant(claimant: Claimant) -> str:
    """Return how messages name a holder or waiter."""
    if claimant.pid is None:
        return claimant.acquisition_id
    words = f"pid {claimant.pid}" + ("" if claimant.host == host() else f" on {claimant.host}")
    return f"{words} {claimant.label!r}" if claimant.label else words


def host() -> str:
    """Return the name of this machine, as claimants have it."""
    return socket.gethostname().replace(" ", "_")


def count(number: int, what: str) -> str:
    """Return ``1 slot`` or ``2 slots``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def units(left: float) -> str:
    """Return what is left of a rate as text: 12, 0.4 or -19.9."""
    return f"{round(left, 1) + 0.0:.1f}".removesuffix(".0")  # + 0.0: not -0


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``3 min``, ``2 h 05``, ``4 d 3 h``."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60:02}"
    return f"{hours // 24} d {hours % 24} h"
