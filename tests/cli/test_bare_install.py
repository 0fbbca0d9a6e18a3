"""Every command in an environment with nothing but the wheel: without rich, without redis."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pexpect
import pytest
from tests.cli._shell import HANG

from slotwise._cli.commands import SUMMARIES

ROOT = Path(__file__).parents[2]

# Runs each command of a list in its own process, forked, and tells how it went. All are imported
# before, once.
ALL = """
import gc, io, json, os, sys
from slotwise._cli.commands import SUMMARIES, load
from slotwise._cli.main import main
from contextlib import redirect_stderr, redirect_stdout
[load(name).parser() for name in SUMMARIES]
gc.freeze()
results = []
for words in json.load(sys.stdin):
    reading, writing = os.pipe()
    if os.fork() == 0:
        out, err = (io.TextIOWrapper(io.BytesIO()) for _ in range(2))
        with redirect_stdout(out), redirect_stderr(err):
            code = main(words)
        texts = [each.buffer.getvalue().decode() for each in (out, err) if not each.flush()]
        with os.fdopen(writing, "w") as pipe:
            json.dump([code, *texts], pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        results.append(json.load(pipe))
    os.wait()
json.dump(results, sys.stdout)
"""


class Bare:
    """An environment with nothing but slotwise in it."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "env", symlinks=True)
        self.python = folder / "env" / "bin" / "python"
        places = sysconfig.get_paths(vars={"base": str(folder / "env")}, scheme="posix_prefix")
        site_packages = Path(places["purelib"])
        _install(site_packages, folder)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLOTWISE_", "PYTHON"))},
            "SLOTWISE_DIR": str(folder / "slots"),
        }
        self.folder = folder

    def run(self, *commands: tuple[object, ...]) -> list[tuple[int, str, str]]:
        """Type commands, and return the exit code and the output of each."""
        ran = subprocess.run(
            [self.python, "-c", ALL],
            input=json.dumps([[str(word) for word in words] for words in commands]),
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=2 * HANG,
            check=True,
        )
        return [tuple(each) for each in json.loads(ran.stdout)]

    def terminal(self, *words: object) -> tuple[int, str]:
        """Type a command into a terminal."""
        typed = ["-m", "slotwise", *map(str, words)]
        out, code = pexpect.run(
            f"{self.python} {' '.join(typed)}",
            env={**self.environment, "TERM": "xterm"},
            timeout=HANG,
            withexitstatus=True,
            encoding="utf-8",
        )
        return code, out

    def old_file(self) -> Path:
        spool = self.folder / "spool"
        spool.mkdir(exist_ok=True)
        old = spool / "old"
        old.write_text("old")
        os.utime(old, (0, 0))
        return old


def _install(site_packages: Path, folder: Path) -> None:
    """Install the wheel, which is a zip file; without hatchling, what it would contain."""
    try:
        from hatchling.build import build_wheel
    except ImportError:
        shutil.copytree(ROOT / "src" / "slotwise", site_packages / "slotwise")
        return
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        wheel = folder / build_wheel(str(folder))
    finally:
        os.chdir(before)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    _take_compiled_modules(site_packages)


def _take_compiled_modules(site_packages: Path) -> None:
    """Take what Python has compiled of the same source: compiling it again takes seconds."""
    for installed in site_packages.glob("slotwise/**/*.py"):
        source = ROOT / "src" / installed.relative_to(site_packages)
        compiled = Path(importlib.util.cache_from_source(source))
        if compiled.exists() and source.read_bytes() == installed.read_bytes():
            modified = source.stat().st_mtime_ns  # by which Python knows what it has compiled
            os.utime(installed, ns=(modified, modified))
            copy = Path(importlib.util.cache_from_source(installed))
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(compiled, copy)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    return Bare(tmp_path_factory.mktemp("bare"))


def test_nothing_else_is_installed(bare: Bare):
    text = "import slotwise, importlib.util as u; print([*map(u.find_spec, ('rich', 'redis'))])"
    ran = subprocess.run(
        [bare.python, "-c", text], capture_output=True, text=True, env=bare.environment, check=True
    )
    assert ran.stdout == "[None, None]\n"


def test_all_names_can_be_had_and_those_of_redis_say_what_they_need_when_they_are_used(bare: Bare):
    text = (
        "from slotwise import *\n"
        "import inspect, slotwise\n"
        "assert {*slotwise.__all__} <= {name for name, _ in inspect.getmembers(slotwise)}\n"
        "for use in RedisConfig, lambda: RedisSemaphore('api', 1):\n"
        "    try:\n"
        "        use()\n"
        "    except ImportError as error:\n"
        "        print(\"pip install 'slotwise[redis]'\" in str(error))\n"
    )
    ran = subprocess.run(
        [bare.python, "-c", text], capture_output=True, text=True, env=bare.environment, check=False
    )
    assert (ran.stdout, ran.stderr) == ("True\nTrue\n", "")


