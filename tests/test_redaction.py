"""No message, log record or repr shows a credential, whoever says it and however it is written."""

from __future__ import annotations

import base64
import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import slotwise
from slotwise import MemorySemaphore, ProcessSemaphore, SlotManager, effects
from slotwise._cli.commands import SUMMARIES, load
from slotwise._cli.main import main as command_line
from slotwise._core.redaction import WITHHELD, quoted, redact
from slotwise.errors import BackendError
from slotwise.integrations.asgi import LimitMiddleware
from slotwise.pipeline import bounded_map
from slotwise.purge import PurgeOptions
from slotwise.redis import RedisConfig, RedisSemaphore
from slotwise.tiers import SlotOptions, Tier, Tiers
from tests._fresh_processes import run_command
from tests._inside import backend_of

SECRET = "hunter2-%s-Grüße"
WRITTEN = "hunter2-%25s-Gr%C3%BC%C3%9Fe"  # in a url
PART = "hunter2"
URL = f"redis://bob:{WRITTEN}@127.0.0.1:1/0"


# ------------------------------------------------------------------------ the function


@pytest.mark.parametrize(
    "text",
    [
        f"redis://:{PART}@host:6379/0 is no port",
        f"not 'redis://user:{PART}@host'",
        f"not b'rediss://{PART}@host'",
        f"redis:/:{PART}@host",
        f"redis://:a b {PART}@host",
        f"redis://:p@ss/{PART}@host",
        f"redis://:{PART}",
        f"extra argument ({PART}:{PART}@host)",
        f"SLOTWISE_URL=:{PART}@host",
        f"rediss://host?ssl_password={PART}&x=1",
        f"redis://host?passwrod={PART}",
        f"'rediss://host?db=1&ssl_pasword={PART}'",
        f"/srv/:{PART}@host: is not a directory",
        f"{{'host': 'h', 'password': '{PART}'}}",
        f'{{"secret" : "{PART}"}}',
        f"password: '{PART}'",
        f"{{'password': 'x&{PART}', 'host': 'h'}}",
        f"{{'password': b'x, {PART}'}}",
        f'password="x; {PART}"',
        f"{{'password': 'it\\'s {PART}'}}",
        f"{{'password': 'cut off {PART}",
        f"PASSWORD:{PART}",
        f"REDIS_PASSWORD={PART} was set",
        f"client-secret = {PART}",
        f"ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `bob`, `{PART}`, ",
    ],
)
def test_what_looks_like_a_credential_is_hidden(text: str) -> None:
    assert PART not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "its form is redis://user:password@host:port/database, with @ percent-encoded",
        "put it into the url, redis://:password@host",
        "url must begin with redis://, rediss:// or unix://, not http://...",
        "redis://localhost:6379 and redis://:6379 and redis+cluster://a:1,b:2",
        "no slot of 'api' within 5 s: 10 of 10 held, 42 others waiting",
        "pid 4411 on web3 'export'",
        "/etc/passwd: is no folder",
        "'/etc/passwd': is no folder",
        "'api' is closed everywhere: password: rotate it",
        "secret: none is set",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert redact(text) == text


def test_a_text_with_any_part_of_a_secret_is_withheld() -> None:
    assert redact(f"ERR unknown `{SECRET[:5]}", [SECRET]) == WITHHELD
    assert redact(f"ERR wrong: {WRITTEN}", [SECRET]) == WITHHELD
    assert redact("ERR no pw", ["pw"]) == WITHHELD
    assert redact("ERR unknown command", [SECRET, ""]) == "ERR unknown command"


@pytest.mark.parametrize("form", ["redis://bob:{}@host", "{{'password': '{}'}}", ":{}@host"])
def test_no_cut_leaves_the_beginning_of_a_credential(form: str) -> None:
    for length in (*range(470, 500), *range(1960, 2000), 5000):
        text = "x" * length + " " + form.format(PART + SECRET)
        for shown in (quoted(text), redact(text)):
            assert PART[:4] not in shown, length


