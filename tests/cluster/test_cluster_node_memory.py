"""The agent's pods and its NodeMemory, over a real API server."""

import pytest

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.node_memory import NodeMemory, NodeMemoryStatus, PressingContainer
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.node_port import NodePort
from vpa_ippr.cluster.rest import ApiError, ApiUnreachableError, Connection, Rest

NODE_MEMORIES = "nodememories.vpa-ippr.io"
NOW = "2026-01-01T00:00:00.250000Z"
ENTRY = PressingContainer("shop", "web-0", "uid-1", "app", "containerd://1", 500, 512, "NearLimit", "needs 500 of 512", 3, NOW, NOW)


@pytest.fixture
def caches():
    """Those of the port, listed once; each further step is for the test to make."""
    made = []
    yield made
    for cache in made:
        cache.close()


@pytest.fixture
def port(cluster, caches):
    def start(cache):
        caches.append(cache)
        cache.step()

    port = NodePort(cluster.rest, SystemClock(), start=start)
    yield port
    port.close()
    if cluster.store.find(NODE_MEMORIES, None, "n1"):
        cluster.store.delete(NODE_MEMORIES, None, "n1")


def stored(cluster):
    return cluster.rest.get(paths.node_memory("n1"), NodeMemory)


def test_the_first_write_makes_the_object_which_the_node_owns(cluster, port):
    status = NodeMemoryStatus([ENTRY], 1, NOW)
    port.put_node_memory("n1", status)
    found = stored(cluster)
    assert (found.status, found.node_name, found.metadata.namespace) == (status, "n1", "")
    (owner,) = found.metadata.owner_references
    node = cluster.store.find("nodes", None, "n1")
    assert (owner.kind, owner.name, owner.uid) == ("Node", "n1", node["metadata"]["uid"])


def test_an_empty_list_replaces_a_full_one(cluster, port):
    port.put_node_memory("n1", NodeMemoryStatus([ENTRY], 1, NOW))
    uid = stored(cluster).metadata.uid
    port.put_node_memory("n1", NodeMemoryStatus([], 0, NOW))
    assert (stored(cluster).status, stored(cluster).metadata.uid) == (NodeMemoryStatus([], 0, NOW), uid)


def test_it_is_made_again_after_somebody_deleted_it(cluster, port):
    port.put_node_memory("n1", NodeMemoryStatus([], 0, NOW))
    cluster.store.delete(NODE_MEMORIES, None, "n1")
    port.put_node_memory("n1", NodeMemoryStatus([ENTRY], 1, NOW))
    assert stored(cluster).status.pressing == [ENTRY]


def test_a_node_that_is_not_there_is_told_of(port):
    with pytest.raises(ApiError) as caught:
        port.put_node_memory("n9", NodeMemoryStatus())
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"reason": "Whim"}, id="reason"),
        pytest.param({"limitBytes": 0}, id="limit"),
        pytest.param({"podUid": ""}, id="uid"),
        pytest.param({"since": "soon"}, id="time"),
    ],
)
def test_the_schema_refuses_what_no_updater_could_use(cluster, port, fields):
    port.put_node_memory("n1", NodeMemoryStatus([ENTRY], 1, NOW))
    patch = [{"op": "add", "path": f"/status/pressing/0/{name}", "value": value} for name, value in fields.items()]
    with pytest.raises(ApiError) as caught:
        cluster.rest.patch(paths.node_memory("n1", "status"), patch, NodeMemory, patch_type="json-patch")
    assert caught.value.status == 422


def test_the_agent_follows_the_pods_of_its_node(cluster, port, caches, namespace):
    cluster.pod(namespace, "here-0", node="n1", limits={"memory": "512Mi"})
    cluster.pod(namespace, "there-0", node="n2")

    def names():
        return [pod.metadata.name for pod in port.list_pods("n1") if pod.metadata.namespace == namespace]

    assert names() == ["here-0"]
    cluster.pod(namespace, "here-1", node="n1")
    (cache,) = caches
    cache.step()
    cache.step()
    assert names() == ["here-0", "here-1"]


def test_pods_that_were_never_listed_are_an_error_and_not_none():
    port = NodePort(Rest(Connection("http://127.0.0.1:1"), retries=0), SystemClock(), start=lambda cache: cache.step(), sync_seconds=0.0)
    with pytest.raises(ApiUnreachableError, match="pods of node n1 have not been listed yet: cannot reach"):
        port.list_pods("n1")
