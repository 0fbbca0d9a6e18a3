"""The files under examples/purge: their syntax, and that slotwise takes their command lines."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slotwise._cli.purge_flags import make_parser
from slotwise.purge import PurgeOptions

EXAMPLES = Path(__file__).parents[2] / "examples" / "purge"
INSTRUCTIONS = {"FROM", "ARG", "RUN", "USER", "ENTRYPOINT", "CMD", "COPY", "ENV", "WORKDIR"}


def is_taken(words: list[str]) -> Any:
    """Check the words after ``slotwise purge`` as the command does; return what they mean."""
    given = make_parser().parse(words)
    PurgeOptions(max_age_days=given.max_age_days, deadline=given.deadline)
    assert given.yes
    return given


def unit(name: str) -> configparser.ConfigParser:
    read = configparser.ConfigParser(interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string((EXAMPLES / name).read_text())
    return read


def test_the_dockerfile_starts_the_purger() -> None:
    text = re.sub(r"\\\n", "", (EXAMPLES / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    instructions = [line.split(maxsplit=1) for line in lines]
    assert {name for name, _ in instructions} <= INSTRUCTIONS
    assert instructions[0][0] == "FROM"
    of = dict(instructions)
    assert json.loads(of["ENTRYPOINT"]) == ["slotwise", "purge"]
    assert json.loads(of["CMD"]) == ["--help"]


def test_the_cronjob_is_valid_and_ends_after_its_own_deadline() -> None:
    import yaml

    job = yaml.safe_load((EXAMPLES / "cronjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    assert len(job["spec"]["schedule"].split()) == 5
    spec = job["spec"]["jobTemplate"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    given = is_taken(container["args"])
    assert given.path in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert given.deadline < spec["activeDeadlineSeconds"]
    assert given.memory_limit_mb < int(
        container["resources"]["limits"]["memory"].removesuffix("Mi")
    )


def test_kubernetes_reads_the_cronjob() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    words = ["label", "--local", "--dry-run=client", "-o", "name", "-f", EXAMPLES / "cronjob.yaml"]
    ran = subprocess.run(
        ["kubectl", *words, "a=b"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.stdout == "cronjob.batch/slotwise-purge\n", ran.stderr


def test_the_units_of_systemd_belong_together() -> None:
    service, timer = unit("slotwise-purge.service"), unit("slotwise-purge.timer")
    program, command, *words = shlex.split(service["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("slotwise", "purge")
    given = is_taken(words)
    assert service["Service"]["ReadWritePaths"] == given.path
    assert service["Service"]["Type"] == "oneshot"
    assert timer["Timer"]["OnCalendar"]
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_systemd_verifies_the_units(tmp_path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    for name in ("slotwise-purge.service", "slotwise-purge.timer"):
        text = (EXAMPLES / name).read_text()
        # It would object that slotwise is not installed there.
        (tmp_path / name).write_text(text.replace("/usr/local/bin/slotwise", "/bin/true"))
    ran = subprocess.run(
        ["systemd-analyze", "verify", *tmp_path.iterdir()],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
