"""Every promise under every fault: a history of four processes, checked by somebody else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.soak._faults import FAULTS, NamedFault
from tests.soak._seconds import SECONDS
from tests.soak._stage import Stage


@pytest.mark.soak
@pytest.mark.timeout(10 * SECONDS + 120)
@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_nothing_is_broken_by(
    kind: type[NamedFault], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault, injections, loads = kind(), 0, [os.getloadavg()[0]]
    kinds = {"deployment": kind.deployment, "proxy": kind.proxy}
    with Stage(tmp_path, options=kind.server_options, **kinds) as stage:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            time.sleep(stage.dice.choice((0.2, 0.5, 1.0)))
            stage.look()
            fault.inject(stage)
            injections += 1
            loads.append(os.getloadavg()[0])
        time.sleep(5)  # what comes after the last one is part of it
        report = stage.finish()
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{fault.name}: {SECONDS:g} s at a load of {min(loads):.0f} to {max(loads):.0f},"
            f" injected {injections} times, {report.requests} requests, {report.grants} grants,"
            f" {report.in_order} of them in order,"
            f" {report.explained_losses} losses and {report.explained_errors} errors explained,"
            f" back within {report.back:.2f} s, over the value for {report.over:.2f} s,"
            f" a worker stood still for {report.stood_still:.2f} s; for want of a processor"
            f" {report.starved_losses} losses, {report.starved_errors} errors"
            f" and pauses of up to {report.excused:.2f} s",
            *(f"{kind}: {line}" for kind, lines in report.broken.items() for line in lines),
            sep="\n    ",
        )
    assert report.broken == {}
    assert report.in_order > 0.2 * report.grants, "the order was hardly looked at"
