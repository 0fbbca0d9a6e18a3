"""The pytest plugin, in pytest runs of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

PLUGIN = "slotwise.integrations.pytest_plugin"
# As a user has it, or, in an environment that was made before there was a plugin, by name.
LOADED = any(each.value == PLUGIN for each in entry_points(group="pytest11"))
OPTIONS = ["-p", "no:cacheprovider", "-p", "no:asyncio", *([] if LOADED else ["-p", PLUGIN])]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("SLOTWISE_DIR", str(tmp_path / "slots"))

    def run(*options: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess(*OPTIONS, *options)

    return run


def test_marked_tests_hold_slots_from_before_setup_until_after_teardown(pytester, run) -> None:
    pytester.makepyfile(
        """
        import time
        import pytest
        import slotwise

        def held(name, value=3):
            return slotwise.semaphore(name, value, url="process://").stats_sync().acquired_slots

        @pytest.fixture
        def database():
            assert held("database") == 2
            yield
            assert held("database") == 2

        @pytest.mark.slots("database", 3, slots=2)
        @pytest.mark.slots("gpu", 1)
        def test_marked(database):
            assert (held("database"), held("gpu", 1)) == (2, 1)

        def test_unmarked():
            assert (held("database"), held("gpu", 1)) == (0, 0)

        @pytest.mark.slots("database")
        def test_without_a_value(): ...

        @pytest.mark.slots("database", 3, slots=4)
        def test_with_too_many(): ...

        @pytest.mark.slots(5, 3)
        class TestOfAClass:
            @pytest.mark.slots("database", 3)
            def test_with_a_wrong_name(self): ...

        def test_fake_clock(fake_clock):
            before = fake_clock.now()
            fake_clock.advance(60)
            assert fake_clock.now() == before + 60
        """
    )
    outcome = run("--strict-markers")
    outcome.assert_outcomes(passed=3, errors=3)
    outcome.stdout.fnmatch_lines(
        [
            "*mark.slots: slots() missing*'value'*",
            "*mark.slots: 4 slots requested*",
            "*must be a str*",
        ]
    )


HOLDER = """
import time, slotwise

limit = slotwise.semaphore("busy", 1, url="process://")
with limit.cm():
    print("held", flush=True)
    while not limit.stats_sync().waiting:
        time.sleep(0.01)
    time.sleep(6)  # longer than the timeout of the test, which waits
"""


@pytest.mark.soak
def test_waiting_does_not_count_for_pytest_timeout(pytester, run, tmp_path) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.timeout(5)
        @pytest.mark.slots("busy", 1)
        def test_waits(): ...
        """
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"held\n"
    run().assert_outcomes(passed=1)
    assert holder.wait(60) == 0
    holder.stdout.close()


def test_a_test_that_is_skipped_does_not_wait_for_its_slots(pytester, run) -> None:
    pytester.makepyfile(
        """
        import pytest
        import slotwise

        @pytest.fixture(scope="module", autouse=True)
        def held():
            with slotwise.semaphore("busy", 1, url="process://").cm():
                yield

        def test_first(): ...

        @pytest.mark.skip
        @pytest.mark.slots("busy", 1)
        def test_skipped(): ...

        @pytest.mark.skipif(True, reason="no GPU here")
        @pytest.mark.slots("busy", 1)
        def test_skipped_here(): ...

        @pytest.mark.skipif(condition=True, reason="no GPU here")
        @pytest.mark.slots("busy", 1)
        def test_skipped_by_name(): ...

        @pytest.mark.skipif(False, reason="no GPU here")
        @pytest.mark.slots("free", 1)
        def test_runs():
            assert slotwise.semaphore("free", 1, url="process://").locked_sync()
        """
    )
    run().assert_outcomes(passed=2, skipped=3)


LEAKY = """
    import pytest
    from slotwise import MemorySemaphore, Rate, RateLimit, Tier, Tiers, semaphore

    limit = MemorySemaphore(3)
    tiers = Tiers(Tier("all", 3))
    shared = semaphore("machine", 3, url="process://")
    rate = RateLimit("rate", Rate(100, per=1, burst=10))

    @pytest.fixture(scope="module")
    def of_the_module():
        acquired = limit.acquire_sync()
        yield
        limit.release_sync(acquired)

    @pytest.fixture
    def of_the_test():
        acquired = limit.acquire_sync()
        yield
        limit.release_sync(acquired)

    def test_clean(of_the_module, of_the_test):
        with limit.cm(), tiers.cm(), shared.cm(), rate.cm():
            pass
        rate.acquire_sync()  # comes back by itself

    def test_leaks_a_slot():
        limit.acquire_sync()

    def test_leaks_a_path():
        tiers.acquire_sync()

    def test_leaks_between_processes():
        acquired = shared.acquire_sync()
"""


def test_leaks_fail_the_test_and_name_the_line_of_the_acquire(pytester, run) -> None:
    path = pytester.makepyfile(LEAKY)
    lines = path.read_text().splitlines()
    outcome = run("-o", "slotwise_leaks=error")
    outcome.assert_outcomes(passed=4, errors=3)
    for call in ("limit.acquire_sync()", "tiers.acquire_sync()", "= shared.acquire_sync()"):
        number = max(n for n, line in enumerate(lines, 1) if line.strip().endswith(call))
        outcome.stdout.fnmatch_lines([f"*did not release: *acquired at *{path.name}:{number}"])


def test_leaks_are_a_warning_or_nothing(pytester, run) -> None:
    pytester.makepyfile(LEAKY)
    outcome = run("-W", "default", "-o", "slotwise_leaks=warn")
    outcome.assert_outcomes(passed=4, warnings=3)
    outcome.stdout.fnmatch_lines(["*SlotLeakWarning: the test did not release: *"])
    run().assert_outcomes(passed=4)
    assert run("-o", "slotwise_leaks=maybe").ret == pytest.ExitCode.USAGE_ERROR


def test_no_driver_is_imported_until_it_is_used() -> None:
    program = (
        f"import sys, {PLUGIN}\n"
        "print([each for each in sys.modules if each in"
        " ('slotwise.memory', 'slotwise.processes', 'slotwise.redis', 'slotwise.tiers')])"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert outcome.stdout.strip() == "[]"


@pytest.mark.soak
def test_xdist_workers_and_separate_runs_share_the_slots(pytester, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SLOTWISE_DIR", str(tmp_path / "slots"))
    pytester.makepyfile(
        """
        import os, time
        from pathlib import Path
        import pytest

        PLACES = Path(os.environ["PLACES"])

        @pytest.mark.slots("database", 3)
        @pytest.mark.parametrize("number", range(40))
        def test_in_a_place(number):
            mine = PLACES / f"{os.getpid()}-{number}"
            mine.touch()
            time.sleep(0.02)
            count = len(list(PLACES.iterdir()))
            mine.unlink()
            assert count <= 3
        """
    )
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setenv("PLACES", str(places))
    command = [sys.executable, "-m", "pytest", *OPTIONS, "-q", "-n", "4"]
    runs = [
        subprocess.Popen(command, cwd=pytester.path, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [run.communicate(timeout=300)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert all("40 passed" in output for output in outputs)
