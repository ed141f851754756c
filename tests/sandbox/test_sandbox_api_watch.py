from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Iterator

import pytest
from sandbox_api_support import MERGE, PODS, STRATEGIC, Api, StandingClock, a_config_map, a_pod, events, seen

from vpa_ippr.sandbox.server import ApiServer
from vpa_ippr.sandbox.store import Store

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def api() -> Api:
    return Api()


def test_without_a_revision_the_present_state_comes_first(api: Api) -> None:
    api.must("POST", MAPS, a_config_map("a"))
    watch = api.watch(f"{MAPS}?watch=1")
    assert seen(watch) == [("ADDED", "a")]
    api.must("POST", MAPS, a_config_map("b"))
    assert seen(watch) == [("ADDED", "b")]
    assert seen(watch) == []


def test_from_a_revision_only_what_came_after_it_is_replayed(api: Api) -> None:
    revision = api.must("POST", MAPS, a_config_map("a"))["metadata"]["resourceVersion"]
    api.must("POST", MAPS, a_config_map("b"))
    api.must("PATCH", f"{MAPS}/a", {"data": {"x": "y"}}, MERGE)
    api.must("DELETE", f"{MAPS}/b")
    watch = api.watch(f"{MAPS}?watch=1&resourceVersion={revision}")
    assert seen(watch) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


def test_selectors_turn_changes_into_additions_and_deletions(api: Api) -> None:
    api.must("POST", PODS, a_pod(labels={"app": "x"}))
    watch = api.watch(f"{PODS}?watch=1&labelSelector=team%3Dred")
    assert seen(watch) == []
    for team in ("red", "red", "blue"):
        api.must("PATCH", f"{PODS}/p", {"metadata": {"labels": {"team": team, "n": f"{team}{api.store.revision}"}}}, MERGE)
    found = events(watch)
    assert [kind for kind, _ in found] == ["ADDED", "MODIFIED", "DELETED"]
    last = found[-1][1]["metadata"]
    assert last["labels"]["team"] == "red"
    assert last["resourceVersion"] == str(api.store.revision)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"{MAPS}?watch=1", ["mine"]),
        ("/api/v1/configmaps?watch=1", ["mine", "other"]),
        (f"{MAPS}/mine?watch=1", ["mine"]),
        (f"{MAPS}/absent?watch=1", []),
    ],
)
def test_scope(api: Api, url: str, expected: list[str]) -> None:
    api.must("POST", MAPS, a_config_map("mine"))
    api.must("POST", "/api/v1/namespaces/kube-system/configmaps", {"metadata": {"name": "other"}})
    assert sorted(name for _, name in seen(api.watch(url))) == expected


def test_a_watcher_that_falls_behind_is_told_so_and_its_watch_ends() -> None:
    api = Api(history=3)
    watch = api.watch(f"{MAPS}?watch=1")
    assert seen(watch) == []
    for index in range(5):
        api.must("POST", MAPS, a_config_map(f"c{index}"))
    (kind, status), end = events(watch)
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    assert end == ("END", None)


def test_initial_events_end_with_a_bookmark_that_says_so(api: Api) -> None:
    api.must("POST", MAPS, a_config_map("a"))
    query = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    (first, _), (second, bookmark) = events(api.watch(f"{MAPS}?{query}"))
    assert (first, second) == ("ADDED", "BOOKMARK")
    assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert bookmark["metadata"]["resourceVersion"] == str(api.store.revision)


def test_initial_events_need_the_match_rule(api: Api) -> None:
    code, body = api.send("GET", f"{MAPS}?watch=1&sendInitialEvents=true")
    assert code == 422
    assert "resourceVersionMatch" in body["message"]


def test_tables_are_watched_too(api: Api) -> None:
    api.must("POST", PODS, a_pod())
    answer = api.raw("GET", f"{PODS}?watch=1", accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    ((kind, table),) = events(answer)
    assert (kind, table["kind"], table["rows"][0]["cells"][0]) == ("ADDED", "Table", "p")


class TestOverTheWire:
    @pytest.fixture
    def server(self):  # type: ignore[no-untyped-def]
        server = ApiServer(Store(StandingClock()))
        server.start()
        yield server
        server.stop()

    def connect(self, server: ApiServer) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=server.ca_certificate.decode())
        return http.client.HTTPSConnection(server.url.removeprefix("https://"), context=context, timeout=20)

    @contextlib.contextmanager
    def open(self, server: ApiServer, path: str) -> Iterator[http.client.HTTPResponse]:
        with contextlib.closing(self.connect(server)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {server.admin_token}"})
            with connection.getresponse() as response:
                yield response

    def test_events_arrive_as_they_happen(self, server: ApiServer) -> None:
        with self.open(server, f"{MAPS}?watch=1") as stream:
            server.store.create("configmaps", a_config_map("a"))
            assert json.loads(stream.readline())["object"]["metadata"]["name"] == "a"
            server.store.delete("configmaps", "default", "a")
            assert json.loads(stream.readline())["type"] == "DELETED"

    def test_a_watch_ends_at_its_time_with_a_bookmark(self, server: ApiServer) -> None:
        with self.open(server, f"{MAPS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true") as stream:
            lines = stream.read().splitlines()
        assert [json.loads(line)["type"] for line in lines] == ["BOOKMARK"]

    def test_stopping_the_server_ends_the_watches(self, server: ApiServer) -> None:
        with self.open(server, f"{MAPS}?watch=1") as stream:
            stopper = threading.Thread(target=server.stop)
            stopper.start()
            assert stream.read() == b""
            stopper.join()

    def test_a_body_that_is_too_large_is_refused(self, server: ApiServer) -> None:
        connection = self.connect(server)
        headers = {"Authorization": f"Bearer {server.admin_token}", "Content-Type": "application/json"}
        connection.request("POST", MAPS, body=b" " * (3 * 1024 * 1024 + 1), headers=headers)
        assert connection.getresponse().status == 413
        connection.close()

    def test_a_patch_through_the_socket(self, server: ApiServer) -> None:
        server.store.create("pods", a_pod())
        connection = self.connect(server)
        headers = {"Authorization": f"Bearer {server.admin_token}", "Content-Type": STRATEGIC}
        patch = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "200m"}}}]}}
        connection.request("PATCH", f"{PODS}/p/resize", body=json.dumps(patch), headers=headers)
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["metadata"]["generation"]) == (200, 2)
        connection.close()

    def test_the_kubeconfig_is_for_its_owner_alone(self, server: ApiServer, tmp_path) -> None:  # type: ignore[no-untyped-def]
        path = tmp_path / "sub" / "kubeconfig"
        server.write_kubeconfig(path)
        assert path.stat().st_mode & 0o777 == 0o600
        assert server.url in path.read_text()


def test_an_address_in_use_is_one_clear_line() -> None:
    first = ApiServer(Store(StandingClock()), tls=False)
    first.start()
    port = int(first.url.rpartition(":")[2])
    second = ApiServer(Store(StandingClock()), tls=False, listen=("127.0.0.1", port))
    try:
        with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{port}"):
            second.start()
    finally:
        first.stop()
