"""The commands and tiers, which they know by nothing but the state on a server or in a file."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import _fresh_processes
from tests.cli._shell import HANG, Shell, line_of, until

from slotwise import Rate, RateLimit, Tier, Tiers
from slotwise._admin.text import units

# Two tiers, with the value of one.
BAD = {".shape": "a,b", ".declared": "1", ".values": "1", ".accepted": "1"}
HOSTILE = "evil \x1b[31m,;*?:%{}\n'\"$(touch x) é"


@contextmanager
def program(shell: Shell, *tenants: str, name: str = "api") -> Iterator[subprocess.Popen[str]]:
    """A program in a process of its own; yielded when all it asks for is held or waited for."""
    started = _fresh_processes.Popen(
        [sys.executable, "-m", "tests.cli._tiers_program", shell.url, name, *tenants],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        until_line(started, "ready")
        yield started
    finally:
        started.kill()
        started.communicate(timeout=HANG)


def until_line(process: subprocess.Popen[str], wanted: str) -> None:
    while line_of(process) != f"{wanted}\n":
        pass


@contextmanager
def tiers_here(shell: Shell, *tiers: Tier, name: str = "api") -> Iterator[Tiers]:
    made = Tiers(*tiers, name=name, url=shell.url)
    try:
        yield made
    finally:
        made.close_sync()


def refused(shell: Shell, *words: object, code: int = 1) -> str:
    ran = shell.here(*words)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (code, "", 1), ran
    return ran.stderr


# ------------------------------------------------------------------------- ls, show, top


def test_ls_lists_each_tier_with_its_busiest_keys(any_shell: Shell):
    any_shell.occupy("backup")
    with program(any_shell, "calm", "acme", "acme", "acme"):
        listed = any_shell.here("ls").stdout.splitlines()
        assert listed == [
            "NAME    TIER    KEY   VALUE  HELD  WAITING",
            "api     tenant  acme      2     2        1",
            "api     tenant  calm      2     1        0",
            "api     all               3     3        1",
            "backup                    1     1        0",
        ]
        listed = any_shell.here("ls", "--keys", 1).stdout.splitlines()
        assert listed[2] == "api     tenant  (1 more)      2     1        0"
        api, backup = any_shell.json("ls", "--keys", 1)
        assert (backup["name"], "tiers" in backup) == ("backup", False)
        tenant, wide = api.pop("tiers")
        expected = {"name": "api", "value": None, "held": 3, "waiting": 1}
        assert api == {**expected, "closed": False, "reason": None}
        counts = {"value": 2, "held": 2, "waiting": 1, "level": None, "full_in": None}
        counts |= {"rate": None, "burst": None}
        counts |= {"paused_for": 0.0, "frozen": False}
        assert tenant == {
            "name": "tenant",
            "keyed": True,
            **counts,
            "held": 3,
            "keys_in_use": 2,
            "keys": [{"key": "acme", **counts}],
        }
        assert (wide["name"], wide["value"], wide["keys"]) == ("all", 3, None)


RATE = Tier("tokens", rate=Rate(10, per=3600, burst=100))


def test_ls_show_and_top_tell_what_is_left_of_a_rate_and_when_it_is_full(any_shell: Shell):
    with tiers_here(any_shell, Tier("all", 2), RATE) as tiers:
        assert any_shell.json("ls") == []
        tiers.release_sync(tiers.acquire_sync(tokens=40))
        titles, wide, tokens = any_shell.here("ls", "--used").stdout.splitlines()
        columns = "NAME TIER KEY VALUE HELD WAITING RATE BURST LEFT FULL IN"
        assert titles.split() == columns.split()
        assert wide.split() == ["api", "all", "2", "0", "0"]
        assert tokens.split()[:5] == ["api", "tokens", "0", "10/3600s", "100"]
        assert re.search(r" (4 h|3 h \d+)$", tokens)
        shown = any_shell.json("show", "api")["tiers"][1]
        assert 60 <= shown["level"] < 61
        assert 14_000 < shown["full_in"] <= 14_400
        assert (shown["value"], shown["rate"], shown["burst"]) == (None, "10/3600s", 100)
        assert any_shell.json("ls", "--used")[0]["tiers"][1]["burst"] == 100
        assert "FULL IN" in any_shell.here("show", "api").stdout
        tiers.resize_sync("tokens", Rate(5, per=60, burst=90))
        *_, tokens = any_shell.here("ls", "--used").stdout.splitlines()
        assert tokens.split()[2:5] == ["0", "5/60s", "90"]
        tiers.resize_sync("tokens", Rate(10, per=3600, burst=100))
        top = [row for row in any_shell.json("top", "--every", "0.1s") if row["tier"] == "tokens"]
        fields = ("value", "rate", "burst", "held")
        assert [[row[each] for each in fields] for row in top] == [[None, "10/3600s", 100, 0]]
        assert top[0]["level"] // 1 == 60
        assert 14_000 < top[0]["full_in_seconds"] <= 14_400
        assert "at once" in any_shell.here("explain", "api").stdout
        tiers.release_sync(tiers.acquire_sync(tokens=60))
        told = any_shell.here("explain", "api").stdout
        line = "a newcomer is first in line for 'api'; lacks tier tokens "
        assert told.startswith(f"{line}(0 left of a burst of 100); about 3")  # ten of them an hour
        titles, *_, tokens = any_shell.here("top", "--every", "0.1s").stdout.splitlines()
        assert titles.split()[-5:] == ["RATE", "BURST", "LEFT", "FULL", "IN"]
        assert tokens.split()[:3] == ["api", "tokens", "0"]
        assert re.search(r" (10 h|9 h \d+)", tokens)


def test_explain_names_the_tier_that_those_who_wait_now_lack(any_shell: Shell):
    with tiers_here(any_shell, Tier("user", 2, keyed=True), RATE, Tier("all", 9)) as tiers:
        tiers.acquire_sync(user="ann", tokens=63)
        with ThreadPoolExecutor() as pool:
            for count, user in enumerate(("bob", "eve"), 1):
                pool.submit(tiers.acquire_sync, user=user, tokens=47)
                until(lambda count=count: len(tiers.waiters_sync()) == count, "a waiter")
            line = (
                "2 waiting for 'api'; short of tier tokens (37 left of a burst of 100, 47 needed)"
            )
            told = any_shell.here("explain", "api").stdout
            assert told.startswith(f"{line}; next grant in about 3")  # ten of them an hour
            told = any_shell.json("explain", "api", "--tiers")
            assert (told["state"], told["place"], told["waiting"]) == ("waiting", 1, 2)
            [lack] = told["lacks"]
            assert (lack["tier"], lack["held"], lack["value"], lack["need"]) == (
                *("tokens", 63, 100),
                47,
            )
            assert 3000 < told["estimate"] <= 3600
            words = ("explain", "api", "--key", "user=new", "--cost", "tokens=20")
            told = any_shell.json(*words)
            assert (told["state"], told["place"], told["waiting"]) == ("new", 3, None)
            assert "tier tokens (37 left of a burst of 100, 20 needed)" in told["sentence"]
            for wrong in (("--key", "none=x"), ("--cost", "all=3", "--key", "user=x")):
                refused(any_shell, "explain", "api", *wrong, code=2)
            tiers.close_sync()  # ends the waits


def test_a_cost_needs_no_tier_where_there_is_only_one_rate(any_shell: Shell):
    plain = RateLimit("plain", Rate(10, per=3600, burst=10), url=any_shell.url)
    plain.acquire_sync(cost=4)
    assert "at once" in any_shell.here("explain", "plain", "--cost", 6).stdout
    assert "7 needed" in any_shell.here("explain", "plain", "--cost", 7).stdout
    assert "must be a whole number" in refused(any_shell, "explain", "plain", "--cost", "x", code=2)
    with tiers_here(any_shell, RATE, Tier("requests", rate=Rate(5, per=60))) as tiers:
        tiers.acquire_sync()
        told = refused(any_shell, "explain", "api", "--cost", 7, code=2)
        assert "--cost needs TIER=N: of 'api', these are rates: tokens, requests" in told
    plain.acquire_sync(cost=6)
    told = any_shell.json("explain", "plain")
    assert (told["state"], told["place"], told["lacks"][0]["held"]) == ("new", 1, 10)
    assert 0 < told["estimate"] <= 360  # it is known when, though nobody waits
    plain.close_sync()


def test_refill_fills_a_rate_and_lets_those_in_who_wait_for_it(any_shell: Shell):
    keyed = Tier("requests", rate=Rate(1, per=3600, burst=5), keyed=True)
    with tiers_here(any_shell, keyed, RATE, Tier("all", 2)) as tiers:
        with tiers.cm(requests="acme", tokens=60, costs={"requests": 5}) as acquired:
            acquired.settle(tokens=160)
        assert tiers.try_acquire_sync(requests="acme") is None
        told = any_shell.here("refill", "api", "--tier", "tokens").stdout
        assert told.startswith(
            ("tokens of 'api' is full now; -60", "tokens of 'api' is full now; -59.")
        )
        refill = ("refill", "api", "--tier", "requests")
        assert "choose one with --key" in refused(any_shell, *refill, code=2)
        assert (
            "requests 'acme' of 'api' is full now"
            in any_shell.here(*refill, "--key", "acme").stdout
        )
        with tiers.cm(requests="acme", timeout=0):
            pass
        again = any_shell.here(*refill, "--key", "new").stdout
        assert again == "requests 'new' of 'api' is full now; it was full before\n"
        assert "there are: requests, tokens" in refused(any_shell, "refill", "api", code=2)
        assert "has no rate" in refused(any_shell, "refill", "api", "--tier", "all")
        assert "there are no tiers 'nope'" in refused(any_shell, "refill", "nope")


@pytest.mark.parametrize(
    ("left", "shown"),
    [
        (0.000376, "0"),
        (-0.01, "0"),
        (-19.9774, "-20"),
        (-19.93, "-19.9"),
        (1e7 + 0.25, "10000000.2"),
    ],
)
def test_what_is_left_of_a_rate_is_shown_in_few_digits(left: float, shown: str):
    assert units(left) == shown


def test_resize_gives_a_rate_tier_another_rate(any_shell: Shell):
    with tiers_here(any_shell, RATE, Tier("all", 2)) as tiers:
        tiers.release_sync(tiers.acquire_sync(tokens=40))
        resize = ("resize", "api", "--tier", "tokens")
        told = any_shell.here(*resize, "600/60s", "--burst", 20).stdout
        assert (
            told
            == "tokens of 'api' has 600 per 60 s, burst 20 now, 10 per 3600 s, burst 100 before\n"
        )
        assert (tiers.stats_sync()["tokens"].value, tiers.stats_sync()["tokens"].level) == (20, 20)
        told = any_shell.here(*resize, "10/s").stdout
        assert told.endswith("has 10 per 1 s, burst 20 now, 600 per 60 s, burst 20 before\n")
        assert tiers.stats_sync()["tokens"].value == 20
        assert "takes a rate such as 600/60s" in refused(any_shell, *resize, 5, code=2)
        assert "is not a rate" in refused(
            any_shell, "resize", "api", "9/s", "--tier", "all", code=2
        )
        for nonsense in ("0/60s", "x/60s", "5/", "5/0s", "5/never", "1.5/s"):
            assert "N must be a rate such as" in refused(any_shell, *resize, nonsense, code=2)
        assert "--burst is that of a rate" in refused(any_shell, *resize, 5, "--burst", 2, code=2)
    any_shell.occupy("backup")
    assert "is a semaphore" in refused(any_shell, "resize", "backup", "5/s", code=2)


def test_a_new_rate_of_one_key_keeps_the_burst_that_it_had(any_shell: Shell):
    keyed = Tier("tokens", rate=Rate(60_000, per=3600, burst=9000), keyed=True)
    with tiers_here(any_shell, keyed, Tier("all", 2)) as tiers:
        tiers.acquire_sync(tokens="acme", costs={"tokens": 40})
        resize = ("resize", "api", "--tier", "tokens", "--key")
        for key in ("acme", "unused"):
            assert "burst 9000 now" in any_shell.here(*resize, key, "54000/1h").stdout
        assert any_shell.here(*resize, "acme", "54000/1h", "--burst", 8000).returncode == 0
        assert "burst 8000 now" in any_shell.here(*resize, "acme", "50000/1h").stdout
        assert tiers.stats_sync()["tokens"].keys["acme"].value == 8000


def test_forget_deletes_tiers_that_nobody_uses(any_shell: Shell):
    with tiers_here(any_shell, Tier("tenant", 2, keyed=True), Tier("all", 2)) as tiers:
        held = tiers.acquire_sync(tenant="acme")
        assert "'api' is in use" in refused(any_shell, "forget", "api")
        tiers.release_sync(held)
        any_shell.run("resize", "api", 7, "--tier", "all")
        assert any_shell.here("forget", "api").stdout == "forgot 'api'\n"
        assert "there is no semaphore 'api'" in refused(any_shell, "forget", "api")
        assert tiers.stats_sync()["all"].value == 2
    with tiers_here(any_shell, RATE, name="rated") as tiers:
        tiers.acquire_sync(tokens=1)
        told = refused(any_shell, "forget", "rated", "--tiers")
        assert "'rated' is in use; 'slotwise show rated --tiers' lists" in told
        assert 98 < tiers.stats_sync()["tokens"].level < 100


def test_show_tells_who_holds_who_waits_and_which_tier_they_lack(any_shell: Shell):
    with program(any_shell, "calm", "acme", "acme", "acme", "late") as started:
        found = any_shell.json("show", "api")
        assert [*found] == ["name", "closed", "reason", "tiers", "holders", "waiters"]
        assert [each["keys"]["tenant"] for each in found["holders"]] == ["calm", "acme", "acme"]
        assert [(each["keys"]["tenant"], each["lacks"]) for each in found["waiters"]] == [
            ("acme", "tenant"),
            ("late", "all"),
        ]
        assert {each["pid"] for each in found["waiters"]} == {started.pid}
        assert found["waiters"][0]["label"] == "job of acme"
        assert found["waiters"][0]["since"] <= found["waiters"][1]["since"]
        shown = any_shell.here("show", "api").stdout.splitlines()
        assert shown[0] == "api: 3 holding, 2 waiting"
        assert shown[1].split() == ["TIER", "KEY", "VALUE", "HELD", "WAITING"]
        titles = shown[shown.index("") + 1].split()
        assert titles == ["STATE", "FOR", "SLOTS", "KEYS", "LACKS", "HOST", "PID", "LABEL", "ID"]
        assert "tenant=late  all" in shown[-1]
        late = any_shell.json("show", "api", "--tier", "tenant", "--key", "late")
        assert [each["keys"][0]["key"] for each in late["tiers"]] == ["late"]
        assert (late["holders"], len(late["waiters"])) == ([], 1)
        assert any_shell.json("show", "api", "--key", "late") == late, "one tier has keys"
        [only] = any_shell.json("show", "api", "--tier", "all")["tiers"]
        assert (only["name"], only["held"]) == ("all", 3)


# ------------------------------------------------------------------ resize, kick, close


def test_close_rejects_waiters_of_tiers_until_open(any_shell: Shell):
    with program(any_shell, "acme", "acme", "acme") as started:
        ran = any_shell.here("close", "api", "--reason", "freeze", "--yes")
        assert ran.stdout.splitlines() == [
            "'api' is closed: rejected 1 waiter, 2 acquisitions still held",
            "'slotwise open api' undoes it",
        ]
        until_line(started, "rejected acme: freeze")
        assert any_shell.here("show", "api").stdout.startswith(
            "api: 2 holding, 0 waiting, closed: freeze\n"
        )
        assert any_shell.here("ls").stdout.splitlines()[1].endswith("freeze")
        [listed] = any_shell.json("ls")
        assert (listed["closed"], listed["reason"]) == (True, "freeze")
        told = any_shell.here("explain", "api").stdout
        assert told == "'api' is closed: freeze; newcomers are refused\n"
        explained = any_shell.json("explain", "api")
        assert (explained["closed"], explained["reason"]) == (True, "freeze")
        ran = any_shell.here("open", "api")
        assert (ran.returncode, ran.stdout) == (0, "'api' is open\n")
        assert any_shell.here("open", "api").stdout == "'api' is open, and was not closed\n"
        assert any_shell.json("show", "api")["closed"] is False


# -------------------------------------------------------------------------------- errors


def test_the_doctor_finds_keys_of_tiers_that_never_expire(redis_shell: Shell, server: Any):
    with server.client() as client:
        client.zadd("adv-sem:tiers_holders:forgotten", {"somebody": 100})
        client.hset("adv-sem:tiers_state:bad", mapping=BAD)
        client.zadd("adv-sem:names", {"adv-sem:tiers_state:bad": 9e12})
        ran = redis_shell.here("doctor")
        assert ran.returncode == 1
        assert "2 keys never expire: adv-sem:tiers_" in ran.stdout
        assert "the tiers 'bad' can't be read" in ran.stdout


def test_what_is_not_there_is_one_line_that_helps(redis_shell: Shell):
    redis_shell.occupy("backup")
    with program(redis_shell, "acme"):
        assert "did you mean 'api'?" in refused(redis_shell, "show", "apy")
        for words in (["show", "api"], ["resize", "api", 2]):
            told = refused(redis_shell, *words, "--tier", "tenat")
            assert "'api' has no tier 'tenat'; there are: tenant, all" in told
            assert "'all' of 'api' has no keys" in refused(
                redis_shell, *words, "--tier", "all", "--key", "x"
            )
        assert "did you mean 'acme'?" in refused(redis_shell, "show", "api", "--key", "acne")
        assert "choose one with --tier" in refused(redis_shell, "resize", "api", 2, code=2)
        assert "'backup' is a semaphore" in refused(redis_shell, "show", "backup", "--tier", "all")
        assert "'backup' is a semaphore" in refused(redis_shell, "close", "backup", "--tiers", "-y")
        told = refused(redis_shell, "resize", "api", -1, "--tier", "all", code=2)
        assert "N must be at least 1, not -1" in told


def test_hostile_names_and_keys_are_shown_escaped_and_found(any_shell: Shell):
    with program(any_shell, HOSTILE, name=HOSTILE):
        for words in (["ls"], ["show", HOSTILE], ["show", HOSTILE, "--key", HOSTILE]):
            ran = any_shell.here(*words)
            assert ran.returncode == 0
            assert "\x1b" not in ran.stdout
            assert r"evil \x1b[31m,;*?:%{}\n'" in ran.stdout
        [listed] = any_shell.json("ls")
        assert listed["name"] == listed["tiers"][0]["keys"][0]["key"] == HOSTILE
        ran = any_shell.here("resize", HOSTILE, 5, "--tier", "tenant", "--key", HOSTILE)
        assert ran.returncode == 0
        assert any_shell.json("ls")[0]["tiers"][0]["keys"][0]["value"] == 5


def test_records_that_slotwise_did_not_write_hide_no_other_tiers(redis_shell: Shell, server: Any):
    with program(redis_shell, "acme"), server.client() as client:
        client.hset("adv-sem:tiers_state:bad", mapping=BAD)
        client.zadd("adv-sem:names", {"adv-sem:tiers_state:bad": 9e12})
        ran = redis_shell.here("ls")
        assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
        assert "'bad' can't be read" in ran.stderr
        assert ran.stdout.splitlines()[1].startswith("api ")
        client.delete("adv-sem:tiers_state:bad")
        with tiers_here(redis_shell, Tier("tenant", 1, keyed=True), name="odd") as odd:
            odd.acquire_sync(tenant="x")
            client.hset("adv-sem:tiers_state:odd", "0:y", "garbage")
            ran = redis_shell.here("ls")
            assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
            assert "'odd' can't be read" in ran.stderr
            assert ran.stdout.splitlines()[1].startswith("api ")


def test_names_tiers_and_keys_are_completed(redis_shell: Shell):
    with program(redis_shell, "acme"):

        def offered(line: str) -> list[str]:
            return redis_shell.here("__complete", "bash", line, line.split(" ")[-1]).stdout.split()

        assert offered("slotwise show a") == ["api"]
        assert offered("slotwise show api --tier ") == ["tenant", "all"]
        assert offered("slotwise resize api 3 --tier tenant --key a") == ["acme"]
        assert offered("slotwise show nothing --tier ") == []


def test_very_many_keys_are_counted_in_pages(redis_shell: Shell, server: Any):
    """Written straight to the server: acquiring so many would take long."""
    keys = 5_000
    with program(redis_shell, "acme"), server.client() as client:
        nodes = {f"0:k{number}": "0 0 7 - 0" for number in range(keys)}
        client.hset("adv-sem:tiers_state:api", mapping=nodes)
        client.config_resetstat()
        [listed] = redis_shell.json("ls", "--keys", 2)
        tenant = listed["tiers"][0]
        assert tenant["keys_in_use"] == keys + 1
        assert [each["key"] for each in tenant["keys"]] == ["acme", "k0"]
        calls = client.info("commandstats")["cmdstat_hscan"]["calls"]
        assert calls >= 3, "several steps, between which the server serves others"
