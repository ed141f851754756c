"""Reason codes: one word for each yes, each no and each thing that happened, the same in events, conditions, logs and reports."""

from __future__ import annotations

from enum import StrEnum


class DueReason(StrEnum):
    """Why a resize is due."""

    REQUEST_MISSING = "RequestMissing"
    OUTSIDE_BOUNDS = "OutsideBounds"
    QUICK_OOM = "QuickOutOfMemory"
    CPU_SHORTAGE = "CpuShortage"
    SIGNIFICANT_CHANGE = "SignificantChange"
    STALE_POD_CGROUP = "StalePodCgroup"
    BOOST_OVER = "StartupBoostOver"


class NotDueReason(StrEnum):
    """Why no resize is due."""

    MODE_OFF = "ModeOff"
    MODE_INITIAL = "ModeInitial"
    MODE_NEEDS_EVICTION = "ModeNeedsEviction"
    MODE_UNKNOWN = "ModeUnknown"
    POD_DELETING = "PodDeleting"
    POD_NOT_RUNNING = "PodNotRunning"
    NO_RECOMMENDATION = "NoRecommendation"
    UP_TO_DATE = "UpToDate"
    POD_TOO_YOUNG = "PodTooYoung"
    CHANGE_TOO_SMALL = "ChangeTooSmall"
    HOLD_OFF = "HoldOff"
    LEARNED_FLOOR = "LearnedFloor"
    SHRINK_ACTIVE = "ShrinkActive"
    PAUSED = "Paused"
    OUTSIDE_WINDOW = "OutsideWindow"
    HPA = "HorizontalPodAutoscaler"
    BOOSTED = "StartupBoost"
    NO_VPA = "NoVpa"


class RefusalReason(StrEnum):
    """Why a resize that is due is not done: our own rules first, then what the API server answers."""

    BEST_EFFORT = "BestEffortPod"
    STATIC_POD = "StaticPod"
    WINDOWS = "WindowsPod"
    RESOURCE_CLAIMS = "ResourceClaims"
    POD_LEVEL_RESOURCES = "PodLevelResources"
    POD_LEVEL_MEMORY_DECREASE = "PodLevelMemoryDecrease"
    QOS_WOULD_CHANGE = "QosWouldChange"
    VERSION_FORBIDS_DECREASE = "VersionForbidsDecrease"
    VERSION_FORBIDS_LIMIT = "VersionForbidsLimit"
    VERSION_FORBIDS_CONTAINER = "VersionForbidsContainer"
    SHRINK_TOO_SMALL = "ShrinkTooSmall"
    NODE_CAPACITY = "NodeCapacity"
    KNOWN_INFEASIBLE = "KnownInfeasible"
    STATIC_CPU_MANAGER = "StaticCpuManager"
    STATIC_MEMORY_MANAGER = "StaticMemoryManager"
    SWAP = "Swap"
    DISRUPTION_BUDGET = "DisruptionBudget"
    FOREIGN_WRITER = "ForeignWriter"
    QUOTA_EXCEEDED = "QuotaExceeded"
    LIMIT_RANGE = "LimitRange"
    NODE_UNSUPPORTED = "NodeUnsupported"
    PERMISSION_DENIED = "PermissionDenied"
    ADMISSION_DENIED = "AdmissionDenied"
    SEVERAL_BUDGETS = "SeveralDisruptionBudgets"
    INVALID = "InvalidResize"
    CANARY = "WaitsForCanary"
    RATE = "RateLimited"
    DEGRADED = "Degraded"
    GUARD = "GuardUnknown"
    QUOTA_WOULD_EXCEED = "QuotaWouldExceed"
    NODE_FULL = "NodeFull"
    UNREADABLE = "UnreadablePod"


class ReliefReason(StrEnum):
    """Why a container that presses against its memory limit is not given more, where no other code says it."""

    STALE = "StaleReport"
    OTHER_POD = "AnotherPod"
    OTHER_CONTAINER = "AnotherContainer"
    OTHER_LIMIT = "LimitDiffers"
    NOT_CONTROLLED = "MemoryNotControlled"
    LIMIT_NOT_CONTROLLED = "LimitNotControlled"
    UNDER_WAY = "ResizeUnderWay"
    TOO_SOON = "RelievedLately"
    LEAK_SUSPECTED = "LeakSuspected"
    AT_MAXIMUM = "AtMaximum"
    WOULD_RESTART = "WouldRestart"


