"""Watch caches: against the sandbox's API server over HTTP, one step at a time, and against a server that misbehaves."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.clocks import FixedClock
from support.http import Answer, scripted_server
from support.sandbox import VPAS, vpa_spec
from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.shrink import ContainerReference, Intent, MemoryShrink, PodReference, ShrinkSpec
from vpa_ippr.cluster.cache import WatchCache
from vpa_ippr.cluster.cached import CachedKube, StaleCacheError
from vpa_ippr.cluster.connection import connect
from vpa_ippr.cluster.rest import Connection, Listing, Rest, WatchEvent
from vpa_ippr.sandbox.server import ApiServer
from vpa_ippr.sandbox.store import Store

PODS = "/api/v1/pods"
SELECTOR = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="
AMOUNTS = {"cpu": "100m", "memory": "128Mi"}


class Ticking:
    """A clock that moves when told."""

    def __init__(self):
        self.moment = 1000.0

    def __call__(self):
        return self.moment


@pytest.fixture
def ticking():
    return Ticking()


@pytest.fixture
def cache(cluster, namespace, ticking):
    path = f"/api/v1/namespaces/{namespace}/pods"
    made = WatchCache(cluster.rest, path, Pod, {"fieldSelector": SELECTOR}, monotonic=ticking, draw=lambda: 0.5)
    yield made
    made.close()


def names(cache):
    return [pod.metadata.name for pod in cache.snapshot()]


def synced(cache):
    assert cache.step() == 0.0  # list
    assert cache.step() == 0.0  # begin to watch
    return cache


def set_phase(cluster, namespace, name, phase):
    def mutate(pod):
        return {**pod, "status": {**pod["status"], "phase": phase}}

    return cluster.store.update("pods", namespace, name, mutate, subresource="status")


def label(cluster, namespace, name, value):
    return label_in(cluster.store, namespace, name, value)


def label_in(store, namespace, name, value):
    return store.update("pods", namespace, name, lambda pod: {**pod, "metadata": {**pod["metadata"], "labels": {"step": value}}})


def test_a_cache_lists_then_follows_each_change(cluster, namespace, cache):
    cluster.pod(namespace, "b", requests=AMOUNTS)
    assert (cache.has_synced, cache.snapshot(), cache.age_seconds) == (False, [], float("inf"))
    synced(cache)
    assert cache.has_synced
    assert names(cache) == ["b"]
    cluster.pod(namespace, "a", requests=AMOUNTS)  # made without a status first
    label(cluster, namespace, "b", "x")
    cluster.store.delete("pods", namespace, "b", grace_period_seconds=0)
    while "b" in names(cache):
        cache.step()
    assert names(cache) == ["a"]
    assert cache.snapshot()[0].status.phase == "Running"


def test_a_pod_that_leaves_the_selection_leaves_the_cache(cluster, namespace, cache):
    cluster.pod(namespace, "a")
    synced(cache)
    set_phase(cluster, namespace, "a", "Succeeded")
    cache.step()
    assert names(cache) == []


def test_a_watch_whose_version_the_server_no_longer_holds_lists_again(tmp_path):
    store = Store(FixedClock(1_800_000_000.0), history=3)
    server = ApiServer(store)
    server.start()
    server.write_kubeconfig(tmp_path / "kubeconfig")
    try:
        store.create(
            "pods", {"metadata": {"name": "a", "namespace": "default"}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}}
        )
        cache = synced(WatchCache(Rest(connect(str(tmp_path / "kubeconfig"))), PODS, Pod))
        for number in range(5):
            label_in(store, "default", "a", str(number))
        assert cache.step() > 0.0
        assert "too old" in cache.trouble
        assert cache.snapshot()[0].metadata.labels == {}
        synced(cache)
        assert (cache.snapshot()[0].metadata.labels, cache.trouble) == ({"step": "4"}, "")
        label_in(store, "default", "a", "next")
        cache.step()
        assert cache.snapshot()[0].metadata.labels == {"step": "next"}
        cache.close()
    finally:
        server.stop()


def test_what_we_wrote_is_shown_until_the_watch_has_come_to_it(cluster, namespace, cache):
    cluster.pod(namespace, "a")
    cluster.pod(namespace, "b")
    synced(cache)
    label(cluster, namespace, "a", "before")
    written = cluster.rest.patch(f"/api/v1/namespaces/{namespace}/pods/a", {"metadata": {"labels": {"step": "ours"}}}, Pod)
    cache.remember(written)
    assert cache.snapshot()[0].metadata.labels == {"step": "ours"}
    cache.step()  # the change before ours
    assert cache.snapshot()[0].metadata.labels == {"step": "ours"}
    label(cluster, namespace, "a", "after")
    cache.step()
    assert cache.snapshot()[0].metadata.labels == {"step": "ours"}
    cache.step()
    assert cache.snapshot()[0].metadata.labels == {"step": "after"}
    cache.remember(written)  # an answer that comes later than the watch
    assert cache.snapshot()[0].metadata.labels == {"step": "after"}


def test_what_we_wrote_is_forgotten_when_the_object_has_gone_since(cluster, namespace, cache):
    cluster.pod(namespace, "a")
    synced(cache)
    cache.remember(cluster.rest.patch(f"/api/v1/namespaces/{namespace}/pods/a", {"metadata": {"labels": {"step": "ours"}}}, Pod))
    cluster.store.delete("pods", namespace, "a", grace_period_seconds=0)
    cluster.pod(namespace, "b")
    while "b" not in names(cache):
        cache.step()
    assert names(cache) == ["b"]


def test_a_thread_keeps_the_cache_up_to_date(cluster, namespace, monkeypatch):
    cache = WatchCache(cluster.rest, f"/api/v1/namespaces/{namespace}/pods", Pod)
    arrived = threading.Event()
    step = cache.step

    def watched_step():
        seconds = step()
        if names(cache) == ["a"]:
            arrived.set()
        return seconds

    monkeypatch.setattr(cache, "step", watched_step)
    cache.start()
    assert cache.wait_synced(10.0)
    cluster.pod(namespace, "a")
    assert arrived.wait(10.0)
    cache.stop()


# A server that misbehaves, from a script.


def pod(name, version, **more):
    return {"metadata": {"name": name, "namespace": "shop", "resourceVersion": str(version)}, **more}


BROKEN = {"spec": {"containers": "none"}}


def page(items, version):
    return Answer(body=json.dumps({"metadata": {"resourceVersion": str(version)}, "items": items}).encode())


def stream(*events, raw=b"", **options):
    body = b"".join(json.dumps({"type": kind, "object": thing}).encode() + b"\n" for kind, thing in events)
    return Answer(body=body + raw, **options)


def bookmark(version):
    return ("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


EXPIRED = ("ERROR", {"code": 410, "reason": "Expired", "message": "too old resource version"})


class Script:
    """Lists and watches in the order in which they are asked for; notes from which version each watch began."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def __call__(self, request):
        query = dict(part.split("=") for part in request.path.partition("?")[2].split("&"))
        self.asked.append(f"watch {query['resourceVersion']}" if "watch" in query else "list")
        return self.answers.pop(0)


