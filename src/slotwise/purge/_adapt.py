"""Choose the number of workers: one while operations are fast, all while they are slow.

On a fast local disk, a second thread only competes for the interpreter; on a file
system with milliseconds per operation, throughput grows with the number of threads that
wait. Measurements decide, several times within 100 ms.
"""

from __future__ import annotations

from collections.abc import Sequence

# Local disks need some 10 µs, and up to a few hundred when they are busy.
SLOW = 0.001
FAST = 0.000_3
# This many operations are evidence of their speed ...
_EVIDENCE = 3
# ... and so does silence, but not as much: a journal that is written out, or a neighbour
# on the processor, stops everything for a moment, too.
_SILENCE = 0.08
_A_FEW = 4
# Four steps from one worker to a thousand, so that a wrong step costs little.
_GROWTH = 8
# After this many fast samples in a row, one worker goes on alone.
_FAST_LOOKS = 2
# When many workers compete for the interpreter each operation takes long, however fast the
# disk is. What gives it away is the processor, which is busy all the time. Half of them
# go home; if that was wrong they come back, and it is not tried again for this many looks.
BUSY = 0.8
_LOOKS_BEFORE_RETRY = 100


class Adapter:
    """Turns measurements into a number of workers."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.wanted = 1
        self._fast_looks = 0
        self._operations = 0
        self._seconds = 0.0
        self._cpu = 0.0
        self._before_halving = 0
        self._looks_before_retry = 0

    def look(
        self,
        seconds: float,
        operations: int,
        busy: int,
        latencies: Sequence[float],
        *,
        cpu: float = 0.0,
    ) -> int:
        """Take a sample and return the number of workers wanted.

        Args:
            seconds: since the last look.
            operations: finished since the start of the run.
            busy: how many workers are at it.
            latencies: seconds per operation, in batches finished since the last look.
            cpu: what the process used of the processor since the last look, in seconds.
        """
        self._seconds += seconds
        self._cpu += cpu
        self._looks_before_retry = max(0, self._looks_before_retry - 1)
        done = operations - self._operations
        if latencies and sorted(latencies)[len(latencies) // 2] < FAST:  # the median
            self._fast_looks += 1
            if self._fast_looks >= _FAST_LOOKS:
                self._fast_looks = 0
                self.wanted = 1
        elif done < _EVIDENCE and self._seconds < _SILENCE:
            return self.wanted
        elif not done:
            self.wanted = min(self.most, max(self.wanted, _A_FEW))
        elif self.wanted > 1 and not self._looks_before_retry and self._cpu > BUSY * self._seconds:
            self._before_halving = self.wanted
            self.wanted = max(1, self.wanted // 2)
        # What the current workers needed per operation.
        elif max(busy, 1) * self._seconds / done > SLOW:
            self._fast_looks = 0
            self._grow()
        self._operations, self._seconds, self._cpu = operations, 0.0, 0.0
        return self.wanted

    def _grow(self) -> None:
        if self._before_halving > self.wanted:
            self.wanted = min(self.most, self._before_halving)
            self._looks_before_retry = _LOOKS_BEFORE_RETRY
        else:
            self.wanted = min(self.most, _GROWTH * self.wanted)
        self._before_halving = 0
