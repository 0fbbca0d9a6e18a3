"""Overload: which newcomers a limit refuses at once instead of letting them wait.

A request that fits is never refused. Drivers count the waiters in the same step in which a request
would begin to wait; on Redis the scripts do. Nothing here raises, except for wrong arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slotwise._core.arguments import MOST_SLOTS, check_count, check_word


class Overload(NamedTuple):
    """What a limit was made with; each object of a name has its own.

    ``tiers`` has the most that may wait for one key of each tier, None for any number. With
    ``sheds``, callers whose timeout is shorter than the expected wait are refused.
    """

    max_waiting: int | None = None
    tiers: tuple[int | None, ...] = ()
    sheds: bool = False

    def exceeded(self, waiting: int, at_nodes: Sequence[int] = ()) -> int | None:
        """Return how many wait where no more may: everywhere, or at a node; None if one more may.

        ``at_nodes`` are those who wait for each node of the newcomer's path.
        """
        if self.max_waiting is not None and waiting >= self.max_waiting:
            return waiting
        for most, there in zip(self.tiers, at_nodes, strict=False):
            if most is not None and there >= most:
                return there
        return None


def too_late(estimate: float | None, timeout: float | None) -> bool:
    """Return whether a wait is expected to be longer than ``timeout``."""
    return estimate is not None and timeout is not None and estimate > timeout


def overload_of(
    max_waiting: int | None, shed: str | None = None, tiers: Sequence[int | None] = ()
) -> Overload | None:
    """Return what was asked for, checked; None if nobody is to be refused."""
    check_max_waiting(max_waiting)
    sheds = check_shed(shed) is not None
    limited = tuple(tiers) if any(most is not None for most in tiers) else ()
    if max_waiting is None and not sheds and not limited:
        return None
    return Overload(max_waiting, limited, sheds)


def check_shed(given: object) -> str | None:
    """Return "deadline", or None to shed nobody."""
    return None if given is None else check_word("shed", given, ("deadline",), "None")


def check_max_waiting(given: object) -> int | None:
    """Return an int of at least 0, or None for any number."""
    if given is None:
        return None
    return check_count("max_waiting", given, least=0, most=MOST_SLOTS, note=", or None")