def play(script, steps, ticking=None):
    """A cache after so many steps, and the waits that it asked for."""
    with scripted_server(script) as server:
        rest = Rest(Connection(server.url), retries=0)
        cache = WatchCache(rest, PODS, Pod, monotonic=ticking or Ticking(), draw=lambda: 0.5)
        waits = [cache.step() for _ in range(steps)]
        cache.close()
    return cache, waits


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(stream(("ADDED", pod("b", 8)), raw=b'{"type": "ADD\n'), "list", id="a-line-that-is-no-json"),
        pytest.param(stream(("ADDED", pod("b", 8)), raw=b"<html>\n"), "list", id="a-proxy"),
        pytest.param(stream(("ADDED", pod("b", 8)), EXPIRED), "list", id="expired-later"),
        pytest.param(stream(EXPIRED), "list", id="expired-at-once"),
        pytest.param(Answer(410, json.dumps(EXPIRED[1]).encode()), "list", id="http-410"),
        pytest.param(Answer(403, b'{"message": "no"}'), "list", id="forbidden"),
        pytest.param(Answer(503), "list", id="unavailable"),
        pytest.param(stream(("ADDED", pod("b", 8)), cut_after=95), "list", id="cut-before-anything"),
        pytest.param(stream(("ADDED", pod("b", 8)), raw=b" " * 50, cut_after=110), "watch 8", id="cut-after-an-event"),
        pytest.param(stream(("ADDED", pod("b", 8))), "watch 8", id="ended-as-it-should"),
        pytest.param(stream(bookmark(9)), "watch 9", id="ended-after-a-bookmark"),
        pytest.param(stream(), "watch 7", id="ended-without-a-word"),
    ],
)
def test_where_a_cache_goes_on_after_its_watch_has_ended(first, then):
    script = Script(page([pod("a", 5)], 7), first, *[page([pod("a", 5)], 20), stream(), stream()])
    play(script, 6)
    assert script.asked[:3] == ["list", "watch 7", then]


