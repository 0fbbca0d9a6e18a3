"""What an adapter says when its framework is not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Wrap the imports of a framework: say how to install it if it is missing."""
    with needs(f"'slotwise[{name}]'"):
        yield


@contextlib.contextmanager
def needs(packages: str) -> Iterator[None]:
    """The same for packages that no extra has, as ``pip install`` takes them."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{error}: this adapter needs more packages, pip install {packages}",
            name=error.name,
        ) from error
