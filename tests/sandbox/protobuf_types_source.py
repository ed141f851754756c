"""Where ``vpa_ippr/sandbox/protobuf_types.json`` comes from: the published protobuf types of Kubernetes, reduced to what the sandbox needs.

Run ``python tests/sandbox/protobuf_types_source.py FILE...`` with the ``generated.proto`` files of ``k8s.io/api`` and
``k8s.io/apimachinery`` of one release to write the file anew: those of every group of ``KINDS``, of the groups that these refer to, and
``meta/v1``. The present file holds Kubernetes 1.37.1, written out as proto text from the ``protobuf`` tags that kubectl's Go types carry.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

TARGET = Path(__file__).parents[2] / "vpa_ippr" / "sandbox" / "protobuf_types.json"
KINDS = {
    "v1": ["Namespace", "ConfigMap", "Secret", "ServiceAccount", "Service", "ResourceQuota"],
    "apps/v1": ["Deployment"],
    "batch/v1": ["Job", "CronJob"],
    "policy/v1": ["PodDisruptionBudget", "Eviction"],
    "scheduling.k8s.io/v1": ["PriorityClass"],
    "rbac.authorization.k8s.io/v1": ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"],
    "authorization.k8s.io/v1": ["SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"],
    "authentication.k8s.io/v1": ["SelfSubjectReview", "TokenReview", "TokenRequest"],
}
ANY_VERSION = {"DeleteOptions": "k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions"}
"""Kinds that are registered in the version of every group."""

SCALARS = {"string": "string", "bytes": "bytes", "bool": "boolean", "int32": "integer", "int64": "integer"}
# Messages whose JSON form is no object.
SPECIAL = {
    "k8s.io.apimachinery.pkg.api.resource.Quantity": "quantity",
    "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1": "json",
    "k8s.io.apimachinery.pkg.apis.meta.v1.Time": "time",
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": "intOrString",
    "k8s.io.api.authentication.v1.ExtraValue": "strings",
    "k8s.io.api.authorization.v1.ExtraValue": "strings",
}
# Embedded structs of Go: a message on the wire, but in JSON their fields stand among those of the message around them.
INLINE = {"localObjectReference", "volumeSource", "handler", "ephemeralContainerCommon"}
RENAMED = {"authentication.v1.BoundObjectReference.uID": "uid"}

# What Go holds by value and JSON omits when it is zero (``omitempty``). Go writes these into every protobuf message, so that a zero there
# says nothing; everywhere else a zero is one that the client has set. Later fields of Kubernetes are pointers, so the list is closed.
OMITTED = {
    f"{message}.{field}"
    for message, fields in {
        "apps.v1.DeploymentSpec": "minReadySeconds paused",
        "apps.v1.DeploymentStatus": "availableReplicas observedGeneration readyReplicas replicas unavailableReplicas updatedReplicas",
        "authentication.v1.TokenReviewStatus": "authenticated",
        "authorization.v1.SubjectAccessReviewStatus": "denied",
        "batch.v1.JobStatus": "active failed succeeded",
        "core.v1.AWSElasticBlockStoreVolumeSource": "partition readOnly",
        "core.v1.AzureFileVolumeSource": "readOnly",
        "core.v1.CephFSVolumeSource": "readOnly",
        "core.v1.CinderVolumeSource": "readOnly",
        "core.v1.Container": "stdin stdinOnce tty",
        "core.v1.ContainerPort": "hostPort",
        "core.v1.EphemeralContainerCommon": "stdin stdinOnce tty",
        "core.v1.FCVolumeSource": "readOnly",
        "core.v1.FlexVolumeSource": "readOnly",
        "core.v1.GCEPersistentDiskVolumeSource": "partition readOnly",
        "core.v1.GlusterfsVolumeSource": "readOnly",
        "core.v1.ISCSIVolumeSource": "chapAuthDiscovery chapAuthSession readOnly",
        "core.v1.NFSVolumeSource": "readOnly",
        "core.v1.PersistentVolumeClaimVolumeSource": "readOnly",
        "core.v1.PodSpec": "hostIPC hostNetwork hostPID",
        "core.v1.PortworxVolumeSource": "readOnly",
        "core.v1.Probe": "failureThreshold initialDelaySeconds periodSeconds successThreshold timeoutSeconds",
        "core.v1.QuobyteVolumeSource": "readOnly",
        "core.v1.RBDVolumeSource": "readOnly",
        "core.v1.ScaleIOVolumeSource": "readOnly sslEnabled",
        "core.v1.ServicePort": "nodePort",
        "core.v1.ServiceSpec": "healthCheckNodePort publishNotReadyAddresses",
        "core.v1.StorageOSVolumeSource": "readOnly",
        "core.v1.VolumeMount": "readOnly",
        "meta.v1.Condition": "observedGeneration",
        "meta.v1.ObjectMeta": "generation",
        "policy.v1.PodDisruptionBudgetStatus": "observedGeneration",
        "scheduling.v1.PriorityClass": "globalDefault",
    }.items()
    for field in fields.split()
}
# Of a text it is the other way round: an empty one says nothing, except in these.
KEPT = {
    "core.v1.HTTPHeader.value",
    "core.v1.PersistentVolumeClaimSpec.storageClassName",
    "core.v1.PodDNSConfigOption.value",
    "core.v1.TypedLocalObjectReference.apiGroup",
    "core.v1.TypedObjectReference.apiGroup",
}
MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (?:(optional|repeated) ([\w.]+)|map<string, ([\w.]+)>) (\w+) = (\d+)")

Fields = dict[str, list[str]]


def build(texts: list[str]) -> str:
    bodies: dict[str, str] = {}
    for text in texts:
        package = re.search(r"^package ([\w.]+);", text, re.MULTILINE)
        assert package is not None
        bodies |= {f"{package[1]}.{name}": body for name, body in MESSAGE.findall(text)}
    kinds: dict[str, str] = {}
    messages: dict[str, Fields] = {}
    for api_version, names in KINDS.items():
        group, _, version = api_version.rpartition("/")
        for kind in names:
            full = f"k8s.io.api.{group.partition('.')[0] or 'core'}.{version}.{kind}".replace(".rbac.authorization.", ".rbac.")
            kinds[f"{api_version}/{kind}"] = collect(full, bodies, messages)
    for kind, full in ANY_VERSION.items():
        kinds[kind] = collect(full, bodies, messages)
    unknown = (OMITTED | KEPT) - {f"{name}.{field}" for name, fields in messages.items() for field, *_ in fields.values()}
    assert not unknown, unknown
    lines = [f"  {json.dumps(name)}: {json.dumps(messages[name], separators=(',', ':'))}" for name in sorted(messages)]
    return "{\n" + json.dumps({"kinds": kinds}, indent=1)[2:-2] + ',\n "messages": {\n' + ",\n".join(lines) + "\n }\n}\n"


def collect(full: str, bodies: dict[str, str], messages: dict[str, Fields]) -> str:
    """Adds the message and those in it; returns its short name."""
    name = ".".join(full.split(".")[-3:])
    if name in messages:
        return name
    messages[name] = fields = {}
    for line in bodies[full].splitlines():
        found = FIELD.match(line)
        if not found:
            continue
        label, plain, value, field, number = found.groups()
        kind = type_of(value or plain, full, bodies, messages)
        fields[number] = [RENAMED.get(f"{name}.{field}", field), kind]
        mode = mode_of(f"{name}.{field}", label)
        if mode:
            fields[number].append(mode)
    return name


def mode_of(path: str, label: str | None) -> str:
    if label is None:
        return "map"
    if label == "repeated":
        return "repeated"
    if path.rpartition(".")[2] in INLINE:
        return "inline"
    if path in OMITTED:
        return "omitted"
    return "kept" if path in KEPT else ""


def type_of(written: str, owner: str, bodies: dict[str, str], messages: dict[str, Fields]) -> str:
    if written in SCALARS:
        return SCALARS[written]
    written = written.removeprefix(".")
    full = written if "." in written else f"{owner.rpartition('.')[0]}.{written}"
    return SPECIAL.get(full) or collect(full, bodies, messages)


if __name__ == "__main__":
    TARGET.write_text(build([Path(name).read_text() for name in sys.argv[1:]]))
