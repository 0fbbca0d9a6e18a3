"""AcquisitionResult: what acquiring returns. What inspecting returns is in `stats`."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from slotwise._core import fork
from slotwise._core.adaptive import Outcome, check_outcome
from slotwise._core.arguments import check_text
from slotwise._core.lost import Lost
from slotwise._core.redaction import kind_of

if TYPE_CHECKING:
    from slotwise._core.outcomes import Outcomes

# Held while a `lost` is made, so that two threads that ask get the same one.
# Re-entrant: a garbage collection in there may ask for another.
_making = fork.new_lock()


class AcquisitionResult:
    """One acquisition: its id, to release it by, and its slot number.

    ``slot_number`` is the lowest number, from 1 to the semaphore's value, that
    was free at the grant; no two holders share one. An acquisition of several
    slots has several numbers, and this is the lowest of them.

    Results are read-only and equal when id and number are.
    """

    # Not a frozen dataclass: drivers make one of these per acquisition, and a
    # frozen dataclass's __init__ costs as much as a whole uncontended acquire.
    # For the same reason the last two are set only when they are needed.
    __slots__ = (
        "_acquisition_id",
        "_elsewhere",
        "_fencing_token",
        "_lost",
        "_slot_number",
        "_waited",
    )
    __match_args__ = ("acquisition_id", "slot_number")

    _scope: ClassVar[str] = "memory"  # of its driver; ``_elsewhere`` has another one

    _acquisition_id: str
    _elsewhere: str
    _slot_number: int
    _fencing_token: int | None
    _lost: Lost
    _waited: float

    # How the work under it ends, for adaptive values: None where the value is fixed. Classes of
    # acquisitions that may have it have a slot for it.
    _outcomes: Outcomes | None = None

    def __init__(
        self,
        acquisition_id: str,
        slot_number: int,
        fencing_token: int | None = None,
        waited: float = 0.0,
    ) -> None:
        self._acquisition_id = acquisition_id
        self._slot_number = slot_number
        self._fencing_token = fencing_token
        self._waited = waited

    @property
    def acquisition_id(self) -> str:
        """The id of this acquisition, to release it by."""
        return self._acquisition_id

    @property
    def slot_number(self) -> int:
        """The lowest of this acquisition's slot numbers."""
        return self._slot_number

    @property
    def fencing_token(self) -> int | None:
        """A number larger than that of every earlier grant of the same semaphore.

        A resource that refuses smaller numbers than it has seen is safe from
        holders that lost their slot without knowing. None where the driver has none.
        """
        return getattr(self, "_fencing_token", None)

    @property
    def lost(self) -> Lost:
        """Set when this acquisition was lost, or expired, before its release."""
        try:
            return self._lost
        except AttributeError:
            with _making:
                if not hasattr(self, "_lost"):
                    self._lost = Lost()
            return self._lost

    @property
    def scope(self) -> str:
        """Who shares the limit: memory, process or redis.

        While a server is away, open if there was no limit, or local if it was one of this
        process; see ``on_unreachable``.
        """
        return getattr(self, "_elsewhere", self._scope)

    @property
    def waited(self) -> float:
        """The seconds from the request to the grant; 0.0 if it was granted at once."""
        return getattr(self, "_waited", 0.0)

    def settle(self, **costs: int) -> Awaitable[None]:
        """State what was really taken of rates, by their tiers' names; the last call wins.

        It is done when this returns; on a server, when it is awaited, or together with the
        release if that is next.

        Raises:
            TypeError: it took nothing of such a rate.
            ValueError: a cost below 0.
            LookupError: it ended too long ago.
        """
        raise TypeError(f"it took nothing of {' or '.join(costs) or 'a rate'}")

    def dropped(self, *, retry_after: float | None = None) -> None:
        """Report that the service refused the work; an adaptive limit shrinks for that.

        ``retry_after`` is for how many seconds the service wants no more than it gets now. On a
        limit with a fixed value this changes nothing.
        """
        if self._outcomes is not None:
            self._outcomes.drop(retry_after)

    def ignored(self) -> None:
        """Report that the work says nothing about the service; only adaptive limits care."""
        if self._outcomes is not None:
            self._outcomes.outcome = "ignored"

    def _state_outcome(self, outcome: Outcome | None) -> None:
        """Set how the work ended, if that is given; with a fixed value it is only checked."""
        if outcome is not None:
            check_outcome(outcome)
            if self._outcomes is not None:
                self._outcomes.outcome = outcome

    def _leave_with(self, exc_type: type[BaseException] | None) -> None:
        """Note that the block is left, with this exception or normally."""
        if self._outcomes is not None:
            self._outcomes.leave_with(exc_type)

    def _keys(self) -> Mapping[str, str]:
        """The keys of a path through tiers, by the tiers' names, for logs."""
        return {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AcquisitionResult):
            return NotImplemented
        return self.acquisition_id == other.acquisition_id and self.slot_number == other.slot_number

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process it has these; what tracks it stays here.
        return restored, (
            *(self.acquisition_id, self.slot_number, self.fencing_token, self.waited),
            self.scope,
        )

    def __copy__(self) -> Self:
        return self  # read-only, and the driver sets the `lost` of this object

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __hash__(self) -> int:
        return hash(self.acquisition_id)

    def __repr__(self) -> str:
        return (
            f"AcquisitionResult(acquisition_id={self.acquisition_id!r},"
            f" slot_number={self.slot_number})"
        )


def restored(
    acquisition_id: str, slot_number: int, fencing_token: int | None, waited: float, scope: str
) -> AcquisitionResult:
    """An acquisition of another process."""
    result = AcquisitionResult(acquisition_id, slot_number, fencing_token, waited)
    result._elsewhere = scope
    return result


def acquisition_id_of(given: object) -> str:
    """Return the id of an acquisition, given the id itself or the result."""
    if isinstance(given, AcquisitionResult):
        return given.acquisition_id
    if isinstance(given, str):
        return check_text("acquisition_id", given)
    raise TypeError(f"an acquisition_id or an AcquisitionResult is needed, not {kind_of(given)}")
