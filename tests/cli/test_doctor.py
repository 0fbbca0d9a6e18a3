"""``slotwise doctor``: what it finds, what helps, and when its exit code is 1."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.cli._shell import Shell
from tests.redis._server import Server


def examine(shell: Shell, *words: object) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the last finding of each check."""
    ran = shell.here("doctor", "--json", *words)
    found = json.loads(ran.stdout)
    for check in found:
        assert [*check] == ["check", "state", "found", "remedy"]
        if check["state"] != "ok":
            assert check["remedy"], check
    return ran.returncode, {check["check"]: check for check in found}


def state(found: dict[str, dict[str, Any]], check: str) -> str:
    return str(found[check]["state"])


# ------------------------------------------------------------------------ Redis


def test_a_server_that_is_fit(redis_shell: Shell, server: Server):
    redis_shell.occupy()
    code, found = examine(redis_shell)
    assert code == 0
    assert [*found] == [
        *(
            "SLOTWISE_URL",
            "server",
            "version",
            "role",
            "eviction",
            "round trip",
            "clock",
            "scripts",
            "leftovers",
        ),
        *("tiers", "a slot"),
    ]
    assert {check["state"] for check in found.values()} == {"ok"}
    ran = redis_shell.here("doctor")
    assert ran.returncode == 0
    assert ran.stdout.splitlines()[-1] == "fit for use"
    with server.client() as client:
        assert all(client.pttl(key) > 0 for key in client.keys("*"))


def test_a_server_that_is_not_there(shell: Shell):
    code, found = examine(shell, "--url", "redis://127.0.0.1:1")
    assert code == 1
    assert [*found] == ["SLOTWISE_URL", "server"]
    assert "is it running" in found["server"]["remedy"]
    ran = shell.here("doctor", "--url", "redis://127.0.0.1:1")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert ran.stdout.splitlines()[-1] == "1 check failed"


def test_a_server_that_throws_semaphores_away(redis_shell: Shell, server: Server):
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            code, found = examine(redis_shell)
            assert (code, state(found, "eviction")) == (0, "warning")
            client.config_set("maxmemory", "1gb")
            code, found = examine(redis_shell)
            assert (code, state(found, "eviction")) == (1, "failed")
            assert "maxmemory-policy noeviction" in found["eviction"]["remedy"]
        finally:
            client.config_set("maxmemory", "0")
            client.config_set("maxmemory-policy", "noeviction")


def test_keys_that_never_expire(redis_shell: Shell, server: Server):
    with server.client() as client:
        client.zadd("adv-sem:semaphore_main:forgotten", {"somebody": time.time() - 100})
        code, found = examine(redis_shell)
        assert code == 1
        ran = redis_shell.here("doctor")
        assert "1 keys never expire: adv-sem:semaphore_main:forgotten" in ran.stdout
        client.expire("adv-sem:semaphore_main:forgotten", 100)
        code, found = examine(redis_shell)
        assert (code, state(found, "leftovers")) == (0, "ok")
        # Somebody else's namespace is none of our business.
        client.set("other:semaphore_main:x", "1")
        assert examine(redis_shell)[0] == 0


def test_a_replica_takes_no_writes(tmp_path: Path, server: Server):
    with Server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port)) as replica:
        shell = Shell(replica.url, tmp_path)
        code, found = examine(shell)
        assert (code, state(found, "role")) == (1, "failed")
        assert "primary" in found["role"]["remedy"]


def test_a_wrong_password(shell: Shell, server: Server):
    url = server.url.replace("redis://", "redis://nobody:secret@")
    code, found = examine(shell, "--url", url)
    assert (code, state(found, "server")) == (1, "failed")
    assert "check them in the url" in found["server"]["remedy"]
    assert "secret" not in json.dumps(found)


