"""Program, and the ``@do`` decorator that turns generator functions into programs.

A program is a recipe and can be run any number of times: each run starts a
generator of its own. The scheduler interprets what the generators yield.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache, wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Generic, ParamSpec, TypeVar, cast

from slotwise._core.redaction import redacted_repr
from slotwise.effects._effects import Effect, use

T = TypeVar("T")
P = ParamSpec("P")

Steps = Generator[Any, Any, T]


class Program(Generic[T]):
    """A call of a ``@do`` function that has not begun; ``run`` it, ``yield`` or ``Spawn`` it."""

    __slots__ = ("args", "function", "kwargs")

    def __init__(
        self, function: Callable[..., Steps[T]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    @property
    def name(self) -> str:
        """The name of the function."""
        return name_of(self.function)

    def start(self) -> Steps[T]:
        """Return a new generator that runs this program from its beginning."""
        return self.function(*self.args, **self.kwargs)

    def __repr__(self) -> str:
        given = [repr(argument) for argument in self.args]
        given += [f"{name}={argument!r}" for name, argument in self.kwargs.items()]
        return f"{self.name}({', '.join(given)})"


def do(function: Callable[P, Steps[T]]) -> Callable[P, Program[T]]:
    """Turn a generator function into one that returns programs.

    Inside it, ``yield`` an effect or a program to get its answer. A function without any ``yield``
    is a program too: one that only computes its value.

    Raises:
        TypeError: it is an ``async def``, or not callable.
    """
    if not callable(function):
        raise TypeError(f"@do takes a generator function, not {redacted_repr(function)}")
    # Also look inside a staticmethod, and inside callable objects.
    called = getattr(function, "__func__", function)
    if any(
        iscoroutinefunction(each) or isasyncgenfunction(each)
        for each in (called, getattr(called, "__call__", None))  # noqa: B004
    ):
        raise TypeError(
            f"@do takes a generator function, but {name_of(function)} is an async def:"
            " write def, and `yield Await(...)` instead of `await ...`"
        )
    steps = function if isgeneratorfunction(function) else _as_steps(function)

    @wraps(function)
    def make_program(*args: P.args, **kwargs: P.kwargs) -> Program[T]:
        return Program(steps, args, kwargs)

    make_program._makes_programs = True  # type: ignore[attr-defined]
    return make_program


def as_program(given: object, wanted_by: str) -> Program[Any]:
    """Return ``given`` as a program; a single effect becomes a program of one step."""
    if type(given) is Program:
        return given
    if isinstance(given, Effect):
        use(given)
        return Program(_performer_of(given._kind), (given,), {})
    if getattr(given, "_makes_programs", False):
        raise TypeError(f"{wanted_by} takes a program: call {name_of(given)}(...) to make one")
    raise TypeError(
        f"{wanted_by} takes a program made by a @do function, not {redacted_repr(given)}"
    )


def name_of(function: object) -> str:
    return cast("str", getattr(function, "__name__", type(function).__name__))


def _as_steps(function: Callable[..., Any]) -> Callable[..., Steps[Any]]:
    @wraps(function)
    def steps(*args: Any, **kwargs: Any) -> Steps[Any]:
        return function(*args, **kwargs)
        yield

    return steps


@cache
def _performer_of(kind: str) -> Callable[..., Steps[Any]]:
    """Return a program of a single effect; tasks are named after the effect's class."""

    def perform(effect: Effect[T]) -> Steps[T]:
        return cast("T", (yield effect))

    perform.__name__ = kind
    return perform
