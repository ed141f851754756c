"""A workload of several pods under every mode, whatever is recommended, refused, killed and crashed: the safety rules hold, and it settles.

The judge looks at what the cluster holds before and after each cycle, not at what the updater says of itself.
"""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resize_support import (
    READY,
    Crash,
    FakeApiError,
    FakeClock,
    FakeCluster,
    a_container,
    a_pod,
    a_recommendation,
    a_vpa,
    expected_qos,
)

from vpa_ippr.api.cluster import Node, Workload
from vpa_ippr.api.meta import Condition, ObjectKey
from vpa_ippr.api.pod import ContainerState, ContainerStateTerminated
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.shrink import Phase
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.reasons import OutcomeCode as Code
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings

REPLICAS = 4
MODES = ("Off", "Initial", "Recreate", "Auto", "InPlaceOrRecreate", "InPlace")
EVICTING = ("Recreate", "Auto", "InPlaceOrRecreate")
IN_PLACE = ("InPlaceOrRecreate", "InPlace")
NAMES = tuple(f"web-{number}" for number in range(REPLICAS))
CONTAINERS = {
    "burstable": a_container(cpu="200m", memory="1Gi", memory_limit="2Gi"),
    "guaranteed": a_container(cpu="1", memory="2Gi", cpu_limit="1", memory_limit="2Gi"),
    "no limits": a_container(cpu="200m", memory="1Gi"),
    "memory restarts": a_container(cpu="200m", memory="1Gi", memory_limit="2Gi", restarts=("memory",)),
    "both restart": a_container(cpu="200m", memory="1Gi", cpu_limit="1", memory_limit="2Gi", restarts=("cpu", "memory")),
}
amounts = st.builds(
    lambda cpu, memory: ("recommend", cpu, memory),
    st.sampled_from(["50m", "100m", "200m", "900m", "3"]),
    st.sampled_from(["128Mi", "512Mi", "1Gi", "3Gi", "12Gi"]),
)
named = st.sampled_from(NAMES)
events = st.one_of(
    amounts,
    st.tuples(st.just("kubelet"), named, st.sampled_from(["done", "done", "Deferred", "Infeasible", "Error", "busy"])),
    st.tuples(st.just("agent"), st.sampled_from(list(Phase))),
    st.tuples(st.just("refuse"), st.sampled_from([403, 409, 422, 429, 500])),
    st.tuples(st.just("killed"), named),
    st.tuples(st.just("unready"), named),
    st.tuples(st.just("ready"), named),
    st.tuples(st.just("node"), st.sampled_from([8, 16, 256])),
    st.tuples(st.just("crash"), st.integers(1, 6)),
    st.just(("restart",)),
    st.just(("rival",)),
    st.tuples(st.just("admission"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 700.0, 4000.0, 90_000.0])),
)