class KeepReason(StrEnum):
    """Why a pod that could be evicted for a change is kept."""

    MODE_FORBIDS = "ModeForbidsEviction"
    IN_PLACE = "DoneInPlace"
    ONLY_IN_PLACE = "WorthItOnlyInPlace"
    NOT_HELPED = "EvictionWouldNotHelp"
    NO_CONTROLLER = "NoController"
    STATIC_POD = "StaticPod"
    POD_DELETING = "PodDeleting"
    POD_ENDED = "PodEnded"
    PAUSED = "Paused"
    OUTSIDE_WINDOW = "OutsideWindow"
    BOOSTED = "StartupBoost"
    NO_ADMISSION = "NoAdmission"
    REQUIREMENTS = "EvictionRequirements"
    TOO_FEW_REPLICAS = "TooFewReplicas"
    NO_NODE = "NoNodeLargeEnough"
    DISRUPTION_BUDGET = "DisruptionBudget"
    RATE = "RateLimited"
    DEGRADED = "Degraded"


class OutcomeCode(StrEnum):
    """What became of one pod in one cycle of the updater."""

    NOT_DUE = "NotDue"
    REFUSED = "Refused"
    UNSUPPORTED = "Unsupported"
    ISSUED = "ResizeIssued"
    COMPLETED = "ResizeCompleted"
    DEFERRED = "ResizeDeferred"
    IN_PROGRESS = "ResizeInProgress"
    FAILING = "ResizeFailing"
    FOREIGN = "ForeignResize"
    EVICTED = "PodEvicted"
    REVERTED = "ResizeReverted"
    CANNOT_REVERT = "CannotRevert"
    SHRINK_OPENED = "ShrinkOpened"
    SHRINK_ACTIVE = "ShrinkActive"
    SHRINK_PATCHED = "ShrinkPatched"
    SHRINK_ABORTED = "ShrinkAborted"
    SHRINK_DISCARDED = "ShrinkDiscarded"
    SHRINK_ENDED = "ShrinkEnded"
    SHRINK_UNDONE = "ShrinkUndone"
    RELIEVED = "MemoryRelieved"
    NOT_RELIEVED = "NotRelieved"
    CONFLICT = "Conflict"
    GONE = "PodGone"
    UNAVAILABLE = "ApiUnavailable"
    BAD_OBJECT = "BadObject"
    FAILED = "Failed"


class RevertReason(StrEnum):
    """Why a resize of ours is taken back."""

    DEFERRED_TOO_LONG = "DeferredTooLong"
    INFEASIBLE = "Infeasible"
    KUBELET_ERROR = "KubeletError"
    STUCK = "InProgressTooLong"
    DEGRADED = "RolloutDegraded"


class AbortReason(StrEnum):
    """Why a shrink is called off."""

    NOT_WANTED = "NoLongerWanted"
    LIMIT_CHANGED = "LimitChanged"
    NOT_MANAGED = "NotManaged"
    POD_GONE = "PodGone"
    RESIZE_FAILED = "ResizeFailed"
    PAUSED = "Paused"
    OUTSIDE_WINDOW = "OutsideWindow"
    AGENT_SILENT = "AgentSilent"
    DEGRADED = "RolloutDegraded"
    PRESSING = "MemoryPressing"


class HarmReason(StrEnum):
    """What a resize of ours has done to a pod."""

    OUT_OF_MEMORY = "OutOfMemory"
    RESTARTED = "ContainerRestarted"
    NOT_READY = "NotReady"
    CPU_THROTTLED = "CpuThrottled"
    CPU_PRESSURE = "CpuPressure"
    MEMORY_PRESSURE = "MemoryPressure"
    GUARD = "GuardFired"


class EventReason(StrEnum):
    """Reasons of the events that the updater records on pods and VPAs."""

    RESIZE_ISSUED = "ResizeIssued"
    RESIZE_COMPLETED = "ResizeCompleted"
    RESIZE_DEFERRED = "ResizeDeferred"
    RESIZE_REVERTED = "ResizeReverted"
    RESIZE_REFUSED = "ResizeRefused"
    MEMORY_RELIEVED = "MemoryRelieved"
    NOT_RELIEVED = "MemoryNotRelieved"
    POD_EVICTED = "PodEvicted"
    EVICTION_WAITS = "EvictionWaits"
    SHRINK_OPENED = "ShrinkOpened"
    SHRINK_COMMITTED = "ShrinkCommitted"
    SHRINK_REFUSED = "ShrinkRefused"
    SHRINK_REVERTED = "ShrinkReverted"
    SHRINK_ABORTED = "ShrinkAborted"
    ROLLOUT_BEGUN = "RolloutBegun"
    ROLLOUT_PROVEN = "RolloutProven"
    ROLLOUT_DEGRADED = "RolloutDegraded"
    ROLLOUT_RECOVERED = "RolloutRecovered"
