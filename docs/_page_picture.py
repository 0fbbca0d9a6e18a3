"""Take docs/page.png: the page of ``slotwise demo --web`` in headless Chromium.

Run it after the page has changed: ``python docs/_page_picture.py``. It needs playwright and a
Chromium, and takes half a minute, so that there is something to see in the strip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

_WATCHED_FOR = 30_000  # milliseconds


def main() -> None:
    command = [sys.executable, "-m", "slotwise", "demo", "--web", "--port", "0"]
    quiet = {**os.environ, "BROWSER": "true"}  # the one that --open would open
    served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=quiet)  # noqa: S603
    assert served.stdout is not None
    try:
        [url] = re.findall("http://[^;]+", served.stdout.readline())
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=os.environ.get("SLOTWISE_CHROMIUM") or shutil.which("chromium"),
                args=["--no-sandbox"],
            )
            page = browser.new_page(viewport={"width": 1100, "height": 900})
            page.goto(url)
            page.locator('[data-limit="model-api"]').click()
            page.wait_for_timeout(_WATCHED_FOR)
            page.screenshot(path=Path(__file__).with_name("page.png"))
            browser.close()
    finally:
        served.terminate()
        served.wait(30)


if __name__ == "__main__":
    main()
