"""Where ``vpa_ippr/sandbox/builtin_types.json`` comes from: the published schemas of Kubernetes, reduced to what the sandbox needs.

Run ``python tests/sandbox/builtin_types_source.py`` to write the file anew; a test checks that it is in step.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

KUBERNETES_VERSION = "1.36.0"
TARGET = Path(__file__).parents[2] / "vpa_ippr" / "sandbox" / "builtin_types.json"
KINDS = {
    "v1": [
        "Pod", "Namespace", "Node", "Event", "ConfigMap", "Secret", "ServiceAccount", "Service", "LimitRange", "ResourceQuota",
        "PersistentVolumeClaim", "Binding",
    ],
    "apps/v1": ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"],
    "autoscaling/v1": ["Scale"],
    "autoscaling/v2": ["HorizontalPodAutoscaler"],
    "batch/v1": ["Job", "CronJob"],
    "policy/v1": ["PodDisruptionBudget", "Eviction"],
    "coordination.k8s.io/v1": ["Lease"],
    "events.k8s.io/v1": ["Event"],
    "scheduling.k8s.io/v1": ["PriorityClass"],
    "rbac.authorization.k8s.io/v1": ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"],
    "apiextensions.k8s.io/v1": ["CustomResourceDefinition"],
    "authorization.k8s.io/v1": ["SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"],
    "authentication.k8s.io/v1": ["SelfSubjectReview", "TokenReview", "TokenRequest"],
}  # fmt: skip
OPAQUE = {
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps": "any",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON": "any",
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "intOrString",
}


def published_definitions() -> dict[str, dict]:
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{KUBERNETES_VERSION}-local"
    return json.loads((folder / "_definitions.json").read_text())["$defs"]


def build() -> str:
    definitions = published_definitions()
    roots = {
        (f"{gvk['group']}/{gvk['version']}" if gvk["group"] else gvk["version"], gvk["kind"]): name
        for name, definition in definitions.items()
        for gvk in definition.get("x-kubernetes-group-version-kind", [])
    }
    types: dict[str, dict] = {}
    kinds: dict[str, str] = {}
    for api_version, names in KINDS.items():
        for kind in names:
            full = roots[api_version, kind]
            kinds[f"{api_version}/{kind}"] = short(full)
            collect(full, definitions, types)
    lines = [f"  {json.dumps(name)}: {json.dumps(types[name], separators=(',', ':'))}" for name in sorted(types)]
    header = {"kubernetes": KUBERNETES_VERSION, "kinds": kinds}
    return "{\n" + json.dumps(header, indent=1)[2:-2] + ',\n "types": {\n' + ",\n".join(lines) + "\n }\n}\n"


def collect(full: str, definitions: dict[str, dict], types: dict[str, dict]) -> None:
    name = short(full)
    if name in types:
        return
    fields: dict[str, object] = {}
    types[name] = fields
    required = set(definitions[full].get("required", []))
    for field, schema in sorted(definitions[full].get("properties", {}).items()):
        entry = {**described(schema, definitions, types), **flags(schema)}
        if field in required:
            entry["required"] = True
        fields[field] = entry["type"] if set(entry) == {"type"} else entry


def described(schema: dict, definitions: dict[str, dict], types: dict[str, dict]) -> dict[str, str]:
    return {"type": type_of(schema, definitions, types)}


def type_of(schema: dict, definitions: dict[str, dict], types: dict[str, dict]) -> str:
    if "$ref" in schema:
        full = schema["$ref"].rpartition("/")[2]
        if full in OPAQUE:
            return OPAQUE[full]
        if "properties" not in definitions[full]:
            return type_of(definitions[full], definitions, types) if "type" in definitions[full] else "any"
        collect(full, definitions, types)
        return f"#{short(full)}"
    plain = schema.get("type", "any")
    plain = next(name for name in plain if name != "null") if isinstance(plain, list) else plain
    if plain == "array":
        return f"[{type_of(schema['items'], definitions, types)}"
    if plain == "object":
        return f"{{{type_of(schema['additionalProperties'], definitions, types)}" if "additionalProperties" in schema else "any"
    return "time" if schema.get("format") == "date-time" else str(plain)


def flags(schema: dict) -> dict[str, object]:
    found: dict[str, object] = {}
    strategy = schema.get("x-kubernetes-patch-strategy")
    if strategy:
        found["strategy"] = strategy
    if "x-kubernetes-patch-merge-key" in schema:
        found["mergeKey"] = schema["x-kubernetes-patch-merge-key"]
    if "x-kubernetes-list-type" in schema:
        found["listType"] = schema["x-kubernetes-list-type"]
    if "x-kubernetes-list-map-keys" in schema:
        found["listKeys"] = schema["x-kubernetes-list-map-keys"]
    if schema.get("x-kubernetes-map-type") == "atomic":
        found["atomic"] = True
    return found


def short(full: str) -> str:
    return ".".join(full.split(".")[-3:])


if __name__ == "__main__":
    TARGET.write_text(build())
