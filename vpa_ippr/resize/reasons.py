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


class RefusalReason(StrEnum):
    """Why a resize that is due is not done: our own rules first, then what the API server answers."""

    BEST_EFFORT = "BestEffortPod"
    POD_LEVEL_RESOURCES = "PodLevelResources"
    QOS_WOULD_CHANGE = "QosWouldChange"
    VERSION_FORBIDS_DECREASE = "VersionForbidsDecrease"
    SHRINK_TOO_SMALL = "ShrinkTooSmall"
    NODE_CAPACITY = "NodeCapacity"
    KNOWN_INFEASIBLE = "KnownInfeasible"
    DISRUPTION_BUDGET = "DisruptionBudget"
    FOREIGN_WRITER = "ForeignWriter"
    QUOTA_EXCEEDED = "QuotaExceeded"
    LIMIT_RANGE = "LimitRange"
    NODE_UNSUPPORTED = "NodeUnsupported"
    PERMISSION_DENIED = "PermissionDenied"
    ADMISSION_DENIED = "AdmissionDenied"
    INVALID = "InvalidResize"


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
    REVERTED = "ResizeReverted"
    CANNOT_REVERT = "CannotRevert"
    SHRINK_OPENED = "ShrinkOpened"
    SHRINK_ACTIVE = "ShrinkActive"
    SHRINK_PATCHED = "ShrinkPatched"
    SHRINK_ABORTED = "ShrinkAborted"
    SHRINK_DISCARDED = "ShrinkDiscarded"
    SHRINK_ENDED = "ShrinkEnded"
    SHRINK_UNDONE = "ShrinkUndone"
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


class AbortReason(StrEnum):
    """Why a shrink is called off."""

    NOT_WANTED = "NoLongerWanted"
    LIMIT_CHANGED = "LimitChanged"
    NOT_MANAGED = "NotManaged"
    POD_GONE = "PodGone"
    RESIZE_FAILED = "ResizeFailed"
    AGENT_SILENT = "AgentSilent"


class EventReason(StrEnum):
    """Reasons of the events that the updater records on pods."""

    RESIZE_ISSUED = "ResizeIssued"
    RESIZE_COMPLETED = "ResizeCompleted"
    RESIZE_DEFERRED = "ResizeDeferred"
    RESIZE_REVERTED = "ResizeReverted"
    RESIZE_REFUSED = "ResizeRefused"
    SHRINK_OPENED = "ShrinkOpened"
    SHRINK_COMMITTED = "ShrinkCommitted"
    SHRINK_REFUSED = "ShrinkRefused"
    SHRINK_REVERTED = "ShrinkReverted"
    SHRINK_ABORTED = "ShrinkAborted"
