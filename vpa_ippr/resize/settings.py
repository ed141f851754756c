"""What an operator may set for the updater, with the reason of each default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vpa_ippr.resize.windows import Window

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the updater; times in seconds, shares as fractions of 1.

    Deciding (the defaults are upstream VPA's):
        ``min_pod_age_seconds``: inside its bounds a pod younger than this is left alone.
        ``min_change``: inside its bounds a change smaller than this is left alone.
        ``quick_oom_seconds``: an OOM kill this soon after the start counts as a reason; ``evictAfterOOMSeconds`` of the VPA wins.
        ``min_replicas``: fewer live pods than this and no container is restarted; ``minReplicas`` of the VPA wins.
        ``paused``: nothing new is begun; what is under way is followed to its end.
        ``maintenance_windows``: outside these only urgent growth is done (none: at any time); an annotation of the VPA wins.

    Evicting:
        ``admission_fresh_seconds``: no pod is evicted when no admission controller has renewed its lease for so long (upstream's 60 s).
        ``eviction_rate_per_second``, ``eviction_burst``: at most so many pods in the long run (None: no limit, as upstream), and at once.

    Asking:
        ``dry_run_first``: each resize is first sent with ``dryRun=All``, so that what is refused is never noted as asked; one more request.

    Following:
        ``deferred_limit_seconds``: a resize that the kubelet defers this long is taken back (it retries every 3 minutes).
        ``error_limit_seconds``: so long may the kubelet retry an error (every 10-15 s) before the resize is taken back.
        ``in_progress_limit_seconds``: so long may a resize be in progress.
        ``announce_seconds``: a completed resize that this process did not see under way is still announced for so long after its issue.

    Holding off after a refusal or a revert: first ``hold_off_seconds``, doubled each time up to ``hold_off_max_seconds``. What could not be
    taken back is tried again after ``back_hold_off_seconds``, doubled up to ``hold_off_seconds``.

    Placing:
        ``queue_when_full``: a growth that the node has no room for goes all the same, and waits Deferred in the kubelet's queue; else it
        is held back until there is room. Growths of critical pods never queue: the kubelet evicts others for them.

    Shrinking:
        ``shrink_deadline_seconds``: how long the node's agent may take.
        ``min_shrink_bytes``, ``min_shrink``: smaller decreases of a memory limit (whichever is larger) are not worth the disturbance.
        ``held_seconds``: a Holding that the agent has not confirmed for longer is not trusted (it confirms every 30 s).
        ``agent_grace_seconds``: a shrink that no agent took up or ended this long after its deadline is discarded.
        ``probation_grace_seconds``: so much longer may it be in its probation, which the agent begins at the deadline at the latest.
        ``keep_seconds``: how long finished shrinks stay, for reports.

    Relieving containers that press against their memory limit:
        ``relief_fresh_seconds``: a report of the node's agent that is older is not believed (it renews its beat every 60 s).
        ``relief_ahead_seconds``: the new limit is enough for this long at the pace at which usage grows.
        ``relief_pause_seconds``, ``reliefs_an_hour``: no sooner again, and no oftener: what needs more is taken for a leak.

    Rolling out:
        ``canary``: which changes one pod has to stand first: ``decreases`` (of anything, or with a restart; plain growth takes nothing
        from anybody), ``all``, or none when ``off``.
        ``soak_seconds``: how long it has to stand them.
        ``max_resizes_per_minute``: over all workloads; None is no limit.
        ``disruption_tolerance``: the share of a workload's pods that may be out of service at a time (upstream's 0.5).
        ``degraded_hold_off_seconds``, ``degraded_hold_off_max_seconds``: how long a change that did harm is not tried again, doubled
        each time up to the maximum.
        ``unready_grace_seconds``: a pod that is not Ready for longer after a resize has come to harm.
        ``restart_grace_seconds``: the same after a resize that restarts a container, which has to start and warm up first.
        ``signal_seconds``: so long a time throttling and pressure are measured over at least, and no longer than the soak time.
        ``throttled_bound``, ``pressure_bound``: a larger share of throttled CPU periods, or of time under pressure, is harm when it has
        at least doubled since the resize.
    """

    min_pod_age_seconds: float = 12 * 3600
    min_change: float = 0.10
    quick_oom_seconds: float = 600
    min_replicas: int = 2
    dry_run_first: bool = False
    deferred_limit_seconds: float = 600
    error_limit_seconds: float = 120
    in_progress_limit_seconds: float = 3600
    announce_seconds: float = 300
    hold_off_seconds: float = 900
    hold_off_max_seconds: float = 24 * 3600
    back_hold_off_seconds: float = 60
    queue_when_full: bool = False
    shrink_deadline_seconds: int = 900
    min_shrink_bytes: int = 64 * _MIB
    min_shrink: float = 0.10
    held_seconds: float = 120
    agent_grace_seconds: float = 300
    probation_grace_seconds: float = 1800
    keep_seconds: float = 24 * 3600
    relief_fresh_seconds: float = 180
    relief_ahead_seconds: float = 60
    relief_pause_seconds: float = 30
    reliefs_an_hour: int = 5
    canary: Literal["off", "decreases", "all"] = "decreases"
    soak_seconds: float = 600
    max_resizes_per_minute: float | None = None
    disruption_tolerance: float = 0.5
    degraded_hold_off_seconds: float = 3600
    degraded_hold_off_max_seconds: float = 24 * 3600
    unready_grace_seconds: float = 60
    restart_grace_seconds: float = 300
    signal_seconds: float = 120
    throttled_bound: float = 0.25
    pressure_bound: float = 0.2
    paused: bool = False
    maintenance_windows: tuple[Window, ...] = ()
    admission_fresh_seconds: float = 60
    eviction_rate_per_second: float | None = None
    eviction_burst: int = 1
