import msgspec
import pytest

from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.validation import validate_shrink, validate_vpa
from vpa_ippr.api.vpa import Vpa


def a_vpa(**spec: object) -> Vpa:
    base = {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}} | spec
    return msgspec.convert({"metadata": {"name": "web", "namespace": "shop"}, "spec": base}, Vpa)


def with_policy(**policy: object) -> Vpa:
    return a_vpa(resourcePolicy={"containerPolicies": [{"containerName": "*"} | policy]})


@pytest.mark.parametrize(
    "vpa",
    [
        a_vpa(),
        a_vpa(updatePolicy={"updateMode": "InPlace", "minReplicas": 1, "evictAfterOOMSeconds": 60}),
        a_vpa(recommenders=[{"name": "vpa-ippr"}]),
        a_vpa(startupBoost={"cpu": {"type": "Factor", "factor": 2}}),
        with_policy(minAllowed={"cpu": "100m", "memory": "1Gi"}, maxAllowed={"cpu": 1, "memory": "1Gi"}),
        with_policy(controlledResources=[], controlledValues="RequestsOnly", mode="Off"),
        with_policy(oomBumpUpRatio="1.2", oomMinBumpUp=0, memoryAggregationIntervalSeconds=1, memoryAggregationIntervalCount=1),
    ],
    ids=["plain", "update-policy", "recommender", "boost", "bounds", "controlled", "oom"],
)
def test_valid_objects_break_no_rule(vpa: Vpa) -> None:
    assert validate_vpa(vpa) == ()


@pytest.mark.parametrize(
    ("vpa", "line"),
    [
        (msgspec.convert({"metadata": {"name": "x"}, "spec": {}}, Vpa), "spec.targetRef: required"),
        (a_vpa(targetRef={"kind": "", "name": "web"}), "spec.targetRef.kind: required"),
        (a_vpa(recommenders=[{"name": "a"}, {"name": "b"}]), "spec.recommenders: at most one"),
        (a_vpa(updatePolicy={}), "spec.updatePolicy.updateMode: required"),
        (a_vpa(updatePolicy={"updateMode": "Sometimes"}), "'Sometimes' is not one of Off, Initial"),
        (a_vpa(updatePolicy={"updateMode": "Off", "minReplicas": 0}), "minReplicas: must be greater than 0"),
        (a_vpa(updatePolicy={"updateMode": "Off", "evictAfterOOMSeconds": 0}), "evictAfterOOMSeconds: must be at least 1"),
        (
            a_vpa(updatePolicy={"updateMode": "Off", "evictionRequirements": [{"resources": ["cpu"], "changeRequirement": "Up"}]}),
            "evictionRequirements[0].changeRequirement: 'Up' is not one of",
        ),
        (a_vpa(startupBoost={"cpu": {"type": "Factor"}}), "spec.startupBoost.cpu.factor: goes with type Factor"),
        (a_vpa(startupBoost={"cpu": {"type": "Quantity", "quantity": "0.1m"}}), "whole number of millicores"),
        (with_policy(containerName=""), "containerName: required"),
        (with_policy(mode="Maybe"), "'Maybe' is not one of Auto, Off"),
        (with_policy(mode="Off", controlledValues="RequestsAndLimits"), "cannot be combined with mode Off"),
        (with_policy(controlledResources=["gpu"]), "'gpu' is not one of cpu, memory"),
        (with_policy(minAllowed={"cpu": "2"}, maxAllowed={"cpu": "1"}), "must not be below minAllowed (1 < 2)"),
        (with_policy(minAllowed={"cpu": "0.1m"}), "must be a whole number of millicores, not 100u"),
        (with_policy(maxAllowed={"memory": "1500m"}), "must be a whole number of bytes"),
        (with_policy(maxAllowed={"memory": "lots"}), "maxAllowed.memory: cannot read 'lots'"),
        (with_policy(oomBumpUpRatio="0.9"), "oomBumpUpRatio: must be at least 1"),
        (with_policy(oomMinBumpUp="-1"), "oomMinBumpUp: must be at least 0"),
        (with_policy(memoryAggregationIntervalSeconds=0), "memoryAggregationIntervalSeconds: must be at least 1"),
        (a_vpa(resourcePolicy={"containerPolicies": [{"containerName": "a"}, {"containerName": "a"}]}), "'a' has more than one policy"),
    ],
)
def test_each_broken_rule_is_one_line_with_its_path(vpa: Vpa, line: str) -> None:
    broken = validate_vpa(vpa)
    assert len(broken) == 1
    assert line in broken[0]
    assert broken[0].startswith("spec.")


def a_shrink(**spec: object) -> MemoryShrink:
    base = {
        "pod": {"name": "web-0", "uid": "u"},
        "nodeName": "n1",
        "container": {"name": "app", "id": "containerd://abc"},
        "targetBytes": 1 << 28,
    }
    return msgspec.convert({"metadata": {"name": "s"}, "spec": base | spec}, MemoryShrink)


def test_a_complete_shrink_is_valid() -> None:
    assert validate_shrink(a_shrink()) == ()


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"pod": {"name": "", "uid": "u"}}, "spec.pod.name: required"),
        ({"container": {"name": "app", "id": ""}}, "spec.container.id: required"),
        ({"targetBytes": 0}, "spec.targetBytes: must be at least 1"),
        ({"deadlineSeconds": 0}, "spec.deadlineSeconds: must lie between"),
    ],
)
def test_a_broken_shrink_says_what_is_wrong(spec: dict[str, object], line: str) -> None:
    (broken,) = validate_shrink(a_shrink(**spec))
    assert line in broken
