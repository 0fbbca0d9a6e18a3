"""The application behind the page: who may ask for what, and what the answers are."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.cli._shell import Shell
from tests.web._asgi import Answer, ask

from slotwise import Adaptive, Rate, Tier, Tiers, semaphore
from slotwise._admin.backends import open_backend
from slotwise._admin.snapshot import Subject
from slotwise.processes import ProcessSemaphore
from slotwise.web import app
from slotwise.web._app import App, page
from slotwise.web._page_view import PageSnapshot, PageWatcher


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@pytest.fixture
def url(folder: Path) -> str:
    return f"process://{folder}"


async def steer(page: Any, wanted: object, **headers: str) -> Answer:
    headers = {"content_type": "application/json", **headers}
    return await ask(page, "/steer", "POST", body=json.dumps(wanted).encode(), **headers)


async def test_a_snapshot_has_all_limits_and_one_of_them_closely(url: str, folder: Path) -> None:
    full = ProcessSemaphore(2, name="full", directory=folder)
    idle = ProcessSemaphore(5, name="idle", directory=folder)
    async with idle:
        pass
    acquired = await full.acquire(2, label="export")
    answer = await ask(app(url), "/snapshot?name=full")
    assert answer.code == 200
    data = answer.json()
    assert data["total"] == 2
    assert [limit["name"] for limit in data["limits"]] == ["full", "idle"]
    row = data["limits"][0]
    assert (row["value"], row["held"], row["waiting"], row["full"]) == (2, 2, 0, 1)
    [holder] = data["limit"]["holders"]
    assert (holder["id"], holder["label"]) == (acquired.acquisition_id, "export")
    assert data["limit"]["waiters"] == []
    found = (await ask(app(url), "/snapshot?q=IDL")).json()
    assert ([limit["name"] for limit in found["limits"]], found["total"]) == (["idle"], 2)
    assert (await ask(app(url), "/snapshot?name=none")).json()["limit"] is None
    await full.release(acquired)


async def test_holders_have_a_ttl_waiters_a_place_and_an_estimate(url: str, folder: Path) -> None:
    api = ProcessSemaphore(1, name="api", directory=folder, ttl=60)
    async with api.cm():  # so that it is known how long a hold takes
        waiting = asyncio.create_task(api.acquire())
        while not (await api.stats()).waiting:
            await asyncio.sleep(0.001)
    first = await waiting
    line = [asyncio.create_task(api.acquire(label=f"waiter {n}")) for n in (1, 2)]
    while (await api.stats()).waiting < 2:
        await asyncio.sleep(0.001)
    limit = (await ask(app(url), "/snapshot?name=api")).json()["limit"]
    [holder] = limit["holders"]
    assert (holder["ttl"], holder["slot_number"], holder["age"] >= 0) == (60, 1, True)
    assert (limit["value"], limit["held"], limit["waiting"]) == (1, 1, 2)
    assert limit["oldest"]["id"] == first.acquisition_id
    assert limit["first_waits"] >= 0
    assert [(each["place"], each["label"]) for each in limit["waiters"]] == [
        *((1, "waiter 1"), (2, "waiter 2"))
    ]
    soon, later = [each["estimate"] for each in limit["waiters"]]
    assert 0 < soon < later
    for task in line:
        await api.release(first)
        first = await task
    await api.release(first)


async def test_a_strip_shows_hand_overs_and_not_gaps(url: str, folder: Path) -> None:
    api = ProcessSemaphore(1, name="api", directory=folder)
    watcher = PageWatcher(open_backend(url))
    held = await api.acquire(label="first")
    await asyncio.to_thread(watcher.look)
    waiting = asyncio.create_task(api.acquire(label="second"))
    while not (await api.stats()).waiting:
        await asyncio.sleep(0.001)
    await api.release(held)
    held = await waiting
    look = await asyncio.to_thread(watcher.look)
    await asyncio.to_thread(watcher.add_detail, look, Subject("api"))
    detail = look.details[Subject("api")]
    assert detail is not None
    first, second = detail["strip"]
    assert (first["label"], second["label"], first["slot"], second["slot"]) == (
        *("first", "second"),
        *(1, 1),
    )
    assert (first["ended"], second["ended"]) == (True, False)
    assert first["to"] == pytest.approx(second["from"])
    assert look.limits[0]["spark"] == [1.0, 1.0]
    await api.release(held)


async def test_an_adaptive_limit_has_its_changes_and_can_be_frozen(url: str, folder: Path) -> None:
    options = Adaptive(4, min=1, max=9)
    crawler = ProcessSemaphore(options, name="crawler", directory=folder)
    tiers = Tiers(Tier("user", options, keyed=True), Tier("all", 5), name="uploads", url=url)
    page = app(url, allow_steer=True)
    async with crawler.cm(), tiers.at(user="ann").cm():
        freeze = {"action": "freeze", "name": "crawler"}
        assert (await steer(page, freeze | {"value": 7})).code == 200
        assert (await crawler.changes())[-1].new == 7
        for wrong in (freeze | {"value": 70}, freeze | {"value": "x"}, freeze | {"value": True}):
            assert (await steer(page, wrong)).code == 400, wrong
        assert (await steer(page, {"action": "thaw", "name": "crawler"})).code == 200
        own = {"action": "freeze", "name": "uploads", "tier": "user", "key": "ann", "value": 2}
        assert (await steer(page, own)).code == 200
        assert (await tiers.changes("user", "ann"))[-1].new == 2
        assert (await steer(page, own | {"tier": "all"})).code == 400
        assert (await steer(page, {**own, "action": "thaw", "value": None})).code == 200
        [series] = (await ask(app(url), "/snapshot?name=crawler")).json()["limit"]["adaptive"]
        change = series["changes"][0]
        assert (change["old"], change["new"], change["reason"]) == (4, 7, "frozen")
        limit = (await ask(app(url), "/snapshot?name=uploads")).json()["limit"]
        [series] = limit["adaptive"]
        assert (series["tier"], series["key"], series["value"]) == ("user", "ann", 2)
        assert [tier["name"] for tier in limit["tiers"]] == ["user", "all"]
        assert [key["key"] for key in limit["tiers"][0]["keys"]] == ["ann"]


async def test_a_pause_is_shown(url: str, folder: Path) -> None:
    api = ProcessSemaphore(2, name="api", directory=folder)
    tiers = Tiers(Tier("user", 2, keyed=True), name="uploads", url=url)
    async with api.cm(), tiers.at(user="ann").cm():
        await api.pause(100)
        await tiers.at(user="ann").pause(100)
        rows = (await ask(app(url), "/snapshot")).json()["limits"]
    assert [row["name"] for row in rows] == ["api", "uploads"]
    assert all(50 < row["paused_for"] <= 100 for row in rows)


async def test_what_waiters_lack_is_named_and_a_rate_blames_no_holder(any_shell: Shell) -> None:
    rate = Tier("tokens", rate=Rate(10, per=3600, burst=6000))
    tiers = Tiers(Tier("user", 1, keyed=True), rate, name="model", url=any_shell.url)
    page = app(any_shell.url)
    held = await tiers.acquire(user="ann", tokens=5963)
    waiting = asyncio.create_task(tiers.acquire(user="bob", tokens=47))
    while not await tiers.waiters():
        await asyncio.sleep(0.001)
    data = (await ask(page, "/snapshot?name=model")).json()
    for row in (data["limits"][0], data["limit"]):
        assert row["short"]["what"] == "tokens: 37 left of 6,000, 47 needed"
        assert 3000 < row["short"]["next"] <= 3600
        assert (row["oldest"], row["waiting"]) == (None, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    waiting = asyncio.create_task(tiers.acquire(user="ann"))
    while not await tiers.waiters():
        await asyncio.sleep(0.001)
    [row] = (await ask(app(any_shell.url), "/snapshot")).json()["limits"]
    assert row["short"] == {"what": "user=ann: 1 of 1 held", "next": None}
    assert row["oldest"]["id"] == held.acquisition_id
    await tiers.release(held)
    await tiers.release(await waiting)


async def test_the_stream_is_the_snapshot_again_and_again(url: str) -> None:
    answer = await ask(app(url), "/events", until=b"data: ")
    assert answer.headers["content-type"].startswith("text/event-stream")
    event = next(line for line in answer.body.split(b"\n\n") if line.startswith(b"data: "))
    assert json.loads(event.removeprefix(b"data: "))["limits"] == []


async def test_the_page_may_do_nothing_but_what_it_does(url: str) -> None:
    first, second = await ask(app(url)), await ask(app(url))
    policy = first.headers["content-security-policy"]
    for words in (
        *("default-src 'none'", "script-src 'nonce-", "style-src 'nonce-"),
        *("frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"),
    ):
        assert words in policy
    assert policy != second.headers["content-security-policy"]
    assert first.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in first.headers
    assert b"http://" not in first.body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in first.body
    assert b"{nonce}" not in first.body
    assert len(page().encode()) < 80_000
    assert b'href="/' not in first.body  # relative links only


async def test_the_page_comes_with_its_first_snapshot(url: str, folder: Path) -> None:
    hostile = "</script><script>alert(1)</script>{nonce}"
    async with ProcessSemaphore(2, name=hostile, directory=folder):
        body = (await ask(app(url))).body.decode()
    first = body.partition('id="first">')[2].partition("</script>")[0]
    [limit] = json.loads(first)["limits"]
    assert (limit["name"], limit["held"]) == (hostile, 1)


async def test_a_page_of_a_server_that_is_away_says_so_at_once() -> None:
    body = (await ask(app("redis://127.0.0.1:1"))).body.decode()
    first = json.loads(body.partition('id="first">')[2].partition("</script>")[0])
    assert first is None or first["error"]


async def test_mounted_without_a_slash_it_sends_browsers_to_the_slash(url: str) -> None:
    answer = await ask(app(url), "", root="/slots")
    assert (answer.code, answer.headers["location"]) == (303, "/slots/")
    assert (await ask(app(url), "/snapshot", root="/slots")).code == 200


async def test_other_paths_and_methods_are_refused(url: str) -> None:
    assert (await ask(app(url), "/other")).code == 404
    assert (await ask(app(url), "/snapshot", "DELETE")).code == 405
    assert (await ask(app(url), "/steer")).code == 405
    assert (await ask(app(url), "/", "HEAD")).body == b""


async def test_a_token_is_shown_as_bearer_or_once_in_the_address(url: str) -> None:
    guarded = app(url, token="secret")
    assert (await ask(guarded)).code == 401
    assert (await ask(guarded, "/snapshot", authorization="Bearer wrong")).code == 401
    assert (await ask(guarded, "/snapshot?token=secret")).code == 401
    assert (await ask(guarded, "/snapshot", authorization="Bearer secret")).code == 200
    assert (await ask(guarded, "/?token=wrong")).code == 401
    entered = await ask(guarded, "/?token=secret", root="/slots")
    assert (entered.code, entered.headers["location"]) == (303, "/slots/")
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "secret" not in cookie
    assert (await ask(guarded, "/snapshot", cookie=cookie.partition(";")[0])).code == 200
    assert (await ask(guarded, "/snapshot", cookie="slotwise_token=secret")).code == 401


async def test_a_foreign_host_is_refused(url: str) -> None:
    guarded = App(url, hosts=["localhost", "127.0.0.1", "::1"])
    for host in ("evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[bad"):
        assert (await ask(guarded, "/snapshot", host=host)).code == 403
    for host in ("localhost:8765", "127.0.0.1", "[::1]:8765", "LOCALHOST"):
        assert (await ask(guarded, "/snapshot", host=host)).code == 200


async def test_steering_needs_permission_its_own_origin_and_json(url: str) -> None:
    wanted = {"action": "open", "name": "none"}
    assert (await steer(app(url), wanted)).code == 403
    page = app(url, allow_steer=True)
    assert (await steer(page, wanted, origin="http://evil.example")).code == 403
    assert (await steer(page, wanted, origin="null")).code == 403
    assert (await steer(page, wanted, sec_fetch_site="cross-site")).code == 403
    assert (await steer(page, wanted, content_type="text/plain")).code == 415
    assert (await steer(page, wanted, origin="http://127.0.0.1:8765")).code == 404


async def test_what_makes_no_sense_is_400_and_what_is_unknown_404(url: str, folder: Path) -> None:
    page = app(url, allow_steer=True)
    async with ProcessSemaphore(2, name="api", directory=folder):
        for wanted in (
            *([], "kick", {}, {"action": "explode"}, {"action": "kick"}),
            *({"action": "resize", "name": "api"}, {"action": "resize", "name": "api", "value": 0}),
            {"action": "resize", "name": "api", "value": True},
            {"action": "freeze", "name": "api"},
        ):
            assert (await steer(page, wanted)).code == 400, wanted
        long = {"action": "open", "name": "x" * 20_000}
        assert (await steer(page, long)).code == 400
        for wanted in ({"action": "kick", "id": "nobody"}, {"action": "close", "name": "nobody"}):
            assert (await steer(page, wanted)).code == 404, wanted
        for kind in ({}, {"kind": "semaphore"}, {"kind": "tiers"}):
            said = await steer(page, {"action": "close", "name": "aip", **kind})
            assert said.code == 404
            assert b"'api'" not in said.body, "nobody else's is suggested for that"


async def test_hostile_requests_are_refused_and_change_nothing(url: str, folder: Path) -> None:
    page = app(url, allow_steer=True)
    tiers = Tiers(Tier("t", 3, keyed=True), name="T", url=url)
    json_type = {"content_type": "application/json"}
    async with tiers.cm(t="a"):
        deep = await ask(page, "/steer", "POST", body=b"[" * 9_000, **json_type)
        assert deep.code == 400
        resize = {"action": "resize", "name": "T", "value": 2}
        for more in ({"tier": "t", "key": 5}, {"tier": ["t"]}, {"tier": "t", "key": {"a": 1}}):
            assert (await steer(page, resize | more)).code == 400, more
        for action in ("resize", "close", "open", "freeze", "thaw"):
            wanted = {"action": action, "name": "", "value": 2}
            assert (await steer(page, wanted)).code == 404, action
        assert (await ask(page, "/snapshot?name=")).code == 200
        for name in ("%00", "%ED%A0%80", "%FF", "x" * 5000):
            assert (await ask(page, f"/snapshot?name={name}")).code == 200, name
        stats = (await tiers.stats())["t"]
    assert (stats.value, stats.keys["a"].value) == (3, 3)
    await tiers.close()


async def test_a_request_reaches_the_tier_that_it_names_or_is_refused(any_shell: Shell) -> None:
    """Also if a semaphore has the same name."""
    url = any_shell.url
    page = app(url, allow_steer=True)
    same = semaphore("api", 4, url)
    tiers = Tiers(Tier("user", 2, keyed=True), Tier("all", 5), name="api", url=url)
    alone = semaphore("alone", 4, url)
    async with same.cm(), alone.cm(), tiers.at(user="ann").cm():

        async def values() -> tuple[int, ...]:
            stats, own = await tiers.stats(), await same.stats()
            assert not own.closed
            assert not await same.locked()
            assert not await tiers.at(user="bob").locked()
            other = (await alone.stats()).max_slots
            return own.max_slots, stats["user"].keys["ann"].value, stats["all"].value, other

        for action in ("resize", "freeze", "thaw"):
            wrong = {"action": action, "name": "api", "tier": "none", "id": "x", "value": 3}
            for more in ({}, {"name": "alone"}, {"name": "alone", "tier": "all"}):
                assert (await steer(page, wrong | more)).code == 404, (action, more)
        for action in ("close", "open", "kick", "freeze", "thaw"):
            wrong = {"action": action, "name": "api", "tier": "all", "id": "x"}
            assert (await steer(page, wrong)).code == 400, action
        [holder] = await tiers.holders()
        kick = {"action": "kick", "id": holder.acquisition_id, "kind": "semaphore"}
        for more in ({}, {"name": "api"}):
            assert (await steer(page, kick | more)).code == 404, more
        assert await tiers.holders() == [holder]
        resize = {"action": "resize", "name": "api", "value": 3}
        for more in ({"tier": "all", "key": "ann"}, {"kind": "x"}, {"tier": 5}):
            assert (await steer(page, resize | more)).code == 400, more
        assert (await steer(page, resize | {"name": "alone", "kind": "tiers"})).code == 404
        both = resize | {"kind": "semaphore", "tier": "user"}
        assert (await steer(page, both)).code == 400
        assert await values() == (4, 2, 5, 4)
        assert (await steer(page, resize | {"tier": "all"})).code == 200
        assert await values() == (4, 2, 3, 4)
        assert (await steer(page, resize | {"tier": "user", "key": "ann"})).code == 200
        assert await values() == (4, 3, 3, 4)
        assert (await steer(page, resize | {"kind": "semaphore"})).code == 200
        assert await values() == (3, 3, 3, 4)
        close = {"action": "close", "name": "api", "kind": "tiers"}
        assert (await steer(page, close)).code == 200
        assert (await tiers.at(user="bob").locked(), (await same.stats()).closed) == (True, False)
        for kind, one in (("tiers", "tiers"), ("semaphore", "semaphore")):
            limit = (await ask(page, f"/snapshot?name=api&kind={kind}")).json()["limit"]
            assert (limit["kind"], limit["closed"]) == (one, kind == "tiers")


async def test_steering_does_it_and_is_logged_with_who(
    url: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = app(url, allow_steer=True)
    semaphore = ProcessSemaphore(2, name="api", directory=folder)
    acquired = await semaphore.acquire()
    with caplog.at_level(logging.WARNING, "slotwise.web"):
        assert (await steer(page, {"action": "resize", "name": "api", "value": 7})).code == 200
        assert (await semaphore.stats()).max_slots == 7
        assert (await steer(page, {"action": "close", "name": "api", "reason": "x"})).code == 200
        assert (await semaphore.stats()).reason == "x"
        assert (await steer(page, {"action": "open", "name": "api"})).code == 200
        assert not (await semaphore.stats()).closed
        kick = {"action": "kick", "id": acquired.acquisition_id}
        async with ProcessSemaphore(1, name="other", directory=folder):
            assert (await steer(page, kick | {"name": "other"})).code == 404
        assert (await steer(page, kick | {"kind": "tiers"})).code == 404
        for more in ({"tier": "all"}, {"key": "ann"}):
            assert (await steer(page, kick | more)).code == 400
        assert not acquired.lost
        assert (await steer(page, kick)).code == 200
    await semaphore.stats()
    assert acquired.lost
    assert caplog.text.count("asked for by 127.0.0.1 on the page") == 4


async def test_it_needs_no_lifespan_and_ignores_other_protocols(url: str) -> None:
    sent: list[dict[str, Any]] = []
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(url)({"type": "lifespan"}, receive, send)
    await app(url)({"type": "websocket"}, receive, send)
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
        "websocket.close",
    ]


def test_at_most_200_limits_are_sent_with_the_total() -> None:
    rows = [{"name": f"limit-{number}"} for number in range(1000)]
    look = PageSnapshot(0.0, "here", rows, {}, [])
    shown = look.as_dict()
    assert (len(shown["limits"]), shown["found"], shown["total"]) == (200, 1000, 1000)
    assert len(look.as_dict(search="LIMIT-99")["limits"]) == 11
