"""The CustomResourceDefinitions that we install, as Python values; ``config/crd/*.yaml`` is generated from here.

The two ``autoscaling.k8s.io/v1`` types accept whatever upstream's accept, with the same enums, minimums and CEL rules, so that objects move
freely between the two. As upstream, no default is written in the schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vpa_ippr.api.crd_own import node_memory_definition, shrink_definition
from vpa_ippr.api.crd_parts import Schema, a_column, a_definition, a_list, a_number, a_string, a_time, an_integer, an_object
from vpa_ippr.api.names import VPA_GROUP, VPA_VERSION

_QUANTITY_PATTERN = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"


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
    condition = an_object(
        "One aspect of the object's state.",
        ["status", "type"],
        type=a_string("What the condition says something about."),
        status=a_string("True, False or Unknown."),
        lastTransitionTime={"type": "string", "format": "date-time", "description": "When the status last changed."},
        reason=a_string("A CamelCase code."),
        message=a_string("A line for people."),
        observedGeneration=an_integer("The generation that the condition was computed for.", "int64", minimum=0),
    )
    return a_list("The state of the object.", condition) | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


def _startup_boost() -> Schema:
    cpu = an_object(
        "Extra CPU while the container starts.",
        ["type"],
        type=a_string("Factor multiplies, Quantity is added.", enum=["Factor", "Quantity"]),
        factor=an_integer("The multiplier; for type Factor only.", minimum=1),
        quantity=_quantity("What is added; for type Quantity only."),
        durationSeconds=an_integer("How long after Ready the boost is kept.", minimum=0),
    )
    cpu["x-kubernetes-validations"] = [
        {"rule": "has(self.factor) == (self.type == 'Factor')", "message": "factor goes with type Factor, and only with it"},
        {"rule": "has(self.quantity) == (self.type == 'Quantity')", "message": "quantity goes with type Quantity, and only with it"},
    ]
    return an_object("Extra resources while the pod starts.", cpu=cpu)


def _container_policy() -> Schema:
    return an_object(
        "Rules for one container.",
        containerName=a_string("Name of the container, or * for all that have no policy of their own."),
        mode=a_string("Off: no recommendation and no change.", enum=["Auto", "Off"]),
        minAllowed=_quantities("The least that is recommended."),
        maxAllowed=_quantities("The most that is recommended."),
        controlledResources=a_list("The resources that are recommended; all when absent.", {"type": "string"}),
        controlledValues=a_string("Whether limits follow the requests.", enum=["RequestsAndLimits", "RequestsOnly"]),
        oomBumpUpRatio=_quantity("Memory is raised by at least this factor after an OOM kill."),
        oomMinBumpUp=_quantity("Memory is raised by at least this much after an OOM kill."),
        memoryAggregationIntervalSeconds=an_integer("Length of one window of memory peaks.", minimum=1),
        memoryAggregationIntervalCount=an_integer("Windows that are kept.", "int64", minimum=1),
        startupBoost=_startup_boost(),
    )


def _vpa_spec() -> Schema:
    target = an_object(
        "The topmost controller of the pods.",
        ["kind", "name"],
        apiVersion=a_string("API version of the controller."),
        kind=a_string("Kind of the controller."),
        name=a_string("Name of the controller."),
    ) | {"x-kubernetes-map-type": "atomic"}
    requirement = an_object(
        "One condition for an eviction.",
        ["changeRequirement", "resources"],
        resources=a_list("The resources to look at.", {"type": "string"}),
        changeRequirement=a_string(
            "In which direction the target must differ from the request.", enum=["TargetHigherThanRequests", "TargetLowerThanRequests"]
        ),
    )
    update_policy = an_object(
        "How recommendations are applied.",
        updateMode=a_string(
            "When recommendations are applied.", enum=["Off", "Initial", "Recreate", "InPlaceOrRecreate", "InPlace", "Auto"]
        ),
        minReplicas=an_integer("Fewer live replicas than this are never disrupted."),
        evictionRequirements=a_list("All must hold before a pod is evicted.", requirement),
        evictAfterOOMSeconds=an_integer("An OOM kill sooner than this after the start counts as quick.", minimum=1),
    )
    return an_object(
        "What is wanted.",
        ["targetRef"],
        targetRef=target,
        updatePolicy=update_policy,
        resourcePolicy=an_object("How recommendations are computed.", containerPolicies=a_list("Rules by container.", _container_policy())),
        recommenders=a_list(
            "The recommender that owns this object; at most one.", an_object("A recommender.", ["name"], name=a_string("Its name."))
        ),
        startupBoost=_startup_boost(),
    )


def _vpa_status() -> Schema:
    recommendation = an_object(
        "The recommendation for one container.",
        ["target"],
        containerName=a_string("Name of the container."),
        target=_quantities("What is recommended."),
        lowerBound=_quantities("Below this the container is likely too small."),
        upperBound=_quantities("Above this the container is likely too large."),
        uncappedTarget=_quantities("The target before the policy's bounds."),
    )
    return an_object(
        "What was found.",
        conditions=_conditions(),
        recommendation=an_object("The recommendation.", containerRecommendations=a_list("By container.", recommendation)),
        observedGeneration=an_integer("The generation that the status was computed for.", "int64", minimum=0),
    )


def _histogram(description: str) -> Schema:
    weights = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "description": "Bucket index to weight, scaled so that the largest is 10000.",
    }
    return an_object(
        description,
        referenceTimestamp=a_time("The time at which weights are not decayed."),
        bucketWeights=weights,
        totalWeight=a_number("Sum of all weights before scaling."),
    )


def _checkpoint() -> tuple[Schema, Schema]:
    spec = an_object(
        "Whose history this is.",
        vpaObjectName=a_string("Name of the VerticalPodAutoscaler."),
        containerName=a_string("Name of the container."),
    )
    status = an_object(
        "The history.",
        lastUpdateTime=a_time("When it was written."),
        version=a_string("Format of the histograms."),
        cpuHistogram=_histogram("CPU usage."),
        memoryHistogram=_histogram("Memory peaks."),
        firstSampleStart=a_time("Time of the first sample."),
        lastSampleStart=a_time("Time of the last sample."),
        totalSamplesCount=an_integer("Number of samples.", "int64"),
    )
    return spec, status


def definitions() -> dict[str, dict[str, Any]]:
    """All CustomResourceDefinitions, by file name stem."""
    first = ".status.recommendation.containerRecommendations[0].target"
    vpa = a_definition(
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
            a_column("Mode", ".spec.updatePolicy.updateMode"),
            a_column("CPU", f"{first}.cpu"),
            a_column("Mem", f"{first}.memory"),
            a_column("Provided", ".status.conditions[?(@.type=='RecommendationProvided')].status"),
            a_column("Age", ".metadata.creationTimestamp", "date"),
            a_column("MinReplicas", ".spec.updatePolicy.minReplicas", "integer", priority=1),
            a_column("OOMSeconds", ".spec.updatePolicy.evictAfterOOMSeconds", "integer", priority=1),
        ],
    )
    checkpoint_spec, checkpoint_status = _checkpoint()
    checkpoint = a_definition(
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
    return {
        "verticalpodautoscalers": vpa,
        "verticalpodautoscalercheckpoints": checkpoint,
        "memoryshrinks": shrink_definition(),
        "nodememories": node_memory_definition(),
    }


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
