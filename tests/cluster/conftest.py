"""One sandbox for all tests of this room; each test has a namespace of its own. Nothing moves in it but what a client moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.sandbox import RunningSandbox, running_sandbox
from vpa_ippr.sandbox.node import NodeSpec


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    with running_sandbox(tmp_path_factory.mktemp("cluster"), kubelet=False, nodes=[NodeSpec("n1", 4000, 8 << 30)]) as running:
        yield running


@pytest.fixture
def namespace(request: pytest.FixtureRequest, cluster: RunningSandbox) -> str:
    name = f"t-{abs(hash(request.node.nodeid)):x}"
    cluster.store.create("namespaces", {"metadata": {"name": name}})
    return name
