"""Completion, in real shells too: whatever a semaphore is called, its name is only ever a word."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pexpect
import pytest
from tests.cli._shell import Shell

from slotwise._cli.commands import SUMMARIES

# Each begins with a letter of its own, by which it is completed.
HOSTILE = {
    "a": "a$(touch pwned)",
    "b": "b`touch pwned`",
    "c": "c\\$(touch pwned)",
    "d": "d';touch pwned;'",
    "e": 'e"$(touch pwned)"',
    "f": "f  two  spaces & touch pwned",
    "g": "g*",
    "h": "h(touch pwned)",
    "i": "i!!$HOME~{x,y}",
    "j": "j\u6570\u636e",
}
# Names that nobody can type, or that would be taken for flags.
NEVER = ("k\n$(touch pwned)", "k\x1b[31m", "k\u202e", "k\ttab")

STARTS = {
    "bash": ["bash", "--norc", "--noprofile"],
    "zsh": ["zsh", "-f"],
    "fish": ["fish", "--no-config"],
}
PREPARATIONS = {
    "bash": "bind 'set enable-bracketed-paste off'; bind 'set bell-style none'",
    "zsh": "bindkey -e; unsetopt beep; autoload -Uz compinit; compinit -u -d ./zcompdump",
    "fish": "function fish_prompt; end",
}


class Terminal:
    """A shell at a terminal, in which slotwise's completion is installed."""

    def __init__(self, kind: str, shell: Shell) -> None:
        self.kind = kind
        command = shell.folder / "programs" / "slotwise"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m slotwise "$@"\n')
        command.chmod(0o755)
        probe = command.with_name("probe")
        probe.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"; echo END\n")
        probe.chmod(0o755)
        script = shell.here("completion", kind).stdout
        (shell.folder / "script").write_text(script)
        shell.environment["PATH"] = f"{command.parent}:{shell.environment['PATH']}"
        shell.environment["HOME"] = str(shell.folder)
        shell.environment["TERM"] = "dumb"
        shell.environment["LC_ALL"] = "C.UTF-8"
        self.spawned: pexpect.spawn = shell.in_terminal(STARTS[kind], columns=400)
        self.say(f"{PREPARATIONS[kind]}; source ./script; echo rea''dy")
        self.spawned.expect_exact("ready")

    def say(self, line: str) -> None:
        self.spawned.sendline(line)

    def completed(self, typed: str, then: str = "") -> str:
        """What a command gets for a line that TAB has completed."""
        self.spawned.send(f"slotwise show {typed}\t{then}")
        self.spawned.send("\x01probe \r")  # to the beginning of the line
        self.spawned.expect(r"<slotwise><show><([^\r\n]*)>END")
        return str(self.spawned.match[1])


@pytest.fixture(params=STARTS)
def terminal(request: pytest.FixtureRequest, shell: Shell) -> Terminal:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return Terminal(request.param, shell)


@pytest.mark.parametrize("letters", ["cd", pytest.param([*HOSTILE], marks=pytest.mark.soak)])
def test_hostile_names_are_completed_as_words_and_run_nothing(
    terminal: Terminal, shell: Shell, letters
):
    for name in [*HOSTILE.values(), *NEVER]:
        shell.occupy(name)
    (shell.folder / "gift").touch()  # what g* would be, as a pattern
    for letter in letters:
        assert terminal.completed(letter) == HOSTILE[letter]
    assert terminal.completed("k") == "k"
    assert not list(Path(shell.folder).rglob("pwned"))


@pytest.mark.parametrize("kind", STARTS)
def test_names_that_can_not_be_shown_or_look_like_flags_are_not_offered(shell: Shell, kind):
    for name in (*NEVER, "--url=redis://elsewhere"):
        shell.occupy(name)
    shell.occupy("backup")
    offered = shell.here("__complete", kind, "slotwise show ", "").stdout
    assert offered.partition("\t")[0].strip() == "backup"
    assert offered.count("\n") == 1


def test_a_name_with_a_colon_is_completed(terminal: Terminal, shell: Shell):
    """Where bash begins a new word."""
    shell.occupy("team:api v2")
    assert terminal.completed("te") == "team:api v2"
    assert terminal.completed("team:a") == "team:api v2"


def offered(shell: Shell, line: str) -> list[str]:
    """What bash is offered for the last word of a line."""
    last = line.rpartition(" ")[2]
    return shell.here("__complete", "bash", line, last).stdout.split()


def test_commands_flags_and_names_are_offered(any_shell: Shell):
    any_shell.occupy("backup")
    assert offered(any_shell, "slotwise ") == [*SUMMARIES]
    assert offered(any_shell, "slotwise to") == ["top"]
    assert offered(any_shell, "slotwise --") == ["--help", "--version"]
    assert offered(any_shell, "slotwise run --l") == ["--limit", "--label"]
    assert offered(any_shell, "slotwise show ba") == ["backup"]
    assert offered(any_shell, "slotwise run ba") == ["backup"]
    assert offered(any_shell, "slotwise resize --url x") == []
    assert offered(any_shell, "slotwise resize backup ") == []
    assert offered(any_shell, "slotwise show --url redis://127.0.0.1:1 ba") == []
    assert offered(any_shell, "slotwise show --url=redis://127.0.0.1:1 ba") == []


def test_choices_are_offered_and_files_where_there_is_nothing_else(shell: Shell):
    assert offered(shell, "slotwise purge /x --age-by ") == ["mtime", "atime", "ctime"]
    assert "--dry-run" in offered(shell, "slotwise purge /x --")
    assert offered(shell, "slotwise completion ") == ["bash", "zsh", "fish"]
    assert offered(shell, "slotwise purge ") == []
    assert offered(shell, "slotwise run api --limit 1 -- --l") == []
    assert offered(shell, "slotwise nonsense --") == []


@pytest.mark.parametrize("words", [(), ("bash",), ("bash", "'", ""), ("other", "slotwise l")])
def test_a_question_that_makes_no_sense_is_no_traceback(shell: Shell, words):
    assert shell.here("__complete", *words).stderr == ""
