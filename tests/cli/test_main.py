"""The command as a whole: its help, its errors, and its two names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli._shell import Shell, command

from slotwise._cli.commands import SUMMARIES

# Every command that looks for a semaphore.
LOOKS = (
    ("ls",),
    ("show", "api"),
    ("top",),
    ("resize", "api", 2),
    ("kick", "x", "--yes"),
    ("close", "api", "--yes"),
    ("open", "api"),
)


def test_help_lists_the_commands_and_teaches_by_example(shell: Shell):
    for words in ((), ("--help",), ("-h",)):
        ran = shell.here(*words)
        assert (ran.returncode, ran.stderr) == (0, "")
        for each in SUMMARIES:
            assert f"\n  {each} " in ran.stdout
        assert "slotwise run backup --limit 1 -- ./backup.sh" in ran.stdout


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_command_explains_itself_with_examples(shell: Shell, name):
    ran = shell.here(name, "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"usage: slotwise {name} ")
    assert "<str>" not in ran.stdout
    assert f"slotwise {name}" in ran.stdout.partition("examples:")[2]
    assert ("--url" in ran.stdout) is (name not in ("demo", "completion"))
    if name in ("ls", "show", "top", "doctor"):
        assert "--json" in ran.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("lss",), "there is no command 'lss'; did you mean ls? 'slotwise --help' shows how"),
        (("ls", "--jso"), "unknown flag --jso; did you mean --json? 'slotwise ls --help'"),
        (("show",), "NAME is missing"),
        (("resize", "api"), "N is missing"),
        (("resize",), "NAME and N are missing"),
        (("ls", "extra"), "unexpected argument: 'extra'"),
        (("ls", "--", "extra"), "unexpected argument: 'extra'"),
        (("ls", "--url"), "--url needs a value"),
        (("ls", "--json=3"), "--json takes no value"),
        (("completion", "csh"), "SHELL: invalid choice: 'csh'"),
        (("top", "--every", "0"), "at least 0.1 s, not '0'"),
        (("top", "--every", "nan"), "--every must be a time such as 5 (seconds)"),
        (("resize", "api", "0"), "N must be at least 1, not 0"),
        (("resize", "api", "-1"), "N must be at least 1, not -1"),
        (("resize", "api", "--", "-3"), "N must be at least 1, not -3"),
        (("resize", "api", 2**62), f"N must be at most {2**53}, not {2**62}"),
        (("resize", "api", "many"), "N must be a whole number, not 'many'"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_usage_errors_are_one_line_that_says_where_help_is(shell: Shell, words, told):
    ran = shell.here(*words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("slotwise")
    assert told in ran.stderr
    assert "--help' shows how" in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words[0])
def test_a_server_that_is_not_there_is_one_line_that_says_what_to_do(shell: Shell, words):
    ran = shell.here(*words, "--url", "redis://:secret@127.0.0.1:1")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"slotwise {words[0]}: Redis at 127.0.0.1:1 can't be reached; is it running, and is the"
        f" url right?\n"
    )


@pytest.mark.parametrize("folder", ["/proc", "/proc/none/of/it"])
def test_a_directory_that_takes_no_files_is_told_from_one_that_is_missing(shell: Shell, folder):
    where = {"SLOTWISE_URL": "process://", "SLOTWISE_DIR": folder}
    ran = shell.run("run", "api", "--limit", 1, "--", "true", **where)
    assert ran.returncode == 125
    remedy = (
        "set SLOTWISE_DIR to a directory" if folder == "/proc" else "create its parent directory"
    )
    assert remedy in ran.stderr


def test_a_directory_that_is_a_file_is_named_in_full(shell: Shell):
    ran = shell.here("ls", SLOTWISE_URL="process://", SLOTWISE_DIR="/etc/passwd")
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert "***" not in ran.stderr
    assert "/etc/passwd" in ran.stderr


def test_both_names_are_the_same_command(shell: Shell):
    script = Path(sys.executable).with_name("slotwise")
    if not script.exists():
        pytest.skip("slotwise is not installed as a script here")
    ran = subprocess.run([script, "ls"], capture_output=True, env=shell.environment, check=True)
    assert ran.stdout.decode() == shell.run("ls").stdout
    assert shell.run("--version").stdout.startswith("slotwise ")


def test_ctrl_c_during_the_start_is_no_traceback(shell: Shell):
    # What takes its time to import is imported where `main` sees to an interrupt.
    text = (
        "import sys, os, signal;"
        "sys.addaudithook(lambda event, args: event == 'import' and args[0] == 'argparse'"
        " and os.kill(os.getpid(), signal.SIGINT));"
        "sys.argv = ['slotwise', 'run', 'api', '--limit', '1', '--', 'true'];"
        "from slotwise.__main__ import main; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, env=shell.environment, check=False
    )
    assert (ran.returncode, ran.stderr) == (130, b"")


@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [
        (("ls",), ">&-", 1),
        (("run", "api", "--limit", 0, "--", "true"), "2>&-", 125),
        # Closed for slotwise is closed for the command, whatever slotwise opens itself.
        (("run", "api", "--limit", 1, "--", "test", "!", "-e", "/dev/fd/2"), "<&- >&- 2>&-", 0),
    ],
    ids=["stdout", "stderr", "all of them"],
)
def test_without_stdin_stdout_or_stderr_it_does_its_work(shell: Shell, words, closed, code):
    ran = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command(*words)],
        capture_output=True, env=shell.environment, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (code, b"")
    error = b"slotwise ls: the output can't be written to stdout: Bad file descriptor\n"
    assert ran.stderr == (error if code == 1 else b"")


def test_a_name_that_is_not_text_is_one_line(shell: Shell):
    ran = shell.here("show", "\udcff")
    assert (ran.returncode, ran.stdout) == (1, "")
    words = r"name must be text in UTF-8 (lone surrogates not allowed), not '\udcff'"
    assert ran.stderr == f"slotwise show: {words}\n"


@pytest.mark.parametrize("name", ["run", "ls", "top", "doctor", "purge", "demo"])
def test_every_command_works_without_rich(shell: Shell, name):
    words = {
        "run": ["run", "api", "--limit", "1", "--", "true"],
        "top": ["top", "--every", "0.1"],
        "purge": ["purge", str(shell.folder), "--dry-run"],
        "demo": ["demo", "--help"],
    }
    text = (
        "import sys; sys.modules['rich'] = None;"
        f"sys.argv = ['slotwise', *{words.get(name, [name])!r}];"
        "sys.stdout.isatty = lambda: True;"
        "from slotwise.__main__ import main; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, env=shell.environment, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize("name", ["ls", "doctor"])
def test_without_the_redis_packages_one_line_says_what_to_install(shell: Shell, name):
    text = (
        "import sys; sys.modules['redis'] = sys.modules['hiredis'] = None;"
        f"sys.argv = ['slotwise', {name!r}, '--url', 'redis://127.0.0.1:1'];"
        "from slotwise.__main__ import main; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=shell.environment,
        check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert ran.stderr.endswith("pip install 'slotwise[redis]'\n")


def test_purge_is_there_as_before(shell: Shell):
    ran = shell.run("purge", "--help")
    assert ran.returncode == 0
    assert "--max-age-days" in ran.stdout


def test_names_and_labels_can_not_write_to_the_terminal(shell: Shell):
    shell.occupy("na\x1b[31mme", label="[red]la\nbel")
    terminal = shell.terminal("show", "na\x1b[31mme")
    terminal.expect_exact(r"[red]la\nbel")
    assert r"na\x1b[31mme: 1 of 1" in terminal.before
    assert "na\x1b[31mme" not in terminal.before


@pytest.mark.soak
def test_make_demo_starts_the_demo():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "python -m slotwise demo" in makefile
    shown = subprocess.run(
        [sys.executable, "-m", "slotwise", "demo", "--help"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "demo" in shown.stdout


@pytest.mark.soak
def test_the_demo_is_a_story_in_three_acts_that_ends_with_what_to_try(shell: Shell):
    ran = shell.run("demo")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.findall(r"^Act \d", ran.stdout, re.MULTILINE) == ["Act 1", "Act 2", "Act 3"]
    assert ran.stdout.count("big ") >= 12
    second = r"kill -9 (\d+)\nprocess \d+ \(third\) has slot 1, \d+ ms later\n"
    assert re.search(second, ran.stdout)
    assert "Try next: slotwise run" in ran.stdout.splitlines()[-1]
