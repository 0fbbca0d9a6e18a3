"""A word of another tool, or a typo, is answered with the flag or the command that was meant."""

from __future__ import annotations

import re

import pytest

from slotwise._cli import other_words
from slotwise._cli.commands import SUMMARIES, load
from slotwise._cli.main import main

CMD = ("--", "true")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("run", "api", "--timeot=5", *CMD), "--timeot; did you mean --timeout?"),
        (("run", "api", "-w5", *CMD), "-w5; did you mean --wait?"),
        (("run", "api", "--no_wait", *CMD), "--no_wait; did you mean --no-wait?"),
        (("run", "api", "--max", "3", *CMD), "--max; did you mean --limit?"),
        (("run", "api", "--kill-after", "3", *CMD), "--kill-after; did you mean --grace?"),
        (("run", "api", "--redis", "redis://h", *CMD), "--redis; did you mean --url?"),
        (("run", "--name", "api", *CMD), "--name; NAME is given without a flag;"),
        (("run", "api", "--pid", "3", *CMD), "--pid; those of CMD go after --;"),
        (("run", "api", "rm", "-n"), "did you mean --no-wait? Those of CMD go after --;"),
        (("acquire", "api", "--pid", "3"), "--pid; did you mean --for-pid?"),
        (("resize", "api", "--value", "3"), "--value; N is given without a flag;"),
        (("pause", "api", "--for", "10"), "--for; TIME is given without a flag;"),
        (("kick", "--id", "3"), "--id; ID is given without a flag;"),
        (("close", "api", "--message", "x"), "--message; did you mean --reason?"),
        (("top", "-n", "1"), "-n; did you mean --every?"),
        (("purge", "/x", "-n"), "-n; did you mean --dry-run?"),
        (("purge", "/x", "--timeout", "1h"), "--timeout; did you mean --deadline?"),
        (("list",), "'list'; did you mean ls?"),
        (("unfreeze", "api"), "'unfreeze'; did you mean thaw?"),
        (("help",), "'help'; did you mean --help?"),
        (("xyzzy",), "'xyzzy'; 'slotwise --help'"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_a_word_of_another_tool_is_answered_with_ours(capsys, typed, told):
    assert main(typed) in (2, 125)
    assert told in capsys.readouterr().err


def test_a_flag_of_the_command_itself_is_never_another_tools_word(capsys):
    """For `run`, --max-age means --ttl; purge has a flag of that name."""
    assert main(["purge", "/x", "--max-ag", "3d"]) == 2
    assert "did you mean --max-age?" in capsys.readouterr().err


def test_only_what_exists_is_suggested():
    known = {*SUMMARIES, "--help", "--version"}
    assert {*other_words._COMMANDS} <= known
    for name in SUMMARIES:
        known |= {*re.findall(r"[\w-]+", load(name).parser().format_help())}
    assert {*other_words._FLAGS} <= known