def test_a_user_without_eval_needs_scripts_that_somebody_has_loaded(
    redis_shell: Shell, server: Server
):
    with server.client() as client:
        rights = ["+@all", "-eval", "-script"]
        client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", *rights)
        try:
            few = ("--url", server.url.replace("redis://", "redis://few:x@"))
            client.script_flush()
            code, found = examine(redis_shell, *few)
            assert (code, state(found, "scripts")) == (1, "failed")
            assert found["scripts"]["found"].startswith("the server doesn't have them")
            assert "slotwise doctor --load-scripts" in found["scripts"]["remedy"]
            assert "slotwise doctor --load-scripts" in found["a slot"]["remedy"]
            code, found = examine(redis_shell, *few, "--load-scripts")
            assert (code, state(found, "load scripts")) == (1, "failed")
            assert "+script|load" in found["load scripts"]["remedy"]
            assert examine(redis_shell, "--load-scripts")[0] == 0
            code, found = examine(redis_shell, *few)
            assert (code, found["scripts"]["found"]) == (0, "they run")
        finally:
            client.execute_command("ACL", "DELUSER", "few")


def test_a_directory_has_no_scripts_to_load(shell: Shell):
    ran = shell.here("doctor", "--load-scripts")
    assert ran.returncode == 1
    assert "--load-scripts is for Redis" in ran.stderr


# ---------------------------------------------------------------------- a directory


def test_a_directory_that_is_fit(shell: Shell):
    assert examine(shell)[0] == 0  # not there yet
    shell.occupy()
    code, found = examine(shell)
    assert code == 0
    assert [*found] == [
        *("SLOTWISE_URL", "directory", "locks", "space", "semaphores", "tiers"),
        "a slot",
    ]
    assert {check["state"] for check in found.values()} == {"ok"}
    assert [each["name"] for each in shell.json("ls")] == ["api"]  # the doctor leaves nothing


def test_a_directory_that_others_may_write_to(shell: Shell):
    (shell.folder / "slots").mkdir()
    (shell.folder / "slots").chmod(0o777)
    code, found = examine(shell)
    assert (code, state(found, "directory")) == (1, "failed")
    assert "chmod 700" in found["directory"]["remedy"]


def test_a_directory_that_can_not_be_made(shell: Shell, tmp_path: Path):
    code, found = examine(shell, "--url", f"process://{tmp_path}/not/there")
    assert (code, state(found, "directory")) == (1, "failed")
    assert found["directory"]["remedy"] == f"mkdir -p {tmp_path}/not"


def test_a_file_that_is_damaged(shell: Shell):
    for name in ("api", "backup"):
        shell.occupy(name)()
    [damaged] = shell.folder.glob("slots/api*")
    damaged.write_bytes(b"no semaphore")
    (shell.folder / "slots" / "mystery.0123456789abcdef.slots").write_bytes(b"?")
    code, found = examine(shell)
    assert (code, state(found, "semaphores")) == (1, "failed")
    out = shell.here("doctor").stdout
    assert str(damaged) in out
    assert "mystery.0123456789abcdef.slots" in out
    assert out.splitlines()[-1] == "2 checks failed"


def test_a_process_that_keeps_a_lock_is_named(shell: Shell):
    shell.occupy("api")
    with shell.stopped_amid_a_change("api") as pid:
        code, found = examine(shell)
    assert (code, state(found, "semaphores")) == (1, "failed")
    told = f"'api' is locked by process {pid}, which is stopped"
    assert found["semaphores"]["found"] == told
    assert f"`kill -CONT {pid}`" in found["semaphores"]["remedy"]
    assert state(found, "a slot") == "ok"


def test_memory_needs_nothing(shell: Shell):
    assert examine(shell, "--url", "memory://")[0] == 0


# ------------------------------------------------------------- the environment


def test_it_says_what_a_program_without_a_url_uses(shell: Shell, tmp_path: Path):
    words = ("doctor", "--url", f"process://{tmp_path}/slots")
    unset = shell.here(*words, SLOTWISE_URL="").stdout
    assert "programs that name no url use memory://, since SLOTWISE_URL is not set" in unset
    away = shell.here(*words, SLOTWISE_URL="redis://ada:s3cret@example.org").stdout
    assert "programs that name no url use redis://" in away
    assert "s3cret" not in away
