"""Effects: programs that yield what they want, for interpreters that run or explore them.

`slotwise.effects.Semaphore` is the handle of a semaphore inside such a program;
it is not `slotwise.Semaphore`, which asyncio tasks and threads use.
"""

from slotwise.effects._effects import (
    AcquireSemaphore,
    Await,
    Cancel,
    Checkpoint,
    CompletePromise,
    CreatePromise,
    CreateSemaphore,
    Effect,
    FailPromise,
    Gather,
    Now,
    Outcome,
    Race,
    ReleaseSemaphore,
    SemaphoreInfo,
    SemaphoreState,
    Sleep,
    Spawn,
    TransferPermit,
    Try,
    TryAcquire,
    Wait,
    WithPermit,
)
from slotwise.effects._errors import (
    DeadlockError,
    ForeignSemaphoreError,
    ForeignTaskError,
    InvariantViolated,
    LeakedPermits,
    PermitLeakWarning,
    ScheduleMismatch,
    StepLimitExceeded,
    TaskCancelledError,
    UnhandledEffectError,
    UnretrievedTaskError,
)
from slotwise.effects._explore import Exploration, explore
from slotwise.effects._program import Program, do
from slotwise.effects._run import run
from slotwise.effects._run_async import run_async
from slotwise.effects._schedules import Failure, Schedule, replay
from slotwise.effects._semaphores import Semaphore
from slotwise.effects._tasks import Promise, Task
from slotwise.errors import AcquireTimeout

__all__ = [
    "AcquireSemaphore",
    "AcquireTimeout",
    "Await",
    "Cancel",
    "Checkpoint",
    "CompletePromise",
    "CreatePromise",
    "CreateSemaphore",
    "DeadlockError",
    "Effect",
    "Exploration",
    "FailPromise",
    "Failure",
    "ForeignSemaphoreError",
    "ForeignTaskError",
    "Gather",
    "InvariantViolated",
    "LeakedPermits",
    "Now",
    "Outcome",
    "PermitLeakWarning",
    "Program",
    "Promise",
    "Race",
    "ReleaseSemaphore",
    "Schedule",
    "ScheduleMismatch",
    "Semaphore",
    "SemaphoreInfo",
    "SemaphoreState",
    "Sleep",
    "Spawn",
    "StepLimitExceeded",
    "Task",
    "TaskCancelledError",
    "TransferPermit",
    "Try",
    "TryAcquire",
    "UnhandledEffectError",
    "UnretrievedTaskError",
    "Wait",
    "WithPermit",
    "do",
    "explore",
    "replay",
    "run",
    "run_async",
]
