"""Assemble the Lua scripts from their files.

Calls send only the SHA of a script. When the server does not know it (first use,
restart, ``SCRIPT FLUSH``) it is sent once as a whole, which also makes it known.

The locals that included files declare at the beginning of a line become fields of one table, R:
each call makes all functions of its script anew, and Lua 5.1 searches each variable that a
function captures among all that others have captured, which took three times as long. No
parameter, inner local or field in braces may have the name of one: the server would refuse that
script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from hashlib import sha1
from pathlib import Path

_FOLDER = Path(__file__).with_name("lua")
_INCLUDE = re.compile(r"^-- include ([\w/]+\.lua)\n", re.MULTILINE)
_LOCAL = re.compile(r"^local (function )?(\w+(?:, \w+)*)( =)?", re.MULTILINE)
_CALL = re.compile(r"\bcall\('([A-Z]+)'")  # what `pcall` calls may be missing

# Those that the client calls.
OURS = ("request", "release", "heartbeat", "control", "inspect")

# Those that it calls all the time.
_BUSY = ("request", "release", "heartbeat")


class Script:
    """One script, to be run by the server."""

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source.encode()
        # Redis names scripts by SHA-1; nothing secret depends on it.
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


@cache
def load(name: str) -> Script:
    """Return the script ``lua/<name>.lua``, with what it includes."""
    files, shared = set[str](), set[str]()
    source = _read(f"{name}.lua", files, shared)
    if not shared:
        return Script(name, source)
    word = re.compile(rf"'[^'\n]*'|--.*|(?<![\w.:])({'|'.join(shared)})\b")
    return Script(name, "local R = {} " + word.sub(_field, source))


def _field(found: re.Match[str]) -> str:
    return f"R.{found[0]}" if found[1] else found[0]


def _read(file: str, included: set[str], shared: set[str]) -> str:
    """Return the text of a file; what it includes is inserted, once per script."""
    if file in included:
        return ""
    included.add(file)
    parts = _parts(file)

    def share(found: re.Match[str]) -> str:
        shared.update(found[2].split(", "))
        return found[0].removeprefix("local ") if found[1] or found[3] else f"-- {found[0]}"

    return "".join(
        _LOCAL.sub(share, _read(part, included, shared)) if number % 2 else part
        for number, part in enumerate(parts)
    )


@cache  # most files are included by most scripts, all of which are loaded by the import
def _parts(file: str) -> list[str]:
    """Return the text of a file before, between and after includes, and their files between."""
    return _INCLUDE.split((_FOLDER / file).read_text(encoding="utf-8"))


def commands_in(source: str) -> list[str]:
    """Return the commands that a script, or a part of it, calls by name."""
    return sorted(set(_CALL.findall(source)))


def in_use(called: Iterable[Script | None]) -> list[Script]:
    """Return the scripts among these, and those that are called beside them all the time."""
    names = {script.name for script in called if script is not None}
    return [load(name) for name in OURS if name in names or (names and name in _BUSY)]
