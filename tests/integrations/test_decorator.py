"""slotwise.limited, on functions of every kind."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import _fresh_processes

from slotwise import (
    AcquireTimeout,
    LimitFull,
    MemorySemaphore,
    Rate,
    RateLimit,
    SemaphoreClosed,
    Tier,
    Tiers,
    WouldBlockLoop,
    limited,
)
from slotwise.integrations import rq
from slotwise.integrations._source import NameTemplate


def held(limit) -> int:
    return limit.stats_sync().acquired_slots


# ------------------------------------------------------------- kinds of functions


async def test_a_coroutine_function_holds_a_slot_while_it_runs(settle) -> None:
    running = most = 0

    @limited("decorated", 2)
    async def work(number: int, *, plus: int = 1) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number + plus

    assert inspect.iscoroutinefunction(work)
    assert str(inspect.signature(work)).startswith("(number: 'int', *, plus")
    assert await asyncio.gather(*[work(n, plus=2) for n in range(9)]) == [n + 2 for n in range(9)]
    assert most == 2
    assert work.limit == work.limit_for(1)
    assert (work.limit.name, work.limit.value) == ("decorated", 2)


def test_a_plain_function_holds_a_slot_while_it_runs() -> None:
    @limited(MemorySemaphore(1))
    def work() -> int:
        return held(work.limit)

    assert work() == 1
    assert held(work.limit) == 0


def test_a_function_that_fails_gives_its_slot_back() -> None:
    @limited(MemorySemaphore(1))
    def work() -> None:
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        work()
    assert held(work.limit) == 0


async def test_methods_class_methods_and_static_methods_are_limited() -> None:
    class Client:
        def __init__(self, tenant: str) -> None:
            self.tenant = tenant

        @limited("client:{self.tenant}", 1)
        async def fetch(self, number: int) -> int:
            return held(Client.fetch.limit_for(self, number)) + number

        @classmethod
        @limited("of the class", 1)
        def count(cls) -> str:
            return cls.__name__

        @staticmethod
        @limited("static", 1)
        async def ping() -> str:
            return "pong"

    client = Client("a/b")
    assert await client.fetch(10) == 11
    assert Client.fetch.limit_for(client, 1).name == "client:a%2Fb"
    with pytest.raises(WouldBlockLoop):
        client.count()
    assert await asyncio.to_thread(client.count) == "Client"
    assert await client.ping() == "pong"


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_limited_above_a_class_or_static_method_is_refused(kind) -> None:
    with pytest.raises(TypeError, match=f"under @{kind.__name__}"):
        limited("wrong order", 1)(kind(lambda: None))


async def test_an_async_generator_holds_its_slot_from_the_first_item_until_it_is_closed() -> None:
    seen = []

    @limited(MemorySemaphore(1))
    async def items():
        try:
            got = yield 1
            seen.append(got)
            try:
                yield 2
            except ValueError as error:
                seen.append(str(error))
            yield 3
        finally:
            seen.append(held(items.limit))

    stream = items()
    assert held(items.limit) == 0
    assert await stream.__anext__() == 1
    assert held(items.limit) == 1
    assert await stream.asend("sent") == 2
    assert await stream.athrow(ValueError("thrown")) == 3
    await stream.aclose()
    assert held(items.limit) == 0
    assert seen == ["sent", "thrown", 1]
    assert [item async for item in items()] == [1, 2, 3]


def test_a_plain_generator_holds_its_slot_from_the_first_item_until_it_is_closed() -> None:
    @limited(MemorySemaphore(1))
    def items():
        got = yield 1
        yield got
        return "returned"

    stream = items()
    assert held(items.limit) == 0
    assert next(stream) == 1
    assert held(items.limit) == 1
    assert stream.send("sent") == "sent"
    with pytest.raises(StopIteration) as ended:
        next(stream)
    assert ended.value.value == "returned"
    assert held(items.limit) == 0
    abandoned = items()
    next(abandoned)
    del abandoned
    assert held(items.limit) == 0


async def test_objects_and_partials_are_what_they_call() -> None:
    class Fetch:
        async def __call__(self, number: int) -> int:
            await asyncio.sleep(0)
            return held(limit) + number

    limit = MemorySemaphore(1)
    assert await limited(limit)(functools.partial(Fetch().__call__, 10))() == 11
    assert await limited(limit)(Fetch())(20) == 21


def test_what_looks_no_further_than_the_wrapper_finds_the_signature() -> None:
    @limited(MemorySemaphore(1))
    def work(number: int, *, plus: int = 1) -> None: ...

    found = inspect.getfullargspec(work)
    assert (found.args, found.kwonlyargs, found.varargs) == (["number"], ["plus"], None)


async def test_a_plain_function_that_returns_a_coroutine_is_refused() -> None:
    async def work() -> None: ...

    with pytest.raises(TypeError, match="decorate the coroutine function"):
        limited(MemorySemaphore(1), on_full="raise")(lambda *args: work())()


# ------------------------------------------------------------------------ names


def test_fields_of_the_name_are_the_parameters_defaults_included() -> None:
    @limited("crm:{tenant}/{region}", 5)
    def work(tenant: str, region: str = "eu", *, retries: int = 3) -> None: ...

    assert work.limit_for("acme").name == "crm:acme/eu"
    assert work.limit_for("a/b:c", region="é ü").name == "crm:a%2Fb%3Ac/%C3%A9%20%C3%BC"
    assert not hasattr(work, "limit")
    with pytest.raises(TypeError, match="missing"):
        work.limit_for()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("crm:{tenent}", "tenent.*tenant, region"),
        ("crm:{}", "field ''"),
        ("crm:{tenant", "not a template"),
        ("{tenant}{region}", "nothing but '' between"),
        ("{tenant}x{region}", "nothing but 'x' between"),
    ],
)
def test_a_name_that_cannot_be_filled_is_refused_when_decorating(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):

        @limited(name, 5)
        def work(tenant: str, region: str) -> None: ...


@pytest.mark.soak
@given(
    st.sampled_from(["{a}:{b}", "{a}-{b}", "{a}_x.{b}", "x%{a}~{b}", "{a}.{b}.c", "é{a}é{b}"]),
    st.lists(st.tuples(st.text("a:-_.~%/é2D5", max_size=4), st.text(max_size=4)), max_size=8),
)
def test_different_values_never_make_the_same_name(template: str, pairs) -> None:
    fill = NameTemplate(template, ["a", "b"]).fill
    different = {*pairs, *[(b, a) for a, b in pairs]}
    assert len({fill({"a": a, "b": b}) for a, b in different}) == len(different)


async def test_a_function_finds_the_limit_by_the_parameters_that_it_names() -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True), Tier("all", 2))

    @limited(lambda tenant: None if tenant == "root" else tiers.at(tenant=tenant))
    async def work(prompt: str, tenant: str = "acme") -> int:
        return sum(tier.active for tier in tiers.stats_sync().values())

    assert await work("hello") == 2
    assert await work("hello", tenant="root") == 0
    assert work.limit_for("hello", "root") is None
    assert work.limit_for("hello").keys == {"tenant": "acme"}
    with pytest.raises(ValueError, match="user"):
        limited(lambda user: tiers.at(tenant=user))(work)
    with pytest.raises(TypeError, match="Limit or None, not int"):
        limited(lambda *args: 5)(lambda x: x)(1)
    with pytest.raises(TypeError, match=r"not Tiers: tiers\.at\(\.\.\.\) makes a Limit"):
        limited(lambda: tiers)(lambda: None)()


# --------------------------------------------------------------- a limit that is full


async def test_on_full_raise_raises_limit_full_at_once() -> None:
    @limited(MemorySemaphore(1, name="full"), on_full="raise")
    async def work() -> None:
        with pytest.raises(LimitFull, match="'full'"):
            await work()

    await work()
    assert held(work.limit) == 0


async def test_on_full_skip_returns_none_and_generators_yield_nothing() -> None:
    limit = MemorySemaphore(1)
    skipping = limited(limit, on_full="skip")
    acquired = await limit.acquire()

    @skipping
    async def items():
        yield 1

    @skipping
    def plain_items():
        yield 1

    @skipping
    def function() -> int:
        return 1

    @skipping
    async def coroutine() -> int:
        return 1

    assert [item async for item in items()] == []
    assert list(plain_items()) == []
    assert function() is None  # it doesn't wait, so an event loop may call it
    assert await coroutine() is None
    await limit.release(acquired)
    assert [item async for item in items()] == [1]
    assert list(plain_items()) == [1]
    assert function() == 1
    assert await coroutine() == 1


async def test_on_full_replace_takes_the_slot_of_the_oldest_holder() -> None:
    limit = MemorySemaphore(1)
    oldest = await limit.acquire()

    @limited(limit, on_full="replace")
    async def work() -> bool:
        return oldest.lost.is_set()

    assert await work()
    assert held(limit) == 0


def test_on_full_replace_is_for_semaphores_also_where_a_function_finds_the_limit() -> None:
    tiers = Tiers(Tier("tenant", 1, keyed=True))
    work = limited(lambda tenant: tiers.at(tenant=tenant), on_full="replace")(lambda tenant: tenant)
    with pytest.raises(TypeError, match="for semaphores"):
        work("acme")


async def test_a_timeout_ends_the_wait_and_a_closed_limit_is_an_error() -> None:
    limit = MemorySemaphore(1)
    work = limited(limit, timeout=0)(asyncio.sleep)
    acquired = await limit.acquire()
    with pytest.raises(AcquireTimeout):
        await work(0)
    await limit.release(acquired)
    await work(0)
    await limit.close()
    with pytest.raises(SemaphoreClosed):
        await work(0)


def test_a_cost_is_slots_of_a_semaphore_and_the_cost_of_a_rate() -> None:
    @limited(MemorySemaphore(5), cost=3)
    def work() -> int:
        return held(work.limit)

    rate = RateLimit(None, Rate(10, per=3600, burst=10))

    @limited(rate, cost=lambda text: len(text.strip()))
    def send(text: str, *, urgent: bool = False) -> int:
        return held(rate)

    assert work() == 3
    assert send("four", urgent=True) == 4
    with pytest.raises(ValueError, match="cost must be at least 1"):
        send("")


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("name",), {}, TypeError),
        (("name", 0), {}, ValueError),
        (("name", 5), {"url": "http://x"}, ValueError),
        ((MemorySemaphore(1), 5), {}, TypeError),
        ((MemorySemaphore(1),), {"url": "memory://"}, TypeError),
        ((5,), {}, TypeError),
        ((Tiers(Tier("tenant", 1, keyed=True)),), {}, TypeError),
        (("name", 5), {"on_full": "give up"}, ValueError),
        (("name", 5), {"on_full": "skip", "timeout": 3}, ValueError),
        (("name", 5), {"cost": 0}, ValueError),
        (("name", 5), {"timeout": -1}, ValueError),
        (("name", 5), {"priority": "high"}, TypeError),
        (("name", 5), {"priority": float("nan")}, ValueError),
        ((Tiers(Tier("all", 1)),), {"on_full": "replace"}, TypeError),
        ((RateLimit(None, Rate(1, per=1)),), {"on_full": "replace"}, TypeError),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_decorated(
    arguments, options, error
) -> None:
    with pytest.raises(error):
        limited(*arguments, **options)


def test_the_processes_of_one_machine_share_a_decorated_function(tmp_path) -> None:
    program = (
        "import sys, slotwise\n"
        f"@slotwise.limited('shared', 1, url='process://{tmp_path}', on_full='skip')\n"
        "def work(child=None):\n"
        "    if child is None: return 'ran'\n"
        "    import subprocess\n"
        "    print(subprocess.check_output([sys.executable, '-c', child], text=True), end='')\n"
        "    return 'ran'\n"
    )
    inner = program + "print(work())"
    outcome = _fresh_processes.run(
        [sys.executable, "-c", f"{program}print(work({inner!r})); print(work())"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert outcome.stdout.split() == ["None", "ran", "ran"]


def test_without_a_limit_the_right_call_is_shown():
    async def fetch(number: int) -> int:
        return number

    def numbers(number: int):
        yield number

    async def stream(number: int):
        yield number

    class Client:
        pass

    for function in (fetch, numbers, stream, Client):
        words = rf'limited\(\) needs a limit, .*: @limited\("{function.__name__}", 5\)'
        with pytest.raises(TypeError, match=words):
            limited(function)
    for decorator in (limited, rq.limited):
        with pytest.raises(TypeError, match=r'needs a limit, .*: @limited\("api", 5\)'):
            decorator()


def test_a_plain_function_under_a_bare_decorator_is_refused_by_its_first_call():
    own = MemorySemaphore(1)
    finders = []
    for limit in (own, None):

        def find(number: int, limit: MemorySemaphore | None = limit) -> MemorySemaphore | None:
            return limit

        finders.append(find)
    for finder, found in zip(finders, (own, None), strict=True):
        decorated = limited(finder)(lambda number: number)
        assert decorated(3) == 3
        assert decorated.limit_for(3) is found

    def plain(number: int) -> int:
        return number

    # Here the first call tells.
    bare = limited(plain)
    for call in (lambda: bare(1), bare, lambda: bare(1, 2), lambda: bare(number=1)):
        with pytest.raises(TypeError, match=r'@limited\("plain", 5\)'):
            call()
