"""The defaults that the API server fills into built-in objects other than pods, as far as a client can see them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
TemplateDefaults = Callable[[Json], Json]

_ROLLING = {"maxUnavailable": "25%", "maxSurge": "25%"}
JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"


def fill_defaults(key: str, obj: Json, template_defaults: TemplateDefaults) -> None:
    """Fill the defaults of an object of the resource ``key`` in place; ``template_defaults`` does so for a pod template."""
    filler = _FILLERS.get(key)
    if filler is not None:
        filler(obj, template_defaults)


def prepare_status(key: str, obj: Json, old: Json | None) -> None:
    """Set the status that a new object starts with; a status in the request is not kept."""
    if key == "nodes" and old is None:
        return
    obj.pop("status", None)
    initial = _INITIAL_STATUS.get(key)
    if initial is not None:
        obj["status"] = dict(initial)


_INITIAL_STATUS: dict[str, Json] = {
    "namespaces": {"phase": "Active"},
    "persistentvolumeclaims": {"phase": "Pending"},
    "services": {"loadBalancer": {}},
    "deployments.apps": {},
    "replicasets.apps": {"replicas": 0},
    "statefulsets.apps": {"replicas": 0},
    "daemonsets.apps": {"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0},
    "jobs.batch": {},
    "cronjobs.batch": {},
    "resourcequotas": {},
    "poddisruptionbudgets.policy": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
    "horizontalpodautoscalers.autoscaling": {"desiredReplicas": 0, "currentMetrics": None},
}


def _set(target: Json, **values: Any) -> None:
    for name, value in values.items():
        if target.get(name) is None:
            target[name] = value


def _template(spec: Json, template_defaults: TemplateDefaults) -> None:
    if isinstance(spec.get("template"), dict):
        spec["template"] = template_defaults(spec["template"])
        spec["template"].setdefault("metadata", {})


def _namespace(obj: Json, _: TemplateDefaults) -> None:
    name = obj["metadata"]["name"]
    obj["metadata"]["labels"] = {**(obj["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": name}
    obj.setdefault("spec", {})
    if not obj["metadata"].get("deletionTimestamp"):
        _set(obj["spec"], finalizers=["kubernetes"])


def _secret(obj: Json, _: TemplateDefaults) -> None:
    _set(obj, type="Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in plain.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def _service(obj: Json, _: TemplateDefaults) -> None:
    spec = obj.setdefault("spec", {})
    _set(spec, type="ClusterIP", sessionAffinity="None", internalTrafficPolicy="Cluster")
    digest = hashlib.sha256(f"{obj['metadata'].get('namespace')}/{obj['metadata']['name']}".encode()).digest()
    if spec["type"] != "ExternalName":
        _set(spec, clusterIP=f"10.96.{digest[0]}.{digest[1]}", ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
        _set(spec, clusterIPs=[spec["clusterIP"]])
    for port in spec.get("ports") or []:
        _set(port, protocol="TCP", targetPort=port.get("port"))


def _claim(obj: Json, _: TemplateDefaults) -> None:
    _set(obj.setdefault("spec", {}), volumeMode="Filesystem")


def _deployment(obj: Json, template_defaults: TemplateDefaults) -> None:
    spec = obj.setdefault("spec", {})
    _set(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600, strategy={})
    _set(spec["strategy"], type="RollingUpdate")
    if spec["strategy"]["type"] == "RollingUpdate":
        _set(spec["strategy"], rollingUpdate={})
        _set(spec["strategy"]["rollingUpdate"], **_ROLLING)
    _template(spec, template_defaults)


def _replica_set(obj: Json, template_defaults: TemplateDefaults) -> None:
    _set(obj.setdefault("spec", {}), replicas=1)
    _template(obj["spec"], template_defaults)


def _stateful_set(obj: Json, template_defaults: TemplateDefaults) -> None:
    spec = obj.setdefault("spec", {})
    _set(spec, replicas=1, revisionHistoryLimit=10, podManagementPolicy="OrderedReady", updateStrategy={})
    _set(spec, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Retain"})
    _set(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _set(spec["updateStrategy"], rollingUpdate={})
        _set(spec["updateStrategy"]["rollingUpdate"], partition=0)
    _template(spec, template_defaults)


def _daemon_set(obj: Json, template_defaults: TemplateDefaults) -> None:
    spec = obj.setdefault("spec", {})
    _set(spec, revisionHistoryLimit=10, updateStrategy={})
    _set(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _set(spec["updateStrategy"], rollingUpdate={})
        _set(spec["updateStrategy"]["rollingUpdate"], maxUnavailable=1, maxSurge=0)
    _template(spec, template_defaults)


def _job_spec(spec: Json, template_defaults: TemplateDefaults) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        _set(spec, completions=1)
    _set(spec, parallelism=1, backoffLimit=6, completionMode="NonIndexed", suspend=False, podReplacementPolicy="TerminatingOrFailed")
    _template(spec, template_defaults)


def _job(obj: Json, template_defaults: TemplateDefaults) -> None:
    spec = obj.setdefault("spec", {})
    _job_spec(spec, template_defaults)
    uid = obj["metadata"].get("uid")
    if spec.get("selector") is None and uid and isinstance(spec.get("template"), dict):
        labels = {JOB_UID_LABEL: uid, "controller-uid": uid, JOB_NAME_LABEL: obj["metadata"]["name"], "job-name": obj["metadata"]["name"]}
        metadata = spec["template"]["metadata"]
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
        spec["selector"] = {"matchLabels": {JOB_UID_LABEL: uid}}


def _cron_job(obj: Json, template_defaults: TemplateDefaults) -> None:
    spec = obj.setdefault("spec", {})
    _set(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    template = spec.get("jobTemplate")
    if isinstance(template, dict) and isinstance(template.get("spec"), dict):
        _template(template["spec"], template_defaults)


def _autoscaler(obj: Json, _: TemplateDefaults) -> None:
    _set(obj.setdefault("spec", {}), minReplicas=1)


def _binding(obj: Json, _: TemplateDefaults) -> None:
    _set(obj.setdefault("roleRef", {}), apiGroup="rbac.authorization.k8s.io")
    for subject in obj.get("subjects") or []:
        if subject.get("kind") in ("User", "Group"):
            _set(subject, apiGroup="rbac.authorization.k8s.io")


_FILLERS: dict[str, Callable[[Json, TemplateDefaults], None]] = {
    "namespaces": _namespace,
    "secrets": _secret,
    "services": _service,
    "persistentvolumeclaims": _claim,
    "deployments.apps": _deployment,
    "replicasets.apps": _replica_set,
    "statefulsets.apps": _stateful_set,
    "daemonsets.apps": _daemon_set,
    "jobs.batch": _job,
    "cronjobs.batch": _cron_job,
    "horizontalpodautoscalers.autoscaling": _autoscaler,
    "rolebindings.rbac.authorization.k8s.io": _binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _binding,
}
