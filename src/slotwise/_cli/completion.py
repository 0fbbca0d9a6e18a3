"""Complete commands, flags, names of semaphores and tiers, and keys in bash, zsh and fish.

`completion` prints a script for a shell, which calls ``slotwise __complete`` with the line
as it was typed. Anybody may have named a semaphore: the scripts treat what is offered as data, and
neither evaluate nor split it. zsh and fish quote what they insert; bash does
not, so its words are quoted here.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from slotwise._cli.commands import SUMMARIES, load
from slotwise._cli.flags import Command, Flag, Parser

_MOST_KEYS = 200  # more than anybody would choose from

_BASH = r"""
_slotwise_completion() {
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(slotwise __complete bash "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
}
complete -o default -F _slotwise_completion slotwise
"""

_ZSH = r"""
#compdef slotwise
_slotwise() {
    local line
    local -a values shown
    while IFS= read -r line; do
        values+=("${line%%$'\t'*}")
        shown+=("${line#*$'\t'}")
    done < <(slotwise __complete zsh "${(j: :)words[1,CURRENT]}" 2>/dev/null)
    if (( $#values )); then
        compadd -l -d shown -- "${values[@]}"
    else
        _files
    fi
}
compdef _slotwise slotwise
"""

_FISH = r"""
function __slotwise_complete
    set -l found (slotwise __complete fish (commandline -cp | string collect) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c slotwise -f -a '(__slotwise_complete)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

# What means something inside quotes, or ends them.
_SPECIAL_IN_QUOTES = frozenset("*?[]()\\'\"$`!")


def completion(given: argparse.Namespace) -> int:
    """Print the script of a shell."""
    sys.stdout.write(_SCRIPTS[given.shell].lstrip("\n"))
    return 0


COMMANDS = (
    Command(
        "completion",
        completion,
        Flag("shell", metavar="SHELL", choices=[*_SCRIPTS], help="bash, zsh or fish"),
        examples='  eval "$(slotwise completion bash)"       in ~/.bashrc\n'
        '  eval "$(slotwise completion zsh)"        in ~/.zshrc, after compinit\n'
        "  slotwise completion fish > ~/.config/fish/completions/slotwise.fish",
    ),
)


class Offer(NamedTuple):
    """A word that may be inserted at the cursor."""

    value: str
    help: str = ""


def offer(arguments: Sequence[str]) -> int:
    """Print what a script asks for, one offer a line; nothing if something is wrong.

    The arguments are the shell, the line up to the cursor, and for bash what it takes for
    the word to complete: it begins a new one at each ``:`` and ``=``.
    """
    if len(arguments) < 2:
        return 0
    shell, line, *bash_word = arguments
    words, incomplete, opened = _split(line)
    found = [each for each in offers(words[1:], incomplete) if each.value.startswith(incomplete)]
    if shell == "bash":
        lines = _for_bash(found, incomplete, "".join(bash_word), opened)
    elif shell == "zsh":
        widest = max((len(each.value) for each in found), default=0)
        lines = [
            f"{each.value}\t"
            + (f"{each.value:<{widest}}  -- {each.help}" if each.help else each.value)
            for each in found
        ]
    else:
        lines = [f"{each.value}\t{each.help}" for each in found]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _split(line: str) -> tuple[list[str], str, str]:
    """Return the words before the one to complete, that word, and the quote it begins with."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:  # a quote is open
            continue
        if not closing and (not words or line[-1:].isspace()):
            words.append("")
        return words[:-1], words[-1], closing
    return [], "", ""


def offers(words: Sequence[str], incomplete: str) -> list[Offer]:
    """Return what may follow these words, which begin with the command."""
    if not words:
        if incomplete.startswith("-"):
            return [Offer("--help"), Offer("--version")]
        return [Offer(name, summary) for name, summary in SUMMARIES.items()]
    if words[0] not in SUMMARIES:
        return []
    return [*_arguments(words[0], load(words[0]).parser(), words[1:], incomplete)]


def _arguments(
    command: str, parser: Parser, words: Sequence[str], incomplete: str
) -> Iterator[Offer]:
    flags = {string: action for action in parser._actions for string in action.option_strings}
    positionals = [action for action in parser._actions if not action.option_strings]
    given: dict[str, str] = {}
    expecting: argparse.Action | None = None
    only_arguments = False
    for word in words:
        flag, equals, value = word.partition("=")
        if expecting is not None:
            given[expecting.dest], expecting = word, None
        elif only_arguments or not word.startswith("-"):
            if positionals:
                given[positionals[0].dest] = word
                del positionals[0]
        elif word == "--":
            only_arguments = True
        elif flag in flags and equals:
            given[flags[flag].dest] = value
        elif flag in flags and flags[flag].nargs != 0:
            expecting = flags[flag]
    if only_arguments and command == "run":
        return  # CMD: files
    if expecting is None and incomplete.startswith("-") and not only_arguments:
        for action in parser._actions:
            if action.option_strings:
                long = next((s for s in action.option_strings if s.startswith("--")), "")
                yield Offer(long, parser._get_formatter()._expand_help(action))
        return
    wanted = expecting or next(iter(positionals), None)
    if wanted is not None and wanted.choices is not None:
        yield from (Offer(str(choice)) for choice in wanted.choices)
    elif wanted is not None and wanted.dest in ("name", "tier", "key"):
        with suppress(Exception):  # a shell that completes a word can't show it
            found = _found(wanted.dest, given)
            printable = [name for name in found if name.isprintable() and name[:1] != "-"]
            yield from map(Offer, printable)


def _found(what: str, given: dict[str, str]) -> list[str]:
    """Return the names of limits, of the tiers of one, or the busiest keys of these."""
    from slotwise._admin.backends import open_backend
    from slotwise._admin.tier_view import view

    backend = open_backend(given.get("url"))
    if what == "name":
        return backend.all_names()
    tiers = view(backend.find_tiers(given["name"])).tiers
    if what == "tier":
        return [tier.spec.name for tier in tiers]
    chosen = [tier for tier in tiers if given.get("tier", tier.spec.name) == tier.spec.name]
    return [key.key or "" for tier in chosen for key in tier.keys[:_MOST_KEYS]]


def _for_bash(found: Sequence[Offer], incomplete: str, bash_word: str, opened: str) -> list[str]:
    """Words as bash inserts them, in place of what it takes for the word to complete.

    Inside a quote that was typed it inserts them as they are, and closes it: what means
    something there is left out.
    """
    values = [each.value for each in found]
    if opened:
        return [value for value in values if not _SPECIAL_IN_QUOTES.intersection(value)]
    if not incomplete.endswith(bash_word):  # a quote or a backslash in the middle
        return []
    kept = len(incomplete) - len(bash_word)
    return [shlex.quote(value[kept:]) for value in values]
