"""The paths that middlewares never limit: a service that is full is still healthy."""

from __future__ import annotations

from collections.abc import Collection

from slotwise._core.redaction import redacted_repr

EXEMPT = ("/healthz", "/livez", "/readyz", "/metrics")


def exempt_paths(given: Collection[str]) -> frozenset[str]:
    if isinstance(given, str):
        raise TypeError(f"exempt must be a collection of paths, not the str {redacted_repr(given)}")
    return frozenset(given)
