"""Builders, and an in-memory cluster that answers as the API server does while kubelet and agent follow a script."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import msgspec

from vpa_ippr.api.cluster import Node, ObjectRef
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.hpa import HorizontalPodAutoscaler
from vpa_ippr.api.limit_range import LimitRange
from vpa_ippr.api.meta import Condition, ObjectKey, ObjectMeta, OwnerReference
from vpa_ippr.api.node_memory import NodeMemory, NodeMemoryStatus, PressingContainer
from vpa_ippr.api.pdb import PodDisruptionBudget
from vpa_ippr.api.pod import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResizePolicy,
)
from vpa_ippr.api.quota import ResourceQuota
from vpa_ippr.api.resources import ResourceRequirements, parse_amounts
from vpa_ippr.api.shrink import Intent, MemoryShrink, Phase
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import (
    ContainerPolicy,
    ContainerRecommendation,
    PodRecommendation,
    ResourcePolicy,
    TargetRef,
    UpdatePolicy,
    Vpa,
    VpaSpec,
    VpaStatus,
)
from vpa_ippr.recommend.ports import Workload
from vpa_ippr.resize.rules import VersionRules, rules_for

START = 1_800_000_000.0
DAY = 86_400.0
RULES = rules_for("1.36")
READY = Condition(type="Ready", status="True")


def requirements(cpu: str | None = None, memory: str | None = None, cpu_limit: str | None = None, memory_limit: str | None = None):
    return ResourceRequirements(requests=_set(cpu=cpu, memory=memory), limits=_set(cpu=cpu_limit, memory=memory_limit))


def _set(**amounts: str | None) -> dict[str, str]:
    return {name: amount for name, amount in amounts.items() if amount is not None}


def a_container(
    name: str = "app", *, restarts: tuple[str, ...] = (), restart_policy: str | None = None, **amounts: str | None
) -> Container:
    policy = [ResizePolicy(resource, "RestartContainer") for resource in restarts]
    return Container(name=name, resources=requirements(**amounts), resize_policy=policy, restart_policy=restart_policy)


def a_pod(
    *containers: Container,
    name: str = "web-0",
    qos: str | None = None,
    age: float = 2 * DAY,
    ooms: dict[str, float] | None = None,
    conditions: tuple[Condition, ...] = (READY,),
    init: tuple[Container, ...] = (),
    **meta: object,
) -> Pod:
    """A running pod whose status agrees with its spec; ``ooms`` gives seconds of life before an out-of-memory kill by container."""
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="shop",
            uid=f"uid-{name}",
            resource_version="1",
            generation=1,
            owner_references=[OwnerReference("apps/v1", "StatefulSet", "web", "uid-web", controller=True)],
            **meta,
        ),
        spec=PodSpec(containers=list(containers), init_containers=list(init), node_name="n1"),
        status=PodStatus(
            phase="Running",
            qos_class=qos if qos is not None else expected_qos([*containers, *init]),
            start_time=format_time(START - age),
            observed_generation=1,
            conditions=list(conditions),
            container_statuses=[_status(c, (ooms or {}).get(c.name)) for c in containers],
            init_container_statuses=[_status(c, None) for c in init],
        ),
    )


def _status(container: Container, lived_before_oom: float | None) -> ContainerStatus:
    last = ContainerState()
    if lived_before_oom is not None:
        began = format_time(START - 100 - lived_before_oom)
        last = ContainerState(
            terminated=ContainerStateTerminated(137, reason="OOMKilled", started_at=began, finished_at=format_time(START - 100))
        )
    return ContainerStatus(
        name=container.name,
        container_id=f"containerd://{container.name}-1",
        ready=True,
        state=ContainerState(running=ContainerStateRunning(format_time(START - 50))),
        last_state=last,
        resources=container.resources,
    )


def expected_qos(containers: list[Container]) -> str:
    """QoS by the documented rules, written independently of the code under test."""
    parsed = [(parse_amounts(c.resources.requests, ""), parse_amounts(c.resources.limits, "")) for c in containers]
    values = [(r.cpu_millicores, r.memory_bytes, lim.cpu_millicores, lim.memory_bytes) for r, lim in parsed]
    if not any(any(v) for v in values):
        return "BestEffort"
    full = all(lc and lm and rc in (None, lc) and rm in (None, lm) for rc, rm, lc, lm in values)
    return "Guaranteed" if full else "Burstable"


def expected_pod_qos(pod: Pod) -> str:
    """The same of a whole pod: its own resources alone decide where it has any."""
    own = pod.spec.resources
    return expected_qos([Container("pod", resources=own)] if own else [*pod.spec.containers, *pod.spec.init_containers])


def with_own_resources(pod: Pod, **amounts: str | None) -> Pod:
    """The pod with resources at pod level, and the QoS class that goes with them."""
    changed = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resources=requirements(**amounts)))
    status = msgspec.structs.replace(changed.status, qos_class=expected_pod_qos(changed))
    return msgspec.structs.replace(changed, status=status)


def a_recommendation(name: str = "app", *, lower: dict[str, str] | None = None, upper: dict[str, str] | None = None, **target: str):
    return ContainerRecommendation(container_name=name, target=dict(target), lower_bound=lower or {}, upper_bound=upper or {})


def a_vpa(
    *recommendations: ContainerRecommendation,
    mode: str = "InPlaceOrRecreate",
    policies: tuple[ContainerPolicy, ...] = (),
    name: str = "web",
    created: str = "2026-01-01T00:00:00Z",
    target: str = "web",
    **update: int,
) -> Vpa:
    return Vpa(
        metadata=ObjectMeta(name=name, namespace="shop", uid=f"uid-{name}", creation_timestamp=created),
        spec=VpaSpec(
            target_ref=TargetRef("StatefulSet", target, "apps/v1"),
            update_policy=UpdatePolicy(update_mode=mode, **update),
            resource_policy=ResourcePolicy(list(policies)) if policies else None,
        ),
        status=VpaStatus(recommendation=PodRecommendation(list(recommendations)) if recommendations else None),
    )


_replace = msgspec.structs.replace


class FakeClock:
    def __init__(self, now: float = START) -> None:
        self.moment = now

    def now(self) -> float:
        return self.moment

    def wait_until(self, moment: float) -> bool:
        self.moment = max(self.moment, moment)
        return True

    def stop(self) -> None:
        """Nothing waits."""


@dataclass
class FakeCause:
    reason: str


class FakeApiError(ClusterError):
    def __init__(self, status: int, message: str, *causes: str, api_reason: str = "") -> None:
        super().__init__(message, reason=api_reason or f"Http{status}")
        self.status = status
        self.api_reason = api_reason
        self.causes = [FakeCause(cause) for cause in causes]


class Crash(BaseException):
    """The updater's process dies here."""


