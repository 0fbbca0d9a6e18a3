"""Outcomes: how the work under a slot of an adaptive limit ended, as its holder says.

What a limit does with it is in `slotwise._ledger.adaptation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotwise._core.adaptive import Adaptive, Outcome, check_outcome
from slotwise._core.arguments import check_seconds
from slotwise._core.results import AcquisitionResult

if TYPE_CHECKING:
    from slotwise._core.events import Pause
    from slotwise._core.paths import Path, TierSpec

# Empty, since a class can't inherit from two with slots. Not a literal, which mypy would take for
# the only attributes.
_SLOTS_OF_SUBCLASSES: tuple[str, ...] = ()


class Outcomes(AcquisitionResult):
    """A mixin before the acquisitions of adaptive limits; these have the slots."""

    __slots__ = _SLOTS_OF_SUBCLASSES

    outcome: Outcome
    retry_after: float  # in seconds
    options: Adaptive  # those of the limit that was asked

    def _expect_outcome(self, options: Adaptive) -> None:
        """Set the outcome that counts unless somebody states another."""
        self.outcome, self.retry_after, self.options = "ok", 0.0, options

    def dropped(self, *, retry_after: float | None = None) -> None:
        self.retry_after = check_seconds("retry_after", retry_after, zero=True) or 0.0
        self.outcome = "dropped"

    def ignored(self) -> None:
        self.outcome = "ignored"

    def _state_outcome(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self.outcome = check_outcome(outcome)

    @property
    def _pauses_for(self) -> float:
        """For how many seconds the service asked that nothing be granted."""
        is_asked = self.options.pause_on_retry_after and self.outcome == "dropped"
        return self.retry_after if is_asked else 0.0

    def _leave_with(self, exc_type: type[BaseException] | None) -> None:
        # What the caller stated counts more than what happened afterwards.
        if exc_type is not None and self.outcome == "ok":
            self.outcome = outcome_of(exc_type, self.options.drop_on)


def asked_pauses(
    acquisition: object, specs: Sequence[TierSpec] = (), path: Path = ()
) -> Sequence[Pause]:
    """Return what is paused because the service of an acquisition has asked for it."""
    seconds = acquisition._pauses_for if isinstance(acquisition, Outcomes) else 0.0
    if not seconds:
        return ()
    if not specs:
        return [(seconds, None, None)]
    from slotwise._core.paths import pausing  # a semaphore doesn't need it

    return [(seconds, specs[index].name, key) for index, key in pausing(specs, path)]


# The slots of a class that inherits from `Outcomes`.
OUTCOME_SLOTS = ("options", "outcome", "retry_after")

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
