"""The CustomResourceDefinitions that we install, as Python values; ``config/crd/*.yaml`` is generated from here.

The two ``autoscaling.k8s.io/v1`` types accept whatever upstream's accept, with the same enums, minimums and CEL rules, so that objects move
freely between the two. As upstream, no default is written in the schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vpa_ippr.api.names import OWN_GROUP, SHRINK_VERSION, VPA_GROUP, VPA_VERSION
from vpa_ippr.api.shrink import Intent, Phase

Schema = dict[str, Any]

_QUANTITY_PATTERN = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"


def _object(description: str, required: list[str] | None = None, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "description": description, "properties": properties}
    return schema | ({"required": required} if required else {})


def _string(description: str, **more: object) -> Schema:
    return {"type": "string", "description": description, **more}


def _integer(description: str, form: str = "int32", **more: object) -> Schema:
    return {"type": "integer", "format": form, "description": description, **more}


def _number(description: str, **more: object) -> Schema:
    return {"type": "number", "description": description, **more}


def _list(description: str, items: Schema, **more: object) -> Schema:
    return {"type": "array", "description": description, "items": items, **more}


def _time(description: str) -> Schema:
    return {"type": "string", "format": "date-time", "nullable": True, "description": description}


def _quantity(description: str) -> Schema:
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": _QUANTITY_PATTERN,
        "x-kubernetes-int-or-string": True,
        "description": description,
    }


def _quantities(description: str) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": _quantity("An amount.")}


def _conditions() -> Schema:
    condition = _object(
        "One aspect of the object's state.",
        ["status", "type"],
        type=_string("What the condition says something about."),
        status=_string("True, False or Unknown."),
        lastTransitionTime={"type": "string", "format": "date-time", "description": "When the status last changed."},
        reason=_string("A CamelCase code."),
        message=_string("A line for people."),
        observedGeneration=_integer("The generation that the condition was computed for.", "int64", minimum=0),
    )
    return _list("The state of the object.", condition) | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


def _startup_boost() -> Schema:
    cpu = _object(
        "Extra CPU while the container starts.",
        ["type"],
        type=_string("Factor multiplies, Quantity is added.", enum=["Factor", "Quantity"]),
        factor=_integer("The multiplier; for type Factor only.", minimum=1),
        quantity=_quantity("What is added; for type Quantity only."),
        durationSeconds=_integer("How long after Ready the boost is kept.", minimum=0),
    )
    cpu["x-kubernetes-validations"] = [
        {"rule": "has(self.factor) == (self.type == 'Factor')", "message": "factor goes with type Factor, and only with it"},
        {"rule": "has(self.quantity) == (self.type == 'Quantity')", "message": "quantity goes with type Quantity, and only with it"},
    ]
    return _object("Extra resources while the pod starts.", cpu=cpu)


def _container_policy() -> Schema:
    return _object(
        "Rules for one container.",
        containerName=_string("Name of the container, or * for all that have no policy of their own."),
        mode=_string("Off: no recommendation and no change.", enum=["Auto", "Off"]),
        minAllowed=_quantities("The least that is recommended."),
        maxAllowed=_quantities("The most that is recommended."),
        controlledResources=_list("The resources that are recommended; all when absent.", {"type": "string"}),
        controlledValues=_string("Whether limits follow the requests.", enum=["RequestsAndLimits", "RequestsOnly"]),
        oomBumpUpRatio=_quantity("Memory is raised by at least this factor after an OOM kill."),
        oomMinBumpUp=_quantity("Memory is raised by at least this much after an OOM kill."),
        memoryAggregationIntervalSeconds=_integer("Length of one window of memory peaks.", minimum=1),
        memoryAggregationIntervalCount=_integer("Windows that are kept.", "int64", minimum=1),
        startupBoost=_startup_boost(),
    )


def _vpa_spec() -> Schema:
    target = _object(
        "The topmost controller of the pods.",
        ["kind", "name"],
        apiVersion=_string("API version of the controller."),
        kind=_string("Kind of the controller."),
        name=_string("Name of the controller."),
    ) | {"x-kubernetes-map-type": "atomic"}
    requirement = _object(
        "One condition for an eviction.",
        ["changeRequirement", "resources"],
        resources=_list("The resources to look at.", {"type": "string"}),
        changeRequirement=_string(
            "In which direction the target must differ from the request.", enum=["TargetHigherThanRequests", "TargetLowerThanRequests"]
        ),
    )
    update_policy = _object(
        "How recommendations are applied.",
        updateMode=_string(
            "When recommendations are applied.", enum=["Off", "Initial", "Recreate", "InPlaceOrRecreate", "InPlace", "Auto"]
        ),
        minReplicas=_integer("Fewer live replicas than this are never disrupted."),
        evictionRequirements=_list("All must hold before a pod is evicted.", requirement),
        evictAfterOOMSeconds=_integer("An OOM kill sooner than this after the start counts as quick.", minimum=1),
    )
    return _object(
        "What is wanted.",
        ["targetRef"],
        targetRef=target,
        updatePolicy=update_policy,
        resourcePolicy=_object("How recommendations are computed.", containerPolicies=_list("Rules by container.", _container_policy())),
        recommenders=_list(
            "The recommender that owns this object; at most one.", _object("A recommender.", ["name"], name=_string("Its name."))
        ),
        startupBoost=_startup_boost(),
    )


def _vpa_status() -> Schema:
    recommendation = _object(
        "The recommendation for one container.",
        ["target"],
        containerName=_string("Name of the container."),
        target=_quantities("What is recommended."),
        lowerBound=_quantities("Below this the container is likely too small."),
        upperBound=_quantities("Above this the container is likely too large."),
        uncappedTarget=_quantities("The target before the policy's bounds."),
    )
    return _object(
        "What was found.",
        conditions=_conditions(),
        recommendation=_object("The recommendation.", containerRecommendations=_list("By container.", recommendation)),
        observedGeneration=_integer("The generation that the status was computed for.", "int64", minimum=0),
    )


def _histogram(description: str) -> Schema:
    weights = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "description": "Bucket index to weight, scaled so that the largest is 10000.",
    }
    return _object(
        description,
        referenceTimestamp=_time("The time at which weights are not decayed."),
        bucketWeights=weights,
        totalWeight=_number("Sum of all weights before scaling."),
    )


def _checkpoint() -> tuple[Schema, Schema]:
    spec = _object(
        "Whose history this is.",
        vpaObjectName=_string("Name of the VerticalPodAutoscaler."),
        containerName=_string("Name of the container."),
    )
    status = _object(
        "The history.",
        lastUpdateTime=_time("When it was written."),
        version=_string("Format of the histograms."),
        cpuHistogram=_histogram("CPU usage."),
        memoryHistogram=_histogram("Memory peaks."),
        firstSampleStart=_time("Time of the first sample."),
        lastSampleStart=_time("Time of the last sample."),
        totalSamplesCount=_integer("Number of samples.", "int64"),
    )
    return spec, status


def _shrink_spec() -> Schema:
    policy = _object(
        "What is different from the agent's own policy.",
        stepPercent=_number("Share of usage reclaimed in a step, in percent.", minimum=0.1, maximum=10),
        settleSeconds=_number("Time to watch after a step.", minimum=1, maximum=300),
        stabilitySeconds=_number("Time that usage must stay below the target before the limit goes down.", minimum=1, maximum=3600),
        maxPressurePercent=_number("Memory pressure (PSI some) above which stepping pauses.", minimum=0, maximum=100),
        maxRefaultPercent=_number("Refaulted share of what a step freed above which stepping pauses.", minimum=0, maximum=100),
        floorBytes=_integer("Usage is not brought below this.", "int64", minimum=0),
    )
    spec = _object(
        "What is asked of the node's agent; immutable but for intent.",
        ["container", "nodeName", "pod", "targetBytes"],
        pod=_object("The pod.", ["name", "uid"], name=_string("Its name.", minLength=1), uid=_string("Its UID.", minLength=1)),
        nodeName=_string("The node that runs the pod.", minLength=1),
        container=_object(
            "The container.",
            ["id", "name"],
            name=_string("Its name.", minLength=1),
            id=_string("Its runtime id, scheme included.", minLength=1),
        ),
        targetBytes=_integer("The memory limit to prepare for.", "int64", minimum=1),
        deadlineSeconds=_integer("After this long the shrink is given up and undone.", minimum=1, maximum=86400, default=900),
        policy=policy,
        intent=_string("Abort asks the agent to undo what it did.", enum=[intent.value for intent in Intent]),
    )
    frozen = ["pod", "nodeName", "container", "targetBytes", "deadlineSeconds"]
    spec["x-kubernetes-validations"] = [
        {"rule": f"self.{name} == oldSelf.{name}", "message": f"{name} is immutable"} for name in frozen
    ] + [
        {
            "rule": "has(self.policy) == has(oldSelf.policy) && (!has(self.policy) || self.policy == oldSelf.policy)",
            "message": "policy is immutable",
        }
    ]
    return spec


def _shrink_status() -> Schema:
    return _object(
        "What the agent did and saw.",
        phase=_string("Where the shrink is.", enum=[phase.value for phase in Phase]),
        reason=_string("A CamelCase code."),
        message=_string("A line for people."),
        currentHighBytes=_integer("memory.high as last written; absent means max.", "int64"),
        usageBytes=_integer("memory.current at the last look.", "int64"),
        floorBytes=_integer("Below this nothing can or should be reclaimed.", "int64"),
        memoryPressurePercent=_number("PSI memory some over the last settle window."),
        ioPressurePercent=_number("PSI io some over the last settle window."),
        steps=_integer("Reclaim steps made."),
        backoffs=_integer("Times that stepping paused for pressure."),
        startTime=_time("When the agent took it up."),
        transitionTime=_time("When the phase last changed."),
        heldTime=_time("When usage was last seen held below the target; in Holding only."),
        completionTime=_time("When it became terminal."),
        observedGeneration=_integer("The generation that the agent acted on.", "int64", minimum=0),
    )


def _column(name: str, path: str, kind: str = "string", **more: object) -> dict[str, object]:
    return {"name": name, "type": kind, "jsonPath": path, **more}


def _definition(group: str, version: str, names: dict[str, Any], schema: Schema, **version_fields: object) -> dict[str, Any]:
    root = _object(
        f"{names['kind']} of {group}.",
        ["spec"] if "required" in schema["spec"] else None,
        apiVersion=_string("Version of the schema."),
        kind=_string("The kind of the object."),
        metadata={"type": "object"},
        **schema,
    )
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{group}"},
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced",
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": root}, **version_fields}],
        },
    }


def definitions() -> dict[str, dict[str, Any]]:
    """All CustomResourceDefinitions, by file name stem."""
    first = ".status.recommendation.containerRecommendations[0].target"
    vpa = _definition(
        VPA_GROUP,
        VPA_VERSION,
        {
            "plural": "verticalpodautoscalers",
            "singular": "verticalpodautoscaler",
            "kind": "VerticalPodAutoscaler",
            "listKind": "VerticalPodAutoscalerList",
            "shortNames": ["vpa"],
        },
        {"spec": _vpa_spec(), "status": _vpa_status()},
        subresources={"status": {}},
        additionalPrinterColumns=[
            _column("Mode", ".spec.updatePolicy.updateMode"),
            _column("CPU", f"{first}.cpu"),
            _column("Mem", f"{first}.memory"),
            _column("Provided", ".status.conditions[?(@.type=='RecommendationProvided')].status"),
            _column("Age", ".metadata.creationTimestamp", "date"),
            _column("MinReplicas", ".spec.updatePolicy.minReplicas", "integer", priority=1),
            _column("OOMSeconds", ".spec.updatePolicy.evictAfterOOMSeconds", "integer", priority=1),
        ],
    )
    checkpoint_spec, checkpoint_status = _checkpoint()
    checkpoint = _definition(
        VPA_GROUP,
        VPA_VERSION,
        {
            "plural": "verticalpodautoscalercheckpoints",
            "singular": "verticalpodautoscalercheckpoint",
            "kind": "VerticalPodAutoscalerCheckpoint",
            "listKind": "VerticalPodAutoscalerCheckpointList",
            "shortNames": ["vpacheckpoint"],
        },
        {"spec": checkpoint_spec, "status": checkpoint_status},
    )
    for crd in (vpa, checkpoint):  # groups under k8s.io are protected: KEP-1111
        crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/63797"}
    shrink = _definition(
        OWN_GROUP,
        SHRINK_VERSION,
        {
            "plural": "memoryshrinks",
            "singular": "memoryshrink",
            "kind": "MemoryShrink",
            "listKind": "MemoryShrinkList",
            "shortNames": ["mshrink"],
        },
        {"spec": _shrink_spec(), "status": _shrink_status()},
        subresources={"status": {}},
        additionalPrinterColumns=[
            _column("Pod", ".spec.pod.name"),
            _column("Container", ".spec.container.name"),
            _column("Target", ".spec.targetBytes", "integer"),
            _column("Usage", ".status.usageBytes", "integer"),
            _column("Phase", ".status.phase"),
            _column("Reason", ".status.reason"),
            _column("Age", ".metadata.creationTimestamp", "date"),
        ],
    )
    return {"verticalpodautoscalers": vpa, "verticalpodautoscalercheckpoints": checkpoint, "memoryshrinks": shrink}


def render(definition: dict[str, Any]) -> str:
    """The YAML text of one definition, as it is committed."""
    import yaml

    return "# Generated by `make crds` from vpa_ippr/api/crd.py.\n" + yaml.safe_dump(definition, sort_keys=False, width=120)


def write(directory: Path) -> None:
    """Write every definition into ``directory``."""
    for name, definition in definitions().items():
        (directory / f"{name}.yaml").write_text(render(definition), encoding="utf-8")


if __name__ == "__main__":
    import sys

    write(Path(sys.argv[1]))
