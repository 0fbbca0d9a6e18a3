"""The command line, as a process: exit codes, JSON, signals, the question."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slotwise._cli.main import main as command_line
from slotwise._cli.purge import bar, counts
from slotwise._cli.purge_flags import UNNECESSARY, make_parser
from slotwise._cli.signals import readable
from slotwise.purge import PurgeOptions, PurgeReport, Run, make_plan, purge

SUMMARY = [
    "files_scanned",
    "files_to_purge",
    "files_purged",
    "dirs_scanned",
    "empty_dirs_deleted",
    "symlinks_skipped",
    "special_files_skipped",
    "errors",
    "error_samples",
    "bytes_freed",
    "duration_seconds",
    "files_per_second",
    "peak_memory_mb",
    "dry_run",
    "stopped_by",
]


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "slotwise", "purge", *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SLOTWISE_PURGE_")}
    return {**kept, "COLUMNS": "100", "TERM": "xterm", **more}


def run(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(**more),
        timeout=60,
        check=False,
    )


def summary(ran: subprocess.CompletedProcess[str]) -> dict:
    return json.loads(ran.stdout.splitlines()[-1])


def test_the_last_line_of_json_is_the_summary(root, old) -> None:
    old(root / "a" / "x", size=5)
    ran = run(root, "--yes", "--json", "--remove-empty-dirs")
    assert ran.returncode == 0, ran.stderr
    assert all(json.loads(line) for line in ran.stdout.splitlines())
    said = summary(ran)
    assert set(SUMMARY) <= set(said)
    assert (said["files_purged"], said["empty_dirs_deleted"], said["bytes_freed"]) == (1, 1, 5)
    assert said["stopped_by"] is None
    assert 5 < said["peak_memory_mb"] < 200


def test_without_a_terminal_yes_or_dry_run_is_required(root, old) -> None:
    path = old(root / "x")
    ran = run(root)
    assert ran.returncode == 2
    assert "--yes or --dry-run" in ran.stderr
    assert path.exists()
    assert run(root, "--dry-run").returncode == 0
    assert path.exists()


def test_every_flag_has_its_variable(monkeypatch) -> None:
    from dataclasses import fields

    from slotwise._cli.purge_flags import UNNECESSARY, destination_of, make_parser
    from slotwise.purge import PurgeOptions

    examples = {
        "age_by": "ctime", "include": "a b", "exclude": "c", "audit": "file",
        "name": "n", "log_level": "DEBUG", "max_age_days": "1.5", "deadline": "2h",
    }  # fmt: skip
    plain = vars(make_parser().parse_args(["p"]))
    names = {field.name for field in fields(PurgeOptions)}
    names |= {"json", "yes", "log_level", "progress_interval"}
    names.remove("semaphore")  # for programs only
    assert names == set(plain) - {"path", *map(destination_of, UNNECESSARY)}
    names.remove("url")  # SLOTWISE_URL, as for every command
    for name in names:
        value = "0" if plain[name] is True else examples.get(name, "1")
        monkeypatch.setenv(f"SLOTWISE_PURGE_{name.upper()}", value)
    given = vars(make_parser().parse_args(["p"]))
    assert all(given[name] != plain[name] for name in names)
    assert given["include"] == ["a", "b"]


def test_a_variable_that_is_no_flag_is_refused_and_help_helps_anyway(root, old) -> None:
    path = old(root / "x")
    ran = run(root, "--yes", SLOTWISE_PURGE_DRYRUN="1")
    assert (ran.returncode, path.exists()) == (2, True)
    assert "did you mean SLOTWISE_PURGE_DRY_RUN?" in ran.stderr
    ran = run(root, "--yes", SLOTWISE_PURGE_MAX_AGE_DAYS="soon")
    assert (ran.returncode, path.exists()) == (2, True)
    assert "the value of SLOTWISE_PURGE_MAX_AGE_DAYS is not valid for --max-age-days" in ran.stderr
    ran = run("--help", SLOTWISE_PURGE_MAX_AGE_DAYS="soon")
    assert ran.returncode == 0
    assert "--max-age-days" in ran.stdout


def test_include_and_exclude_can_be_repeated(root, old, left) -> None:
    for name in ("a.log", "b.txt", "c.tmp", "d/e.log"):
        old(root / name)
    words = ["--include", "*.log", "--include", "*.txt", "--exclude", "d"]
    assert run(root, "--yes", *words).returncode == 0
    assert left(root) == {"c.tmp", "d", "d/e.log"}


@pytest.mark.parametrize(
    "words",
    [
        ["--max-age-days", "-1"],
        ["--max-age-days", "soon"],
        ["--age-by", "birth"],
        ["--no-such-flag"],
        ["--max-concurrency-deletion", "0"],
        ["--url", "redis://localhost"],
    ],
)
def test_bad_usage_is_not_done(root, old, words) -> None:
    path = old(root / "x")
    assert run(root, "--yes", *words).returncode == 2
    assert path.exists()


@pytest.mark.parametrize("audit", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_the_audit_can_go_to_stdout_be_it_a_pipe_or_a_file(tmp_path, root, old, audit) -> None:
    gone = old(root / "a")
    ran = run(root, "--yes", "--json", "--audit", audit)
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line).get("path") for line in ran.stdout.splitlines()][1] == str(gone)
    gone = old(root / "a")
    with (tmp_path / "log").open("w") as log:
        log.write("before\n")
        log.flush()
        words = command(root, "--yes", "--json", "--audit", audit)
        subprocess.run(words, stdout=log, env=environment(), timeout=60, check=True)
    before, *lines = (tmp_path / "log").read_text().splitlines()
    assert before == "before"
    assert [json.loads(line).get("event") for line in lines] == ["start", None, "summary"]


def test_a_stdout_below_the_root_is_refused_as_an_audit(root, old) -> None:
    old(root / "a")
    with (root / "log").open("w") as log:
        words = command(root, "--yes", "--audit", "/dev/stdout")
        ran = subprocess.run(words, stdout=log, env=environment(), timeout=60, check=False)
    assert ran.returncode == 2
    assert (root / "a").exists()


@pytest.mark.parametrize("level", ["warning", "critical"])
def test_an_audit_pipe_that_nobody_reads_is_waited_for_with_a_word(
    tmp_path, root, old, level
) -> None:
    gone = old(root / "a")
    os.mkfifo(tmp_path / "pipe")
    words = command(root, "--yes", "--audit", tmp_path / "pipe", "--log-level", level)
    purging = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment())
    assert purging.stderr is not None
    line = purging.stderr.readline()
    assert line == f"CRITICAL waiting: no process reads the audit from the pipe {tmp_path}/pipe\n"
    assert gone.exists()
    audited = (tmp_path / "pipe").read_text()
    assert json.loads(audited)["path"] == str(gone)
    purging.communicate(timeout=60)
    assert purging.returncode == 0
    assert not gone.exists()


def test_an_audit_file_that_is_neither_file_nor_pipe_is_refused(tmp_path, root, old) -> None:
    stays = old(root / "a")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        ran = run(root, "--yes", "--audit", tmp_path / "socket")
        assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
        assert f"the audit file {tmp_path}/socket can't be opened: " in ran.stderr
    main_end, terminal = pty.openpty()
    ran = run(root, "--yes", "--audit", os.ttyname(terminal))
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "is a terminal" in ran.stderr
    ran = subprocess.run(  # in a session of its own, without a terminal
        command(root, "--yes", "--audit", "/dev/tty"), capture_output=True, text=True,
        env=environment(), start_new_session=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    os.close(main_end)
    os.close(terminal)
    assert stays.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("audit", ["pipe", "stdout"])
def test_a_signal_ends_the_wait_for_an_audit_that_nobody_drains(
    tmp_path, root, old, number, audit
) -> None:
    count = 1000  # lines of some 300 bytes: more than a pipe holds
    for each in range(count):
        old(root / f"{each:0200}")
    if audit == "pipe":
        os.mkfifo(tmp_path / "pipe")
        words = command(root, "--yes", "--json", "--audit", tmp_path / "pipe")
        reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        purging = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment())
    else:
        words = command(root, "--yes", "--json", "--audit", "/dev/stdout")
        reading, writing = os.pipe()
        purging = subprocess.Popen(
            words, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment()
        )
        os.close(writing)
    try:
        said = purging.stdout if audit == "pipe" else purging.stderr
        assert said is not None
        told = next(line for line in said if "waiting" in line)
        assert "is full, and no process reads it" in told
        left = len(list(root.iterdir()))
        assert 0 < left < count
        purging.send_signal(number)
        rest, _ = purging.communicate(timeout=60)
        assert purging.returncode == 128 + number
        if audit == "pipe":
            report = json.loads(rest.splitlines()[-1])
            assert report["stopped_by"] == number.name
            assert report["errors"] == {}
            assert report["files_purged"] == count - len(list(root.iterdir()))
    finally:
        os.close(reading)


def test_a_reader_of_the_audit_that_goes_away_ends_the_purge(tmp_path, root, old) -> None:
    for number in range(2000):
        old(root / f"{number}")
    os.mkfifo(tmp_path / "pipe")
    words = command(root, "--yes", "--audit", tmp_path / "pipe")
    purging = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment())
    with (tmp_path / "pipe").open() as pipe:
        pipe.readline()
    purging.communicate(timeout=60)
    assert purging.returncode == 2
    assert list(root.iterdir())


def test_refused_roots_and_audits_are_not_done(tmp_path, root, old) -> None:
    old(root / "x")
    assert run("/", "--yes", "--dry-run").returncode == 2
    assert run(root, "--yes", HOME=str(root)).returncode == 2
    assert run(root, "--yes", "--audit", root / "audit").returncode == 2
    (tmp_path / "link").symlink_to(root)
    ran = run(tmp_path / "link", "--yes", "--json")
    assert ran.returncode == 2
    assert "symlink" in summary(ran)["error"]
    assert (root / "x").exists()
    assert run(root, "--yes", "--allow-dangerous-root", HOME=str(root)).returncode == 0
    assert not (root / "x").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_order(root, old, number, code) -> None:
    for file in range(200):
        old(root / f"{file}")
    process = subprocess.Popen(
        command(root, "--yes", "--json", "--max-delete-per-second", "50"),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    _until(lambda: len(list(root.iterdir())) < 200)
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == code
    last = json.loads(said.splitlines()[-1])
    assert last["stopped_by"] == number.name
    assert last["files_purged"] == 200 - len(list(root.iterdir())) < 200


@pytest.mark.soak
def test_killed_at_any_point_the_next_run_completes_the_job(root, tmp_path, old, left) -> None:
    for directory in range(40):
        for file in range(25):
            old(root / f"{directory % 8}" / f"{directory}" / f"{file}")
    audit = tmp_path / "audit"
    kills = 0
    while kills < 5:
        process = subprocess.Popen(
            command(
                root, "--yes", "--remove-empty-dirs", "--audit", audit,
                "--max-delete-per-second", "2000",
            ),
            stdout=subprocess.DEVNULL,
            env=environment(),
        )  # fmt: skip
        _until_fewer(root, count_files(root) - 20, process)
        process.kill()
        process.wait()
        kills += 1
    ran = run(root, "--yes", "--json", "--remove-empty-dirs", "--audit", audit)
    assert ran.returncode == 0
    assert left(root) == set()
    audited = [json.loads(line) for line in audit.read_text().splitlines()]
    paths = {line["path"] for line in audited if line["op"] == "unlink"}
    assert len(paths) == 1000  # what was deleted was told, by whoever was killed, too


def count_files(root: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(root))


def _until_fewer(root: Path, files: int, process: subprocess.Popen[bytes]) -> None:
    _until(lambda: process.poll() is not None or count_files(root) < files)


def _until(what, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def on_a_terminal(answer: bytes, *words: object) -> tuple[int, str]:
    """Run it on a terminal and answer its question."""
    child, fd = pty.fork()
    if not child:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background has it ignored
        os.execve(sys.executable, command(*words), environment())
    said = b""
    answered = False
    while True:
        if not readable(fd, timeout=30):
            os.kill(child, signal.SIGKILL)
            break
        try:
            part = os.read(fd, 4096)
        except OSError:  # the other end has closed
            break
        if not part:
            break
        said += part
        if b"Delete these?" in said and not answered:
            answered = True
            os.write(fd, answer)
    _, status = os.waitpid(child, 0)
    os.close(fd)
    return os.waitstatus_to_exitcode(status), said.decode(errors="replace")


def test_on_a_terminal_it_shows_the_plan_and_asks(root, old) -> None:
    path = old(root / "a" / "x", size=2000)
    code, said = on_a_terminal(b"n\n", root, "--remove-empty-dirs")
    assert code == 2
    assert path.exists()
    assert "the plan" in said
    assert "1 of 1 files (2.0 kB), 1 directories" in said
    code, _ = on_a_terminal(b"\x03", root)
    assert code == 130
    assert path.exists()
    code, said = on_a_terminal(b"y\n", root, "--remove-empty-dirs")
    assert code == 0
    assert not path.exists()
    assert "files purged" in said


def heard_by_nobody(kind: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run it with a stdout that takes nothing."""
    if kind == "full":
        writing = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    try:
        return subprocess.run(
            command(*words),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=(lambda: os.close(1)) if kind == "closed" else None,
            check=False,
        )
    finally:
        os.close(writing)


