"""Worker: the test's end of a process that runs `_worker`, and can be killed or stopped."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests._fresh_processes import Popen
from tests.redis._server import LOAD

ROOT = Path(__file__).parents[2]


class Worker:
    def __init__(self, *, module: str = "tests.redis._worker", **options: object) -> None:
        self.process = Popen(
            [sys.executable, "-m", module, json.dumps(options)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[tuple[float, str]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.said_at = 0.0
        assert self.hears() == "ready"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put((time.monotonic(), line.strip()))

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hears(self, *, within: float = 30 * LOAD) -> str:
        """The next thing it says."""
        self.said_at, line = self._lines.get(timeout=within)
        return line

    def says_nothing(self) -> bool:
        return self._lines.empty()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        self._reader.join(10)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdout.close()
