"""Match names against the patterns of ``--include`` and ``--exclude``.

A pattern without a slash matches base names; one with a slash matches the whole
path below the root. There, ``*`` and ``?`` stop at a slash and ``**`` doesn't: a
pattern that matches too little deletes too little. One that can't match anything is
rejected: what it was meant to protect would be deleted.

File names may be hostile, so the time of a match must not grow with a power of their length. The
text between two stars is searched from left to right, and its first occurrence is final: if the
rest doesn't match after the first occurrence, it doesn't match after a later one either. Atomic
groups tell that to the regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

Match = Callable[[str], object]


class Globs:
    """Several patterns as one test; `names` and `paths` are None if no pattern needs them."""

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
    """Return a pattern with a slash as a path below the root."""
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
    # "./a//b/" is a/b: spelling must not decide whether something is deleted.
    parts = [part for part in below.split("/") if part not in ("", ".")]
    if not parts:
        raise ValueError(f"{pattern!r} is the root itself, which is never removed")
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
            raise ValueError(f"{one!r} is not a valid pattern: {error}") from None
    return re.compile("|".join(parts), re.DOTALL).fullmatch


def _translated(pattern: str) -> str:
    """Return the regular expression of a pattern, in blocks that begin at a ``**``."""
    blocks: list[tuple[str, list[str]]] = [("", [""])]  # how each begins; its parts between stars
    for piece in _pieces(pattern):
        if piece in ("**", "**/"):
            start, parts = blocks[-1]
            if start and parts == [""]:  # nothing in between: the two are one
                blocks[-1] = (piece if start == piece else "**", parts)
            else:
                blocks.append((piece, [""]))
        elif piece == "*":
            blocks[-1][1].append("")
        else:
            blocks[-1][1][-1] += piece
    text = ""
    for at, (start, parts) in enumerate(blocks):
        following = blocks[at + 1][0] if at + 1 < len(blocks) else None
        # As in 'a**/b', which also matches 'ab': it may match only after a later 'a'.
        movable = following == "**/" and parts[-1][-1:] != "/" and parts != [""]
        text += _block(start, parts, last=following is None, movable=movable)
    return text


def _pieces(pattern: str) -> Iterator[str]:
    """Yield ``*``, ``**`` and ``**/``, and everything else as one-character regular expressions."""
    at = 0
    while at < len(pattern):
        star = next((star for star in ("**/", "**", "*") if pattern.startswith(star, at)), "")
        if star:
            yield star
            at += len(star)
        elif pattern[at] == "?":
            yield "[^/]"
            at += 1
        elif pattern[at] == "[" and (end := _end_of_set(pattern, at)) > 0:
            inner = pattern[at + 1 : end].replace("\\", "\\\\")
            negated = inner[:1] in ("!", "^")
            inner = inner[1:] if negated else inner
            inner = inner.replace("[", "\\[").replace("]", "\\]").replace("^", "\\^")
            yield f"(?!/)[{'^' if negated else ''}{inner}]"
            at = end + 1
        else:
            yield re.escape(pattern[at])
            at += 1


def _block(start: str, parts: list[str], *, last: bool, movable: bool) -> str:
    """Return the parts with stars between them; ``start`` is the ``**`` before them, if any."""
    text = parts[0]
    for at, part in enumerate(parts[1:], 1):
        # The very last part has to be at the end, not at its first occurrence.
        fixed = not movable and not (last and at == len(parts) - 1)
        text += f"(?>[^/]*?{part})" if fixed else f"[^/]*{part}"
    if start:
        text = {"**": ".*?", "**/": "(?:.*?/)??"}[start] + text
    return f"(?>{text})" if start and not last and not movable else text


def _end_of_set(pattern: str, at: int) -> int:
    start = at + 1
    if pattern[start : start + 1] in ("!", "^"):
        start += 1
    return pattern.find("]", start + 1)