def test_help_and_version_need_nothing(bare: Bare):
    helps = [(name, "--help") for name in SUMMARIES]
    results = bare.run(("--help",), ("--version",), *helps)
    assert [(code, err) for code, _, err in results] == [(0, "")] * len(results)
    for name, (_, out, _) in zip(SUMMARIES, results[2:], strict=True):
        assert out.startswith(f"usage: slotwise {name} ")


def test_every_command_works_plainly(bare: Bare):
    old = bare.old_file()
    commands: list[tuple[tuple[object, ...], int]] = [
        (("run", "api", "--", "true"), 0),
        (("run", "api", "--limit", 2, "--ttl", "100ms", "--", "sleep", 100), 124),
        (("ls",), 0),
        (("ls", "--used", "--json"), 0),
        (("show", "api"), 0),
        (("resize", "api", 3), 0),
        (("refill", "api"), 1),
        (("freeze", "api"), 1),
        (("thaw", "api"), 1),
        (("pause", "api", 1), 0),
        (("close", "api", "--yes"), 0),
        (("open", "api"), 0),
        (("kick", "p1-1", "--yes"), 1),
        (("release", "p1-1"), 1),
        (("top", "--every", "100ms"), 0),
        (("doctor",), 0),
        (("completion", "bash"), 0),
        (("purge", old.parent, "--max-age-days", 1, "--yes"), 0),
        (("forget", "api"), 0),
    ]
    results = bare.run(*(words for words, _ in commands))
    for (words, code), (found, out, err) in zip(commands, results, strict=True):
        assert (words, found) == (words, code), (out, err)
        assert "rich" not in err
    assert {words[0] for words, _ in commands} | {
        "acquire",
        "demo",
        "explain",
        "export",
        "web",
    } == {*SUMMARIES}
    assert not old.exists()


def test_what_needs_redis_says_so_before_it_does_anything(bare: Bare):
    url = ("--url", "redis://127.0.0.1:1")
    old = bare.old_file()
    touched = bare.folder / "touched"
    commands: list[tuple[tuple[object, ...], int]] = [
        (("run", "api", *url, "--", "touch", touched), 125),
        (("run", "api", "--limit", 1, *url, "--", "touch", touched), 125),
        (("acquire", "api", *url), 125),
        (("release", "sw-1", *url), 1),
        (("ls", *url), 1),
        (("show", "api", *url), 1),
        (("top", *url), 1),
        (("resize", "api", 2, *url), 1),
        (("refill", "api", *url), 1),
        (("kick", "sw-1", "--yes", *url), 1),
        (("close", "api", "--yes", *url), 1),
        (("open", "api", *url), 1),
        (("forget", "api", *url), 1),
        (("doctor", *url), 1),
        (("explain", "api", *url), 1),
        (("export", *url), 1),
        (("freeze", "api", *url), 1),
        (("pause", "api", 1, *url), 1),
        (("thaw", "api", *url), 1),
    ]
    assert {words[0] for words, _ in commands} | {"completion", "demo", "purge", "web"} == {
        *SUMMARIES
    }
    results = bare.run(*(words for words, _ in commands))
    for (words, code), (found, out, err) in zip(commands, results, strict=True):
        assert (words, found, out) == (words, code, ""), err
        # What `acquire` has to say, a process in the background writes to the real stderr.
        assert words[0] == "acquire" or "pip install 'slotwise[redis]'" in err
    assert old.exists()
    assert not touched.exists()


def test_the_page_says_what_it_needs(bare: Bare):
    for code, out, err in bare.run(("web", "--port", 0), ("demo", "--web", "--port", 0)):
        assert (code, out) == (1, "")
        assert err == "slotwise web: it needs uvicorn: pip install 'slotwise[web]'\n"


def test_all_installs_every_extra_that_a_command_needs():
    named = set()
    for folder in ("_admin", "_cli", "redis", "web"):
        for file in (ROOT / "src" / "slotwise" / folder).rglob("*.py"):
            named |= {*re.findall(r"slotwise\[(\w+)\]", file.read_text())}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [everything] = project["optional-dependencies"]["all"]
    assert everything == f"slotwise[{','.join(sorted(named | {'cli'}))}]"
