"""A cluster and a source in memory, and a recommender on them."""

from dataclasses import replace as changed

import msgspec
import numpy as np

from vpa_ippr.api.cluster import Workload
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import ObjectKey, ObjectMeta, OwnerReference, find_condition
from vpa_ippr.api.pod import Container, Pod, PodSpec, PodStatus
from vpa_ippr.api.resources import ResourceRequirements
from vpa_ippr.api.series import ContainerRef, Finding, OomKill, Resource, Usage, UsageSeries
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import ContainerPolicy, RecommenderSelector, ResourcePolicy, TargetRef, Vpa, VpaSpec
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.recommend.cycle import RecommenderSettings
from vpa_ippr.recommend.service import RecommenderService

T = 1_767_225_600.0
CATALOGUE = load_catalogue()
OURS = [RecommenderSelector("vpa-ippr")]
KINDS = {
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
}


class Clock:
    def __init__(self, now):
        self.moment = now

    def now(self):
        return self.moment


class Source:
    """Holds all usage and gives out the part that is asked for; ``broken`` namespaces cannot be read."""

    def __init__(self, *usages):
        self.usage = Usage(
            tuple(one for usage in usages for one in usage.series),
            tuple(oom for usage in usages for oom in usage.ooms),
            {pod: owner for usage in usages for pod, owner in usage.owners.items()},
        )
        self.retention = np.inf
        self.broken = set()
        self.error = None
        self.windows = []

    def fetch(self, window, namespaces=None):
        self.windows.append((window.start, window.end, tuple(namespaces)))
        if self.error is not None:
            raise self.error
        wanted = set(namespaces) - self.broken
        start = max(window.start, window.end - self.retention)
        series = []
        for one in self.usage.series:
            part = slice(*np.searchsorted(one.timestamps, (start, window.end), side="right"))
            if one.container.namespace in wanted and len(one.timestamps[part]):
                series.append(changed(one, timestamps=one.timestamps[part], values=one.values[part]))
        ooms = [oom for oom in self.usage.ooms if start < oom.at <= window.end and oom.container.namespace in wanted]
        failures = [Finding("Timeout", name, 1, f"{name}: timed out") for name in sorted(self.broken & set(namespaces))]
        return Usage(tuple(series), tuple(ooms), self.usage.owners, failures=tuple(failures))


