"""The arguments of clients that learn from what servers answer; they can't learn yet."""

from __future__ import annotations

from slotwise._core.arguments import check_flag, check_seconds


def check_learning(learn: object, max_pause: object) -> None:
    check_seconds("max_pause", max_pause)
    if check_flag("learn", learn):
        raise NotImplementedError(
            "learn=True needs limits that can be paused, which this version doesn't have"
        )
