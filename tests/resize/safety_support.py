"""Two workloads on two nodes that anything may happen to."""

from __future__ import annotations

import msgspec
from resize_support import (
    READY,
    Crash,
    FakeApiError,
    FakeClock,
    a_container,
    a_pod,
    a_recommendation,
    a_vpa,
)
from safety_judge import REPLICAS, JudgedCluster, Refusal, flat, workload_of

from vpa_ippr.api.cluster import Node, Workload
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.hpa import HorizontalPodAutoscaler, HpaSpec, Metric, MetricTarget, ResourceMetric
from vpa_ippr.api.meta import Condition, ObjectKey, ObjectMeta, OwnerReference
from vpa_ippr.api.names import ANNOTATION_CPU_BOOST_PREFIX, ANNOTATION_LIMIT_POLICY
from vpa_ippr.api.pod import ContainerState, ContainerStateRunning, ContainerStateTerminated, Pod
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.shrink import Intent, Phase
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import PodRecommendation, TargetRef, UpdatePolicy
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.reasons import OutcomeCode
from vpa_ippr.resize.rules import rules_for
from vpa_ippr.resize.settings import Settings

NAMES = tuple(f"{workload}-{number}" for workload, count in REPLICAS.items() for number in range(count))
KINDS = {
    "burstable": a_container(cpu="200m", memory="1Gi", memory_limit="2Gi"),
    "guaranteed": a_container(cpu="1", memory="2Gi", cpu_limit="1", memory_limit="2Gi"),
    "no limits": a_container(cpu="200m", memory="1Gi"),
    "only memory": a_container(memory="1Gi", memory_limit="1Gi"),
    "memory restarts": a_container(cpu="200m", memory="1Gi", memory_limit="2Gi", restarts=("memory",)),
    "both restart": a_container(cpu="200m", memory="1Gi", cpu_limit="1", memory_limit="2Gi", restarts=("cpu", "memory")),
}
_replace = msgspec.structs.replace