@pytest.mark.soak
@pytest.mark.parametrize(
    "hostile", ["a:/", "://:", "secret-", "_password", "w", "redis://w", "a:b@", "@\n", "\\'"]
)
def test_hostile_texts_take_no_time(hostile: str) -> None:
    text = "@\n" + hostile * (100_000 // len(hostile)) + "password='"
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 5


# ------------------------------------------------------------------------- constructors


@effects.do
def _yields(effect: Any) -> effects.Program[Any]:
    return (yield effect)


CREDENTIALS: list[Any] = [URL, URL.encode(), [URL], {"url": URL}, {"password": PART}]


@pytest.mark.parametrize("given", CREDENTIALS, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize(
    "make",
    [
        lambda given: RedisSemaphore(value=1, name="s", config=given),
        lambda given: RedisSemaphore(given, name="s"),
        lambda given: RedisSemaphore(value=1, name="s", ttl=given),
        lambda given: RedisConfig(None if isinstance(given, str) else given),
        lambda given: RedisConfig(namespace=None if isinstance(given, str) else given),
        lambda given: RedisConfig(attempts=given),
        lambda given: RedisConfig(connect_timeout=given),
        RedisConfig.from_client,
        lambda given: Tiers(Tier("t", 1), url=[given]),
        Tiers,
        lambda given: Tier("t", given),
        lambda given: Tier(given, 1),
        lambda given: ProcessSemaphore(1, name="s", directory=given),
        lambda given: SlotManager(url=[given]),
        SlotManager,
        MemorySemaphore,
        ProcessSemaphore,
        lambda given: slotwise.semaphore("s", given),
        lambda given: slotwise.semaphore("s", 1, [given]),
        lambda given: slotwise.semaphore("s", 1, "memory://", max_acquire_time=given),
        lambda given: slotwise.Adaptive(given, 1, 2),
        lambda given: slotwise.Adaptive(1, 1, 2, algorithm=given),
        lambda given: slotwise.Adaptive(1, 1, 2, drop_on=given),
        lambda given: MemorySemaphore(1).release_sync("id", outcome=given),
        lambda given: slotwise.Rate(given, per=1),
        lambda given: slotwise.RateLimit("s", given),
        lambda given: slotwise.RateLimit("s", slotwise.Rate(1, per=1), url=[given]),
        lambda given: slotwise.RateLimit("s", slotwise.Rate(1, per=1), on_unreachable=given),
        lambda given: Tiers(Tier("t", 1), order=given),
        lambda given: Tiers(Tier("t", 1)).resize_sync(given, 1),
        lambda given: Tiers(Tier("t", 1)).pause_sync(given),
        lambda given: slotwise.limited("s", 1, on_full=given),
        lambda given: LimitMiddleware(None, MemorySemaphore(1), on_disconnect=given),  # type: ignore[arg-type]
        lambda given: LimitMiddleware(None, [given]),  # type: ignore[arg-type]
        lambda given: bounded_map(lambda _: None, [1], limit=given),
        lambda given: bounded_map(lambda _: None, [1], limit=1, on_error=given),
        lambda given: bounded_map(lambda _: None, [1], limit=1, semaphore=given),
        lambda given: bounded_map(given, [1], limit=1),
        lambda given: PurgeOptions(max_age_days=given),
        lambda given: PurgeOptions(max_age_days=1, age_by=given),
        lambda given: PurgeOptions(max_age_days=1, min_depth=given),
        lambda given: PurgeOptions(
            max_age_days=1, include=given if isinstance(given, str) else [given]
        ),
        effects.run,
        lambda given: effects.run(_yields(given)),
        lambda given: effects.run(_yields(effects.Wait(given))),
        lambda given: effects.run(_yields(effects.AcquireSemaphore(given))),
        effects.do,
        effects.explore,
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_without_its_credentials(
    make: Callable[[Any], Any], given: Any
) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make(given)
    assert PART not in str(caught.value)
    assert "Gr" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda given: RedisConfig(attempts=given),
        lambda given: RedisConfig(connect_timeout=given),
        lambda given: RedisConfig(reply_timeout=given),
        lambda given: RedisConfig(backoff=given),
        lambda given: RedisConfig(max_backoff=given),
        lambda given: RedisConfig(cleanup_timeout=given),
        lambda given: RedisSemaphore(given, name="s"),
        lambda given: RedisSemaphore(1, name="s", heartbeat_max_interval=given),
        lambda given: MemorySemaphore(1, cancel_task_after_ttl=given),
        lambda given: MemorySemaphore(1).cm(given),
        lambda given: MemorySemaphore(1).cm(label=[given]),
        lambda given: MemorySemaphore(1).release_sync([given]),
        lambda given: ProcessSemaphore(1, name=[given]),
        lambda given: ProcessSemaphore(1, directory=[given]),
        Tiers,
        lambda given: Tier("t", given),
        lambda given: Tier([given], 1),
        lambda given: Tier("t", 1, rate=given),
        lambda given: SlotManager(max_uploads=given),
        lambda given: SlotOptions.from_env({"SLOTWISE_MAX_UPLOADS": given}),
        lambda given: SlotOptions.from_env({"SLOTWISE_MAX_UPLOADS": f"redis://host/{given}"}),
        lambda given: SlotOptions.from_env({"SLOTWISE_TTL": given}),
        lambda given: SlotOptions.from_env({"SLOTWISE_CANCEL_TASK_AFTER_TTL": given}),
    ],
)
def test_a_bare_password_in_the_place_of_another_argument_is_not_quoted(
    make: Callable[[Any], Any],
) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make(PART)
    assert PART not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"reddis://:{PART}@host",
        f"redis//:{PART}@host",
        f":{PART}@host",
        f"{PART}://host",
        f"redis:{PART}@h://host",
        f"redis://:{PART}",
        f"redis://user:{PART}@host:port",
        f"redis://:[{PART}@host",
        f"redis://:6379/{PART}@host",
        f"redis://:6379#{PART}@host",
        f"redis://:6379?{PART}@host",
        f"redis://:{PART}@host/x",
        f"redis+sentinel://:{PART}@host",
        f"process://:{PART}@host/x",
        f"process://[{PART}",
    ],
)
def test_a_misspelt_url_is_refused_without_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLOTWISE_URL", url)
    with pytest.raises(ValueError, match="url") as caught:
        slotwise.semaphore("s", 1)
    assert PART not in str(caught.value)
    assert command_line(["ls"]) == 1
    assert run_command("run", "s", "--limit", "1", "--", "true") == 125
    typed = url if "@" in url else f"redis://:{PART}"
    assert command_line(["ls", typed]) == 2
    assert run_command("run", "s", "--limit", "1", "--ulr", typed, "--", "true") == 125
    assert run_command("run", "s", "--limit", typed, "--", "true") == 125
    assert command_line(["purge", "x", typed]) == 2
    assert command_line(["purge", "x", f"--ulr={typed}"]) == 2
    with pytest.raises(ValueError, match="SLOTWISE_URL") as caught:
        SlotOptions.from_env({"SLOTWISE_URL": url})
    assert PART not in str(caught.value)
    with pytest.raises(ValueError, match="SLOTWISE_TTL") as caught:
        SlotOptions.from_env({"SLOTWISE_TTL": f"redis://:{PART}@host"})
    assert PART not in str(caught.value)
    said = "".join(capfd.readouterr())
    assert PART not in said


