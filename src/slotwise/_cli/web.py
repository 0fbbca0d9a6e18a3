"""``slotwise web``: serve the page."""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slotwise._admin.hosts import is_loopback, own_hosts
from slotwise._cli.flags import HOST, URL, Command, Flag, UsageError, port_flag
from slotwise._cli.output import print_error
from slotwise.web._app import App
from slotwise.web._steering import logger


def web(given: argparse.Namespace) -> int:
    """Serve the page until a signal ends it."""
    if given.token == "":
        raise UsageError("--token must not be empty")
    if not is_loopback(given.host) and given.token is None:
        raise UsageError(
            f"--host {given.host} is not loopback: it needs --token, which readers have to send"
        )
    try:
        import uvicorn
    except ImportError:
        print_error("web", "it needs uvicorn: pip install 'slotwise[web]'")
        return 1
    hosts = own_hosts(given.host)
    app = App(given.url, token=given.token, allow_steer=given.allow_steer, hosts=hosts)
    app.open()  # a bad url is an error now, and the first page needn't wait
    family = socket.AF_INET6 if ":" in given.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((given.host, given.port))
        listening.listen(100)
    except OSError as error:
        listening.close()
        print_error("web", f"can't listen at {given.host}:{given.port}: {error.strerror}")
        return 1
    host = f"[{given.host}]" if ":" in given.host else given.host
    where = f"http://{host}:{listening.getsockname()[1]}/"
    sys.stdout.write(f"serving {where} (Ctrl-C ends it)\n")
    sys.stdout.flush()
    if given.open:
        import webbrowser

        webbrowser.open(where if given.token is None else f"{where}?token={given.token}")
    config = uvicorn.Config(app, log_level="warning", lifespan="off", server_header=False)

    class PageServer(uvicorn.Server):  # type: ignore[misc,name-defined,unused-ignore]
        def handle_exit(self, *_: Any) -> None:
            app.end_streams()  # open pages must not keep it from ending
            self.should_exit = True

    with listening, _log_on_stderr():
        PageServer(config).run(sockets=[listening])
    return 0


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Print who steered what: commands print no logs otherwise."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


COMMANDS = (
    Command(
        "web",
        web,
        HOST,
        port_flag(8765),
        Flag("--open", action="store_true", help="open it in a browser"),
        Flag("--token", metavar="T", help="what browsers have to send to read the page"),
        Flag(
            "--allow-steer",
            action="store_true",
            help="let the page kick, resize, freeze, thaw, close and open",
        ),
        URL,
        details="Anyone who can reach it can read it: beyond loopback it needs --token, which a\n"
        "browser sends once as /?token=T. Holders can be kicked and limits changed only with\n"
        "--allow-steer; each change is logged.",
        examples="  slotwise web --open\n"
        "  slotwise web --url redis://cache:6379 --allow-steer\n"
        '  slotwise web --host 0.0.0.0 --token "$(openssl rand -hex 16)"',
    ),
)
