"""Tasks and promises: spawning, waiting, gathering, racing, trying."""

# ruff: noqa: PERF401 - a yield can't stand in a comprehension

from __future__ import annotations

import pytest

from slotwise.effects import (
    AcquireSemaphore,
    Checkpoint,
    CompletePromise,
    CreatePromise,
    CreateSemaphore,
    FailPromise,
    ForeignTaskError,
    Gather,
    Now,
    Race,
    ReleaseSemaphore,
    SemaphoreInfo,
    Sleep,
    Spawn,
    TaskCancelledError,
    Try,
    UnretrievedTaskError,
    Wait,
    WithPermit,
    do,
    run,
)


@do
def after(seconds, value):
    yield Sleep(seconds)
    if isinstance(value, BaseException):
        raise value
    return value


def test_spawn_does_not_switch_and_wait_answers_the_value():
    log = []

    @do
    def child():
        log.append("child")
        yield Checkpoint()
        return 5

    @do
    def program():
        task = yield Spawn(child())
        log.append("spawned")
        first = yield Wait(task)
        return first, (yield Wait(task)), task.done

    assert run(program()) == (5, 5, True)
    assert log == ["spawned", "child"]


def test_tasks_have_names():
    @do
    def program():
        first = yield Spawn(after(0, 1))
        second = yield Spawn(after(0, 1), name="second")
        third = yield Spawn(Sleep(1))
        yield Gather(first, second, third)
        return first.name, second.name, third.name, repr(second)

    assert run(program()) == ("after-1", "second", "Sleep-3", "<Task 'second' done>")


def test_gather_takes_tasks_promises_waits_programs_and_effects_in_order():
    @do
    def program():
        task = yield Spawn(after(3, "task"))
        promise = yield CreatePromise()
        yield Spawn(late(promise))
        return (
            yield Gather(task, promise, Wait(task), after(1, "program"), Now(), Wait(promise), task)
        )

    @do
    def late(promise):
        yield Sleep(2)
        yield CompletePromise(promise, "promise")

    assert run(program()) == ["task", "promise", "task", "program", 0, "promise", "task"]


def test_gathering_nothing_is_an_empty_list():
    assert run(Gather()) == []


def test_gather_raises_the_first_failure_at_once_and_the_others_go_on():
    log = []

    @do
    def sibling():
        yield Sleep(10)
        log.append((yield Now()))

    @do
    def program():
        other = yield Spawn(sibling())
        with pytest.raises(KeyError):
            yield Gather(after(5, "late"), other, after(1, KeyError("first")))
        assert (yield Now()) == 1
        yield Wait(other)

    run(program())
    assert log == [10]


def test_race_waits_for_the_slowest_loser_even_if_the_winner_had_ended_before():
    log = []

    @do
    def loser(seconds):
        try:
            yield Sleep(100)
        finally:
            yield Sleep(seconds)
            log.append(seconds)

    @do
    def program():
        losers = []
        for seconds in (1, 3, 2):
            losers.append((yield Spawn(loser(seconds))))
        winner = yield Spawn(after(1, "won"))
        yield Wait(winner)
        value = yield Race(*losers, winner)
        return value, list(log), (yield Now())

    @do
    def undecided():
        value = yield Race(loser(1), loser(3), loser(2), after(1, "won"))
        return value, list(log), (yield Now())

    assert run(program()) == ("won", [1, 2, 3], 4)
    log.clear()
    assert run(undecided()) == ("won", [1, 2, 3], 4)


def test_race_of_nothing_is_an_error():
    @do
    def program():
        with pytest.raises(ValueError, match="at least one"):
            yield Race()

    run(program())


def test_a_loser_that_decided_the_race_itself_is_cancelled_at_its_next_switch():
    log = []

    @do
    def decides(promise, effect):
        yield CompletePromise(promise, "decided")
        log.append("goes on")
        try:
            yield effect
        except TaskCancelledError:
            log.append("cancelled")
            raise

    @do
    def program():
        taken = yield CreateSemaphore(1)
        yield AcquireSemaphore(taken)
        never = yield CreatePromise()
        for effect in (
            Checkpoint(),
            Sleep(0),
            Sleep(100),
            Wait(never),
            Gather(never),
            Race(never),
            AcquireSemaphore(taken),
            AcquireSemaphore(taken, timeout=9),
            WithPermit(taken, Checkpoint()),
        ):
            promise = yield CreatePromise()
            log.clear()
            assert (yield Race(promise, decides(promise, effect))) == "decided"
            assert log == ["goes on", "cancelled"], effect
        assert (yield SemaphoreInfo(taken)).waiting == ()
        yield ReleaseSemaphore(taken)
        return (yield Now())

    assert run(program()) == 0