class Fleet:
    """Two StatefulSets, two updaters of which either may be restarted, kubelets, agents, and what people do."""

    def __init__(self, kinds, modes, version="1.36", canary="decreases", leasts=(None, None), available=(None, None)):
        self.clock, self.rules, self.settings = FakeClock(), rules_for(version), Settings(canary=canary)
        self.containers = {workload: KINDS[kind] for workload, kind in zip(REPLICAS, kinds, strict=True)}
        self.made = 0
        vpas = tuple(
            a_vpa(a_recommendation(cpu="100m", memory="512Mi"), mode=mode, name=workload, target=workload)
            for workload, mode in zip(REPLICAS, modes, strict=True)
        )
        pods = [self.a_pod(name, age=2 * 86_400.0) for name in NAMES]
        self.cluster = JudgedCluster(*pods, vpas=vpas, clock=self.clock, rules=self.rules)
        self.cluster.workloads = {
            ("StatefulSet", name): Workload("apps/v1", "StatefulSet", name, replicas=count) for name, count in REPLICAS.items()
        }
        self._node(256)
        self.admission_is_there, self.turn = True, 0
        for workload, mode, least in zip(REPLICAS, modes, leasts, strict=True):
            self._mode(workload, mode, least)
        for workload, least in zip(REPLICAS, available, strict=True):
            self._pdb(workload, least)
        self.updaters = [self.new_updater(), self.new_updater()]
        self.has_been_killed: set[str] = set()

    def new_updater(self) -> Updater:
        return Updater(self.cluster, self.clock, self.settings, self.rules)

    def a_pod(self, name, age=0.0, container=None) -> Pod:
        workload, self.made = workload_of(name), self.made + 1
        pod = a_pod(container or self.containers[workload], name=name, labels={"app": workload})
        owner = OwnerReference("apps/v1", "StatefulSet", workload, f"uid-{workload}", controller=True)
        number = int(name.rpartition("-")[2])
        (status,) = pod.status.container_statuses
        return _replace(
            pod,
            metadata=_replace(pod.metadata, uid=f"{name}-{self.made}", owner_references=[owner]),
            spec=_replace(pod.spec, node_name=f"n{number % 2 + 1}"),
            status=_replace(
                pod.status,
                start_time=format_time(self.clock.moment - age),
                container_statuses=[_replace(status, container_id=f"containerd://{name}-{self.made}")],
            ),
        )

    # -- one event
    def act(self, event):
        kind, *arguments = event
        getattr(self, f"_{kind}")(*arguments)

    def put(self, pod):
        self.cluster._store(pod, write=False)

    def change_status(self, name, **fields):
        pod = self.cluster.pods.get(ObjectKey("shop", name))
        if pod is not None:
            self.put(_replace(pod, status=_replace(pod.status, **fields)))

    def change_vpa(self, workload, change):
        self.cluster.vpas = [change(vpa) if vpa.metadata.name == workload else vpa for vpa in self.cluster.vpas]

    def _recommend(self, workload, cpu, memory):
        amounts = {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount is not None}
        recommendation = PodRecommendation([a_recommendation(**amounts)]) if amounts else None
        self.change_vpa(workload, lambda vpa: _replace(vpa, status=_replace(vpa.status, recommendation=recommendation)))

    def _mode(self, workload, mode, least):
        self.change_vpa(workload, lambda vpa: _replace(vpa, spec=_replace(vpa.spec, update_policy=UpdatePolicy(mode, min_replicas=least))))

    def _annotate(self, workload, name, value):
        def annotated(vpa):
            kept = {key: text for key, text in vpa.metadata.annotations.items() if key != name}
            return _replace(vpa, metadata=_replace(vpa.metadata, annotations=kept | ({name: value} if value is not None else {})))

        self.change_vpa(workload, annotated)

    def _kubelet(self, name, verdict):
        """The kubelet looks at the pod; what is done restarts the containers that want it, and nothing is wrong with what is done."""
        pod = self.cluster.pods.get(ObjectKey("shop", name))
        if pod is None:
            return
        if flat(pod.spec.containers) == flat(pod.status.container_statuses):
            verdict = "done"
        now, conditions = format_time(self.clock.moment), [one for one in pod.status.conditions if not one.type.startswith("PodResize")]
        if verdict in ("Deferred", "Infeasible"):
            conditions.append(Condition("PodResizePending", "True", verdict, "Node didn't have enough capacity: cpu", now))
        elif verdict in ("Error", "busy"):
            conditions.append(Condition("PodResizeInProgress", "True", "Error" if verdict == "Error" else "", "", now))
        statuses = pod.status.container_statuses
        if verdict == "done":
            statuses = [self._carried_out(pod, status) for status in statuses]
        self.change_status(name, conditions=conditions, observed_generation=pod.metadata.generation, container_statuses=statuses)

    def _carried_out(self, pod, status):
        container = pod.container(status.name)
        wanted, had = flat([container]), flat([status])
        status = _replace(status, resources=container.resources)
        if any(wanted.get(key) != had.get(key) and container.restarts_on_resize_of(key[2]) for key in wanted):
            status = self._started_anew(pod, status)
        return status

    def _started_anew(self, pod, status):
        count = status.restart_count + 1
        return _replace(
            status,
            restart_count=count,
            container_id=f"containerd://{pod.metadata.uid}-{count}",
            state=ContainerState(running=ContainerStateRunning(format_time(self.clock.moment))),
        )

    def _agent(self, phase, number):
        unfinished = [key for key, shrink in self.cluster.shrinks.items() if not shrink.status.phase.is_terminal]
        if unfinished:
            self.move(unfinished[number % len(unfinished)], phase)

    def move(self, key, phase):
        shrink, now = self.cluster.shrinks[key], format_time(self.clock.moment)
        times = {"completion_time": now if phase.is_terminal else None, "held_time": now if phase is Phase.HOLDING else None}
        self.cluster.shrinks[key] = _replace(shrink, status=_replace(shrink.status, phase=phase, reason="Scripted", **times))

    def _agents(self, alive):
        self.cluster.agent_is_dead = not alive

    def _refuse(self, status, skip):
        self.cluster.refusal = Refusal(status, skip)

    def _lose(self, skip):
        self.cluster.refusal = Refusal(0, skip, is_lost=True)

    def _unreadable(self, method):
        self.cluster.failing = {method: FakeApiError(500, "scripted")}

    def _killed(self, name):
        """The kernel kills the container, and it runs again: another one, with what its spec asks for."""
        pod = self.cluster.pods.get(ObjectKey("shop", name))
        if pod is not None:
            (status,) = pod.status.container_statuses
            ended = ContainerStateTerminated(137, "OOMKilled", format_time(self.clock.moment - 60), format_time(self.clock.moment))
            status = _replace(self._started_anew(pod, status), last_state=ContainerState(terminated=ended))
            self.change_status(name, container_statuses=[status])
            self.has_been_killed.add(workload_of(name))

    def _pressing(self, name, used, growth, reason):
        """The node's agent tells that a container is at its limit, or what it tells is of before, and the updater is woken up."""
        pod = self.cluster.pods.get(ObjectKey("shop", name))
        if pod is None or not flat(pod.status.container_statuses).get(("app", "limits", "memory")):
            return
        limit = flat(pod.status.container_statuses)["app", "limits", "memory"]
        self.cluster.press(name, usage_bytes=int(limit * used), growth_bytes_per_second=growth, reason=reason)
        self.relieve()

    def relieve(self):
        before = {pod.metadata.uid: flat(pod.spec.containers) for pod in self.cluster.pods.values()}
        self.count_the_living()
        try:
            result = self.updaters[self.turn].relieve()
        except Crash:
            self._restart()
            return
        assert not self.cluster.violations, self.cluster.violations
        assert not [one for one in result.outcomes if one.code is OutcomeCode.FAILED], result.outcomes
        self.judge_reliefs(before)

    def judge_reliefs(self, before):
        """A round of reliefs makes no memory limit lower than it was, nor than it is in force."""
        for pod in self.cluster.pods.values():
            after, in_force = flat(pod.spec.containers), flat(pod.status.container_statuses)
            key = ("app", "limits", "memory")
            if after.get(key) != before[pod.metadata.uid].get(key):
                assert after[key] >= in_force.get(key, 0), (pod.metadata.name, before[pod.metadata.uid], after)

    def _ready(self, name, ready):
        pod = self.cluster.pods.get(ObjectKey("shop", name))
        if pod is not None:
            resizing = [one for one in pod.status.conditions if one.type.startswith("PodResize")]
            lost = Condition("Ready", "False", last_transition_time=format_time(self.clock.moment))
            self.change_status(name, conditions=[READY if ready else lost, *resizing])

    def _delete(self, name):
        self.cluster.pods.pop(ObjectKey("shop", name), None)

    def _terminate(self, name):
        pod = self.cluster.pods.get(ObjectKey("shop", name))
        if pod is not None:
            self.put(_replace(pod, metadata=_replace(pod.metadata, deletion_timestamp=format_time(self.clock.moment))))

    def _make(self):
        """The StatefulSets make what is missing; an admission controller gives it what is recommended."""
        for name in NAMES:
            if ObjectKey("shop", name) not in self.cluster.pods:
                pod = self.a_pod(name, container=self._admitted(workload_of(name)))
                self.cluster.note(pod)
                self.put(pod)

    def _admitted(self, workload):
        container, vpa = self.containers[workload], self.cluster.vpa_named(workload)
        recommendation = vpa.status.recommendation
        if not self.admission_is_there or recommendation is None or vpa.update_mode == "Off":
            return container
        requests, limits = dict(container.resources.requests), dict(container.resources.limits)
        given = flat([a_container(**recommendation.container_recommendations[0].target)])
        had, is_guaranteed = flat([container]), requests == limits
        for resource in sorted({key[2] for key in given}):  # a request that is missing is added, a limit is not
            request, unit = given["app", "requests", resource], "m" if resource == "cpu" else ""
            requests[resource] = f"{request}{unit}"
            if resource in limits and ("app", "requests", resource) in had:
                limit = had["app", "limits", resource]
                proportional = round(request * limit / had["app", "requests", resource])
                given_limit = proportional if is_guaranteed else self._limit_by_policy(vpa, resource, request, proportional, limit)
                limits[resource] = f"{given_limit}{unit}"
        return _replace(container, resources=_replace(container.resources, requests=requests, limits=limits))

    def _limit_by_policy(self, vpa, resource, request, proportional, present):
        """Those policies that are among the events."""
        match vpa.metadata.annotations.get(ANNOTATION_LIMIT_POLICY):
            case "none":
                return max(present, request)
            case "fixed-headroom:25%":
                return request + -(-request // 4)
            case "memory=cap:1Gi" if resource == "memory":
                return max(min(proportional, 1 << 30), request)
        return proportional

    def _node(self, memory_gib):
        self.cluster.nodes = [Node(name, Amounts(64_000, memory_gib << 30)) for name in ("n1", "n2")]

    def _quota(self, gib):
        self.cluster.quota_gib = gib

    def _pdb(self, workload, least):
        self.cluster.least_available.pop(workload, None)
        if least is not None:
            self.cluster.least_available[workload] = least

    def _hpa(self, workload):
        metric = Metric("Resource", ResourceMetric("cpu", MetricTarget("Utilization")))
        meta = ObjectMeta(name="hpa", namespace="shop")
        target = TargetRef("StatefulSet", workload, "apps/v1")
        self.cluster.hpas = [] if self.cluster.hpas else [HorizontalPodAutoscaler(meta, HpaSpec(target, [metric]))]

    def _crash(self, writes):
        self.cluster.writes, self.cluster.crash_after_writes = 0, writes

    def _restart(self):
        self.updaters[self.turn] = self.new_updater()

    def _rival(self):
        """From now on the other updater has its turns, as when a lease changes hands again and again."""
        self.turn = 1 - self.turn

    def _admission(self, is_there):
        self.admission_is_there = is_there

    def _boost(self, name, note):
        """An admission controller had given the pod more CPU than it was meant to have, and noted what that was."""
        pod = self.cluster.pods.get(ObjectKey("shop", name))
        if pod is not None and "cpu" in pod.spec.containers[0].resources.requests:
            annotations = pod.metadata.annotations | {ANNOTATION_CPU_BOOST_PREFIX + "app": note}
            self.put(_replace(pod, metadata=_replace(pod.metadata, annotations=annotations)))

    def _run(self, cycles):
        """A while in which all goes well."""
        for _ in range(cycles):
            self.calm()
            self.cycle(400.0)

    def _harm(self, name, cycles):
        """A pod is killed for memory when a change has been rolled out."""
        self._run(cycles)
        self._killed(name)

    def _wait(self, seconds):
        self.clock.moment += seconds

    # -- a cycle
    def cycle(self, seconds=30.0):
        self.clock.moment += seconds
        self.cluster.admission_renewed = self.clock.moment if self.admission_is_there else None
        self.count_the_living()
        result = None
        try:
            result = self.updaters[self.turn].run_cycle()
        except Crash:
            self._restart()
        except ClusterError:
            assert self.cluster.failing, "a cycle that could read everything gave up"
        self.cluster.failing = {}
        assert not self.cluster.violations, self.cluster.violations
        failed = [one for one in result.outcomes if one.code is OutcomeCode.FAILED] if result else []
        assert not failed, failed
        return result

    def count_the_living(self):
        self.cluster.live_at_start = {
            workload: sum(not pod.metadata.deletion_timestamp for pod in self.cluster.of(workload)) for workload in REPLICAS
        }

    # -- all goes well
    def kubelets(self):
        for name in NAMES:
            self._kubelet(name, "done")

    def calm(self):
        """Kubelets, agents and StatefulSets do their work, and what was not Ready becomes so."""
        for pod in list(self.cluster.pods.values()):
            if pod.metadata.deletion_timestamp:
                self._delete(pod.metadata.name)
        self._make()
        self.kubelets()
        for name in NAMES:
            self._ready(name, True)
        uids = {pod.metadata.uid: pod for pod in self.cluster.pods.values()}
        for key, shrink in list(self.cluster.shrinks.items()):
            if not shrink.status.phase.is_terminal:
                self.move(key, self._next_phase(shrink, uids.get(shrink.spec.pod.uid)))

    def _next_phase(self, shrink, pod):
        if pod is None or pod.container_status(shrink.spec.container.name).container_id != shrink.spec.container.id:
            return Phase.GONE
        if shrink.spec.intent is Intent.ABORT:
            return Phase.ABORTED
        limit = flat(pod.spec.containers).get((shrink.spec.container.name, "limits", "memory"))
        return Phase.DONE if limit == shrink.spec.target_bytes else Phase.HOLDING

    def settle(self):
        """Nothing stands in the way any more: first until no hold-off is left, then at the pace at which soaks go."""
        self.cluster.refusal, self.cluster.crash_after_writes, self.cluster.agent_is_dead = None, None, False
        self.cluster.quota_gib, self.cluster.least_available, self.admission_is_there = None, {}, True
        self._node(256)
        results = []
        for seconds in QUIET:
            self.calm()
            writes = self.cluster.writes
            results.append((self.cycle(seconds), self.cluster.writes - writes))
        return results


QUIET = (30.0, 30.0, *[90_000.0] * 4, *[400.0] * 24, *[90_000.0] * 2)
