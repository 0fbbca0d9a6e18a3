"""Outcomes: how the work under a slot of an adaptive limit ended, as its holder says.

What a limit does with it is in `slotwise._ledger.adaptation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotwise._core.adaptive import Adaptive, Outcome
from slotwise._core.arguments import check_seconds

if TYPE_CHECKING:
    from slotwise._core.events import Pause
    from slotwise._core.paths import Path, TierSpec


class Outcomes:
    """How the work under one acquisition ends: "ok" unless its holder states something else."""

    __slots__ = ("options", "outcome", "retry_after")

    def __init__(self, options: Adaptive) -> None:
        self.options = options  # those of the limit that was asked
        self.outcome: Outcome = "ok"
        self.retry_after = 0.0  # in seconds

    def drop(self, retry_after: float | None) -> None:
        self.retry_after = check_seconds("retry_after", retry_after, zero=True) or 0.0
        self.outcome = "dropped"

    @property
    def pauses_for(self) -> float:
        """For how many seconds the service asked that nothing be granted."""
        is_asked = self.options.pause_on_retry_after and self.outcome == "dropped"
        return self.retry_after if is_asked else 0.0

    def leave_with(self, exc_type: type[BaseException] | None) -> None:
        # What the caller stated counts more than what happened afterwards.
        if exc_type is not None and self.outcome == "ok":
            self.outcome = outcome_of(exc_type, self.options.drop_on)


def asked_pauses(
    outcomes: Outcomes | None, specs: Sequence[TierSpec] = (), path: Path = ()
) -> Sequence[Pause]:
    """Return what is paused because the service of an acquisition has asked for it."""
    seconds = 0.0 if outcomes is None else outcomes.pauses_for
    if not seconds:
        return ()
    if not specs:
        return [(seconds, None, None)]
    from slotwise._core.paths import pausing  # a semaphore doesn't need it

    return [(seconds, specs[index].name or None, key) for index, key in pausing(specs, path)]


# For a limit that was found by its name, whose options are unknown: the default errors are drops.
UNKNOWN_OPTIONS = Adaptive(1, 1, 1)


def outcome_of(
    exc_type: type[BaseException] | None, drop_on: tuple[type[BaseException], ...]
) -> Outcome:
    """Return how a block ended that was left with this exception, or normally."""
    if exc_type is None:
        return "ok"
    return "dropped" if issubclass(exc_type, drop_on) else "ignored"


def not_replaceable(title: str) -> TypeError:
    return TypeError(f"{title} is adaptive: on_full='replace' can't be used with it")


def too_many_for_adaptive(title: str, slots: int, options: Adaptive) -> ValueError:
    """Return the error of a request that a falling value might leave waiting forever."""
    return ValueError(
        f"{title} may fall to {options.min} slots: {slots} at once might never be granted"
    )
