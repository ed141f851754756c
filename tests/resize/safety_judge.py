"""A judge of every write that reaches the API server: it knows the documented rules and what the cluster holds at the moment of the write.

It asks the updater nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import msgspec
from resize_support import (
    FakeApiError,
    FakeCluster,
    expected_pod_qos,
)

from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.names import ANNOTATION_CPU_BOOST_PREFIX
from vpa_ippr.api.pdb import LabelSelector, PdbSpec, PdbStatus, PodDisruptionBudget
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.quota import ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus
from vpa_ippr.api.resources import parse_amounts
from vpa_ippr.api.shrink import Intent, Phase
from vpa_ippr.api.timestamps import parse_time

REPLICAS = {"web": 4, "api": 3}
EVICTING = ("Recreate", "Auto", "InPlaceOrRecreate")
IN_PLACE = ("InPlaceOrRecreate", "InPlace")
RESOURCES = ("cpu", "memory")
HELD_SECONDS = 120.0
PAGE_BYTES = 4096
_replace = msgspec.structs.replace
Flat = dict[tuple[str, str, str], int]


def flat(containers) -> Flat:
    """Every amount by container name, side and resource; null and zero are no amounts."""
    found: Flat = {}
    for container in containers:
        for side in ("requests", "limits"):
            stated = {name: amount for name, amount in getattr(container.resources, side).items() if amount is not None}
            amounts = parse_amounts(stated, "")
            for resource, amount in zip(RESOURCES, (amounts.cpu_millicores, amounts.memory_bytes), strict=True):
                found |= {(container.name, side, resource): amount} if amount else {}
    return found


def workload_of(name: str) -> str:
    return name.rpartition("-")[0]


def is_ready(pod: Pod) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)


def is_serving(pod: Pod) -> bool:
    """Ready, stays, and no container of it is about to be restarted; a plain resize under way disturbs nobody."""
    asked, in_force = flat(pod.spec.containers), flat(pod.status.container_statuses)
    restarts = any(in_force.get(key) != amount and pod.container(key[0]).restarts_on_resize_of(key[2]) for key, amount in asked.items())
    return is_ready(pod) and not restarts and not pod.metadata.deletion_timestamp


@dataclass
class Refusal:
    """The API's answer to the write after ``skip`` others; ``is_lost``: what was asked is done all the same."""

    status: int
    skip: int
    is_lost: bool = False


