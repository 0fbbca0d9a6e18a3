"""A copy of a limit is the limit itself; what is unpickled is the limit of the same name.

Subclasses may have any ``__init__``: what is unpickled is made by the ``__init__`` of our own
class, and gets what the subclass has added to the object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar


class Recipe(NamedTuple):
    """How to make another object of the same limit."""

    base: type[Any]  # our class, whose __init__ is called
    args: tuple[Any, ...]
    options: dict[str, Any]
    attributes: Mapping[str, Any] = {}  # set afterwards


K = TypeVar("K", bound=type)


def same_when_copied(kind: K) -> K:
    """Make a copy of a limit, or what is unpickled, the same limit, never a second one.

    The class has ``_recipe``, which returns how to make an object of the same limit, or None if it
    is private.
    """
    for method in (_reduce, _copy, _deepcopy):
        setattr(kind, f"_{method.__name__}__", method)
    return kind


def _copy(limit: object) -> object:
    return limit


def _deepcopy(limit: object, _memo: object) -> object:
    return limit


def _reduce(limit: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    recipe = limit._recipe()
    if recipe is None:
        raise TypeError(
            f"this {type(limit).__name__} is private and can't be pickled:"
            f" another process finds it only by a name"
        )
    return make, (type(limit), recipe, _added_by_subclass(limit, recipe))


def make(kind: type[Any], recipe: Recipe, added: Mapping[str, Any]) -> Any:
    """Make an object of a recipe; ``kind`` is its base or a subclass of that."""
    made = object.__new__(kind)
    recipe.base.__init__(made, *recipe.args, **recipe.options)
    for name, value in {**recipe.attributes, **added}.items():
        object.__setattr__(made, name, value)
    return made


def _added_by_subclass(limit: object, recipe: Recipe) -> dict[str, Any]:
    """The attributes of an object that our own ``__init__`` doesn't set."""
    kind = type(limit)
    if kind is recipe.base:
        return {}
    known = getattr(make(kind, recipe, {}), "__dict__", {})
    given = getattr(limit, "__dict__", {})
    added = {name: value for name, value in given.items() if name not in known}
    for each in kind.__mro__[: kind.__mro__.index(recipe.base)]:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(limit, name):
                added[name] = getattr(limit, name)
    return added
