"""Copies of a limit are the same limit: by its name and arguments, or, if it is private, itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self


class SameWhenCopied:
    """For limits: copied or unpickled they are the limit of that name, never a second one."""

    __slots__ = ()

    def _remake(self) -> tuple[Callable[..., Self], tuple[Any, ...]] | None:
        """What to call, and with what, for an object of the same limit; None if it is private."""
        return None

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[Any, ...]]:
        how = self._remake()
        if how is None:
            raise TypeError(
                f"this {type(self).__name__} is private and can't be pickled:"
                f" another process finds it only by a name"
            )
        return how

    def __copy__(self) -> Self:
        how = self._remake()
        return self if how is None else how[0](*how[1])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()


def make(kind: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What `_remake` gives to be called where there are keyword arguments."""
    return kind(*args, **options)
