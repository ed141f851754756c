"""The NodeMemories as the updater reads them: a list, and a watch that tells of news and that nothing else waits for."""

import pytest

from support.http import Answer, scripted_server
from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.node_memory import NodeMemoryStatus, PressingContainer
from vpa_ippr.cluster.cache import WatchCache
from vpa_ippr.cluster.cached import CachedKube
from vpa_ippr.cluster.kube import Kube
from vpa_ippr.cluster.node_port import NodePort
from vpa_ippr.cluster.rest import ApiError, Connection, Rest

NODE_MEMORIES = "nodememories.vpa-ippr.io"
NOW = "2026-01-01T00:00:00.250000Z"
ENTRY = PressingContainer("shop", "web-0", "uid-1", "app", "containerd://1", 500, 512, "NearLimit", "needs 500 of 512", 3, NOW, NOW)


@pytest.fixture
def agent(cluster):
    """Writes as the agent of node n1 does."""
    port = NodePort(cluster.rest, SystemClock())
    yield lambda *entries: port.put_node_memory("n1", NodeMemoryStatus(list(entries), len(entries), NOW))
    if cluster.store.find(NODE_MEMORIES, None, "n1"):
        cluster.store.delete(NODE_MEMORIES, None, "n1")


def test_what_the_agents_tell_is_listed(cluster, agent):
    kube = Kube(cluster.rest, SystemClock(), "test")
    assert kube.list_node_memories() == []
    agent(ENTRY)
    (memory,) = kube.list_node_memories()
    assert (memory.node_name, memory.status) == ("n1", NodeMemoryStatus([ENTRY], 1, NOW))


def test_the_watch_tells_of_each_that_is_there_or_changes(cluster, agent):
    agent()
    caches, told = [], []
    kube = CachedKube(cluster.rest, SystemClock(), "test", start=caches.append)
    assert kube.list_node_memories() == []  # not followed yet
    kube.follow_node_memories(lambda memory: told.append((memory.node_name, len(memory.status.pressing))))
    (cache,) = caches
    assert (kube.list_node_memories(), told) == ([], [])
    cache.step()
    assert told == [("n1", 0)]
    cache.step()
    agent(ENTRY)
    cache.step()
    assert told == [("n1", 0), ("n1", 1)]
    assert [memory.status.pressing for memory in kube.list_node_memories()] == [[ENTRY]]
    cluster.store.delete(NODE_MEMORIES, None, "n1")
    cache.step()
    assert (len(told), kube.list_node_memories()) == (2, [])
    cache.close()


NOT_INSTALLED = Answer(404, b'{"message": "the server could not find the requested resource", "reason": "NotFound", "code": 404}')
FORBIDDEN = Answer(403, b'{"message": "nodememories is forbidden", "reason": "Forbidden", "code": 403}')


def test_where_the_kind_is_not_installed_there_are_none():
    with scripted_server(lambda _: NOT_INSTALLED) as server:
        assert Kube(Rest(Connection(server.url)), SystemClock(), "test").list_node_memories() == []


def test_a_missing_right_is_told():
    with scripted_server(lambda _: FORBIDDEN) as server, pytest.raises(ApiError, match="nodememories is forbidden"):
        Kube(Rest(Connection(server.url)), SystemClock(), "test").list_node_memories()


@pytest.mark.parametrize("answer", [NOT_INSTALLED, FORBIDDEN], ids=["not installed", "forbidden"])
def test_nothing_waits_for_a_watch_that_cannot_begin(answer):
    with scripted_server(lambda _: answer) as server:
        kube = CachedKube(Rest(Connection(server.url)), SystemClock(), "test", start=WatchCache.step, sync_seconds=3600.0)
        kube.follow_node_memories(lambda _: None)
        assert kube.list_node_memories() == []
        kube.require_fresh()
        assert kube.oldest_seconds() == 0.0
