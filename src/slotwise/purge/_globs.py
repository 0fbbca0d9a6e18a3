"""Which names the patterns of ``--include`` and ``--exclude`` mean.

A pattern without a slash is about base names; one with a slash is about the whole
path below the root. There ``*`` and ``?`` stop at a slash, and ``**`` does not: a
pattern that means too little deletes too little. One that can mean nothing at all is
refused: what it was to protect would go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Match = Callable[[str], object]


class Globs:
    """Several patterns as one question; `names` and `paths` are None where none asks."""

    __slots__ = ("names", "paths")

    def __init__(self, patterns: Iterable[str], roots: Iterable[str] = ()) -> None:
        """``roots`` are the root's names, which an absolute pattern has to begin with."""
        names: list[str] = []
        paths: list[str] = []
        for pattern in patterns:
            if "/" in pattern or pattern in (".", ".."):
                paths.append(_below(pattern, roots))
            else:
                names.append(pattern)
        self.names = _any_of(names)
        self.paths = _any_of(paths)

    def __bool__(self) -> bool:
        return self.names is not None or self.paths is not None

    def match(self, name: str, path: str) -> bool:
        return bool(
            (self.names is not None and self.names(name))
            or (self.paths is not None and self.paths(path))
        )


def _below(pattern: str, roots: Iterable[str]) -> str:
    """A pattern with a slash, as a path below the root."""
    below = pattern
    if pattern.startswith("/"):
        for root in roots:
            if pattern.startswith(root.rstrip("/") + "/"):
                below = pattern[len(root.rstrip("/")) + 1 :]
                break
        else:
            raise ValueError(
                f"{pattern!r} matches nothing: it is absolute, and not below the root"
                f" (below it, that would be {'./' + pattern.lstrip('/')!r})"
            )
    # "./a//b/" is a/b: what is to be left must not go for its spelling.
    parts = [part for part in below.split("/") if part not in ("", ".")]
    if not parts:
        raise ValueError(f"{pattern!r} is the root itself, which always stays")
    if ".." in parts:
        raise ValueError(f"{pattern!r} matches nothing: there is no '..' in a path below the root")
    return "/".join(parts)


def _any_of(patterns: list[str]) -> Match | None:
    if not patterns:
        return None
    parts = []
    for one in patterns:
        parts.append(f"(?:{_translated(one)})")
        try:
            re.compile(parts[-1])
        except re.error as error:
            raise ValueError(f"{one!r} is no pattern: {error}") from None
    return re.compile("|".join(parts), re.DOTALL).fullmatch


def _translated(pattern: str) -> str:
    parts = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            parts.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            parts.append(".*")
            at += 2
        elif pattern[at] == "*":
            parts.append("[^/]*")
            at += 1
        elif pattern[at] == "?":
            parts.append("[^/]")
            at += 1
        elif pattern[at] == "[" and (end := _end_of_set(pattern, at)) > 0:
            inner = pattern[at + 1 : end].replace("\\", "\\\\")
            negated = inner[:1] in ("!", "^")
            inner = inner[1:] if negated else inner
            inner = inner.replace("[", "\\[").replace("]", "\\]").replace("^", "\\^")
            parts.append(f"(?!/)[{'^' if negated else ''}{inner}]")
            at = end + 1
        else:
            parts.append(re.escape(pattern[at]))
            at += 1
    return "".join(parts)


def _end_of_set(pattern: str, at: int) -> int:
    start = at + 1
    if pattern[start : start + 1] in ("!", "^"):
        start += 1
    return pattern.find("]", start + 1)
