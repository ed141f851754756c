"""ResourceQuotas over a real API server."""

import pytest

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.cluster.kube import Kube


@pytest.fixture
def kube(cluster):
    return Kube(cluster.rest, SystemClock(), "vpa-ippr-test")


def test_quotas_come_as_typed_objects(cluster, kube, namespace):
    cluster.create("resourcequotas", namespace, "q", spec={"hard": {"cpu": "2"}, "scopes": ["NotTerminating"]})
    (quota,) = (one for one in kube.list_quotas() if one.metadata.namespace == namespace)
    assert (quota.metadata.name, quota.spec.hard, quota.spec.scopes) == ("q", {"cpu": "2"}, ["NotTerminating"])
    assert kube.left_out == ()