class FakeCluster:
    """Objects with resource versions, a log of effective resizes, and a watch over the safety rules (``violations``)."""

    def __init__(self, *pods: Pod, vpas: tuple[Vpa, ...] = (), rules: VersionRules = RULES, clock: FakeClock | None = None) -> None:
        self.pods = {pod.key: pod for pod in pods}
        self.vpas = list(vpas)
        self.nodes = [Node("n1", parse_amounts({"cpu": "64", "memory": "256Gi"}, "node"))]
        self.limit_ranges: list[LimitRange] = []
        self.quotas: list[ResourceQuota] = []
        self.pdbs: list[PodDisruptionBudget] = []
        self.hpas: list[HorizontalPodAutoscaler] = []
        self.node_memories: list[NodeMemory] = []
        self.evicted: list[str] = []
        self.eviction_errors: list[Exception] = []
        self.shrinks: dict[ObjectKey, MemoryShrink] = {}
        self.workloads = {("StatefulSet", "web"): Workload("apps/v1", "StatefulSet", "web")}
        self.events: list[tuple[str, str]] = []
        self.resizes: list[dict] = []
        self.dry_runs: list[dict] = []
        self.violations: list[str] = []
        self.resize_errors: list[Exception] = []
        self.failing: dict[str, Exception] = {}
        self.crash_after_writes: int | None = None
        self.writes = 0
        self.before_resize = lambda: None
        self.agent_is_dead = False
        self.admission_renewed: float | None = None
        self.clock = clock or FakeClock()
        self._rules = rules
        self._version = itertools.count(2)
        self._serial = itertools.count(1)

    # -- UpdaterPort
    def list_vpas(self):
        self._fail("list_vpas")
        return list(self.vpas)

    def list_pods(self):
        return [pod for pod in self.pods.values() if pod.status.phase not in ("Succeeded", "Failed")]

    def list_nodes(self):
        return list(self.nodes)

    def list_limit_ranges(self):
        self._fail("list_limit_ranges")
        return self.limit_ranges

    def list_quotas(self):
        return list(self.quotas)

    def list_pdbs(self):
        return list(self.pdbs)

    def list_hpas(self):
        return list(self.hpas)

    def list_node_memories(self):
        self._fail("list_node_memories")
        return list(self.node_memories)

    def list_shrinks(self):
        return [self._reported(shrink) for shrink in self.shrinks.values()]

    def find_workload(self, namespace, api_version, kind, name):
        self._fail("find_workload")
        assert (namespace in ("shop", "bank"), api_version) == (True, "apps/v1")
        return self.workloads.get((kind, name))

    def get_pod(self, key):
        return self.pods.get(key)

    def get_shrink(self, key):
        shrink = self.shrinks.get(key)
        return self._reported(shrink) if shrink else None

    def _reported(self, shrink: MemoryShrink) -> MemoryShrink:
        """A live agent confirms a Holding all the time."""
        if shrink.status.phase is not Phase.HOLDING or self.agent_is_dead:
            return shrink
        return msgspec.structs.replace(shrink, status=msgspec.structs.replace(shrink.status, held_time=format_time(self.clock.now())))

    def resize_pod(self, key, patch):
        self.before_resize()
        pod = self._current(key, patch)
        if self.resize_errors:
            raise self.resize_errors.pop(0)
        changed = self._patched(pod, patch["spec"])
        if changed.spec != pod.spec:
            self._judge(pod, changed)
            changed = _with_metadata(changed, generation=pod.metadata.generation + 1)
            self.resizes.append(patch["spec"])
        return self._store(changed)

    def dry_run_resize(self, key, patch):
        pod = self._current(key, patch)
        self.dry_runs.append(patch["spec"])
        if self.resize_errors:
            raise self.resize_errors.pop(0)
        return self._patched(pod, patch["spec"])

    def annotate_pod(self, key, patch):
        self._fail("annotate_pod")
        pod = self._current(key, patch)
        merged = {**pod.metadata.annotations, **patch["metadata"]["annotations"]}
        kept = {name: value for name, value in merged.items() if value is not None}
        return self._store(_with_metadata(pod, annotations=kept))

    def annotate_vpa(self, key, annotations):
        self._fail("annotate_vpa")
        self._change_vpa(
            key, lambda vpa: _replace(vpa, metadata=_replace(vpa.metadata, annotations={**vpa.metadata.annotations, **annotations}))
        )
        self._wrote()

    def put_vpa_condition(self, vpa, condition):
        self._fail("put_vpa_condition")
        others = [known for known in vpa.status.conditions if known.type != condition.type]
        self._change_vpa(vpa.key, lambda vpa: _replace(vpa, status=_replace(vpa.status, conditions=[*others, condition])))
        self._wrote()

    def _change_vpa(self, key, change):
        self.vpas = [change(vpa) if vpa.key == key else vpa for vpa in self.vpas]

    def admission_renewed_at(self):
        self._fail("admission_renewed_at")
        return self.admission_renewed

    def evict_pod(self, key, uid):
        pod = self.pods.get(key)
        if pod is None:
            raise FakeApiError(404, f'pods "{key.name}" not found')
        if pod.metadata.uid != uid:
            raise FakeApiError(409, "Precondition failed: UID in precondition", api_reason="Conflict")
        if self.eviction_errors:
            raise self.eviction_errors.pop(0)
        del self.pods[key]
        self.evicted.append(key.name)
        self._wrote()

    def create_shrink(self, shrink):
        if shrink.key in self.shrinks:
            raise FakeApiError(409, f"memoryshrinks {shrink.metadata.name} already exists", api_reason="AlreadyExists")
        meta = msgspec.structs.replace(
            shrink.metadata, uid=f"shrink-{next(self._serial)}", creation_timestamp=format_time(self.clock.now())
        )
        self.shrinks[shrink.key] = msgspec.structs.replace(shrink, metadata=meta)
        self._wrote()

    def patch_shrink_intent(self, key, intent):
        shrink = self.shrinks[key]
        self.shrinks[key] = msgspec.structs.replace(shrink, spec=msgspec.structs.replace(shrink.spec, intent=intent))
        self._wrote()

    def delete_shrink(self, key):
        self.shrinks.pop(key, None)
        self._wrote()

    def record_event(self, about: ObjectRef, event_type, reason, message):
        self.events.append((reason, message))
        assert (about.kind in ("Pod", "VerticalPodAutoscaler"), event_type in ("Normal", "Warning")) == (True, True)

    # -- what others do
    def kubelet(self, verdict: str = "done", message: str = "", name: str = "web-0") -> None:
        """The kubelet looks at the pod: ``done``, ``Deferred``, ``Infeasible``, ``Error`` or ``busy``."""
        pod = self.pods[ObjectKey("shop", name)]
        since = format_time(self.clock.now())
        conditions = [READY]
        if verdict in ("Deferred", "Infeasible"):
            conditions.append(Condition("PodResizePending", "True", verdict, message, since))
        elif verdict in ("Error", "busy"):
            reason = "Error" if verdict == "Error" else ""
            conditions.append(Condition("PodResizeInProgress", "True", reason, message, since))
        statuses = pod.status.container_statuses
        if verdict == "done":
            by_name = {c.name: c.resources for c in pod.spec.containers}
            statuses = [msgspec.structs.replace(s, resources=by_name[s.name]) for s in statuses]
        status = msgspec.structs.replace(
            pod.status, conditions=conditions, observed_generation=pod.metadata.generation, container_statuses=statuses
        )
        self._store(msgspec.structs.replace(pod, status=status), write=False)

    def agent(self, phase: Phase, **status: object) -> None:
        """The agent moves the one unfinished shrink to ``phase``."""
        key, shrink = next((k, s) for k, s in self.shrinks.items() if not s.status.phase.is_terminal)
        ended = {"completion_time": format_time(self.clock.now())} if phase.is_terminal else {}
        self.shrinks[key] = msgspec.structs.replace(shrink, status=msgspec.structs.replace(shrink.status, phase=phase, **ended, **status))

    def press(self, name: str = "web-0", container: str = "app", *, ago: float = 1.0, beat_ago: float = 0.0, **told: object) -> None:
        """The node's agent tells that a container is at its limit; ``told`` replaces fields of the entry."""
        pod, now = self.pods[ObjectKey("shop", name)], self.clock.now()
        limit = (pod.actual(container) or pod.desired(container)).limits.memory_bytes or 0
        fields = {
            "namespace": "shop", "pod_name": name, "pod_uid": pod.metadata.uid, "container_name": container,
            "container_id": pod.container_status(container).container_id, "usage_bytes": int(limit * 0.97), "limit_bytes": limit,
            "reason": "NearLimit", "message": "", "growth_bytes_per_second": 0, "since": format_time(now - ago),
            "observed_time": format_time(now - ago),
        }  # fmt: skip
        entry = PressingContainer(**{**fields, **told})
        kept = [memory for memory in self.node_memories if memory.node_name != pod.spec.node_name]
        others = [one for memory in self.node_memories if memory not in kept for one in memory.status.pressing]
        others = [one for one in others if (one.pod_uid, one.container_name) != (entry.pod_uid, entry.container_name)]
        status = NodeMemoryStatus([*others, entry], len(others) + 1, format_time(now - beat_ago))
        self.node_memories = [*kept, NodeMemory(ObjectMeta(name=pod.spec.node_name), status)]

    def touch(self, name: str = "web-0") -> None:
        """Another writer changes the pod."""
        self._store(self.pods[ObjectKey("shop", name)], write=False)

    def recommend(self, *recommendations: ContainerRecommendation) -> None:
        status = _replace(self.vpas[0].status, recommendation=PodRecommendation(list(recommendations)))
        self.vpas[0] = _replace(self.vpas[0], status=status)

    # -- what tests ask
    @property
    def pod(self) -> Pod:
        return self.pods[ObjectKey("shop", "web-0")]

    @property
    def shrink(self) -> MemoryShrink:
        (shrink,) = self.shrinks.values()
        return shrink

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.events]

    def memory_limit(self, container: str = "app") -> int | None:
        return self.pod.desired(container).limits.memory_bytes

    # -- inside
    def _fail(self, method: str) -> None:
        if method in self.failing:
            raise self.failing[method]

    def _current(self, key: ObjectKey, patch: dict) -> Pod:
        pod = self.pods.get(key)
        if pod is None:
            raise FakeApiError(404, f'pods "{key.name}" not found')
        metadata = patch.get("metadata", {})
        if (metadata.get("resourceVersion"), metadata.get("uid")) != (pod.metadata.resource_version, pod.metadata.uid):
            raise FakeApiError(409, "the object has been modified", api_reason="Conflict")
        return pod

    def _patched(self, pod: Pod, spec: dict) -> Pod:
        return msgspec.structs.replace(
            pod,
            spec=msgspec.structs.replace(
                pod.spec,
                containers=_merged(pod.spec.containers, spec.get("containers", [])),
                init_containers=_merged(pod.spec.init_containers, spec.get("initContainers", [])),
                resources=_merged_resources(pod.spec.resources, spec["resources"]) if "resources" in spec else pod.spec.resources,
            ),
        )

    def _judge(self, old: Pod, new: Pod) -> None:
        """Record whatever breaks a safety rule; refuse what the API server would refuse."""
        if expected_pod_qos(new) != old.status.qos_class:
            self.violations.append("QoS class would change")
            raise FakeApiError(422, "spec: Invalid value: Pod QOS Class may not change as a result of resizing")
        for container in old.spec.containers:
            name = container.name
            was, asked, wanted = old.actual(name), old.desired(name).limits.memory_bytes, new.desired(name).limits.memory_bytes
            in_force = was.limits.memory_bytes if was else None
            if container.restarts_on_resize_of("memory"):
                continue
            if asked is not None and wanted < asked and not self._rules.memory_limit_decrease:
                self.violations.append("memory limit lowered on 1.33")
                raise FakeApiError(422, "memory limits cannot be decreased unless resizePolicy is RestartContainer")
            if in_force is not None and wanted < min(in_force, asked) and not self._held(old, name, wanted):
                self.violations.append(f"memory limit of {name} lowered from {in_force} to {wanted} without a Holding shrink")

    def _held(self, pod: Pod, container: str, limit: int) -> bool:
        return any(
            s.status.phase is Phase.HOLDING
            and s.spec.intent is Intent.PREPARE
            and (s.spec.pod.uid, s.spec.container.name, s.spec.target_bytes) == (pod.metadata.uid, container, limit)
            for s in self.shrinks.values()
        )

    def _store(self, pod: Pod, *, write: bool = True) -> Pod:
        pod = _with_metadata(pod, resource_version=str(next(self._version)))
        self.pods[pod.key] = pod
        if write:
            self._wrote()
        return pod

    def _wrote(self) -> None:
        self.writes += 1
        if self.crash_after_writes is not None and self.writes >= self.crash_after_writes:
            self.crash_after_writes = None
            raise Crash


