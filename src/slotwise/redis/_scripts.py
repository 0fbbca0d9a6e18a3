"""The Lua scripts: read from their files, put together, and named by their SHA.

A script travels as its SHA alone. When the server does not know it (first use,
restart, ``SCRIPT FLUSH``) it is sent once as a whole, which also makes it known.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from pathlib import Path

_FOLDER = Path(__file__).with_name("lua")
_INCLUDE = re.compile(r"^-- include (\w+\.lua)\n", re.MULTILINE)

DOCUMENTED = ("queue", "wake_up_nexts", "acquire", "release", "ping", "card")
OURS = (
    *("request", "request_many", "give", "give_many", "beat", "resize", "look", "kick", "push"),
    *("close", "reopen", "path_close", "path_reopen"),
    *("path_request", "path_give", "path_beat", "path_resize", "path_look"),
)


class Script:
    """One script, to be run by the server."""

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source.encode()
        # Redis names scripts by SHA-1; nothing secret hangs on it.
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


@cache
def load(name: str) -> Script:
    """The script ``lua/<name>.lua``, with what it includes."""
    return Script(name, _read(f"{name}.lua"))


def _read(file: str) -> str:
    source = (_FOLDER / file).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda line: _read(line[1]), source)
