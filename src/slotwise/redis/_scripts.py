"""Assemble the Lua scripts from their files.

Calls send only the SHA of a script. When the server does not know it (first use,
restart, ``SCRIPT FLUSH``) it is sent once as a whole, which also makes it known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from hashlib import sha1
from pathlib import Path

_FOLDER = Path(__file__).with_name("lua")
_INCLUDE = re.compile(r"^-- include ([\w/]+\.lua)\n", re.MULTILINE)
_CALL = re.compile(r"redis\.call\('([A-Z]+)'")  # what `pcall` calls may be missing
_CALL_IN_CHUNKS = re.compile(r"'([HZ](?:SET|DEL|ADD|REM))'")  # the name is an argument there

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
    return Script(name, _read(f"{name}.lua", set()))


def _read(file: str, included: set[str]) -> str:
    """Return the text of a file; what it includes is inserted, once per script."""
    if file in included:
        return ""
    included.add(file)
    parts = _parts(file)
    return "".join(
        _read(part, included) if number % 2 else part for number, part in enumerate(parts)
    )


@cache  # most files are included by most scripts, all of which are loaded by the import
def _parts(file: str) -> list[str]:
    """Return the text of a file before, between and after includes, and their files between."""
    return _INCLUDE.split((_FOLDER / file).read_text(encoding="utf-8"))


def commands_in(source: str) -> list[str]:
    """Return the commands that a script, or a part of it, calls by name."""
    return sorted(set(_CALL.findall(source)))


def command_that_failed(error: str) -> str:
    """Return the commands on the line that an error reply names; "" if it names none of ours.

    Many servers name nothing else.
    """
    lines = re.findall(r"@user_script: ?(\d+)", error)  # the last is where it began
    source = next((load(name).source for name in OURS if load(name).sha.decode() in error), None)
    if not lines or source is None:
        return ""
    number = int(lines[-1])
    failed = "".join(source.decode().split("\n")[number - 1 : number])
    if "redis.call(command" in failed:
        return " or ".join(sorted({*_CALL_IN_CHUNKS.findall(source.decode())}))
    return " or ".join(commands_in(failed))


def in_use(called: Iterable[Script | None]) -> list[Script]:
    """Return the scripts among these, and those that are called beside them all the time."""
    names = {script.name for script in called if script is not None}
    return [load(name) for name in OURS if name in names or (names and name in _BUSY)]