def apply(pod: Pod, patch: dict) -> Pod:
    """``patch`` applied to the spec, and carried out at once."""
    cluster = FakeCluster(pod)
    spec = cluster._patched(pod, patch.get("spec", {})).spec
    by_name = {c.name: c.resources for c in [*spec.containers, *spec.init_containers]}
    statuses = [msgspec.structs.replace(s, resources=by_name[s.name]) for s in pod.status.container_statuses]
    status = msgspec.structs.replace(pod.status, container_statuses=statuses)
    return msgspec.structs.replace(pod, spec=spec, status=status)


def _merged(containers: list[Container], entries: list[dict]) -> list[Container]:
    by_name = {entry["name"]: entry["resources"] for entry in entries}
    unknown = set(by_name) - {c.name for c in containers}
    assert not unknown, f"patch names unknown containers {unknown}"
    merged = []
    for container in containers:
        resources = by_name.get(container.name, {})
        merged.append(
            msgspec.structs.replace(
                container,
                resources=_merged_resources(container.resources, resources),
            )
        )
    return merged


def _merged_resources(old: ResourceRequirements, patch: dict) -> ResourceRequirements:
    return ResourceRequirements(requests={**old.requests, **patch.get("requests", {})}, limits={**old.limits, **patch.get("limits", {})})


def _with_metadata(pod: Pod, **changes: object) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **changes))
