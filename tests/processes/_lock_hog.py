"""Hold the lock of a file, like a process that was stopped in the middle of a change.

python -m tests.processes._lock_hog PATH    # until its input ends
"""

from __future__ import annotations

import fcntl
import os
import sys

if __name__ == "__main__":
    fd = os.open(sys.argv[1], os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)
    print("locked", flush=True)  # noqa: T201
    sys.stdin.read()