@pytest.mark.parametrize("effect", [Gather, Race])
def test_gather_and_race_check_all_arguments_before_they_spawn(effect):
    log = []

    @do
    def child():
        log.append("ran")
        yield Checkpoint()

    @do
    def program():
        for wrong in (5, None, Wait("x")):
            with pytest.raises(TypeError):
                yield effect(child(), wrong)
        yield Checkpoint()

    run(program())
    assert log == []


def test_wait_wants_a_task_or_promise_of_this_run():
    @do
    def give():
        task = yield Spawn(after(0, 1))
        yield Wait(task)
        return task

    other = run(give())

    @do
    def program():
        with pytest.raises(TypeError):
            yield Wait(5)
        for effect in (Wait(other), Gather(other), Race(other), other.cancel()):
            with pytest.raises(ForeignTaskError):
                yield effect

    run(program())


def test_try_answers_value_or_error():
    @do
    def program():
        good = yield Try(after(1, 5))
        bad = yield Try(after(1, KeyError("x")))
        effect = yield Try(Sleep(-1))
        return good.value, good.error, good.ok, type(bad.error), bad.ok, type(effect.error)

    assert run(program()) == (5, None, True, KeyError, False, ValueError)


def test_try_does_not_catch_the_tasks_own_cancellation():
    @do
    def child():
        yield Try(Sleep(100))
        return "went on"

    @do
    def program():
        task = yield Spawn(child())
        yield Checkpoint()
        yield task.cancel()
        with pytest.raises(TaskCancelledError):
            yield Wait(task)

    run(program())


def test_promises_are_completed_or_failed_once():
    @do
    def waiter(promise):
        return (yield Try(Wait(promise)))

    @do
    def program():
        kept, broken = (yield CreatePromise()), (yield CreatePromise("broken"))
        tasks = [(yield Spawn(waiter(kept))), (yield Spawn(waiter(broken)))]
        yield Checkpoint()
        yield CompletePromise(kept, 5)
        yield FailPromise(broken, KeyError("x"))
        for effect in (CompletePromise(kept, 6), FailPromise(broken, KeyError())):
            with pytest.raises(RuntimeError, match="already completed"):
                yield effect
        for effect in (CompletePromise(5), FailPromise(5, KeyError())):
            with pytest.raises(TypeError):
                yield effect
        third = yield CreatePromise()
        with pytest.raises(TypeError):
            yield FailPromise(third, "no exception")
        one, two = yield Gather(*tasks)
        return one.value, type(two.error), (yield Wait(kept)), broken.name

    assert run(program()) == (5, KeyError, 5, "broken")


def test_unfinished_tasks_are_cancelled_when_the_root_returns_and_their_finally_runs():
    log = []

    @do
    def child(name):
        try:
            yield Sleep(1000)
        finally:
            yield Sleep(1)
            log.append((name, (yield Now())))

    @do
    def program():
        for name in "ab":
            yield Spawn(child(name))
        yield Sleep(1)
        return "root"

    assert run(program()) == "root"
    assert log == [("a", 2), ("b", 2)]


def test_an_error_that_nobody_retrieved_is_reported_with_the_tasks_name():
    @do
    def program():
        yield Spawn(after(1, KeyError("lost")), name="worker")
        yield Sleep(2)
        return 5

    with pytest.warns(UnretrievedTaskError, match="'worker'.*KeyError.*lost") as caught:
        assert run(program()) == 5
    assert len(caught) == 1


def test_retrieved_errors_and_cancellations_are_not_reported():
    @do
    def program():
        waited = yield Spawn(after(1, KeyError("a")))
        gathered = yield Spawn(after(1, KeyError("b")))
        raced = yield Spawn(after(1, KeyError("c")))
        for effect in (Wait(waited), Gather(gathered), Race(raced)):
            with pytest.raises(KeyError):
                yield effect
        yield Spawn(after(100, "left"))
        yield Checkpoint()

    run(program())  # warnings are errors here


def test_a_second_failure_that_gather_did_not_raise_is_reported():
    @do
    def program():
        with pytest.raises(KeyError):
            yield Gather(after(1, KeyError("seen")), after(2, IndexError("unseen")))
        yield Sleep(5)

    with pytest.warns(UnretrievedTaskError, match="IndexError: unseen"):
        run(program())