class JudgedCluster(FakeCluster):
    """Every write may be refused, or its answer lost, and every write is judged when it is done."""

    def __init__(self, *pods: Pod, **how) -> None:
        super().__init__(*pods, **how)
        self.refusal: Refusal | None = None
        self.least_available: dict[str, int] = {}
        self.quota_gib: int | None = None
        self.live_at_start: dict[str, int] = {}
        self.held_before: dict[str, dict] = defaultdict(lambda: defaultdict(set))
        for pod in pods:
            self.note(pod)

    def note(self, pod: Pod) -> None:
        for key, amount in flat(pod.spec.containers).items():
            self.held_before[pod.metadata.uid][key].add(amount)

    def of(self, workload: str) -> list[Pod]:
        return [pod for key, pod in self.pods.items() if workload_of(key.name) == workload]

    def vpa_named(self, workload: str):
        return next((vpa for vpa in self.vpas if vpa.metadata.name == workload), None)

    # -- what the API server computes
    def list_pdbs(self):
        return [
            PodDisruptionBudget(
                ObjectMeta(name=workload, namespace="shop"),
                PdbSpec(LabelSelector({"app": workload})),
                PdbStatus(max(0, self._healthy(workload) - least), self._healthy(workload), least),
            )
            for workload, least in self.least_available.items()
        ]

    def _healthy(self, workload: str) -> int:
        return sum(is_ready(pod) and not pod.metadata.deletion_timestamp for pod in self.of(workload))

    def list_quotas(self):
        if self.quota_gib is None:
            return []
        used = sum(flat(pod.spec.containers).get(("app", "requests", "memory"), 0) for pod in self.pods.values())
        hard = {"requests.memory": f"{self.quota_gib}Gi"}
        return [
            ResourceQuota(
                ObjectMeta(name="all", namespace="shop"), ResourceQuotaSpec(hard), ResourceQuotaStatus(hard, {"requests.memory": str(used)})
            )
        ]

    # -- writes, each of which may be refused
    def _answered(self, write, *arguments):
        refusal = self.refusal
        if refusal is None:
            return write(*arguments)
        if refusal.skip > 0:
            refusal.skip -= 1
            return write(*arguments)
        self.refusal = None
        if refusal.is_lost:
            write(*arguments)
            raise ClusterError("the connection was closed before an answer came")
        raise FakeApiError(refusal.status, "scripted")

    def resize_pod(self, key, patch):
        return self._answered(super().resize_pod, key, patch)

    def annotate_pod(self, key, patch):
        return self._answered(super().annotate_pod, key, patch)

    def annotate_vpa(self, key, annotations):
        return self._answered(super().annotate_vpa, key, annotations)

    def put_vpa_condition(self, vpa, condition):
        return self._answered(super().put_vpa_condition, vpa, condition)

    def create_shrink(self, shrink):
        return self._answered(super().create_shrink, shrink)

    def patch_shrink_intent(self, key, intent):
        return self._answered(super().patch_shrink_intent, key, intent)

    def delete_shrink(self, key):
        return self._answered(super().delete_shrink, key)

    def evict_pod(self, key, uid):
        return self._answered(self._evict, key, uid)

    def _evict(self, key, uid):
        pod = self.pods.get(key)
        if pod is not None and pod.metadata.uid == uid:
            workload = workload_of(key.name)
            least = self.least_available.get(workload)
            if least is not None and is_ready(pod) and self._healthy(workload) <= least:
                raise FakeApiError(429, "Cannot evict pod as it would violate the pod's disruption budget.", "DisruptionBudget")
            vpa = self.vpa_named(workload)
            if vpa is None or vpa.update_mode not in EVICTING:
                self._blame(pod, "evicted although its mode does not evict")
            self._judge_disturbance(pod, "evicted")
        super().evict_pod(key, uid)

    # -- the judge
    def _blame(self, pod: Pod, what: str) -> None:
        self.violations.append(f"{pod.metadata.name}: {what}")

    def _judge(self, old: Pod, new: Pod) -> None:
        stated = [side for one in new.spec.containers for side in (one.resources.requests, one.resources.limits)]
        if any(amount is None for side in stated for amount in side.values()):
            self._blame(old, "a patch with null, which removes an amount")
            raise FakeApiError(422, "scripted")
        super()._judge(old, new)
        before, after = flat(old.spec.containers), flat(new.spec.containers)
        for gone in sorted(before.keys() - after.keys()):
            self._blame(old, f"{gone} removed")
        if expected_pod_qos(new) != expected_pod_qos(old):
            self._blame(old, "QoS class changed")
        changed = {key: amount for key, amount in after.items() if before.get(key) != amount}
        self._judge_memory_limits(old, before, changed)
        self._judge_mode(old, changed)
        in_force = flat(old.status.container_statuses)
        restarting = [
            key for key, amount in changed.items() if in_force.get(key) != amount and old.container(key[0]).restarts_on_resize_of(key[2])
        ]
        if restarting:
            self._judge_disturbance(old, "restarted")
        self.note(new)

    def _judge_memory_limits(self, pod: Pod, before: Flat, changed: Flat) -> None:
        in_force = flat(pod.status.container_statuses)
        for (name, side, resource), wanted in changed.items():
            if (side, resource) != ("limits", "memory") or pod.container(name).restarts_on_resize_of("memory"):
                continue
            known = [amounts[name, side, resource] for amounts in (before, in_force) if (name, side, resource) in amounts]
            if not known:
                self._blame(pod, f"{name} got a memory limit that it had not")
            elif wanted < min(known) and not self._is_held_at(pod, name, wanted):
                self._blame(pod, f"memory limit of {name} lowered from {min(known)} to {wanted} without a live Holding for it")

    def _is_held_at(self, pod: Pod, container: str, limit: int) -> bool:
        for shrink in self.list_shrinks():
            spec, status = shrink.spec, shrink.status
            wanted = (pod.metadata.uid, container, pod.container_status(container).container_id, limit, Intent.PREPARE)
            same = (spec.pod.uid, spec.container.name, spec.container.id, spec.target_bytes, spec.intent) == wanted
            fresh = status.held_time is not None and self.clock.now() - parse_time(status.held_time) <= HELD_SECONDS
            if same and fresh and status.phase is Phase.HOLDING:
                return True
        return False

    def _judge_mode(self, pod: Pod, changed: Flat) -> None:
        """Where nothing new may be begun, a resize brings back only what the container had before, or ends its startup boost."""
        vpa = self.vpa_named(workload_of(pod.metadata.name))
        if vpa is not None and vpa.update_mode in IN_PLACE:
            return
        for key, amount in changed.items():
            if key[2] == "cpu" and ANNOTATION_CPU_BOOST_PREFIX + key[0] in pod.metadata.annotations:
                continue
            # One page more than before is a nudge: a raise that is done is followed up where its cgroup may not have got it (#138760).
            known = self.held_before[pod.metadata.uid][key]
            if amount not in known and not (key[2] == "memory" and amount - PAGE_BYTES in known):
                self._blame(pod, f"{key} set to {amount} in mode {vpa.update_mode if vpa else 'none'}")

    def _judge_disturbance(self, pod: Pod, how: str) -> None:
        """A pod that serves is taken out of service: enough others have to serve at this very moment."""
        workload = workload_of(pod.metadata.name)
        vpa, configured = self.vpa_named(workload), REPLICAS[workload]
        policy = vpa.spec.update_policy if vpa else None
        least = (policy.min_replicas if policy else None) or 2
        if self.live_at_start.get(workload, 0) < least:
            self._blame(pod, f"{how} although there are fewer than minReplicas {least}")
        if not is_serving(pod):
            return
        others = [one for one in self.of(workload) if one.key != pod.key]
        serving, needed = sum(is_serving(one) for one in others), configured - configured // 2
        if serving < needed:
            self._blame(pod, f"{how} while only {serving} others of {configured} serve")
        available = self.least_available.get(workload)
        if available is not None and serving < available:
            self._blame(pod, f"{how} while {serving} others serve and its PodDisruptionBudget wants {available}")
