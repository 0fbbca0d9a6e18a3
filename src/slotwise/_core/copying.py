"""Copies of a limit are the same limit: by its name and arguments, or, if it is private, itself.

Subclasses may have any ``__init__``: copies are made by the ``__init__`` of our own class, and
get what the subclass has added to the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar


class Recipe:
    """How to make another object of the same limit."""

    __slots__ = ("args", "attributes", "base", "options")

    def __init__(
        self,
        base: type,
        args: tuple[Any, ...],
        options: dict[str, Any],
        attributes: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.base = base  # our class, whose __init__ is called
        self.args = args
        self.options = options
        self.attributes = dict(attributes)  # set afterwards

    def __iter__(self) -> Iterator[Any]:
        return iter((self.base, self.args, self.options, self.attributes))


K = TypeVar("K", bound=type)


def same_when_copied(kind: K) -> K:
    """Make a copy of a limit, or what is unpickled, the same limit, never a second one.

    The class has ``_recipe``, which returns how to make an object of the same limit, or None if it
    is private.
    """
    for method in (_reduce, _copy, _deepcopy):
        setattr(kind, f"_{method.__name__}__", method)
    return kind


def _reduce(limit: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    recipe = limit._recipe()
    if recipe is None:
        raise TypeError(
            f"this {type(limit).__name__} is private and can't be pickled:"
            f" another process finds it only by a name"
        )
    return make, (type(limit), *recipe, _added_by_subclass(limit, recipe))


def _copy(limit: Any) -> Any:
    recipe = limit._recipe()
    if recipe is None:
        return limit
    return make(type(limit), *recipe, _added_by_subclass(limit, recipe))


def _deepcopy(limit: Any, memo: dict[int, Any]) -> Any:
    recipe = limit._recipe()
    if recipe is None:
        return limit
    import copy  # most never copy one

    made = make(type(limit), *recipe)
    memo[id(limit)] = made
    _set(made, copy.deepcopy(_added_by_subclass(limit, recipe), memo))
    return made


def make(
    kind: type[Any],
    base: type[Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    *attributes: Mapping[str, Any],
) -> Any:
    """Make an object of a recipe; ``kind`` is ``base`` or a subclass of it."""
    made = object.__new__(kind)
    base.__init__(made, *args, **options)
    for each in attributes:
        _set(made, each)
    return made


def _set(made: object, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        object.__setattr__(made, name, value)


def _added_by_subclass(limit: object, recipe: Recipe) -> dict[str, Any]:
    """The attributes of an object that our own ``__init__`` doesn't set."""
    kind, base = type(limit), recipe.base
    if kind is base:
        return {}
    of_subclasses = kind.__mro__[: kind.__mro__.index(base)]
    slots = {name for each in of_subclasses for name in _slots_of(each)}
    added = {name: getattr(limit, name) for name in sorted(slots) if hasattr(limit, name)}
    # Ours may have a __dict__ too: what a new object has there is not the subclass's.
    ours = getattr(make(kind, *recipe), "__dict__", {})
    added |= {
        key: value for key, value in getattr(limit, "__dict__", {}).items() if key not in ours
    }
    return added


def _slots_of(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else slots
    return [name for name in names if name not in ("__dict__", "__weakref__")]
