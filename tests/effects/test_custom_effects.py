"""Effects of one's own, answered by functions and by programs, in every interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from slotwise.effects import (
    Await,
    Checkpoint,
    Effect,
    Gather,
    Now,
    Sleep,
    UnhandledEffectError,
    do,
    explore,
    replay,
    run,
    run_async,
)


@dataclass
class Fetch(Effect):
    url: str


class Refetch(Fetch):
    pass


class Log(Effect):
    def __init__(self, text):
        self.text = text


@do
def fetched():
    answers = yield Gather(Fetch("a"), Fetch("b"))
    return "".join(answers)


@do
def slow_fetch(effect):
    yield Sleep(1)
    return effect.url.upper()


def quick_fetch(effect):
    return effect.url * 2


def failing_fetch(effect):
    raise ConnectionError(effect.url)


def test_a_function_answers():
    assert run(fetched(), handlers={Fetch: quick_fetch}) == "aabb"


def test_a_program_answers_and_may_use_effects():
    @do
    def program():
        return (yield fetched()), (yield Now())

    assert run(program(), handlers={Fetch: slow_fetch}) == ("AB", 1)


async def test_run_async_takes_handlers_and_coroutine_functions_too():
    async def real(effect):
        return f"<{effect.url}>"

    assert await run_async(fetched(), handlers={Fetch: quick_fetch}) == "aabb"
    assert await run_async(fetched(), handlers={Fetch: real}) == "<a><b>"
    handlers = {Fetch: lambda effect: Await(real(effect))}
    assert await run_async(fetched(), handlers=handlers) == "<a><b>"


def test_explore_and_replay_take_handlers():
    result = explore(fetched, handlers={Fetch: slow_fetch})
    assert result.ok
    assert result.exhaustive
    failure = explore(fetched, handlers={Fetch: failing_fetch}).failure
    assert isinstance(failure.error, ConnectionError)
    for handlers in ({Fetch: failing_fetch}, None):  # None: those it was found with
        with pytest.raises(ConnectionError):
            replay(fetched, failure.schedule, handlers=handlers)
    assert replay(fetched, failure.schedule, handlers={Fetch: quick_fetch}) == "aabb"


def test_a_handlers_error_is_raised_at_the_yield_with_its_own_lines():
    @do
    def program():
        try:
            yield Fetch("x")
        except ConnectionError as error:
            frames = []
            traceback = error.__traceback__
            while traceback is not None:
                frames.append(traceback.tb_frame.f_code.co_name)
                traceback = traceback.tb_next
            return frames

    assert run(program(), handlers={Fetch: failing_fetch}) == ["program", "failing_fetch"]


def test_an_effect_without_a_handler_is_named():
    @do
    def program():
        try:
            yield Fetch("x")
        except UnhandledEffectError as error:
            return str(error)

    assert "Fetch" in run(program())
    with pytest.raises(UnhandledEffectError, match="Log"):
        run(Log("x"), handlers={Fetch: quick_fetch})
    assert issubclass(UnhandledEffectError, RuntimeError)


def test_a_handler_also_answers_subclasses():
    assert run(Refetch("x"), handlers={Fetch: quick_fetch}) == "xx"


def test_an_effect_may_have_slots_and_a_readable_repr():
    shown = []
    handlers = {Log: lambda effect: None, Fetch: lambda effect: None}
    for effect in (Log("x"), Fetch("x")):
        run(effect, handlers=handlers, trace=lambda _step, _task, given: shown.append(repr(given)))
    assert shown == ["Log('x')", "Fetch(url='x')"]


def test_handlers_are_checked():
    for handlers in ({int: quick_fetch}, {"Fetch": quick_fetch}, {Fetch: 5}, {Effect: quick_fetch}):
        with pytest.raises(TypeError):
            run(Checkpoint(), handlers=handlers)
    with pytest.raises(ValueError, match="Sleep"):
        run(Checkpoint(), handlers={Sleep: quick_fetch})