def test_nothing_is_asked_again_at_once_and_waits_grow_until_something_is_heard():
    failures = [Answer(503)] * 8
    script = Script(*failures, page([], 7), stream(("ADDED", pod("a", 8))), page([], 9), Answer(503))
    cache, waits = play(script, 8)
    assert waits == [pytest.approx(wait * 0.75) for wait in (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0)]
    assert "503" in cache.trouble
    assert not cache.has_synced


def test_watches_that_end_without_a_word_are_not_begun_in_a_tight_loop():
    _, waits = play(Script(page([], 7), *[stream()] * 3), 7)
    assert [wait for wait in waits if wait] == [pytest.approx(0.6), pytest.approx(1.2), pytest.approx(2.4)]


def test_an_object_that_cannot_be_read_is_left_out_and_named_until_it_can(caplog):
    listed = page([pod("a", 5), pod("bad", 6, **BROKEN)], 7)
    changes = stream(("MODIFIED", pod("a", 8, **BROKEN)), ("MODIFIED", pod("bad", 9)), ("DELETED", pod("a", 10, **BROKEN)), bookmark(11))
    seen = []
    with scripted_server(Script(listed, changes)) as server:
        cache = WatchCache(Rest(Connection(server.url)), PODS, Pod)
        for _ in range(5):
            cache.step()
            seen.append((names(cache), [line.split(":")[0] for line in cache.unreadable]))
        cache.close()
    bad, spoiled = f"{PODS} shop/bad", f"{PODS} shop/a"
    assert seen == [(["a"], [bad]), (["a"], [bad]), ([], [spoiled, bad]), (["bad"], [spoiled]), (["bad"], [])]
    assert [record.error.split(":")[0] for record in caplog.records if record.message == "object left out"] == [spoiled]


def test_age_is_the_time_since_the_server_was_last_heard(ticking):
    script = Script(page([], 7), stream(bookmark(8)), Answer(503))
    with scripted_server(script) as server:
        cache = WatchCache(Rest(Connection(server.url), retries=0), PODS, Pod, monotonic=ticking)
        ages = []
        for _ in range(5):  # list, begin, bookmark, end, begin
            ticking.moment += 10
            cache.step()
            ages.append(cache.age_seconds)
        ticking.moment += 10
        cache.step()  # the server is in trouble
        ages.append(cache.age_seconds)
    assert ages == [0, 10, 0, 0, 10, 20]


def test_one_line_tells_of_each_new_trouble_and_one_of_its_end(caplog):
    caplog.set_level("INFO")
    play(Script(Answer(503), Answer(503), Answer(500), page([], 7), stream()), 4)
    assert [record.message for record in caplog.records if record.name.endswith("cache")] == [
        "watch interrupted",
        "watch interrupted",
        "watch goes on",
    ]


def test_a_cluster_that_was_restored_from_a_backup_is_believed():
    written = Pod(ObjectMeta(name="a", namespace="shop", resource_version="90", labels={"step": "ours"}))
    with scripted_server(Script(page([pod("a", 80)], 85), stream(EXPIRED), page([pod("a", 10)], 20))) as server:
        cache = WatchCache(Rest(Connection(server.url)), PODS, Pod)
        cache.step()
        cache.remember(written)
        assert cache.snapshot() == [written]
        for _ in range(3):
            cache.step()
    assert cache.snapshot()[0].metadata.resource_version == "10"


class Replayed:
    """Gives a cache a list and events without HTTP."""

    def __init__(self, listing, events):
        self.listing, self.events = listing, events

    def list(self, *_):
        return self.listing

    def watch(self, *_, **__):
        yield from self.events


@given(data=st.data())
def test_no_older_state_than_ours_is_ever_shown(data):
    """Whatever of the history came with the list, and whenever our write is remembered, its version or a later one is shown after it."""
    changed = data.draw(st.lists(st.sampled_from("ab"), min_size=1, max_size=8))
    history = [(who, version) for version, who in enumerate(changed, start=11)]
    ours = data.draw(st.sampled_from(history))
    listed = data.draw(st.integers(10, 10 + len(changed)))
    remembered_after = data.draw(st.integers(0, len(changed)))

    def state(who, version):
        return Pod(ObjectMeta(name=who, namespace="shop", resource_version=str(version)))

    latest = {"a": 1, "b": 2} | {who: version for who, version in history if version <= listed}
    listing = Listing([state(who, version) for who, version in latest.items()], str(listed))
    later = [(who, version) for who, version in history if version > listed]
    events = [WatchEvent("MODIFIED", state(who, version), str(version), ObjectKey("shop", who)) for who, version in later]
    cache = WatchCache(Replayed(listing, events), PODS, Pod)
    cache.step()
    cache.step()
    for count in range(len(events) + 1):
        if count == min(remembered_after, len(events)):
            cache.remember(state(*ours))
        if count >= min(remembered_after, len(events)):
            shown = {one.metadata.name: int(one.metadata.resource_version) for one in cache.snapshot()}
            assert shown[ours[0]] >= ours[1]
        cache.step()
    shown = {one.metadata.name: int(one.metadata.resource_version) for one in cache.snapshot()}
    assert shown == latest | dict(later)


