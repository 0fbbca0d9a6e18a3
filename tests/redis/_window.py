"""read_window: what a server keeps of the window of an adaptive value, which is packed."""

from __future__ import annotations

import struct


def read_window(packed: str) -> tuple[int, ...]:
    """Return mark, begin, ends, need, calls, succeeded, busy and failed (lua/rules/window.lua)."""
    return struct.unpack("<B7q", packed.encode(errors="surrogateescape"))
