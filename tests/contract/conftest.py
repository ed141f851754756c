"""The clusters of the contract suite: a sandbox of each version, or the real one that ``CONTRACT_KUBECONFIG`` names.

``make contract`` sets it from ``KUBECONFIG``. The suite never takes ``KUBECONFIG`` itself: whoever runs all tests does not mean their
cluster by it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from contract_cluster import Cluster, Namespace, RefusedError

from support import programs
from vpa_ippr.api.clock import SystemClock
from vpa_ippr.cluster.remote_clock import RemoteClock

_REAL = os.environ.get("CONTRACT_KUBECONFIG")
_VERSIONS = os.environ.get("CONTRACT_VERSIONS", "1.33 1.34 1.35 1.36 1.37").split()
# Records of certain servers are for the sandbox to reproduce; they say nothing about another cluster.
collect_ignore = ["test_contract_api.py", "test_contract_resize.py"] if _REAL else []
# Fast enough never to be waited for: time stands still anyway while a test works.
_SPEED = "1000000"


@pytest.fixture(scope="session", params=["kubeconfig"] if _REAL else _VERSIONS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if _REAL:
        yield Cluster(_REAL, SystemClock())
        return
    kubeconfig = tmp_path_factory.mktemp("sandbox") / "kubeconfig"
    with programs.sandbox(kubeconfig, "--kubernetes-version", request.param, "--speed", _SPEED) as ready:
        yield Cluster(str(kubeconfig), RemoteClock(ready["clock_url"], "contract"))


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    made = Namespace(cluster, f"contract-{uuid.uuid4().hex[:12]}")
    yield made
    made.delete()


@pytest.fixture
def kubelet(cluster: Cluster) -> str:
    """The name of the node that pods run on."""
    return cluster.ready_node()


@pytest.fixture
def pinned(kubelet: str, cluster: Cluster) -> dict[str, str]:
    """A nodeSelector that leads to that node."""
    labels = cluster.send("GET", f"/api/v1/nodes/{kubelet}")["metadata"]["labels"]
    return {"kubernetes.io/hostname": labels["kubernetes.io/hostname"]}


@pytest.fixture
def made_nodes(cluster: Cluster) -> Iterator[list[str]]:
    """Names of Node objects that the test makes; they are deleted after it."""
    names: list[str] = []
    yield names
    for name in names:
        try:
            cluster.send("DELETE", f"/api/v1/nodes/{name}")
        except RefusedError as refusal:
            if refusal.code != 404:  # a node controller was faster
                raise
