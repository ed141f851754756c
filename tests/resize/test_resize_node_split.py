"""The updater where pods are told apart by a label of their nodes: which recommendation each pod gets, and what is told."""

import msgspec
import pytest
from resize_support import RULES, FakeClock, FakeCluster, a_container, a_pod, a_recommendation, a_vpa

from vpa_ippr.api.cluster import Node, Workload
from vpa_ippr.api.meta import ObjectKey, OwnerReference
from vpa_ippr.api.names import ANNOTATION_RECOMMENDATIONS_BY_NODE_LABEL as BY_VALUE
from vpa_ippr.api.names import ANNOTATION_SPLIT_BY_NODE_LABEL as ASKED
from vpa_ippr.api.node_split import write_by_value
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.vpa import TargetRef
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.reasons import OutcomeCode as Code
from vpa_ippr.resize.settings import Settings

SMALL, LARGE = a_recommendation(cpu="300m", memory="1Gi"), a_recommendation(cpu="900m", memory="1Gi")
WRITTEN = write_by_value("pool", {"small": [SMALL], "large": [LARGE]})
NODES = {"small": {"pool": "small"}, "large": {"pool": "large"}, "new": {"pool": "new"}, "unlisted": None}


def run(**annotations):
    """One cycle over a pod of 200m on each node; what each requests in the end, and the outcomes."""
    owner = OwnerReference("apps/v1", "DaemonSet", "agent", "uid-agent", controller=True)
    pods = [a_pod(a_container(cpu="200m", memory="1Gi"), name=name) for name in NODES]
    pods = [
        msgspec.structs.replace(
            pod,
            metadata=msgspec.structs.replace(pod.metadata, owner_references=[owner]),
            spec=msgspec.structs.replace(pod.spec, node_name=pod.metadata.name),
        )
        for pod in pods
    ]
    vpa = a_vpa(LARGE, target="agent", mode="InPlace")
    vpa = msgspec.structs.replace(
        vpa,
        metadata=msgspec.structs.replace(vpa.metadata, annotations=annotations),
        spec=msgspec.structs.replace(vpa.spec, target_ref=TargetRef("DaemonSet", "agent", "apps/v1")),
    )
    cluster = FakeCluster(*pods, vpas=(vpa,), clock=FakeClock())
    cluster.workloads = {("DaemonSet", "agent"): Workload("apps/v1", "DaemonSet", "agent")}
    cluster.nodes = [Node(name, Amounts(64_000, 256 << 30), labels=labels) for name, labels in NODES.items() if labels is not None]
    result = Updater(cluster, cluster.clock, Settings(), RULES).run_cycle()
    return {name: cluster.pods[ObjectKey("shop", name)].spec.containers[0].resources.requests["cpu"] for name in NODES}, result


def test_each_pod_gets_what_its_nodes_value_needs():
    requested, result = run(**{ASKED: "pool", BY_VALUE: WRITTEN})
    assert requested == {"small": "300m", "large": "900m", "new": "900m", "unlisted": "900m"}
    assert result.failures == ()


@pytest.mark.parametrize(
    "annotations", [{}, {BY_VALUE: WRITTEN}, {ASKED: "zone", BY_VALUE: WRITTEN}], ids=["none", "not asked any more", "another label"]
)
def test_otherwise_the_status_counts_for_all(annotations):
    requested, result = run(**annotations)
    assert set(requested.values()) == {"900m"}
    assert result.failures == ()


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [({ASKED: "pool", BY_VALUE: "{"}, "NodeRecommendationsInvalid"), ({ASKED: "no label", BY_VALUE: WRITTEN}, "InvalidNodeLabel")],
    ids=["recommendations", "label"],
)
def test_a_damaged_annotation_is_told_once_and_the_status_counts(annotations, reason):
    requested, result = run(**annotations)
    assert set(requested.values()) == {"900m"}
    assert [(outcome.code, outcome.reason, outcome.vpa) for outcome in result.failures] == [
        (Code.BAD_OBJECT, reason, ObjectKey("shop", "web"))
    ]
