"""`make bench`: every benchmark, or those whose names are given.

make bench                     all of them
make bench ARGS="memory"       one of them
make bench ARGS="--quick"      fewer repeats, for a first impression
make bench ARGS="against main" this version against another commit, in turns
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks._race import start


def main() -> int:
    if sys.argv[1:2] == ["against"]:
        command = [sys.executable, "-m", "benchmarks.against", *sys.argv[2:]]
        return subprocess.run(command, check=False).returncode
    options = [word for word in sys.argv[1:] if word.startswith("-")]
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]
    here = Path(__file__).parent
    known = {path.stem.removeprefix("bench_"): path for path in sorted(here.glob("bench_*.py"))}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    # Each in a process of its own: what one leaves behind is not the other's handicap.
    codes = [
        subprocess.run(
            [sys.executable, "-m", f"benchmarks.{known[name].stem}", *options], check=False
        ).returncode
        for name in wanted or known
    ]
    return max(codes, default=0)


if __name__ == "__main__":
    start(main)
