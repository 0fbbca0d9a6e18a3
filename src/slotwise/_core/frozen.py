"""Frozen: read-only values that are equal if their fields are.

Like frozen dataclasses. Those compile their methods when they are defined, which takes longer than
importing most modules, and every start of ``slotwise run`` would pay for it. So this is for values
that a run imports; all others are dataclasses.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn


class Frozen:
    """A value whose ``__init__`` passes all its fields to this one."""

    __slots__ = ()

    _fields: ClassVar[tuple[str, ...]] = ()  # those that count, in the order of the repr

    def __init__(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        words = (f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({', '.join(words)})"

    def __setattr__(self, name: str, _: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is read-only: {name!r} can't be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is read-only: {name!r} can't be deleted")

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        Frozen.__init__(self, **state[1])  # copied or unpickled

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self._fields)
