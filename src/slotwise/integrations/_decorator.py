"""limited: a decorator that makes every call of a function hold slots of a limit."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import partial, wraps
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from slotwise._core.adaptive import Adaptive
from slotwise._core.arguments import MOST_SLOTS, UNSET, Unset, check_count, check_seconds
from slotwise._core.limit import Limit
from slotwise._core.priorities import check_priority
from slotwise._core.redaction import kind_of
from slotwise._urls import parsed, semaphore
from slotwise.integrations._holding import Holding, OnFull, check_on_full, check_replaceable
from slotwise.integrations._source import NameTemplate, check_found
from slotwise.tiers import Tiers

if TYPE_CHECKING:
    from slotwise.redis import RedisConfig

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
S = TypeVar("S")


class LimitedFunction(Protocol[P, R_co]):
    """What `limited` makes of a function: one with the same signature."""

    @property
    def limit(self) -> Limit:
        """The limit, where it is the same for every call."""

    def limit_for(self, *args: P.args, **kwargs: P.kwargs) -> Limit | None:
        """Return the limit of a call with these arguments; None is unlimited."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __get__(self, instance: None, owner: Any = None, /) -> LimitedFunction[P, R_co]: ...
    @overload
    def __get__(
        self: LimitedFunction[Concatenate[S, Q], R_co], instance: S, owner: Any = None, /
    ) -> Callable[Q, R_co]: ...


class Limited(Protocol):
    """The decorator that `limited` returns."""

    def __call__(self, function: Callable[P, R], /) -> LimitedFunction[P, R]: ...


