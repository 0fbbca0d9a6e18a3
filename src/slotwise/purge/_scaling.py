"""Choose the number of workers: one while operations are fast, all while they are slow.

On a fast local disk, a second thread only competes for the interpreter; on a file
system with milliseconds per operation, throughput grows with the number of threads that
wait. Measurements decide, several times within 100 ms.

Other programs that keep the machine busy make a fast disk look slow. So several workers time single
operations: most of them are as fast as the disk, even when many are in each other's way.
"""

from __future__ import annotations

from collections.abc import Sequence

# Local disks take about 10 µs, and up to a few hundred when they are busy.
SLOW = 0.001
FAST = 0.000_3
# This many operations are evidence of their speed,
_EVIDENCE = 3
# and so are this many seconds without any. Not fewer: a journal being written out, or another
# process on the processor, also stops everything for a moment.
_SILENCE = 0.08
_A_FEW = 4
# Four steps from one worker to a thousand, so that a wrong step costs little.
_GROWTH = 8
# After this many fast samples in a row, one worker continues alone.
_FAST_SAMPLES = 2
# When many workers compete for the interpreter, each operation takes long, however fast the disk
# is. The sign of it is a processor that is always busy. Then half of the workers stop; if that was
# wrong they come back, and it is not tried again for this many samples.
BUSY = 0.8
_SAMPLES_BEFORE_RETRY = 100


class WorkerScaler:
    """Turns measurements into a number of workers."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.wanted = 1
        self._fast_samples = 0
        self._operations = 0
        self._seconds = 0.0
        self._cpu = 0.0
        self._before_halving = 0
        self._samples_before_retry = 0

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
            seconds: since the last sample.
            operations: finished since the start of the run.
            busy: how many workers are working.
            latencies: seconds per operation, one of each worker since the last sample.
            cpu: seconds of processor time that the process used since the last sample.
        """
        self._seconds += seconds
        self._cpu += cpu
        self._samples_before_retry = max(0, self._samples_before_retry - 1)
        done = operations - self._operations
        if latencies and sorted(latencies)[len(latencies) // 2] < FAST:  # the median
            self._fast_samples += 1
            if self._fast_samples >= _FAST_SAMPLES:
                self._fast_samples = 0
                self.wanted = 1
        elif done < _EVIDENCE and self._seconds < _SILENCE:
            return self.wanted
        elif not done:
            self.wanted = min(self.most, max(self.wanted, _A_FEW))
        elif (
            self.wanted > 1 and not self._samples_before_retry and self._cpu > BUSY * self._seconds
        ):
            self._before_halving = self.wanted
            self.wanted = max(1, self.wanted // 2)
        # How long the current workers waited for each operation.
        elif max(busy, 1) * self._seconds / done > SLOW:
            self._fast_samples = 0
            self._grow()
        self._operations = operations
        self._seconds = self._cpu = 0.0
        return self.wanted

    def _grow(self) -> None:
        if self._before_halving > self.wanted:
            self.wanted = min(self.most, self._before_halving)
            self._samples_before_retry = _SAMPLES_BEFORE_RETRY
        else:
            self.wanted = min(self.most, _GROWTH * self.wanted)
        self._before_halving = 0
