"""A dry run of a resize, over a real API server."""

import pytest

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.cluster.kube import Kube
from vpa_ippr.cluster.rest import ApiError

AMOUNTS = {"cpu": "100m", "memory": "128Mi"}


def patch_to(cpu):
    return {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": cpu}}}]}}


def test_a_dry_run_answers_and_stores_nothing(cluster, namespace):
    cluster.pod(namespace, "web-0", requests=AMOUNTS)
    kube, key = Kube(cluster.rest, SystemClock(), "vpa-ippr-test"), ObjectKey(namespace, "web-0")
    before = kube.get_pod(key)
    assert kube.dry_run_resize(key, patch_to("200m")).desired("app").requests.cpu_millicores == 200
    assert kube.get_pod(key) == before


def test_a_dry_run_is_refused_as_the_resize_would_be(cluster, namespace):
    cluster.pod(namespace, "web-0", requests=AMOUNTS, limits=AMOUNTS)
    with pytest.raises(ApiError, match="QOS") as caught:
        Kube(cluster.rest, SystemClock(), "vpa-ippr-test").dry_run_resize(ObjectKey(namespace, "web-0"), patch_to("50m"))
    assert caught.value.status == 422
