"""A cycle of the updater over a large cluster in memory: what deciding costs, apart from the API server."""

from __future__ import annotations

import msgspec

from bench.clock import StandingClock
from bench.figures import Figure, best_of
from bench.objects import DAY_SECONDS, NOW, namespace_of, pod
from bench.updater_cluster import MemoryCluster
from vpa_ippr.api.cluster import Node, Workload
from vpa_ippr.api.meta import ObjectMeta, OwnerReference
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import ContainerRecommendation, PodRecommendation, TargetRef, UpdatePolicy, Vpa, VpaSpec, VpaStatus
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.reasons import OutcomeCode
from vpa_ippr.resize.result import UpdateResult
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings

_PODS = 5_000
_VPAS = 2_000
_FITTING = {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
_LARGE = {"requests": {"cpu": "1", "memory": "256Mi"}, "limits": {"cpu": "4", "memory": "512Mi"}}
# The soak is ten cycles long.
_MOST_CYCLES = 30
_SMALL = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "400m", "memory": "256Mi"}}


def measure() -> list[Figure]:
    return [_cycle("updater.quiet", 0), _cycle("updater.due", 10), _rollout("updater.rollout", 10)]


def _cycle(name: str, due_percent: int) -> Figure:
    clusters: list[MemoryCluster] = []
    pods = [_pod(number, _SMALL if number % 100 < due_percent else _FITTING) for number in range(_PODS)]
    vpas = [_vpa(number) for number in range(_VPAS)]

    def prepare() -> Updater:
        clusters.append(_cluster(pods, vpas))
        return Updater(clusters[-1], StandingClock(NOW), Settings(), rules_for("1.36"))

    resizes = _PODS * due_percent // 100
    run = best_of(3, prepare, lambda updater: _checked(updater.run_cycle(), resizes))
    written = clusters[-1].writes
    note = f"{_PODS / run.wall_seconds:,.0f} decisions/s"
    if resizes:
        requests = ", ".join(f"{count / resizes:g} {kind}" for kind, count in sorted(written.items()))
        note += f"; writes a resize: {requests}"
    return Figure(name=name, size=f"{_PODS:,} pods, {_VPAS:,} VPAs, {due_percent} % due", run=run, units=_PODS, unit="pod", note=note)


def _rollout(name: str, due_percent: int) -> Figure:
    """A tenth of the workloads have too much CPU: one pod of each gets less first, the others after the soak."""
    clusters: list[MemoryCluster] = []
    # Whole workloads: what one replica has too much of all have.
    pods = [_pod(number, _LARGE if number % _VPAS % 100 < due_percent else _FITTING) for number in range(_PODS)]
    vpas = [_vpa(number) for number in range(_VPAS)]
    resizes = sum(one.spec.containers[0].resources.requests["cpu"] == "1" for one in pods)

    def prepare() -> tuple[Updater, StandingClock]:
        clusters.append(_cluster(pods, vpas))
        clock = StandingClock(NOW)
        return Updater(clusters[-1], clock, Settings(), rules_for("1.36")), clock

    def roll_out(made: tuple[Updater, StandingClock]) -> None:
        updater, clock = made
        issued = cycles = 0
        while issued < resizes:
            assert cycles < _MOST_CYCLES, f"{issued} of {resizes} resizes after {cycles} cycles"
            issued += updater.run_cycle().counts().get(OutcomeCode.ISSUED, 0)
            clusters[-1].carry_out()
            clock.moment += 60.0
            cycles += 1
        notes.append(cycles)

    notes: list[int] = []
    run = best_of(1, prepare, roll_out)
    requests = ", ".join(f"{count / resizes:.2f} {kind}" for kind, count in sorted(clusters[-1].writes.items()))
    note = f"{notes[-1]} cycles, {run.wall_seconds / notes[-1]:.2f} s each; writes a resize: {requests}"
    size = f"{_PODS:,} pods, {_VPAS:,} VPAs, {resizes} decreases by canary"
    return Figure(name=name, size=size, run=run, units=_PODS * notes[-1], unit="pod and cycle", note=note)


def _checked(result: UpdateResult, resizes: int) -> UpdateResult:
    counts = result.counts()
    assert counts.get(OutcomeCode.ISSUED, 0) == resizes, counts
    assert counts[OutcomeCode.NOT_DUE] == _PODS - resizes, counts
    return result


def _cluster(pods: list[Pod], vpas: list[Vpa]) -> MemoryCluster:
    names = {one.spec.node_name for one in pods}
    nodes = [Node(name, Amounts(64_000, 256 << 30), "v1.36.0") for name in sorted(names)]
    owners: dict[tuple[str, str], Workload] = {}
    for number in range(_VPAS):
        deployment = OwnerReference("apps/v1", "Deployment", f"app-{number}", controller=True)
        owners["ReplicaSet", f"app-{number}-rs"] = Workload("apps/v1", "ReplicaSet", f"app-{number}-rs", deployment)
        owners["Deployment", f"app-{number}"] = Workload("apps/v1", "Deployment", f"app-{number}")
    return MemoryCluster(pods, vpas, nodes, owners)


def _pod(number: int, resources: dict[str, dict[str, str]]) -> Pod:
    return msgspec.convert(pod(number, number % _VPAS, resources), Pod)


def _vpa(number: int) -> Vpa:
    """Recommends what the fitting pods have, with bounds that the small ones lie outside of."""
    recommendation = ContainerRecommendation(
        "app",
        target={"cpu": "250m", "memory": "256Mi"},
        lower_bound={"cpu": "150m", "memory": "200Mi"},
        upper_bound={"cpu": "500m", "memory": "600Mi"},
    )
    created = format_time(NOW - 90 * DAY_SECONDS)
    return Vpa(
        ObjectMeta(f"app-{number}", namespace_of(number), uid=f"vpa-{number}", creation_timestamp=created),
        VpaSpec(TargetRef("Deployment", f"app-{number}", "apps/v1"), UpdatePolicy("InPlaceOrRecreate")),
        VpaStatus(PodRecommendation([recommendation])),
    )
