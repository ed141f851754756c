"""Which resources an HPA scales on, and what may still be done with them."""

import msgspec
import pytest
from resize_support import a_container, a_pod, a_recommendation, a_vpa

from vpa_ippr.api.cluster import Workload
from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.hpa import HorizontalPodAutoscaler, HpaSpec, Metric, MetricTarget, ResourceMetric
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.resources import Resource
from vpa_ippr.api.vpa import TargetRef
from vpa_ippr.resize.hpa import HpaPolicy, Sharing, index_hpas, shared_resources, sharing_of
from vpa_ippr.resize.ledger import Ledger
from vpa_ippr.resize.targets import targets_of

CPU, MEMORY = Resource.CPU, Resource.MEMORY


def metric(name="cpu", kind="Utilization", container=""):
    source = ResourceMetric(name, MetricTarget(kind), container)
    return Metric("ContainerResource", container_resource=source) if container else Metric("Resource", resource=source)


def an_hpa(*metrics, kind="StatefulSet", name="web", api_version="apps/v1", namespace="shop"):
    return HorizontalPodAutoscaler(ObjectMeta(name="web", namespace=namespace), HpaSpec(TargetRef(kind, name, api_version), list(metrics)))


def shared(*hpas, vpa=None, workload=None):
    return shared_resources(vpa or a_vpa(), workload, hpas)


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        pytest.param([metric()], {"*": {CPU}}, id="all-containers"),
        pytest.param([metric("memory")], {"*": {MEMORY}}, id="memory"),
        pytest.param([metric(), metric("memory")], {"*": {CPU, MEMORY}}, id="both"),
        pytest.param([metric(container="app"), metric("memory", container="side")], {"app": {CPU}, "side": {MEMORY}}, id="by-container"),
        pytest.param([metric(kind="AverageValue")], {}, id="absolute"),
        pytest.param([metric("memory", "AverageValue", "app"), metric()], {"*": {CPU}}, id="one-absolute"),
        pytest.param([metric("ephemeral-storage")], {}, id="other-resource"),
        pytest.param([Metric("Pods"), Metric("External")], {}, id="other-metrics"),
        pytest.param([], {}, id="none"),
    ],
)
def test_what_an_hpa_scales_on(metrics, found):
    assert shared(an_hpa(*metrics)) == found


@pytest.mark.parametrize(
    ("hpa", "is_shared"),
    [
        pytest.param(an_hpa(metric()), True, id="same"),
        pytest.param(an_hpa(metric(), api_version="apps/v1beta2"), True, id="another-version-of-the-group"),
        pytest.param(an_hpa(metric(), api_version="apps.kruise.io/v1"), False, id="another-group"),
        pytest.param(an_hpa(metric(), api_version="v1"), False, id="core-group"),
        pytest.param(an_hpa(metric(), api_version=""), True, id="does-not-say"),
        pytest.param(an_hpa(metric(), kind="Deployment"), False, id="another-kind"),
        pytest.param(an_hpa(metric(), name="api"), False, id="another-name"),
        pytest.param(an_hpa(metric(), namespace="bank"), False, id="another-namespace"),
    ],
)
def test_whose_target_it_is(hpa, is_shared):
    assert bool(shared(hpa)) is is_shared
    assert bool(sharing_of(a_vpa(), None, index_hpas([hpa])).shared) is is_shared


def test_a_target_without_an_api_version_has_that_of_the_workload():
    vpa = a_vpa()
    vpa = msgspec.structs.replace(vpa, spec=msgspec.structs.replace(vpa.spec, target_ref=TargetRef("StatefulSet", "web")))
    kruise = an_hpa(metric(), api_version="apps.kruise.io/v1")
    assert shared(kruise, vpa=vpa, workload=Workload("apps/v1", "StatefulSet", "web")) == {}
    assert shared(kruise, vpa=vpa) == {"*": {CPU}}


def test_several_hpas_add_up():
    found = index_hpas([an_hpa(metric()), an_hpa(metric("memory", container="app")), an_hpa(metric(), name="api")])
    assert sharing_of(a_vpa(), None, found).shared == {"*": {CPU}, "app": {MEMORY}}


def with_policy(text):
    vpa = a_vpa()
    return msgspec.structs.replace(vpa, metadata=msgspec.structs.replace(vpa.metadata, annotations={"vpa-ippr.io/with-hpa": text}))


@pytest.mark.parametrize("policy", HpaPolicy)
def test_policies(policy):
    assert sharing_of(with_policy(str(policy)), None, {}).policy is policy


def test_leaving_alone_is_the_default():
    assert sharing_of(a_vpa(), None, {}).policy is HpaPolicy.LEAVE


def test_an_unknown_policy_is_an_error():
    with pytest.raises(ValidationError, match=r"annotation vpa-ippr.io/with-hpa: 'both' is none of leave, raise-only, ignore") as caught:
        sharing_of(with_policy("both"), None, {})
    assert caught.value.reason == "ConfigUnsupported"


@pytest.mark.parametrize(
    ("policy", "cpu", "is_forbidden"),
    [
        (HpaPolicy.LEAVE, "2", True),
        (HpaPolicy.LEAVE, "500m", True),
        (HpaPolicy.RAISE_ONLY, "2", False),
        (HpaPolicy.RAISE_ONLY, "500m", True),
        (HpaPolicy.IGNORE, "500m", False),
    ],
)
@pytest.mark.parametrize("container", ["*", "app"])
def test_what_may_be_done_with_a_shared_resource(policy, cpu, is_forbidden, container):
    pod = a_pod(a_container(cpu="1", cpu_limit="2", memory="1Gi"))
    (target,) = targets_of(pod, a_vpa(a_recommendation(cpu=cpu, memory="2Gi")), Ledger())
    sharing = Sharing({container: frozenset({CPU})}, policy)
    assert sharing.forbids(target, CPU) is is_forbidden
    assert not sharing.forbids(target, MEMORY)


def test_a_resource_shared_in_one_container_is_free_in_another():
    pod = a_pod(a_container("side", cpu="1", memory="1Gi"))
    (target,) = targets_of(pod, a_vpa(a_recommendation("side", cpu="2")), Ledger())
    assert not Sharing({"app": frozenset({CPU})}).forbids(target, CPU)


def test_an_hpa_is_read_from_its_json():
    text = b"""{"metadata": {"name": "web", "namespace": "shop"}, "spec": {"maxReplicas": 9,
      "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"}, "metrics": [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
        {"type": "ContainerResource",
         "containerResource": {"name": "memory", "container": "app", "target": {"type": "Utilization", "averageUtilization": 70}}},
        {"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "30"}}}]}}"""
    assert shared(msgspec.json.decode(text, type=HorizontalPodAutoscaler)) == {"*": {CPU}, "app": {MEMORY}}
