"""Every Python example of the README and the docs runs as it stands.

Examples with prompts are doctests, which pytest collects by itself. An example without
prompts is a program: it runs in a process of its own, and a ``text`` block right behind it
is what it prints. Where it names a Redis server, it gets the one of the tests. Commands for a
shell are not run, but parsed.
"""

from __future__ import annotations

import doctest
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from slotwise._cli.commands import SUMMARIES, load
from slotwise._cli.flags import UsageError
from tests import _fresh_processes
from tests.redis._server import SELDOM_BUSY, Server

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_PROGRAM = re.compile(
    r"^```python\n(?!>>>)(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_REDIS = re.compile(r"redis://[\w.:@-]*")


class Program(NamedTuple):
    """An example without prompts."""

    page: str
    line: int
    code: str
    output: str | None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def programs() -> Iterator[Program]:
    for page in PAGES:
        text = page.read_text()
        for found in _PROGRAM.finditer(text):
            line = text.count("\n", 0, found.start("code"))
            yield Program(page.name, line, found["code"], found["output"])


PROGRAMS = list(programs())


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redis"), *SELDOM_BUSY) as server:
        yield server


def test_the_readme_and_the_docs_have_programs() -> None:
    assert {"README.md", "index.md", "redis.md", "tutorial.md"} <= {each.page for each in PROGRAMS}


@pytest.mark.parametrize("program", PROGRAMS, ids=[each.name for each in PROGRAMS])
def test_a_program_of_the_docs_runs_and_prints_what_the_page_says(
    program: Program,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    code = program.code
    if _REDIS.search(code):
        code = _REDIS.sub(request.getfixturevalue("server").url, code)
    ours = {"SLOTWISE_DIR": str(tmp_path / "slots")}
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("SLOTWISE_")}
    # The empty lines make a traceback name the line of the page.
    code = "\n" * program.line + code
    outcome = _fresh_processes.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env=environment | ours,
        timeout=60,
    )
    # On a busy machine the server may be slow, and a warning says so.
    said = [line for line in outcome.stderr.splitlines() if not line.startswith("Redis at ")]
    assert (outcome.returncode, said) == (0, []), program.name
    if program.output is not None:
        same = doctest.OutputChecker().check_output(
            program.output, outcome.stdout, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
        assert same, f"{program.name} says\n{program.output}\nand prints\n{outcome.stdout}"


_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(slotwise [^`…]+)`")
_OPERATORS = "();<>|&"


def command_lines() -> Iterator[tuple[str, list[str], bool]]:
    """Yield the pages and words of all commands, and whether they are complete.

    In a sentence a command may be without its arguments, or have names for them.
    """
    for page in PAGES:
        text = page.read_text()
        for language, block in _FENCE.findall(text):
            if language in ("sh", "console"):
                for line in block.splitlines():
                    yield from ((page.name, each, True) for each in commands_of(line))
        for span in _SPAN.findall(_FENCE.sub("", text)):
            yield from ((page.name, each, False) for each in commands_of(" ".join(span.split())))


def commands_of(line: str) -> Iterator[list[str]]:
    """Yield the words of each ``slotwise COMMAND ...`` in a line for a shell."""
    lexer = shlex.shlex(line.replace("[", "").replace("]", ""), punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    words = [word.strip("\"'").replace("$$", "4711") for word in lexer]
    for at, word in enumerate(words):
        if word == "slotwise" and words[at + 1 : at + 2] and words[at + 1] in SUMMARIES:
            rest = itertools.takewhile(lambda each: each.strip(_OPERATORS), words[at + 1 :])
            yield list(rest)


def test_every_command_of_the_docs_has_flags_and_arguments_that_exist() -> None:
    wrong, checked = [], set()
    for page, [name, *words], is_complete in command_lines():
        checked.add((page, name))
        try:
            load(name).parser().parse(words)
        except UsageError as error:
            if is_complete or "unknown flag" in str(error):
                wrong.append((page, name, words, str(error)))
        except SystemExit:  # --help
            pass
    assert wrong == []
    assert {("README.md", "run"), ("command-line.md", "acquire"), ("web.md", "web")} <= checked
