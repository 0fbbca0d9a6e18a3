"""``slotwise web``."""

from __future__ import annotations

import json
import re
import signal
from urllib.request import Request, urlopen

from tests.cli._shell import Shell, end, line_of


def serve(shell: Shell, *flags: object) -> tuple[object, str]:
    process = shell.start("web", "--port", 0, *flags)
    return process, re.findall(r"http://\S+", line_of(process))[0]


def test_open_pages_do_not_delay_sigterm(shell: Shell) -> None:
    shell.occupy("api")
    process, url = serve(shell)
    with urlopen(f"{url}events", timeout=30) as stream:
        while not (line := stream.readline()).startswith(b"data: "):
            assert line
        assert json.loads(line.removeprefix(b"data: "))["limits"][0]["name"] == "api"
        process.send_signal(signal.SIGTERM)
        code, _, err = end(process)
    assert (code, err) == (0, "")


def test_each_change_is_printed_with_its_user(shell: Shell) -> None:
    shell.occupy("api")
    process, url = serve(shell, "--allow-steer")
    wanted = json.dumps({"action": "resize", "name": "api", "value": 3}).encode()
    with urlopen(Request(f"{url}steer", wanted, {"Content-Type": "application/json"}), timeout=30):
        pass
    process.send_signal(signal.SIGTERM)
    code, _, err = end(process)
    assert code == 0
    assert err.rstrip().endswith(
        "'api' has 3 slots now, 1 before, asked for by 127.0.0.1 on the page"
    )


def test_with_a_token_only_who_shows_it_is_answered(shell: Shell) -> None:
    _, url = serve(shell, "--token", "secret")
    request = Request(f"{url}snapshot", headers={"Authorization": "Bearer secret"})
    with urlopen(request, timeout=30) as reply:
        assert reply.status == 200


def test_beyond_loopback_it_needs_a_token(shell: Shell) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "example.org", "::"):
        ran = shell.here("web", "--host", host)
        assert ran.returncode == 2
        assert "--token" in ran.stderr
    assert shell.here("web", "--token", "").returncode == 2
    assert shell.here("web", "--url", "memory://").returncode == 1