class SkippingLimited(Protocol):
    """The decorator that `limited` returns with ``on_full="skip"``: a call may return None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> LimitedFunction[P, Coroutine[Any, Any, T | None]]: ...
    @overload
    def __call__(
        self, function: Callable[P, AsyncGenerator[T, S]], /
    ) -> LimitedFunction[P, AsyncGenerator[T, S]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Generator[T, S, R]], /
    ) -> LimitedFunction[P, Generator[T, S, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> LimitedFunction[P, R | None]: ...


@overload
def limited(
    limit: str | Limit | Tiers | Callable[..., Limit | None],
    value: int | Adaptive | None = None,
    *,
    on_full: Literal["skip"],
    url: str | RedisConfig | None = None,
    timeout: float | Unset | None = UNSET,
    cost: int | Callable[..., int] = 1,
    priority: float = 0,
) -> SkippingLimited: ...
@overload
def limited(
    limit: str | Limit | Tiers | Callable[..., Limit | None],
    value: int | Adaptive | None = None,
    *,
    url: str | RedisConfig | None = None,
    timeout: float | Unset | None = UNSET,
    cost: int | Callable[..., int] = 1,
    priority: float = 0,
    on_full: Literal["wait", "raise", "replace"] = "wait",
) -> Limited: ...
def limited(
    limit: str | Limit | Tiers | Callable[..., Limit | None] | Unset = UNSET,
    value: int | Adaptive | None = None,
    *,
    url: str | RedisConfig | None = None,
    timeout: float | Unset | None = UNSET,
    cost: int | Callable[..., int] = 1,
    priority: float = 0,
    on_full: OnFull = "wait",
) -> Any:
    """Make every call of a function hold a slot until it returns::

        @limited("crm", 5)
        async def fetch(number): ...

        @limited("crm:{tenant}", 5, url="redis://cache")  # 5 for each tenant
        def update(tenant, data): ...

        @limited(lambda tenant: tiers.at(tenant=tenant))
        async def call(tenant, prompt): ...

    It takes coroutine functions, plain functions and methods, and generators of both kinds:
    those hold the slot from the first item until they end or are closed.

    The decorated function has ``limit``, where that is the same for all calls, and
    ``limit_for(*args, **kwargs)``.

    Args:
        limit: a `Limit`; or the name of a semaphore, in which fields like ``{tenant}`` are
            parameters of the function, defaults included; or a function of those parameters
            that it names itself, which returns a Limit, or None for unlimited. The values of fields
            are percent-encoded: different texts never make the same name.
        value: how many slots the semaphore of that name has.
        url: where it is, as for `semaphore`.
        timeout: the longest wait in seconds; left out, that of the limit.
        cost: how many slots a call takes, or its cost of a rate; or a function of the
            parameters, as for ``limit``.
        priority: the head start in the queue, in seconds.
        on_full: what a call without a free slot does. "wait" waits; "raise" raises
            LimitFull; "skip" returns None instead of calling the function, and a generator yields
            nothing; "replace" ends the oldest holder and takes its slot.

    Raises:
        ValueError: when decorating: the name has a field that is not a parameter.
        AcquireTimeout: when called: ``timeout`` seconds passed first.
        LimitFull: when called: no slot was free, with "raise".
        WouldBlockLoop: when called: a plain function would have to wait in the thread of an
            event loop.
    """
    check_on_full(on_full)
    return make_decorator(
        limit,
        value,
        url=url,
        timeout=timeout,
        cost=cost,
        priority=priority,
        on_full=on_full,
    )


# Functions of these kinds return no limit: one is under a bare @limited.
_NO_FINDERS = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction


def make_decorator(
    limit: str | Limit | Tiers | Callable[..., Limit | None] | Unset,
    value: int | Adaptive | None,
    *,
    url: str | RedisConfig | None,
    timeout: float | Unset | None,
    cost: int | Callable[..., int],
    priority: float,
    on_full: str,
    instead: Callable[[Holding], Any] = lambda _holding: None,
) -> Any:
    """Check the arguments of `limited`, and return the decorator.

    ``instead`` is what a call does that is skipped; that of a coroutine function may be a
    coroutine function. If it returns TRY_AGAIN, the call asks for a slot once more.
    """
    if timeout is not UNSET:
        check_seconds("timeout", timeout, zero=True)
        if on_full != "wait":
            raise ValueError(f'timeout is for on_full="wait": {on_full!r} never waits')
    check_priority(priority)
    if not callable(cost):
        check_count("cost", cost)
    if isinstance(limit, str):
        if value is None:
            raise TypeError(f"a semaphore needs a name and a value: limited({limit!r}, 5)")
        if not isinstance(value, Adaptive):
            check_count("value", value, most=MOST_SLOTS)
        url = parsed(url)
    elif value is not None or url is not None:
        raise TypeError("value and url are for the name of a semaphore")
    elif isinstance(limit, Tiers):
        limit = limit.at()  # raises if there are keyed tiers
    elif limit is UNSET:
        raise _no_limit(limit)
    elif not callable(limit) and not isinstance(limit, Limit):
        raise TypeError(
            "limit must be a name, a Limit, or a function that returns a Limit or None, not"
            f" {kind_of(limit)}"
        )
    elif isinstance(limit, type) or any(is_kind(limit) for is_kind in _NO_FINDERS):
        raise _no_limit(limit)
    if on_full == "replace" and isinstance(limit, Limit):
        check_replaceable(limit)

    def decorate(*functions: Callable[..., Any], **named: Any) -> Any:
        if len(functions) != 1 or named:
            raise _no_limit(limit)  # most likely a call of the function under a bare @limited
        (function,) = functions
        if isinstance(function, classmethod | staticmethod):
            raise TypeError(f"put @limited under @{type(function).__name__}, not above it")
        if not callable(function):
            if isinstance(limit, FunctionType):
                raise _no_limit(limit)
            raise TypeError(f"limited() decorates functions, not {kind_of(function)}")
        signature = inspect.signature(function)
        fixed, limit_for = _find(limit, value, url, signature)
        cost_for = _with_named_arguments(cost, signature) if callable(cost) else None

        def hold(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Holding:
            slots = cost if cost_for is None else check_count("cost", cost_for(*args, **kwargs))
            found = limit_for(*args, **kwargs)
            return Holding(
                found, cast("int", slots), timeout=timeout, priority=priority, on_full=on_full
            )

        wrapper: Any = _wrapped(function, hold, instead)
        # Not only for inspect.signature(): Celery looks no further than the wrapper.
        wrapper.__signature__ = signature
        wrapper.limit_for = limit_for
        if fixed is not None:
            wrapper.limit = fixed
        return wrapper

    return decorate


def _no_limit(limit: Any) -> TypeError:
    name = getattr(limit, "__name__", "api")
    return TypeError(
        f'limited() needs a limit, and decorates one function: @limited("{name}", 5), or with a'
        " Limit, or with a function that returns one"
    )


def _find(
    limit: Any, value: Any, url: Any, signature: inspect.Signature
) -> tuple[Limit | None, Callable[..., Limit | None]]:
    """Return the limit if it is the same for all calls, and the function that finds it."""
    fixed: Limit | None = None
    if isinstance(limit, str):
        template = NameTemplate(limit, signature.parameters)
        if template.has_fields:
            arguments = _arguments_of(signature)

            def of_call(*args: Any, **kwargs: Any) -> Limit:
                found = semaphore(template.fill(arguments(*args, **kwargs)), value, url=url)
                found._backend.reported_as = limit  # events name the template
                return found

            return None, of_call
        fixed = semaphore(template.fill({}), value, url=url)
    elif isinstance(limit, Limit):
        fixed = limit
    if fixed is not None:
        return fixed, lambda *_args, **_kwargs: fixed
    function = _with_named_arguments(limit, signature)
    return None, lambda *args, **kwargs: check_found(function(*args, **kwargs))


def _arguments_of(signature: inspect.Signature) -> Callable[..., dict[str, Any]]:
    """Return a function of a call's arguments that returns them by name, defaults included."""

    def arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    return arguments


