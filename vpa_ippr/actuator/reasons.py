"""Why a shrink is where it is: one code for each cause, the same in status, events, logs and metrics."""

from __future__ import annotations

import enum


class Reason(enum.StrEnum):
    """Reason codes of a MemoryShrink's status."""

    # On the way.
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_NODE = "WaitingForNode"
    OBSERVING = "Observing"
    STEPPING = "Stepping"
    BACKING_OFF = "BackingOff"
    STABILISING = "Stabilising"
    READY = "Ready"
    PROBATION = "Probation"

    # Done.
    SHRUNK = "Shrunk"

    # Refused: nothing was touched.
    UNRECLAIMABLE_ANON = "UnreclaimableAnonymous"
    UNRECLAIMABLE_SHMEM = "UnreclaimableShmem"
    UNRECLAIMABLE_MLOCKED = "UnreclaimableMlocked"
    UNRECLAIMABLE_KERNEL = "UnreclaimableKernel"
    UNRECLAIMABLE_PROTECTED = "UnreclaimableProtected"
    MAPPED_FILES = "MappedFiles"
    BELOW_FLOOR = "BelowFloor"
    GROWING = "Growing"
    BURSTY = "Bursty"
    BUSY = "Busy"
    LIMIT_NOT_ABOVE = "LimitNotAbove"
    TOO_SMALL = "TooSmall"
    INVALID_SPEC = "InvalidSpec"
    INVALID_POLICY = "InvalidPolicy"
    INVALID_TARGET = "InvalidTarget"
    STARTUP_GRACE = "StartupGrace"
    STATIC_POD = "StaticPod"
    RESIZE_PENDING = "ResizePending"
    EXCLUDED_NAMESPACE = "ExcludedNamespace"
    VM_RUNTIME = "VmRuntime"
    POD_MEMORY = "PodMemory"
    NODE_PACE = "NodePace"
    DECLARED_HEAP = "DeclaredHeap"
    CGROUP_NOT_FOUND = "CgroupNotFound"
    CGROUP_V1 = "CgroupV1"
    NO_MEMORY_CONTROLLER = "NoMemoryController"
    KERNEL_TOO_OLD = "KernelTooOld"

    # Refused or reverted, by when it is met.
    FROZEN = "Frozen"
    OUT_OF_MEMORY = "OutOfMemory"
    LIMIT_CHANGED = "LimitChanged"
    UNREADABLE = "CgroupUnreadable"
    PRESSURE_UNAVAILABLE = "PressureUnavailable"
    CLOCK_SET_BACK = "ClockSetBack"
    INTERNAL_ERROR = "InternalError"
    JOURNAL_UNWRITABLE = "JournalUnwritable"

    # Reverted: memory.high was put back.
    MEMORY_PRESSURE = "MemoryPressure"
    IO_PRESSURE = "IoPressure"
    REFAULTS = "Refaults"
    MAJOR_FAULTS = "MajorFaults"
    SCANNING_IN_VAIN = "ScanningInVain"
    SWAPPING = "Swapping"
    WOULD_SWAP = "WouldSwap"
    SWAP_FULL = "SwapFull"
    NOT_READY = "NotReady"
    OVER_HIGH = "OverHigh"
    STUCK = "Stuck"
    SETTLED_ABOVE = "SettledAbove"
    GUARD_PASSED = "GuardPassed"
    FOREIGN_WRITER = "ForeignWriter"
    WRITE_FAILED = "WriteFailed"
    COMMIT_FAILED = "CommitFailed"
    BUS_UNAVAILABLE = "BusUnavailable"
    BUS_REFUSED = "BusRefused"
    AGENT_STOPPED = "AgentStopped"
    AGENT_RESTARTED = "AgentRestarted"

    # Reverted after the commit: the updater raises the limit again.
    OOM_KILLED_AFTER_COMMIT = "OomKilledAfterCommit"
    PRESSURE_AFTER_COMMIT = "PressureAfterCommit"
    LIMIT_HITS_AFTER_COMMIT = "LimitHitsAfterCommit"
    GROWING_AFTER_COMMIT = "GrowingAfterCommit"

    # The other ends.
    ABORT_REQUESTED = "AbortRequested"
    SHRINK_DELETED = "ShrinkDeleted"
    DEADLINE_PASSED = "DeadlinePassed"
    CONTAINER_GONE = "ContainerGone"
    CONTAINER_EXITED = "ContainerExited"
    CONTAINER_REPLACED = "ContainerReplaced"
    POD_GONE = "PodGone"
    POD_DELETING = "PodDeleting"
