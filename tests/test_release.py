"""What a release is: files that pass the checks of the index, and work where nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import slotwise

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, where: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=where,
        env={**env, "SLOTWISE_DIR": str(where / "slots")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and a source distribution of this tree."""
    made = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", made, ROOT, where=made)
    return made


def test_the_files_of_a_release_pass_the_checks_of_the_index(dist: Path) -> None:
    names = sorted(each.name for each in dist.iterdir() if each.is_file())
    version = slotwise.__version__
    assert names == [f"slotwise-{version}-py3-none-any.whl", f"slotwise-{version}.tar.gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.glob("slotwise-*"), where=dist)


def test_an_installed_wheel_does_what_the_readme_says(dist: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv", where=tmp_path)
    programs = tmp_path / "venv" / "bin"
    [wheel] = dist.glob("*.whl")
    run(programs / "pip", "install", "--no-index", "--no-deps", wheel, where=tmp_path)
    [example, *_] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    called = run(programs / "python", "-c", example, where=tmp_path)
    assert sorted(called.split("\n")) == ["", *(f"call {number}" for number in range(9))]
    said = run(
        programs / "slotwise", "run", "x", "--limit", "1", "--", "echo", "ran", where=tmp_path
    )
    assert said == "ran\n"
    assert "act 3" in run(programs / "slotwise", "demo", where=tmp_path).lower()