def _with_named_arguments(
    function: Callable[..., R], signature: inspect.Signature
) -> Callable[..., R]:
    """Return a function of a call's arguments that passes on those ``function`` names.

    A ``function`` with ``*args`` gets the arguments as they are.

    Raises:
        ValueError: ``function`` needs a parameter that the decorated function doesn't have.
    """
    own = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in own):
        return function
    if any(each.kind is each.VAR_KEYWORD for each in own):
        names = list(signature.parameters)
    else:
        names = [each.name for each in own if each.name in signature.parameters]
        needed = [each.name for each in own if each.default is each.empty]
        for name in needed:
            if name not in signature.parameters:
                raise ValueError(
                    f"the function that finds the limit takes {name!r}, which is not a parameter of"
                    f" the decorated function; there are:"
                    f" {', '.join(signature.parameters) or 'none'}"
                )
    positional = [each.name for each in own if each.kind is each.POSITIONAL_ONLY]
    arguments = _arguments_of(signature)

    def call(*args: Any, **kwargs: Any) -> R:
        found = arguments(*args, **kwargs)
        named = {name: found[name] for name in names if name not in positional}
        return function(*[found[name] for name in positional], **named)

    return call


TRY_AGAIN = object()

Hold = Callable[[tuple[Any, ...], dict[str, Any]], Holding]


def _wrapped(
    function: Callable[..., Any], hold: Hold, instead: Callable[[Holding], Any]
) -> Callable[..., Any]:
    """Return a function of the same kind that holds slots while it runs."""
    called = _called(function)
    if inspect.isasyncgenfunction(called):
        return _wrapped_async_generator(function, hold)
    if inspect.iscoroutinefunction(called):

        @wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            while True:
                holding = hold(args, kwargs)
                async with holding:
                    if not holding.skipped:
                        return await function(*args, **kwargs)
                answer = instead(holding)
                if inspect.isawaitable(answer):
                    answer = await answer
                if answer is not TRY_AGAIN:
                    return answer

        return call_async
    if inspect.isgeneratorfunction(called):

        @wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            holding = hold(args, kwargs)
            with holding:
                return None if holding.skipped else (yield from function(*args, **kwargs))

        return generate

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        while True:
            holding = hold(args, kwargs)
            with holding:
                if not holding.skipped:
                    return _checked_result(function, function(*args, **kwargs))
            answer = instead(holding)
            if answer is not TRY_AGAIN:
                return answer

    return call


def _checked_result(function: Callable[..., Any], result: Any) -> Any:
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"{function!r} returned a coroutine, whose work would begin after its slot was"
            " released: decorate the coroutine function instead"
        )
    return result


def _wrapped_async_generator(function: Callable[..., Any], hold: Hold) -> Callable[..., Any]:
    @wraps(function)
    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        holding = hold(args, kwargs)
        async with holding:
            if holding.skipped:
                return
            items = function(*args, **kwargs)
            step = items.__anext__()
            while True:
                try:
                    item = await step
                except StopAsyncIteration:
                    return
                try:
                    sent = yield item
                except GeneratorExit:
                    await items.aclose()
                    raise
                except BaseException as error:
                    step = items.athrow(error)
                else:
                    step = items.asend(sent)

    return generate


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what is really called: the function of a method or partial, or a ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__
