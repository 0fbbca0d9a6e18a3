"""A server, workers that use it, and the history of what happens to them."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

from tests.redis._server import Server
from tests.redis.faults._proxy import Proxy
from tests.soak._checker import Report, check
from tests.soak._deployments import Deployment, OneServer
from tests.soak._history import Effect, Fault, Recorder, read
from tests.soak._monitor import Monitor
from tests.soak._objects import INTERVAL, Objects, write_objects
from tests.soak._processor import Watch

ROOT = Path(__file__).parents[2]
WORKERS = 4
# More descriptors or threads than this above those of the beginning are growth.
SOME = 15


class Stage:
    """Everything that a fault may hit; a block of it starts the workers and ends them."""

    def __init__(
        self,
        folder: Path,
        *,
        deployment: type[Deployment] = OneServer,
        proxy: type[Proxy] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        self._files = folder / "files"
        self._history = folder / "history"
        self._history.mkdir(parents=True)
        self._proxy_kind = proxy
        self._open = ExitStack()
        self.deployment = deployment(folder / "server", options)
        self.recorder = Recorder(self._history, "stage")
        self.dice = Random(0)
        self.workers: list[subprocess.Popen[bytes]] = []
        self._sizes: dict[int, dict[str, int]] = {}
        self._immortal: set[str] = set()

    def __enter__(self) -> Stage:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        self._open.enter_context(self.deployment)
        for server in self.deployment.servers:
            self._open.enter_context(Monitor(server.port, self._history))
        self._url = self.deployment.url
        if self._proxy_kind is not None:
            self.proxy = self._proxy_kind(self.server.port)
            self._open.enter_context(self.proxy)
            self._url = self.proxy.url
        write_objects(self.recorder)
        record = partial(self.recorder.write_waits, is_server=True)
        self._open.enter_context(Watch(self._server_pids, record))
        for _ in range(WORKERS):
            self.start_worker()
        self.wait_for_workers()

    def __exit__(self, *exc_info: object) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait(10)
        self._open.close()
        self.recorder.close()

    def _server_pids(self) -> list[int]:
        processes = [server.process for server in self.deployment.servers]
        return [process.pid for process in processes if process is not None]

    @property
    def server(self) -> Server:
        """The only one."""
        [server] = self.deployment.servers
        return server

    def start_worker(self) -> None:
        arguments = [self._url, str(self._files), str(self._history), str(self.dice.random())]
        program = [sys.executable, "-m", "tests.soak._worker", *arguments]
        self.workers.append(subprocess.Popen(program, cwd=ROOT))

    def wait_for_workers(self) -> None:
        """Until all of them work: there is no service without anybody who asks for it."""
        deadline = time.monotonic() + 60
        while not all(self._has_begun(worker.pid) for worker in self.workers):
            assert time.monotonic() < deadline, "workers that never began"
            time.sleep(0.01)

    def _has_begun(self, pid: int) -> bool:
        path = self._history / f"worker-{pid}.jsonl"
        if not path.exists():
            return False
        with path.open("rb") as history:
            return b'"grant"' in history.read(20_000)

    @contextmanager
    def fault(
        self,
        name: str,
        effect: Effect,
        *,
        within: float = 1.0,
        pids: tuple[int, ...] | None = None,
        objects: tuple[str, ...] | None = None,
    ) -> Iterator[None]:
        """What happens in the block is that fault."""
        at = time.monotonic()
        yield
        self.recorder.write_fault(Fault(name, effect, at, time.monotonic(), within, pids, objects))

    def look(self) -> None:
        """Look for what must not be there at any time, and at the size of the workers."""
        for worker in self.workers:
            if worker.pid not in self._sizes and worker.poll() is None:
                self._sizes[worker.pid] = size_of(worker.pid)
        for server in self.deployment.primaries():
            with server.client() as client:
                for key in client.scan_iter():
                    if client.pttl(key) == -1:
                        self._immortal.add(key.decode())

    def finish(self) -> Report:
        """End the workers, see that nothing is left behind, and check the history."""
        grown = [
            f"process {worker.pid} grew from {self._sizes[worker.pid]} to {size}:"
            f" {kinds_of_descriptors(worker.pid)}"
            for worker in self.workers
            if worker.poll() is None and worker.pid in self._sizes
            for size in [size_of(worker.pid)]
            if any(size[what] > count + SOME for what, count in self._sizes[worker.pid].items())
        ]
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                worker.kill()  # the checker misses its end
        left = asyncio.run(self._left_behind())
        self.look()
        report = check(read(self._history))
        report.left += grown + left
        report.left += [f"{key} has no expiry" for key in self._immortal]
        return report

    async def _left_behind(self) -> list[str]:
        """What is still held or waited for when silence has ended all that it ends."""
        objects = Objects(self.deployment.url, self._files)
        deadline = time.monotonic() + INTERVAL + 2
        while True:
            left = await objects.in_use()
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(0.1)


def size_of(pid: int) -> dict[str, int]:
    process = Path("/proc") / str(pid)
    return {
        "descriptors": len([*(process / "fd").iterdir()]),
        "threads": len([*(process / "task").iterdir()]),
    }


def kinds_of_descriptors(pid: int) -> dict[str, int]:
    """How many sockets, pipes and files a process has open."""
    kinds: Counter[str] = Counter()
    for descriptor in (Path("/proc") / str(pid) / "fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            kinds[re.sub(r"\d+", "", str(descriptor.readlink()))] += 1
    return dict(kinds)