def test_a_url_for_a_directory_is_refused_without_its_password(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWISE_DIR", URL)
    for words in (["doctor"], ["ls"], ["show", "x"], ["run", "x", "--limit", "1", "--", "true"]):
        assert run_command(*words) != 0
        said = capfd.readouterr()
        assert "SLOTWISE_DIR must be a path, not a url: redis://..." in said.out + said.err
        assert PART not in said.out + said.err
        assert "bug" not in said.err


def test_reprs_show_no_credentials() -> None:
    tls = RedisConfig(f"rediss://bob:{WRITTEN}@host?ssl_password={PART}&ssl_certfile=/c")
    assert tls.endpoint.options.kwargs["password"] == SECRET
    assert tls.endpoint.options.kwargs["ssl_password"] == PART
    sentinel = RedisConfig(f"redis+sentinel://bob:{WRITTEN}@host/service")
    for config in (tls, sentinel, pickle.loads(pickle.dumps(tls))):
        semaphore = RedisSemaphore(name="s", value=1, config=config)
        manager = SlotManager(url=config, cleanup_interval=0)
        tiers = Tiers(Tier("t", 1), url=config)
        shown = (config, config.endpoint, semaphore, manager, manager.options, tiers)
        for each in (*shown, backend_of(tiers), str(config.endpoint)):
            assert PART not in repr(each)
            assert "Gr" not in repr(each)


def test_reprs_and_errors_hide_the_password_of_a_url_in_the_wrong_place(tmp_path: Path) -> None:
    assert PART not in repr(RedisConfig(namespace=URL))
    path = tmp_path / f"user:{PART}@host"
    assert PART not in repr(ProcessSemaphore(1, name="s", directory=path))
    tiers = Tiers(Tier("t", 1), url=f"process://{path}", name="s")
    assert PART not in repr(backend_of(tiers))
    path.touch()
    with pytest.raises(BackendError, match="not a directory") as caught:
        ProcessSemaphore(1, name="s", directory=path).try_acquire_sync()
    assert PART not in str(caught.value)


# ------------------------------------------------------------------ servers that echo


class Echoes(threading.Thread):
    """Says what it hears, in the way of ``answer``: whatever is sent there comes back."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        super().__init__(daemon=True)
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._clients: list[tuple[socket.socket, threading.Thread]] = []

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            serving = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._clients.append((client, serving))
            serving.start()

    def _serve(self, client: socket.socket) -> None:
        heard = b""
        with client:
            try:
                while data := client.recv(65536):
                    heard += data
                    client.sendall(self._answer(heard))
            except OSError:
                pass

    def __enter__(self) -> Echoes:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join(10)
        for client, serving in self._clients:  # one that is being greeted may take its time
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            serving.join(10)


def words_of(heard: bytes) -> bytes:
    """The words of RESP commands, without their lengths."""
    return b" ".join(each for each in heard.split(b"\r\n") if each and each[:1] not in b"*$")


GREETED = b"%1\r\n$7\r\nversion\r\n$5\r\n7.4.0\r\n"

ECHOES: dict[str, Callable[[bytes], bytes]] = {
    "redis 5": lambda heard: (
        b"-ERR unknown command `HELLO`, with args beginning with: `"
        + b"`, `".join(words_of(heard).split()[1:])[:110]
        + b"\r\n"
    ),
    "a proxy": lambda heard: b"-ERR can't do '" + words_of(heard) + b"'\r\n",
    "in other forms": lambda heard: (
        b"-ERR %b %b %b %b\r\n"
        % (
            words_of(heard).upper(),
            words_of(heard)[::-1],
            words_of(heard).hex().encode(),
            base64.b64encode(words_of(heard)),
        )
    ),
    "cuts off": lambda heard: b"-ERR syntax: " + words_of(heard)[:25] + b"\r\n",
    "not ready": lambda heard: b"-LOADING " + words_of(heard) + b"\r\n",
    "greets, then complains": lambda heard: (
        GREETED + (b"-ERR not allowed: " + words_of(heard) + b"\r\n") * 30
    ),
    "http": lambda heard: b"HTTP/1.1 400 bad: " + words_of(heard) + b"\r\n\r\n",
    "a bulk": lambda heard: b"$%d\r\n%b\r\n" % (len(words_of(heard)), words_of(heard)),
    "a version": lambda heard: (
        b"%%1\r\n$7\r\nversion\r\n$%d\r\n%b\r\n" % (len(words_of(heard)), words_of(heard))
    ),
    "a list": lambda heard: b"*1\r\n$%d\r\n%b\r\n" % (len(words_of(heard)), words_of(heard)),
}


@pytest.fixture(params=ECHOES)
def echo(request: pytest.FixtureRequest) -> Iterator[Echoes]:
    with Echoes(ECHOES[request.param]) as server:
        yield server


def urls_of(echo: Echoes) -> list[str]:
    at = f"bob:{WRITTEN}@127.0.0.1:{echo.port}"
    return [
        f"redis://{at}",
        f"redis://{at}/3",
        f"redis+cluster://{at}",
        f"redis+sentinel://{at}/service",
    ]


# What is shown of a longer quotation has the user before the password.
OTHER_FORMS = (
    *(PART.upper(), PART[::-1], PART.encode().hex()),
    *("BOB", b"bob".hex(), base64.b64encode(b"HELLO 3 AUTH bob").decode()[:16]),
)


def assert_nothing_leaks(*texts: object) -> None:
    for text in texts:
        for form in (PART, SECRET, WRITTEN, "Gr\u00fc", "hunt", *OTHER_FORMS):
            assert form not in str(text), text


def test_no_command_shows_what_a_server_echoes(
    echo: Echoes,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Any,
) -> None:
    caplog.set_level(logging.DEBUG)
    old = tmp_path / "old"
    old.touch()
    os.utime(old, (0, 0))
    commands: dict[str, list[str]] = {
        "run": ["run", "job", "--limit", "1", "--no-wait"],
        "ls": ["ls"],
        "show": ["show", "job"],
        "top": ["top", "--json", "--every", "0.1"],
        "resize": ["resize", "job", "2"],
        "freeze": ["freeze", "job"],
        "thaw": ["thaw", "job"],
        "pause": ["pause", "job", "1"],
        "kick": ["kick", "some-id"],
        "close": ["close", "job"],
        "open": ["open", "job"],
        "forget": ["forget", "job"],
        "acquire": ["acquire", "job", "--limit", "1", "--no-wait"],
        "release": ["release", "some-id"],
        "refill": ["refill", "job"],
        "explain": ["explain", "job"],
        "doctor": ["doctor"],
        "purge": ["purge", str(tmp_path), "--yes", "--name", "p"],
    }
    # Two ask no server, and two go on serving whatever it says.
    there = SUMMARIES.keys() - {"demo", "completion", "export", "web"}
    assert there <= commands.keys(), "a new command: run it here too"
    for url in urls_of(echo):
        # The other kinds of servers are spoken to by the same code in all commands.
        asking = there if url == urls_of(echo)[0] else {"ls", "doctor"}
        for words in (commands[name] for name in asking):
            agreed = ["--yes"] if "--yes" in load(words[0]).parser().format_help() else []
            tail = ["--", "true"] if words[0] == "run" else []
            # These two end their process, and leave it to that to close their files.
            typed = [*words, *agreed, "--url", url, *tail]
            ends = words[0] in ("run", "acquire")
            code = run_command(*typed) if ends else command_line(typed)
            assert code != 0, (words, url)
            said = capfd.readouterr()
            assert "bug" not in said.err, said.err
            assert_nothing_leaks(said.out, said.err)
    assert_nothing_leaks(*(record.getMessage() for record in caplog.records))


def test_no_call_shows_what_a_server_echoes(echo: Echoes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for url in urls_of(echo):
        config = RedisConfig(url, attempts=2, connect_timeout=2, backoff=0.01)
        semaphore = RedisSemaphore(name="s", value=1, config=config)
        manager = SlotManager(url=config, cleanup_interval=0)
        calls: list[Callable[[], object]] = [
            semaphore.stats_sync,
            manager.stats_sync,
            semaphore.try_acquire_sync,
            semaphore.holders_sync,
            lambda: RedisSemaphore.get_acquired_stats_sync(config=config),  # noqa: B023
            lambda: manager.acquire_download_slot_sync(timeout=1),  # noqa: B023
            lambda: semaphore.release_sync("x"),  # noqa: B023
            lambda: semaphore.kick_sync("x"),  # noqa: B023
            lambda: semaphore.resize_sync(2),  # noqa: B023
        ]
        # The other kinds of servers are spoken to by the same code in all calls.
        for call in calls if url == urls_of(echo)[0] else calls[:2]:
            with pytest.raises(BackendError) as caught:
                call()
            assert_nothing_leaks(caught.value)
    assert_nothing_leaks(*(record.getMessage() for record in caplog.records))
