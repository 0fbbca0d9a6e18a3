"""The page in a real browser: headless Chromium against a real Redis and against process://."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests import _fresh_processes
from tests.cli._shell import Shell, line_of, until

from slotwise import Rate, Tier, Tiers, semaphore

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
sync_api.expect.set_options(timeout=120_000)

CHROMIUM = os.environ.get("SLOTWISE_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium: 'apt-get install chromium', or set SLOTWISE_CHROMIUM"
    ),
    pytest.mark.timeout(600),
]
HANG = 120_000  # milliseconds: a browser on a busy machine takes its time
HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe\U000e0041"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(HANG)
    tab = context.new_page()
    tab.problems = []
    tab.on("pageerror", lambda error: tab.problems.append(str(error)))
    tab.on("dialog", lambda dialog: tab.problems.append(dialog.message))
    tab.on(
        "console",
        lambda said: tab.problems.append(said.text) if "Content Security" in said.text else None,
    )
    yield tab
    assert tab.problems == []
    context.close()


def in_thread(work: Callable[[], Any]) -> Any:
    """Block another thread: Playwright has an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(60)


def occupy(shell: Shell, name: str = "api", label: str | None = None) -> None:
    in_thread(lambda: shell.occupy(name, label=label))


def make(shell: Shell, name: str) -> None:
    with semaphore(name, 1, shell.url):
        pass


def serve(shell: Shell, *flags: object) -> str:
    process = shell.start("web", "--port", 0, *flags)
    return re.findall(r"http://\S+", line_of(process))[0]


def test_it_shows_who_holds_and_who_waits_and_kicks_after_asking(
    any_shell: Shell, tab: Any
) -> None:
    limit = semaphore("api", 1, any_shell.url)
    held = in_thread(lambda: limit.acquire_sync(label="export"))
    waiter = any_shell.start("run", "api", "--limit", 1, "--label", "second", "--", "sleep", "600")
    in_thread(lambda: any_shell.until_waiting(1))
    later = any_shell.start("run", "api", "--limit", 1, "--label", "third", "--", "sleep", "600")
    in_thread(lambda: any_shell.until_waiting(2))
    tab.goto(serve(any_shell, "--allow-steer"))
    row = tab.locator('[data-limit="api"]')
    sync_api.expect(row).to_contain_text("1 / 1 full")
    sync_api.expect(row).to_contain_text("2 waiting")
    row.click()
    holder = tab.locator(f'[data-holder="{held.acquisition_id}"]')
    sync_api.expect(holder).to_contain_text("export")
    sync_api.expect(holder).to_contain_text(f":{os.getpid()}")
    waiters = tab.locator("[data-waiter]")
    sync_api.expect(waiters).to_have_count(2)
    sync_api.expect(waiters.nth(0)).to_contain_text("second")
    sync_api.expect(waiters.nth(1)).to_contain_text("third")
    holder.locator("[data-action=kick]").click()
    assert not held.lost  # it asks first
    sync_api.expect(tab.locator("dialog")).to_contain_text("export")
    tab.locator("[data-action=confirm]").click()
    sync_api.expect(tab.locator("dialog")).to_be_hidden()
    sync_api.expect(tab.locator("[data-holder]")).to_contain_text("second")
    sync_api.expect(waiters).to_have_count(1)
    until(lambda: held.lost, "the loss")
    for process in (waiter, later):
        process.terminate()


