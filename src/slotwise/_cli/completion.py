"""What a shell is offered to complete a word: quoted, as anybody may have named a semaphore.

typer finds what can be completed; here is how that is written for bash, zsh, fish and
PowerShell. What they do with it is in typer's scripts: bash splits and globs it and
inserts it as it is; zsh evaluates it; fish quotes what it inserts by itself, so that there
is nothing to do for it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-]+", re.ASCII)
# What bash would take for a pattern, or for the beginning of one.
_PATTERN = re.compile(r"[*?\[\]()\\]")
# What means something inside of quotes, or ends them.
_SPECIAL_IN_QUOTES = re.compile(r"[*?\[\]()\\'\"$`!]")


VARIABLE = "_SLOTWISE_COMPLETE"  # a shell that asks sets it

_installed = False


def install() -> None:
    """Have typer write what it offers as the functions here do."""
    global _installed
    if _installed:
        return
    try:
        from typer import _completion_classes as classes

        shells: Any = classes
        bash, zsh, power_shell = shells.BashComplete, shells.ZshComplete, shells.PowerShellComplete
    except (ImportError, AttributeError):  # a version of typer that is built in another way
        return
    bash.complete = _complete_bash
    zsh.complete = _complete_zsh
    power_shell.get_completions = _only_plain(power_shell.get_completions)
    _installed = True


def offerable(name: str) -> bool:
    """Whether a name is fit to be offered: it is quoted, can be shown, and is no flag."""
    return _installed and name.isprintable() and not name.startswith("-")


def _complete_bash(self: Any) -> str:
    args, incomplete = self.get_completion_args()
    values = [item.value for item in self.get_completions(args, incomplete)]
    return "\n".join(for_bash(values, _opened_quote(os.environ)))


def _complete_zsh(self: Any) -> str:
    args, incomplete = self.get_completion_args()
    return for_zsh([(item.value, item.help) for item in self.get_completions(args, incomplete)])


def _only_plain(get_completions: Any) -> Any:
    """PowerShell knows several quotes, and splits what it gets: it is offered plain words."""

    def get_plain_completions(self: Any, args: list[str], incomplete: str) -> list[Any]:
        found = get_completions(self, args, incomplete)
        return [item for item in found if _PLAIN.fullmatch(item.value)]

    return get_plain_completions


def for_bash(values: Iterable[str], opened: str = "") -> list[str]:
    """Words as bash may insert them; ``opened`` is the quote that the word begins with.

    Behind a quote that was typed, bash inserts them as they are and closes it. What would
    mean something there is left out.
    """
    if opened:
        return [value for value in values if not _SPECIAL_IN_QUOTES.search(value)]
    return [_bash_word(value) for value in values]


def _bash_word(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    # A pattern would be replaced by the names of files, which others may have made.
    return _coded(value) if _PATTERN.search(value) else shlex.quote(value)


def _opened_quote(environment: Mapping[str, str]) -> str:
    """The quote that the word to complete begins with, if any."""
    # The script joins the words by newlines.
    words = environment.get("COMP_WORDS", "").split("\n")
    at = int(environment.get("COMP_CWORD", "0"))
    word = words[at] if at < len(words) else ""
    return word[:1] if word[:1] in ("'", '"') else ""


def for_zsh(items: Sequence[tuple[str, str | None]]) -> str:
    """A command that has zsh offer these values, some with a help; zsh quotes what it inserts.

    It is split into words before it is evaluated: no text in it has a space.
    """
    if not items:
        return "_files"
    values = " ".join(_coded(value) for value, _ in items)
    if not any(words for _, words in items):
        return f"compadd -- {values}"
    widest = max(len(value) for value, _ in items)
    shown = " ".join(
        _coded(f"{value:<{widest}}  -- {words}" if words else value) for value, words in items
    )
    return f"local -a _slotwise_shown=({shown}); compadd -l -d _slotwise_shown -- {values}"


def _coded(value: str) -> str:
    """A word for bash and zsh in which only plain letters stand for themselves."""
    if _PLAIN.fullmatch(value):
        return value
    coded = (
        f"\\x{ord(char):02x}" if char.isascii() and not char.isalnum() else char for char in value
    )
    return f"$'{''.join(coded)}'"
