"""What an operator may set for the updater, with the reason of each default."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the updater; times in seconds, shares as fractions of 1.

    Deciding (the defaults are upstream VPA's):
        ``min_pod_age_seconds``: inside its bounds a pod younger than this is left alone.
        ``min_change``: inside its bounds a change smaller than this is left alone.
        ``quick_oom_seconds``: an OOM kill this soon after the start counts as a reason; ``evictAfterOOMSeconds`` of the VPA wins.
        ``min_replicas``: fewer live pods than this and no container is restarted; ``minReplicas`` of the VPA wins.

    Following:
        ``deferred_limit_seconds``: a resize that the kubelet defers this long is taken back (it retries every 3 minutes).
        ``error_limit_seconds``: so long may the kubelet retry an error (every 10-15 s) before the resize is taken back.
        ``in_progress_limit_seconds``: so long may a resize be in progress.
        ``announce_seconds``: a completed resize that this process did not see under way is still announced for so long after its issue.

    Holding off after a refusal or a revert: first ``hold_off_seconds``, doubled each time up to ``hold_off_max_seconds``.

    Shrinking:
        ``shrink_deadline_seconds``: how long the node's agent may take.
        ``min_shrink_bytes``, ``min_shrink``: smaller decreases of a memory limit (whichever is larger) are not worth the disturbance.
        ``held_seconds``: a Holding that the agent has not confirmed for longer is not trusted (it confirms every 30 s).
        ``agent_grace_seconds``: a shrink that no agent took up or ended this long after its deadline is discarded.
        ``probation_grace_seconds``: so much longer may it be in its probation, which the agent begins at the deadline at the latest.
        ``keep_seconds``: how long finished shrinks stay, for reports.
    """

    min_pod_age_seconds: float = 12 * 3600
    min_change: float = 0.10
    quick_oom_seconds: float = 600
    min_replicas: int = 2
    deferred_limit_seconds: float = 600
    error_limit_seconds: float = 120
    in_progress_limit_seconds: float = 3600
    announce_seconds: float = 300
    hold_off_seconds: float = 900
    hold_off_max_seconds: float = 24 * 3600
    shrink_deadline_seconds: int = 900
    min_shrink_bytes: int = 64 * _MIB
    min_shrink: float = 0.10
    held_seconds: float = 120
    agent_grace_seconds: float = 300
    probation_grace_seconds: float = 1800
    keep_seconds: float = 24 * 3600