@pytest.mark.parametrize("kind", ["full", "unread", "closed"])
def test_a_stdout_that_takes_nothing_is_told_in_one_line(root, old, kind) -> None:
    file = old(root / "a")
    ran = heard_by_nobody(kind, root, "--yes", "--json")
    assert (ran.returncode, file.exists()) == (2, True)
    assert "nothing was done: stdout" in ran.stderr
    assert "Traceback" not in ran.stderr
    ran = heard_by_nobody(kind, root, "--yes")  # the table comes after the work
    assert (ran.returncode, file.exists()) == (1, False)
    assert "1 files and 0 directories were purged, but stdout" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_ctrl_c_during_the_summary_does_not_deny_what_was_deleted(
    root, old, monkeypatch, capsys
) -> None:
    class Pressed(io.TextIOWrapper):
        def write(self, _: str) -> int:
            signal.raise_signal(signal.SIGINT)
            return 0

    file = old(root / "a")
    monkeypatch.setattr(sys, "stdout", Pressed(io.BytesIO()))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert command_line(["purge", str(root), "--yes"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert not file.exists()
    said = capsys.readouterr().err
    assert "1 files and 0 directories were purged, but stdout: interrupted" in said
    assert "nothing was deleted" not in said


def test_a_purge_starts_without_an_event_loop(root, old) -> None:
    """A third of the time that a small tree takes would be the import of asyncio."""
    old(root / "x")
    program = (
        "import sys; from slotwise._cli.main import main;"
        f"code = main(['purge', {str(root)!r}, '--yes', '--json']);"
        "sys.exit(code or 3 * ('asyncio' in sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment(), timeout=60, check=False
    )
    assert ran.returncode == 0
    assert not list(root.iterdir())


def test_a_program_that_calls_it_keeps_its_own_logging(root) -> None:
    logger = logging.getLogger("slotwise")
    before = logger.handlers[:], logger.level, logger.propagate
    assert command_line(["purge", str(root), "--yes", "--log-level", "debug"]) == 0
    assert command_line(["purge", str(root), "--yes", "--json", "--min-depth", "-1"]) == 2
    assert (logger.handlers, logger.level, logger.propagate) == before


def test_a_misspelled_flag_is_refused_with_the_one_that_was_meant(root, old) -> None:
    path = old(root / "x")
    ran = run(root, "--yes", "--max-age-day", "3")
    assert ran.returncode == 2
    assert "unknown flag --max-age-day; did you mean --max-age-days?" in ran.stderr
    second = run(root, root / "x", "--yes")
    assert second.returncode == 2
    assert "there is one PATH only" in second.stderr
    assert path.exists()


# ------------------------------------------------------------------------ progress


WORDS = ["--yes", "--max-delete-per-second", "20", "--progress-interval", "100ms"]


def test_without_a_terminal_progress_is_json_and_the_summary_last(root, old, capsys) -> None:
    for number in range(10):
        old(root / f"{number}")
    assert command_line(["purge", str(root), *WORDS, "--json"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    # What threads of other tests log is none of ours.
    start, *progress, summary = [line for line in lines if line["event"] != "log"]
    assert (start["event"], summary["event"], err) == ("start", "summary", "")
    assert progress
    for line in progress:
        assert line["event"] == "progress"
        assert line["files_purged"] <= 10
        assert {"time", "in_flight", "memory_mb", "files_scanned", "bytes_freed"} <= set(line)


def test_without_json_progress_goes_to_stderr_unless_it_is_not_wanted(root, old, capsys) -> None:
    for number in range(8):
        old(root / f"{number}")
    assert command_line(["purge", str(root), *WORDS, "--max-files-to-delete", "5"]) == 0
    out, err = capsys.readouterr()
    assert "files purged" in out
    assert {json.loads(line)["event"] for line in err.splitlines()} == {"progress"}
    assert command_line(["purge", str(root), *WORDS, "--progress-interval", "0"]) == 0
    assert capsys.readouterr().err == ""


HUGE = PurgeReport(
    files_purged=123_456_789,
    files_scanned=1_234_567_890,
    empty_dirs_deleted=1_234_567,
    bytes_freed=10**14,
    errors={"EIO": 12_345},
    files_per_second=123_456,
    duration_seconds=10_000,
)


@pytest.mark.parametrize("room", [40, 56, 100, 200])
def test_the_counts_fit_and_the_most_important_ones_come_first(room) -> None:
    said = counts(HUGE, 1000, 800.0, room)
    assert said.startswith("123,456,789 files · 12,345 errors")
    assert len(said) <= room
    assert (" in flight" in said) == (room >= 56)
    assert (" MB" in said) == (room == 200)


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_bar_fits_into_80_columns(dry_run, root, monkeypatch) -> None:
    pytest.importorskip("rich")
    said = io.StringIO()
    said.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    plan = make_plan(root, PurgeOptions())
    try:
        run = Run(plan)
        with bar(dry_run=dry_run) as show:
            show(HUGE, run)
    finally:
        plan.close()
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.getvalue()))
    assert any("in flight" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)


# --------------------------------------------------------------------------- flags


def days(*words: str) -> float:
    return make_parser().parse(["p", *words]).max_age_days


def test_an_age_has_a_unit_or_is_a_number_of_days(monkeypatch) -> None:
    assert days() == 30
    assert days("--max-age", "12h") == 0.5
    assert days("--max-age", "30d") == days("--max-age-days", "30") == 30
    assert days("--max-age", "0") == 0
    monkeypatch.setenv("SLOTWISE_PURGE_MAX_AGE", "36h")
    assert days() == 1.5
    assert days("--max-age-days", "7") == 7  # what is typed wins
    assert days("--max-age", "2d") == 2


@pytest.mark.parametrize("words", ["30", "30.", "soon", "-1d", "inf", "", "1.5"])
def test_an_age_without_a_unit_deletes_nothing(root, old, capsys, words) -> None:
    path = old(root / "x")
    assert command_line(["purge", str(root), "--yes", f"--max-age={words}"]) == 2
    said = capsys.readouterr().err
    assert "--max-age must be a time with its unit, such as 90m, 12h or 30d" in said
    assert said.count("\n") == 1  # and not the usage
    assert path.exists()


def test_two_ages_are_refused_typed_or_in_the_environment(root, old, capsys, monkeypatch) -> None:
    path = old(root / "x")
    assert command_line(["purge", str(root), "--yes", "--max-age=1d", "--max-age-days=1"]) == 2
    monkeypatch.setenv("SLOTWISE_PURGE_MAX_AGE", "1d")
    monkeypatch.setenv("SLOTWISE_PURGE_MAX_AGE_DAYS", "1")
    assert command_line(["purge", str(root), "--yes"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "--max-age-days is not allowed with argument --max-age" in first
    assert "SLOTWISE_PURGE_MAX_AGE and SLOTWISE_PURGE_MAX_AGE_DAYS are both set" in second
    assert path.exists()


def test_command_lines_of_asyncefspurge_work(root, old, capsys) -> None:
    path = old(root / "x")
    words = [
        str(root), "--yes", "--max-age-days", "30", "--max-concurrency", "1000",
        "--task-batch-size", "5000", "--max-concurrent-subdirs", "100", "--log-level", "INFO",
        "--memory-limit-mb", "0", "--json",
    ]  # fmt: skip
    assert command_line(["purge", *words]) == 0
    assert not path.exists()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert len(lines) == len(UNNECESSARY) == 3
    for flag, line in zip(UNNECESSARY, lines, strict=True):
        assert line.startswith(f"slotwise purge: {flag} is unnecessary")
    assert json.loads(out.splitlines()[-1])["files_purged"] == 1


@pytest.mark.parametrize("level", ["INFO", "Critical", "warning"])
def test_a_log_level_is_taken_in_any_case(level) -> None:
    assert make_parser().parse(["p", "--log-level", level]).log_level == level.lower()


def test_the_version_needs_no_path(capsys) -> None:
    from slotwise import __version__

    assert command_line(["purge", "--version"]) == 0
    assert capsys.readouterr().out == f"slotwise {__version__}\n"


def test_a_deadline_ends_it_cleanly_and_is_not_an_error(root, old, capsys) -> None:
    for number in range(50):
        old(root / f"{number}")
    words = ["--yes", "--json", "--max-delete-per-second", "1", "--deadline", "100ms"]
    assert command_line(["purge", str(root), *words]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["event"], said["stopped_by"]) == ("summary", "deadline")
    assert said["files_purged"] == 50 - len(list(root.iterdir())) < 50


def test_a_deadline_that_is_not_reached_says_nothing(root, old) -> None:
    old(root / "x")
    report = purge(root, deadline=3600)
    assert (report.files_purged, report.stopped_by) == (1, None)
    with pytest.raises(ValueError, match="deadline must be finite and above 0"):
        purge(root, deadline=0)


def test_a_deadline_does_not_hide_errors() -> None:
    assert PurgeReport(stopped_by="deadline").exit_code == 0
    assert PurgeReport(stopped_by="deadline", errors={"EIO": 1}).exit_code == 1


def test_flags_can_come_from_the_environment(root, old, left) -> None:
    for name in ("a.log", "b.txt", "c.txt"):
        old(root / name)
    ran = run(
        root,
        "--json",
        SLOTWISE_PURGE_YES="1",
        SLOTWISE_PURGE_MAX_AGE_DAYS="1",
        SLOTWISE_PURGE_INCLUDE="*.txt",
        SLOTWISE_PURGE_MAX_FILES_TO_DELETE="1",
    )
    assert ran.returncode == 0, ran.stderr
    assert summary(ran)["files_purged"] == 1
    assert summary(ran)["stopped_by"] == "max_files_to_delete"
    assert "a.log" in left(root)


def test_a_deadline_ends_the_wait_for_a_reader_of_the_audit(tmp_path, root, old) -> None:
    stays = old(root / "a")
    os.mkfifo(tmp_path / "pipe")
    ran = run(root, "--yes", "--json", "--audit", tmp_path / "pipe", "--deadline", "100ms")
    assert summary(ran)["stopped_by"] == "deadline"
    assert stays.exists()


def test_a_dash_as_audit_is_stdout(root, old) -> None:
    gone = old(root / "a")
    ran = run(root, "--yes", "--json", "--audit", "-")
    assert [json.loads(line).get("path") for line in ran.stdout.splitlines()][1] == str(gone)