class Fleet:
    """A StatefulSet's pods on one node, an updater that may be restarted or have a rival, and the judge."""

    def __init__(self, container, mode, version, canary):
        self.clock = FakeClock()
        self.mode = mode
        pods = [a_pod(container, name=name) for name in NAMES]
        self.cluster = FakeCluster(
            *pods, vpas=(a_vpa(a_recommendation(cpu="100m", memory="512Mi"), mode=mode),), clock=self.clock, rules=rules_for(version)
        )
        self.cluster.workloads[("StatefulSet", "web")] = Workload("apps/v1", "StatefulSet", "web", replicas=REPLICAS)
        self.container, self.rules = container, rules_for(version)
        self.settings = Settings(canary=canary)
        self.admission_is_there = True
        self.restart()

    def restart(self):
        self.updater = Updater(self.cluster, self.clock, self.settings, self.rules)

    @property
    def node(self):
        return self.cluster.nodes[0]

    def key(self, name):
        return ObjectKey("shop", name)

    def change_status(self, name, **fields):
        pod = self.cluster.pods[self.key(name)]
        self.cluster.pods[pod.key] = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, **fields))

    def act(self, event):
        kind, *arguments = event
        getattr(self, f"_{kind}")(*arguments)

    def _recommend(self, cpu, memory):
        self.cluster.recommend(a_recommendation(cpu=cpu, memory=memory))

    def _kubelet(self, name, verdict):
        self.cluster.kubelet(verdict, "Node didn't have enough capacity: cpu", name)

    def _agent(self, phase):
        if any(not shrink.status.phase.is_terminal for shrink in self.cluster.shrinks.values()):
            self.cluster.agent(phase, reason="Scripted")

    def _refuse(self, status):
        self.cluster.resize_errors = [FakeApiError(status, "scripted")]

    def _killed(self, name):
        """The kernel kills the container, and it runs again."""
        (status,) = self.cluster.pods[self.key(name)].status.container_statuses
        ended = ContainerStateTerminated(137, "OOMKilled", format_time(self.clock.moment - 60), format_time(self.clock.moment))
        status = msgspec.structs.replace(status, last_state=ContainerState(terminated=ended), restart_count=status.restart_count + 1)
        self.change_status(name, container_statuses=[status])

    def _unready(self, name):
        self.change_status(name, conditions=[Condition("Ready", "False", last_transition_time=format_time(self.clock.moment))])

    def _ready(self, name):
        self.change_status(name, conditions=[READY])

    def _node(self, memory_gib):
        self.cluster.nodes = [Node("n1", Amounts(64_000, memory_gib << 30))]

    def _crash(self, writes):
        self.cluster.writes, self.cluster.crash_after_writes = 0, writes

    def _restart(self):
        self.restart()

    def _rival(self):
        """Another updater, as when the lease has just been lost."""
        with contextlib.suppress(Crash):
            Updater(self.cluster, self.clock, self.settings, self.rules).run_cycle()

    def _admission(self, is_there):
        self.admission_is_there = is_there

    def _wait(self, seconds):
        self.clock.moment += seconds

    def serving(self):
        """Pods that are Ready and have what they ask for."""
        found = set()
        for pod in self.cluster.pods.values():
            ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
            settled = pod.status.observed_generation == pod.metadata.generation
            pending = any(one.type.startswith("PodResize") for one in pod.status.conditions)
            found |= {pod.metadata.name} if ready and settled and not pending else set()
        return found

    def cycle(self, seconds=30.0):
        """One cycle, judged: what was taken out of service, removed or evicted by it."""
        self.clock.moment += seconds
        self.cluster.admission_renewed = self.clock.moment if self.admission_is_there else None
        before, serving = dict(self.cluster.pods), self.serving()
        resized, evicted = len(self.cluster.resizes), len(self.cluster.evicted)
        try:
            result = self.updater.run_cycle()
        except Crash:
            self.restart()
            result = None
        assert self.cluster.violations == []
        assert result is None or [one for one in result.outcomes if one.code is Code.FAILED] == []
        self.judge(before, serving, resized, self.cluster.evicted[evicted:])
        for name in set(NAMES) - {pod.metadata.name for pod in self.cluster.pods.values()}:
            self.made_again(name)
        return result

    def judge(self, before, serving, resized, evicted):
        assert self.mode in EVICTING or not evicted
        assert self.mode in IN_PLACE or len(self.cluster.resizes) == resized
        restarted = set()
        for key, pod in self.cluster.pods.items():
            for was, now in zip(before[key].spec.containers, pod.spec.containers, strict=True):
                assert set(was.resources.requests) <= set(now.resources.requests)
                assert set(was.resources.limits) <= set(now.resources.limits)
                changed = {
                    name
                    for side in ("requests", "limits")
                    for name, amount in getattr(now.resources, side).items()
                    if getattr(was.resources, side).get(name) != amount
                }
                restarted |= {key.name} if any(now.restarts_on_resize_of(name) for name in changed) else set()
            assert expected_qos(pod.spec.containers) == pod.status.qos_class
        disturbed = restarted | set(evicted)
        if disturbed & serving:
            # Half of four may be out of service; what did not serve before is disturbed no further.
            assert len(serving - disturbed) >= REPLICAS // 2, f"{disturbed} disturbed while only {serving} served"

    def made_again(self, name):
        """The StatefulSet makes an evicted pod anew, as its template says."""
        pod = a_pod(self.container, name=name, age=0.0)
        pod = msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, uid=f"uid-{name}-{self.clock.moment:.0f}", resource_version="1")
        )
        self.cluster.pods[pod.key] = pod

    def kubelets_do_their_work(self):
        for name in NAMES:
            self.cluster.kubelet("done", name=name)

    def calm_down(self):
        """Everything goes well from now on."""
        self.cluster.resize_errors, self.cluster.crash_after_writes = [], None
        self.cluster.nodes = [Node("n1", Amounts(64_000, 256 << 30))]
        self.cluster.recommend(a_recommendation(cpu="300m", memory="1536Mi"))
        # First until no hold-off is left, then at the pace at which shrinks and soaks go.
        for seconds in [3600.0] * 30 + [120.0] * 40:
            for name in NAMES:
                self.cluster.kubelet("done", name=name)
                self.change_status(name, conditions=[READY])
            self.finish_shrinks()
            result = self.cycle(seconds)
        return result

    def finish_shrinks(self):
        for shrink in self.cluster.shrinks.values():
            if not shrink.status.phase.is_terminal:
                is_patched = (
                    self.cluster.pods[self.key(shrink.spec.pod.name)].desired("app").limits.memory_bytes == shrink.spec.target_bytes
                )
                self.cluster.agent(Phase.DONE if is_patched else Phase.HOLDING, reason="Shrunk")
                return


@given(
    kind=st.sampled_from(sorted(CONTAINERS)),
    mode=st.sampled_from(MODES),
    version=st.sampled_from(["1.33", "1.36"]),
    canary=st.sampled_from(["off", "decreases", "all"]),
    script=st.lists(st.tuples(events, st.booleans()), max_size=20),
)
def test_whatever_happens_no_safety_rule_is_broken(kind, mode, version, canary, script):
    fleet = Fleet(CONTAINERS[kind], mode, version, canary)
    for event, is_calm in script:
        fleet.act(event)
        fleet.cycle()
        if is_calm:
            fleet.kubelets_do_their_work()


@pytest.mark.parametrize("mode", IN_PLACE)
@settings(max_examples=8)
@given(kind=st.sampled_from(["burstable", "guaranteed", "memory restarts"]), script=st.lists(events, max_size=12))
def test_once_all_goes_well_the_workload_settles(mode, kind, script):
    fleet = Fleet(CONTAINERS[kind], mode, "1.36", "decreases")
    for event in script:
        fleet.act(event)
        fleet.cycle()
    result = fleet.calm_down()
    waiting = {one.code for one in result.outcomes}
    assert waiting <= {Code.NOT_DUE, Code.REFUSED, Code.COMPLETED, Code.SHRINK_ENDED, Code.SHRINK_OPENED, Code.SHRINK_PATCHED, Code.ISSUED}
    assert all(one.reason for one in result.outcomes if one.code in (Code.NOT_DUE, Code.REFUSED))
    owners = {pod.metadata.uid for pod in fleet.cluster.pods.values()}
    orphans = [shrink for shrink in fleet.cluster.shrinks.values() if shrink.spec.pod.uid not in owners]
    assert orphans == []
