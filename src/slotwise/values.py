"""What callers hold and read: the result of an acquisition, and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field


class AcquisitionResult:
    """One acquisition: its id, to release it by, and its slot number.

    ``slot_number`` is the lowest number, from 1 to the semaphore's value, that
    was free at the grant; no two holders share one. An acquisition of several
    slots has several numbers, and this is the lowest of them.

    Results are read-only and equal when id and number are.
    """

    # Not a frozen dataclass: drivers make one of these per acquisition, and a
    # frozen dataclass's __init__ costs as much as a whole uncontended acquire.
    __slots__ = ("_acquisition_id", "_slot_number")
    __match_args__ = ("acquisition_id", "slot_number")

    _acquisition_id: str
    _slot_number: int

    def __init__(self, acquisition_id: str, slot_number: int) -> None:
        self._acquisition_id = acquisition_id
        self._slot_number = slot_number

    @property
    def acquisition_id(self) -> str:
        """The name of this acquisition; `release` takes it."""
        return self._acquisition_id

    @property
    def slot_number(self) -> int:
        """The lowest of this acquisition's slot numbers."""
        return self._slot_number

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AcquisitionResult):
            return NotImplemented
        return self.acquisition_id == other.acquisition_id and self.slot_number == other.slot_number

    def __hash__(self) -> int:
        return hash(self.acquisition_id)

    def __repr__(self) -> str:
        return (
            f"AcquisitionResult(acquisition_id={self.acquisition_id!r},"
            f" slot_number={self.slot_number})"
        )


@dataclass(frozen=True, slots=True)
class SemaphoreStats:
    """How full a semaphore is.

    After a shrink ``acquired_slots`` exceeds ``max_slots`` until enough holders
    have left: that is the truth, and nothing is granted meanwhile.
    """

    acquired_slots: int
    max_slots: int
    waiting: int = 0
    acquired_percent: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "acquired_percent", 100 * self.acquired_slots / self.max_slots)
