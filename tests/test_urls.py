"""``slotwise.semaphore()``: one function for every scope, by url."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import slotwise
from slotwise import (
    MemorySemaphore,
    ProcessSemaphore,
    Rate,
    RateLimit,
    RedisConfig,
    RedisSemaphore,
    SlotManager,
    Tier,
    Tiers,
)
from slotwise._semaphore_options import SemaphoreOptions


@pytest.fixture(autouse=True)
def _no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLOTWISE_URL", raising=False)


async def test_without_a_url_it_is_of_this_process():
    semaphore = slotwise.semaphore("api", 2)
    assert isinstance(semaphore, MemorySemaphore)
    assert (semaphore.name, semaphore.value) == ("api", 2)
    async with semaphore.cm():
        assert (await slotwise.semaphore("api", 2, "memory://").stats()).acquired_slots == 1


def test_process_urls_name_a_folder(tmp_path: Path):
    url = f"process://{tmp_path}/with%20space"
    semaphore = slotwise.semaphore("api", 1, url, ttl=5)
    assert isinstance(semaphore, ProcessSemaphore)
    same = ProcessSemaphore(name="api", value=1, directory=tmp_path / "with space")
    with semaphore.cm():
        assert same.locked_sync() is True
    assert same.locked_sync() is False


def test_process_without_a_folder_is_the_usual_one(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SLOTWISE_DIR", str(tmp_path / "usual"))
    with slotwise.semaphore("api", 1, "process://").cm():
        assert ProcessSemaphore.names(tmp_path / "usual") == ["api"]


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
def test_redis_urls_name_a_server_and_perhaps_a_namespace(scheme):
    semaphore = slotwise.semaphore(
        "api", 1, f"{scheme}://:secret@example.org:7000?namespace=shop", ttl=5, attempts=2
    )
    assert isinstance(semaphore, RedisSemaphore)
    assert "example.org:7000" in repr(semaphore)
    assert semaphore.config.namespace == "shop"
    assert semaphore.config.attempts == 2
    given = slotwise.semaphore("api", 1, "redis://x?namespace=shop", namespace="lab")
    assert isinstance(given, RedisSemaphore)
    assert given.config.namespace == "lab"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("clientname=x", "unknown option clientname; did you mean client_name"),
        ("ssl_cert_req=none", "unknown option ssl_cert_req; did you mean ssl_cert_reqs"),
        ("colour=red", "unknown option colour; there are client_name, db"),
        ("ssl_ca_certs=/ca.pem", "ssl_ca_certs, which needs a scheme with TLS: rediss://"),
        ("colour", "unknown option colour"),
    ],
)
@pytest.mark.parametrize("make", [RedisConfig, lambda url: slotwise.semaphore("api", 1, url)])
def test_an_option_of_a_redis_url_that_is_not_known_is_named(make, query, words):
    with pytest.raises(ValueError, match=words):
        make(f"redis://example.org/0?namespace=shop&{query}")


@pytest.mark.parametrize("url", ["redis://:Gr@nd?mas=s3cret@host", "redis://:Gr@nd?mas3cret@host"])
def test_a_piece_of_a_password_is_not_taken_for_an_option_that_can_be_named(url):
    with pytest.raises(ValueError, match="unknown option") as caught:
        RedisConfig(url)
    assert "mas" not in str(caught.value)


def test_options_of_redis_py_in_a_url_are_accepted():
    config = RedisConfig(
        "redis://example.org?username=ada&password=s3cret&socket_timeout=5&decode_responses=yes"
        "&max_connections=10&protocol=3&namespace=shop&client_name=web&db=2"
    )
    assert config.endpoint.options.kwargs["username"] == "ada"
    assert config.endpoint.options.kwargs["password"] == "s3cret"
    assert (config.namespace, config.endpoint.database) == ("shop", 2)
    assert "s3cret" not in repr(config)
    assert config.with_options(attempts=1).namespace == "shop"


def test_a_redis_config_is_a_url_too():
    config = RedisConfig("redis://example.org", namespace="shop")
    semaphore = slotwise.semaphore("api", 1, config, ttl=5)
    assert isinstance(semaphore, RedisSemaphore)
    assert (semaphore.config, semaphore.ttl) == (config, 5)
    with pytest.raises(TypeError, match="has no option attempts"):
        slotwise.semaphore("api", 1, config, attempts=2)


def test_the_environment_sets_the_default_and_an_argument_wins(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SLOTWISE_URL", f"process://{tmp_path}/slots")
    assert isinstance(slotwise.semaphore("api", 1), ProcessSemaphore)
    assert isinstance(slotwise.semaphore("api", 1, "memory://"), MemorySemaphore)
    monkeypatch.setenv("SLOTWISE_URL", "")
    assert isinstance(slotwise.semaphore("api", 1), MemorySemaphore)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host", "url must be one of memory:// .* not ftp://"),
        ("localhost:6379", "not one without '://'"),
        ("memory://name", "exactly memory://"),
        ("process://relative/folder", "three slashes"),
        ("process:///directory?x=1", "nothing else"),
        ("redis://host:port", "port is not a number"),
    ],
)
def test_a_url_that_names_no_scope_says_what_there_is(url, words):
    with pytest.raises(ValueError, match=words):
        slotwise.semaphore("api", 1, url)


@pytest.mark.parametrize("scheme", ["reddis", "process", "memory", "redis"])
def test_no_message_shows_a_password(scheme):
    with pytest.raises(ValueError, match="url") as caught:
        slotwise.semaphore("api", 1, f"{scheme}://user:secret@host:0x/")
    assert "secret" not in str(caught.value)


def test_a_url_that_is_not_text_is_a_type_error():
    with pytest.raises(TypeError, match="url must be a str or a RedisConfig, not int"):
        slotwise.semaphore("api", 1, 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "option", "known"),
    [
        (
            "memory://",
            "namespace",
            "cancel_task_after_ttl, cancel_task_on_loss, heartbeat_max_interval, local_value",
        ),
        (
            "process://",
            "directory",
            "cancel_task_after_ttl, cancel_task_on_loss, heartbeat_max_interval, local_value",
        ),
        ("redis://", "config", "heartbeat_max_interval"),
    ],
)
def test_an_option_that_a_scope_does_not_have_says_which_it_has(url, option, known):
    with pytest.raises(TypeError, match=f"{url} has no option {option}; it has .*{known}"):
        slotwise.semaphore("api", 1, url, **{option: None})


@pytest.mark.parametrize("url", ["memory://", "process:///tmp", "redis://"])
def test_every_scope_takes_the_common_options(url):
    slotwise.semaphore(None, 3, url, max_acquire_time=1, ttl=2, cancel_task_after_ttl=True)


_OF_A_SERVER = {
    "heartbeat_max_interval": 10,
    "ping_interval": 2,
    "cancel_task_on_loss": True,
    "on_unreachable": "local",
    "local_value": 2,
    "unreachable_after": 0.5,
}
_WRONG = [
    {"heartbeat_max_interval": None, "ping_interval": 16},
    {"heartbeat_max_interval": 0},
    {"ping_interval": 16},
    {"cancel_task_on_loss": 1},
    {"on_unreachable": "opne"},
    {"on_unreachable": "local"},
    {"local_value": 2},
    {"unreachable_after": None},
]


@pytest.mark.parametrize("url", ["memory://", "process:///tmp", "redis://"])
def test_every_scope_takes_the_options_of_a_server(url):
    semaphore = slotwise.semaphore(None, 3, url, **_OF_A_SERVER)
    assert semaphore.value == 3
    Tiers(Tier("all", 3), url=url, **_OF_A_SERVER)
    of_rate = {**_OF_A_SERVER, "local_value": Rate(1, per=1)}
    del of_rate["cancel_task_on_loss"]  # a rate holds nothing that could be lost
    rate = RateLimit("calls", Rate(2, per=1), url=url, **of_rate)
    assert (rate.heartbeat_max_interval, rate.ping_interval) == (10, 2)


@pytest.mark.parametrize("wrong", _WRONG, ids=str)
def test_a_wrong_option_of_a_server_is_the_same_error_in_every_scope(wrong):
    for make in (
        lambda url: slotwise.semaphore(None, 3, url, **wrong),
        lambda url: Tiers(Tier("all", 3), url=url, **wrong),
    ):
        errors = set()
        for url in ("memory://", "process:///tmp", "redis://"):
            with pytest.raises((TypeError, ValueError)) as caught:
                make(url)
            errors.add((caught.type, str(caught.value)))
        assert len(errors) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda **url: Tiers(Tier("all", 1), name="api", **url),
        lambda **url: RateLimit("calls", Rate(1, per=60), **url),
        lambda **url: SlotManager(name="slots", **url).options,
        slotwise.SlotOptions,
    ],
    ids=["Tiers", "RateLimit", "SlotManager", "SlotOptions"],
)
def test_the_environment_sets_the_default_for_every_kind_of_limit(make, tmp_path, monkeypatch):
    assert make().url is None
    monkeypatch.setenv("SLOTWISE_URL", f"process://{tmp_path}")
    assert make().url == f"process://{tmp_path}"
    assert make(url="memory://").url == "memory://"
    monkeypatch.setenv("SLOTWISE_URL", "redis://:secret@example.org")
    assert isinstance(make().url, RedisConfig)


def in_a_new_python(text: str) -> str:
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return ran.stdout


def test_drivers_are_imported_when_their_url_is_used():
    text = (
        "import sys, slotwise; slotwise.semaphore('api', 1);"
        "print([m for m in ('slotwise.redis', 'slotwise.processes', 'redis') if m in sys.modules])"
    )
    assert in_a_new_python(text) == "[]\n"


def test_the_package_imports_what_is_used():
    text = (
        "import sys; import slotwise; dir(slotwise);"
        "print([m for m in ('asyncio', 'redis', 'slotwise.redis') if m in sys.modules]);"
        "from slotwise import *;"
        "print({*slotwise.__all__} <= {*globals(), '__version__'})"
    )
    assert in_a_new_python(text) == "[]\nTrue\n"


def test_every_public_name_can_be_had_and_no_other():
    assert {*slotwise._MODULE_OF, "__version__"} > {*slotwise.__all__}
    modules = {"adaptive", "errors", "inspection", "memory", "processes", "redis", "tiers"}
    assert {*dir(slotwise)} == {*slotwise.__all__} | modules
    for name in (*dir(slotwise), *slotwise._MODULE_OF):
        assert getattr(slotwise, name) is not None
    assert slotwise.errors.SlotwiseError is slotwise.SlotwiseError
    with pytest.raises(AttributeError, match="'slotwise' has no attribute 'Semafore'"):
        _ = slotwise.Semafore


def test_the_options_that_type_checkers_know_are_those_that_there_are():
    of_semaphore = {*inspect.signature(RedisSemaphore).parameters} - {"name", "value", "config"}
    of_server = {each.name for each in fields(RedisConfig)} - {"url", "endpoint"}
    assert {*SemaphoreOptions.__annotations__} == of_semaphore | of_server


@pytest.mark.parametrize(("count", "named"), [((600, 60), {}), ((600,), {}), ((), {"per": 60})])
def test_a_rate_without_its_count_or_named_time_shows_the_right_call(count, named):
    with pytest.raises(TypeError, match=r"Rate\(600, per=60\)"):
        Rate(*count, **named)
    assert Rate(count=600, per=60) == Rate(600, per=60)
    assert "per" in inspect.signature(Rate).parameters