class Cluster:
    """VPAs, pods, owners and checkpoints; what is written can be read back."""

    def __init__(self, *vpas):
        self.vpas = {vpa.key: vpa for vpa in vpas}
        self.pods = []
        self.nodes = []
        self.workloads = {}
        self.checkpoints = {}
        self.events = []
        self.writes = []
        self.failing = {}

    def _check(self, call, key=None):
        error = self.failing.get((call, key)) or self.failing.get(call)
        if error is not None:
            raise error

    def list_vpas(self):
        return list(self.vpas.values())

    def list_pods(self):
        self._check("list_pods")
        return self.pods

    def list_nodes(self):
        self._check("list_nodes")
        return self.nodes

    def find_workload(self, namespace, api_version, kind, name):  # noqa: ARG002 - the port's signature
        self._check("find_workload", name)
        if kind not in KINDS:
            raise ValidationError(f"the cluster serves no {kind}", reason="KindUnknown")
        return self.workloads.get((namespace, kind, name))

    def list_checkpoints(self):
        self._check("list_checkpoints")
        return list(self.checkpoints.values())

    def put_checkpoint(self, checkpoint):
        self._check("put_checkpoint", checkpoint.metadata.name)
        self.checkpoints[checkpoint.metadata.name] = checkpoint

    def patch_vpa_status(self, key, status):
        self._check("patch_vpa_status", key.name)
        self.writes.append(("status", key.name))
        self.vpas[key] = msgspec.structs.replace(self.vpas[key], status=status)

    def annotate_vpa(self, key, annotations):
        self.writes.append(("annotation", key.name))
        metadata = self.vpas[key].metadata
        metadata = msgspec.structs.replace(metadata, annotations={**metadata.annotations, **annotations})
        self.vpas[key] = msgspec.structs.replace(self.vpas[key], metadata=metadata)

    def record_event(self, vpa, event_type, reason, message):  # noqa: ARG002 - the port's signature
        self.events.append((vpa.metadata.name, event_type, reason))

    def add_workload(self, kind, name, owner=None, namespace="shop"):
        controller = OwnerReference(KINDS.get(owner[0], "example.com/v1"), *owner, controller=True) if owner else None
        self.workloads[namespace, kind, name] = Workload(KINDS[kind], kind, name, controller)

    def add_pod(
        self,
        name,
        owner=None,
        namespace="shop",
        containers=("app",),
        phase="Running",
        init=(),
        resources=None,
        started=None,
        *,
        node="",
        **metadata,
    ):
        """``resources``: of every container; ``metadata``: labels and annotations."""
        owners = [OwnerReference(KINDS.get(owner[0], "v1"), *owner, controller=True)] if owner else []
        resources = resources or ResourceRequirements()
        spec = PodSpec([Container(container, resources=resources) for container in containers], list(init), node_name=node)
        status = PodStatus(phase, start_time=None if started is None else format_time(started))
        self.pods.append(Pod(ObjectMeta(name, namespace, owner_references=owners, **metadata), spec, status))

    def deploy(self, name, pods=("1",), namespace="shop", **of_pods):
        self.add_workload("Deployment", name, namespace=namespace)
        self.add_workload("ReplicaSet", f"{name}-rs", ("Deployment", name), namespace)
        for pod in pods:
            self.add_pod(f"{name}-{pod}", ("ReplicaSet", f"{name}-rs"), namespace, **of_pods)

    def status(self, name, namespace="shop"):
        return self.vpas[ObjectKey(namespace, name)].status

    def condition(self, name, kind, namespace="shop"):
        return find_condition(self.status(name, namespace).conditions, kind)

    def target(self, name, namespace="shop", container="app"):
        return self.vpas[ObjectKey(namespace, name)].recommendation_for(container).target


def a_vpa(name="web", kind="Deployment", target=None, namespace="shop", created=T, recommenders=OURS, **policies):
    policy = ResourcePolicy([ContainerPolicy(container, **rules) for container, rules in policies.items()])
    return Vpa(
        ObjectMeta(name, namespace, uid=f"uid-{name}", generation=3, creation_timestamp=format_time(created)),
        VpaSpec(TargetRef(kind, target or name, KINDS.get(kind, "")), recommenders=recommenders, resource_policy=policy),
    )


def usage_of(pod="web-1", minutes=600, namespace="shop", container="app", start=T, seed=1, ooms=(), owner=None):
    source = np.random.default_rng(seed)
    ref = ContainerRef(namespace, pod, container)
    times = start + 60.0 * np.arange(1, minutes + 1)
    return Usage(
        (
            UsageSeries(ref, Resource.CPU, times, source.gamma(2.0, 0.2, minutes)),
            UsageSeries(ref, Resource.MEMORY, times, source.uniform(2e8, 9e8, minutes)),
        ),
        tuple(OomKill(ref, at, request) for at, request in ooms),
        {(namespace, pod): owner} if owner else {},
    )


def a_service(cluster, source, now, catalogue=CATALOGUE, default_profile="vpa-classic", pod_nodes=None, **settings):
    settings = RecommenderSettings(default_profile=default_profile, **settings)
    return RecommenderService(source, cluster, Clock(now), catalogue, settings, pod_nodes=pod_nodes)


def run(cluster, source, now=T + 600 * 60, **settings):
    return at(a_service(cluster, source, now, **settings), now)


def cycles_of(start, moments, restarts=()):
    """What each cycle gives; ``start()`` makes the service, and anew before each of ``restarts`` (indices of ``moments``)."""
    service, found = start(), []
    for index, now in enumerate(moments):
        if index in restarts:
            service = start()
        found.append(at(service, now))
    return found


def at(service, now):
    """A cycle at that time, and the writing of checkpoints after it."""
    service._clock.moment = now
    result = service.run_cycle()
    service.write_checkpoints()
    return result
