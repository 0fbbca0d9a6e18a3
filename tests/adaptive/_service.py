"""A small HTTP server with a knee, and a process that calls it through a limit on Redis.

python -m tests.adaptive._service serve WORKERS SECONDS      prints its port
python -m tests.adaptive._service call PORT URL START TASKS  calls until it is ended
"""

from __future__ import annotations

import asyncio
import random
import sys

from slotwise import Adaptive, Latency, semaphore

NAME = "service"


def rules(start: int) -> Adaptive:
    """With short windows: this service answers in less than a tenth of a second."""
    return Adaptive(start, 2, 100, algorithm=Latency(0.2, 30))


async def serve(workers: int, seconds: float) -> None:
    """So many requests are served at once; the others wait for their turn, as at a real one."""
    busy = asyncio.Semaphore(workers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            async with busy:
                await asyncio.sleep(seconds * random.uniform(0.8, 1.2))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


async def call(port: int, url: str, start: int, tasks: int) -> None:
    limit = semaphore(NAME, rules(start), url)

    async def keep_calling() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            async with limit.cm():
                writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)

    await asyncio.gather(*(keep_calling() for _ in range(tasks)))


if __name__ == "__main__":
    words = sys.argv[2:]
    if sys.argv[1] == "serve":
        asyncio.run(serve(int(words[0]), float(words[1])))
    else:
        asyncio.run(call(int(words[0]), words[1], int(words[2]), int(words[3])))
