"""The command as a whole: its help, its errors, and its two names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.cli._shell import HANG, Shell, command

from slotwise._cli import other_words
from slotwise._cli.commands import SUMMARIES, load
from slotwise._cli.main import main

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


def test_names_and_labels_can_not_write_to_the_terminal(shell: Shell):
    shell.occupy("na\x1b[31mme", label="[red]la\nbel")
    terminal = shell.terminal("show", "na\x1b[31mme")
    terminal.expect_exact(r"[red]la\nbel")
    assert r"na\x1b[31mme: 1 of 1" in terminal.before
    assert "na\x1b[31mme" not in terminal.before


@pytest.mark.soak
def test_the_demo_is_a_story_in_three_acts_that_ends_with_what_to_try(shell: Shell):
    ran = shell.run("demo")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.findall(r"^Act \d", ran.stdout, re.MULTILINE) == ["Act 1", "Act 2", "Act 3"]
    assert ran.stdout.count("big ") >= 12
    second = r"kill -9 (\d+)\nprocess \d+ \(third\) has slot 1, \d+ ms later\n"
    assert re.search(second, ran.stdout)
    assert "Try next: slotwise run" in ran.stdout.splitlines()[-1]


# ----------------------------------------------------------- words of other tools


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


# --------------------------------------------- fresh interpreters: start and end


def test_commands_import_what_they_need(any_shell: Shell) -> None:
    def fresh(*words: object) -> str:
        ran = subprocess.run(
            command(*words),
            *(), capture_output=True, text=True, check=False, timeout=HANG,
            env=any_shell.environment,
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, ""), words
        return ran.stdout

    acquired = fresh("acquire", "api", "--limit", 2).strip()
    [held] = any_shell.holders()
    assert held.acquisition_id == acquired
    assert fresh("run", "api", "--", "echo", "ran") == "ran\n"
    assert "api" in fresh("ls")
    fresh("release", acquired)
    assert any_shell.holders() == []


AT_THE_END = """
import atexit, threading
atexit.register(print, "registered")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "api", "--limit", "1", "--", "sh", "-c", "exit 7"), 7),
        (("release", "of-nobody"), 1),
        (("purge", "nowhere", "--yes"), 2),
    ],
)
def test_what_is_to_run_at_the_end_runs(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_THE_END)
    ran = subprocess.run(
        [sys.executable, "-m", "slotwise", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
        process_group=0,  # in which a stop signal stops it, as in a shell
        env={**os.environ, "PYTHONPATH": str(tmp_path), "SLOTWISE_DIR": str(tmp_path / "slots")},
    )
    assert (ran.returncode, ran.stdout) == (code, "thread\nregistered\n")


# ------------------------------------------------------- streams that take nothing


@contextmanager
def unwritable(kind: str) -> Iterator[int]:
    """A descriptor that takes nothing."""
    if kind == "stuck":
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
        try:
            yield writing
        finally:
            os.close(reading)
            os.close(writing)
        return
    if kind == "full":
        if not Path("/dev/full").exists():
            pytest.skip("there is no /dev/full here")
        writing = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


def exit_code(shell: Shell, *words: object, **streams: int) -> int:
    ran = subprocess.run(
        command(*words), env=shell.environment, cwd=shell.folder, timeout=HANG, check=False,
        **{"stdin": subprocess.DEVNULL, **streams},
    )  # fmt: skip
    return ran.returncode


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [
        ("full", ("run", "api", "--limit", "abc", "--", "true"), 125),
        ("unread", ("run", "api", "--limit", "1", "--", "/nonexistent"), 127),
        ("full", ("run", "full", "--limit", "1", "--no-wait", "--", "true"), 75),
        ("unread", ("run", "api", "--limit", "1", "--ttl", "0.2", "--", "sleep", "1000"), 124),
        ("stuck", ("run", "api", "--limit", "1", "--ttl", "0.2", "--", "sleep", "1000"), 124),
        ("full", ("resize", "full", "0"), 2),
        ("unread", ("show", "nobody-made-this"), 1),
        ("full", ("lss",), 2),
        ("unread", ("purge", ".", "--no-such-flag"), 2),
        ("full", ("purge", "/", "--yes"), 2),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else str(given),
)
def test_the_exit_code_does_not_depend_on_stderr(shell: Shell, kind, words, code):
    shell.occupy("full")
    with unwritable(kind) as stream:
        assert exit_code(shell, *words, stderr=stream) == code


@pytest.mark.parametrize("kind", ["full", "unread"])
def test_a_warning_that_can_not_be_written_does_not_keep_the_command_from_running(
    shell: Shell, kind
):
    shell.occupy(limit=1)
    assert shell.here("resize", "api", 2).returncode == 0
    words = ("run", "api", "--limit", 1, "--no-wait", "--", "touch", "it-ran")
    with unwritable(kind) as stream:
        assert exit_code(shell, *words, stderr=stream) == 0
    assert (shell.folder / "it-ran").exists()


@pytest.mark.parametrize("words", [("run", "--help"), ("--help",), ("ls",), ("completion", "zsh")])
def test_what_can_not_be_printed_is_an_error(shell: Shell, words):
    with unwritable("full") as stream:
        assert exit_code(shell, *words, stdout=stream) == 1
    assert os.system(" ".join([*command(*words), ">&-", "2>/dev/null"])) >> 8 == 1


@pytest.mark.parametrize("kind", ["full", "unread", "closed"])
def test_slots_whose_id_can_not_be_printed_are_not_held(any_shell: Shell, kind, capfd):
    words = ("acquire", "api", "--for-pid", os.getpid())
    if kind == "closed":
        shell = ["sh", "-c", '"$@" >&-', "sh", *command(*words)]
        ran = subprocess.run(shell, env=any_shell.environment, timeout=HANG, check=False)
        code = ran.returncode
    else:
        with unwritable(kind) as stream:
            code = exit_code(any_shell, *words, stdout=stream)
    assert code == 125
    assert "nothing is held: can't write the id to stdout" in capfd.readouterr().err
    assert any_shell.holders() == []


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