def test_the_first_paint_names_the_bottleneck_without_a_stream(shell: Shell, tab: Any) -> None:
    rate = Tier("tokens", rate=Rate(10, per=3600, burst=6000))
    model = Tiers(Tier("user", 9, keyed=True), rate, name="model", url=shell.url)
    in_thread(lambda: model.acquire_sync(user="ann", tokens=5963, label="innocent"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model.acquire_sync, user="bob", tokens=47)
        in_thread(lambda: until(lambda: len(model.waiters_sync()) == 1, "a waiter"))
        tab.route("**/events*", lambda route: route.abort())
        tab.goto(serve(shell))
        expect = sync_api.expect
        expect(tab.locator("#used")).to_contain_text(
            "tokens: 37 left of 6,000, 47 needed, next grant in"
        )
        expect(tab.locator("h2")).to_have_text("model")
        expect(tab.locator("#blame")).to_contain_text("tokens: 37 left of 6,000, 47 needed, next")
        expect(tab.locator("#blame")).not_to_contain_text("innocent")
        expect(tab.locator("#tags")).to_have_text("1 waiting")
        tab.unroute("**/events*")
        tab.reload()
        expect(tab.locator("#tiers")).to_contain_text("37 left of 6000, 10/3600s")
        expect(tab.locator("#free")).to_be_empty()  # slots of other tiers, which help nobody
        in_thread(model.close_sync)


def test_a_hostile_name_is_text_and_its_tricks_are_shown(shell: Shell, tab: Any) -> None:
    occupy(shell, HOSTILE, label="<script>alert(2)</script>\u200b")
    tab.goto(serve(shell))
    row = tab.locator("[data-limit]")
    sync_api.expect(row).to_contain_text("<img src=x onerror=alert(1)>\\u202egnp.exe\\u{e0041}")
    row.click()
    holder = tab.locator("[data-holder]")
    sync_api.expect(holder).to_contain_text("<script>alert(2)</script>\\u200b")
    assert tab.locator("[data-action=kick]").count() == 0  # it is read-only
    assert tab.locator("img").count() == 0


def test_search_finds_among_many_and_idle_ones_are_folded(shell: Shell, tab: Any) -> None:
    in_thread(lambda: [make(shell, f"idle-{number:02}") for number in range(30)])
    occupy(shell, "busy")
    tab.goto(serve(shell))
    sync_api.expect(tab.locator("#used [data-limit]")).to_have_count(1)
    sync_api.expect(tab.locator("#folded summary")).to_have_text("30 idle")
    sync_api.expect(tab.locator("#idle [data-limit]").first).to_be_hidden()
    tab.keyboard.press("/")
    tab.keyboard.type("idle-07")
    sync_api.expect(tab.locator("[data-limit]")).to_have_count(1)
    assert tab.locator("input[type=search]").input_value() == "idle-07"
    sync_api.expect(tab.locator("#more")).to_have_text("31 limits, 1 found")


MANY = """
import asyncio, contextlib, sys
from slotwise import BackendError, semaphore

async def main():
    limits = [semaphore(f"limit-{n:04}", 1, sys.argv[1]) for n in range(1000)]
    held = [await limit.acquire() for limit in limits]
    crowd = [asyncio.create_task(limits[0].acquire(label=f"waiter {n}")) for n in range(10_000)]
    while True:
        await asyncio.sleep(0.5)
        with contextlib.suppress(BackendError):  # no answer behind so many requests
            if (await limits[0].stats()).waiting == 10_000:
                break
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.soak
def test_a_thousand_limits_and_ten_thousand_waiters_stay_smooth(
    redis_shell: Shell, tab: Any
) -> None:
    command = [sys.executable, "-c", MANY, redis_shell.url]
    with _fresh_processes.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert line_of(program) == "ready\n"
            tab.goto(serve(redis_shell))
            expect = sync_api.expect
            expect(tab.locator("[data-waiter]")).to_have_count(200)
            expect(tab.locator("[data-limit]")).to_have_count(200)
            expect(tab.locator("#more")).to_have_text("1000 limits, 800 not shown")
            expect(tab.locator("#behind")).to_have_text("and 9800 more")
            longest = tab.evaluate(
                """() => new Promise((done) => {
                    let longest = 0, last = performance.now(), frames = 0;
                    const frame = (now) => {
                        longest = Math.max(longest, now - last);
                        last = now;
                        if (++frames < 200) requestAnimationFrame(frame); else done(longest);
                    };
                    requestAnimationFrame(frame);
                })"""
            )
            assert longest < 2000  # milliseconds without a picture, on a busy machine
        finally:
            program.kill()


@pytest.mark.soak
def test_a_phone_scrolls_only_down_and_finds_the_way_back(shell: Shell, tab: Any) -> None:
    occupy(shell, "a-very-long-name-" * 8, label="label-" * 20)
    tab.set_viewport_size({"width": 360, "height": 640})
    tab.goto(serve(shell))
    tab.locator("[data-limit]").click()
    sync_api.expect(tab.locator("[data-holder]")).to_be_visible()
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    sync_api.expect(tab.locator("[data-limit]")).to_be_hidden()
    tab.locator("#back").click()
    sync_api.expect(tab.locator("[data-limit]")).to_be_visible()
    sync_api.expect(tab.locator("#detail")).to_be_hidden()
    tab.go_back()
    sync_api.expect(tab.locator("[data-holder]")).to_be_visible()
    tab.go_back()
    sync_api.expect(tab.locator("[data-limit]")).to_be_visible()


@pytest.mark.soak
def test_the_keyboard_is_enough(shell: Shell, tab: Any) -> None:
    occupy(shell, "one")
    occupy(shell, "two")
    tab.goto(serve(shell))
    sync_api.expect(tab.locator("[data-limit]")).to_have_count(2)
    tab.locator("[data-limit]").first.focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    sync_api.expect(tab.locator("h2")).to_have_text("two")
    sync_api.expect(tab.locator("[data-holder]")).to_have_count(1)
    assert tab.evaluate("document.activeElement.dataset.limit") == "two"
