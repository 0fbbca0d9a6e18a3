"""Check the Host header: a server on loopback is not for pages of other sites.

A site can make its own host name resolve to 127.0.0.1 (DNS rebinding); its page could then read
whatever is served there. Beyond loopback any name may be ours, so nothing is checked there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

REFUSED = "the Host header doesn't name this server"


def is_loopback(address: str) -> bool:
    if address.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def own_hosts(address: str) -> frozenset[str] | None:
    """Return the hosts that requests to a server at ``address`` may name; None for any."""
    return frozenset({*_LOOPBACK, address.casefold()}) if is_loopback(address) else None


def is_ours(header: str, hosts: Collection[str] | None) -> bool:
    """Whether a Host header names one of ``hosts``, which are in lower case."""
    return hosts is None or (split(f"//{header}").hostname or "").casefold() in hosts


def split(url: str) -> SplitResult:
    """Return the parts of a url; they are empty if it is not one."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