# The cluster as the services see it.


@pytest.fixture
def begun():
    return []


@pytest.fixture
def kube(cluster, ticking, begun):
    def start(cache):
        begun.append(cache)
        cache.step()

    made = CachedKube(cluster.rest, SystemClock(), "test", monotonic=ticking, start=start, sync_seconds=0.0)
    yield made
    for cache in begun:
        cache.close()


def mine(objects, namespace):
    return [one for one in objects if one.metadata.namespace == namespace]


def test_lists_come_from_the_caches_and_are_those_of_the_api(cluster, kube, namespace, begun):
    cluster.pod(namespace, "on-a-node")
    cluster.pod(namespace, "unscheduled", node="")
    cluster.create(VPAS, namespace, "web", spec=vpa_spec("StatefulSet", "web"))
    cluster.create("limitranges", namespace, "bounds", spec={"limits": [{"type": "Container", "max": {"cpu": "2"}}]})
    read = (kube.list_pods, kube.list_vpas, kube.list_limit_ranges, kube.list_checkpoints, kube.list_shrinks)
    first = [[one.metadata.name for one in mine(listed(), namespace)] for listed in read]
    assert first == [["on-a-node"], ["web"], ["bounds"], [], []]
    assert [node.name for node in kube.list_nodes()] == ["n1"]
    assert len(begun) == 6
    cluster.store.delete(VPAS, namespace, "web")
    assert [[one.metadata.name for one in mine(listed(), namespace)] for listed in read] == first
    assert len(begun) == 6


def test_each_of_our_writes_is_seen_in_the_next_list(cluster, kube, namespace):
    cluster.pod(namespace, "a", requests=AMOUNTS)
    cluster.create(VPAS, namespace, "web", spec=vpa_spec("StatefulSet", "web"))
    for read in (kube.list_pods, kube.list_vpas, kube.list_shrinks):
        read()
    kube.annotate_pod(ObjectKey(namespace, "a"), {"metadata": {"annotations": {"mine": "1"}}})
    kube.resize_pod(ObjectKey(namespace, "a"), {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "150m"}}}]}})
    kube.annotate_vpa(ObjectKey(namespace, "web"), {"mine": "2"})
    shrink = MemoryShrink(
        ObjectMeta(name="a-1", namespace=namespace), ShrinkSpec(PodReference("a", "u"), "n1", ContainerReference("app", "c"), 1 << 20)
    )
    kube.create_shrink(shrink)
    kube.patch_shrink_intent(shrink.key, Intent.ABORT)
    (pod,), (vpa,), (asked,) = (mine(read(), namespace) for read in (kube.list_pods, kube.list_vpas, kube.list_shrinks))
    assert pod.metadata.annotations == {"mine": "1"}
    assert pod.spec.containers[0].resources.requests["cpu"] == "150m"
    assert vpa.metadata.annotations == {"mine": "2"}
    assert asked.spec.intent is Intent.ABORT


def test_nothing_is_read_from_a_cache_that_has_not_heard_of_the_server_for_long(kube, ticking):
    kube.list_vpas()
    ticking.moment += 180
    kube.list_vpas()
    kube.require_fresh()
    assert kube.oldest_seconds() == 180
    ticking.moment += 1
    with pytest.raises(StaleCacheError, match="no news for 181 s") as caught:
        kube.list_vpas()
    assert (caught.value.reason, isinstance(caught.value, ClusterError)) == ("StaleCache", True)
    with pytest.raises(StaleCacheError):
        kube.require_fresh()


def test_a_kind_that_cannot_be_listed_says_why(begun):
    refusal = Answer(403, b'{"message": "pods is forbidden", "reason": "Forbidden", "code": 403}')
    with scripted_server(lambda _: refusal) as server:
        kube = CachedKube(Rest(Connection(server.url)), SystemClock(), "test", start=WatchCache.step, sync_seconds=0.0)
        with pytest.raises(StaleCacheError, match="has not been listed yet: pods is forbidden"):
            kube.list_pods()


def test_objects_that_are_left_out_are_told_as_without_a_cache():
    with scripted_server(lambda _: page([pod("bad", 6, **BROKEN)], 7)) as server:
        kube = CachedKube(Rest(Connection(server.url)), SystemClock(), "test", start=WatchCache.step)
        assert kube.list_pods() == []
    (line,) = kube.left_out
    assert "shop/bad" in line
