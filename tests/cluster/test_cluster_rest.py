import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support.http import Answer, Request, scripted_server
from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.pod import Pod
from vpa_ippr.cluster.connection import connect
from vpa_ippr.cluster.rest import ApiError, ApiUnreachableError, Connection, Rest, in_cluster_connection

PODS = "/api/v1/pods"


def pod(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "shop"}} | more


def page(items: list[Any], token: str = "", version: str = "7") -> Answer:
    return Answer(body=json.dumps({"metadata": {"resourceVersion": version, "continue": token}, "items": items}).encode())


def status(code: int, reason: str, message: str, **details: Any) -> Answer:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, "details": details}
    return Answer(code, json.dumps(body).encode())


def in_turn(*answers: Answer) -> Callable[[Request], Answer]:
    rest = list(answers)
    return lambda _request: rest.pop(0) if len(rest) > 1 else rest[0]


def test_list_follows_pages_and_keeps_the_last_resource_version() -> None:
    with scripted_server(in_turn(page([pod("a")], "next"), page([pod("b")], version="8"))) as server:
        listing = Rest(Connection(server.url)).list(PODS, Pod, {"labelSelector": "app=web"})
    assert [item.metadata.name for item in listing.items] == ["a", "b"]
    assert listing.resource_version == "8"
    queries = [parse_qs(urlsplit(request.path).query) for request in server.requests]
    assert queries[1]["continue"] == ["next"]
    assert all(query["labelSelector"] == ["app=web"] for query in queries)


def test_one_unreadable_object_is_named_and_the_others_are_kept() -> None:
    with scripted_server(in_turn(page([pod("good"), pod("bad", spec={"containers": "none"}), pod("fine")]))) as server:
        listing = Rest(Connection(server.url)).list(PODS, Pod)
    assert [item.metadata.name for item in listing.items] == ["good", "fine"]
    assert len(listing.unreadable) == 1
    assert "shop/bad" in listing.unreadable[0]


def test_a_list_whose_token_expired_begins_again() -> None:
    expired = status(410, "Expired", "The provided continue parameter is too old")
    with scripted_server(in_turn(page([pod("a")], "next"), expired, page([pod("a")]))) as server:
        assert len(Rest(Connection(server.url)).list(PODS, Pod).items) == 1


def test_refusals_carry_code_reason_and_causes() -> None:
    refusal = status(403, "Forbidden", "no room", causes=[{"reason": "NodeCapacity", "message": "m", "field": "f"}])
    with scripted_server(in_turn(refusal)) as server, pytest.raises(ApiError, match="no room") as caught:
        Rest(Connection(server.url)).patch(f"{PODS}/a/resize", {}, Pod)
    assert (caught.value.status, caught.value.api_reason, caught.value.causes[0].reason) == (403, "Forbidden", "NodeCapacity")


@pytest.mark.parametrize("code", [429, 500, 503])
def test_reads_are_tried_again_when_the_server_is_in_trouble(code: int) -> None:
    trouble = Answer(code, headers={"Retry-After": "0"})
    with scripted_server(in_turn(trouble, trouble, Answer(body=json.dumps(pod("a")).encode()))) as server:
        assert Rest(Connection(server.url)).get(f"{PODS}/a", Pod).metadata.name == "a"
    assert len(server.requests) == 3


def test_a_write_is_sent_again_only_when_told_to_come_back() -> None:
    busy = Answer(429, headers={"Retry-After": "0"})
    with scripted_server(in_turn(busy, Answer(body=json.dumps(pod("a")).encode()))) as server:
        Rest(Connection(server.url)).patch(f"{PODS}/a", {"metadata": {}}, Pod)
    assert len(server.requests) == 2
    with scripted_server(in_turn(Answer(500))) as server, pytest.raises(ApiError):
        Rest(Connection(server.url)).patch(f"{PODS}/a", {"metadata": {}}, Pod)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(body=b"<html>login</html>"), "not the JSON"),
        (Answer(body=b'{"metadata": {"name": "a"'), "not the JSON"),
        (Answer(502, b"<html>bad gateway</html>", {"Retry-After": "0"}), "bad gateway"),
        (Answer(body=json.dumps(pod("a")).encode(), cut_after=5), "cannot reach"),
    ],
    ids=["html", "truncated-json", "gateway", "cut"],
)
def test_answers_that_are_no_answers_become_one_line(answer: Answer, error: str) -> None:
    with scripted_server(lambda _: answer) as server, pytest.raises((ApiError, ApiUnreachableError), match=error) as caught:
        Rest(Connection(server.url), retries=1).get(f"{PODS}/a", Pod)
    assert "\n" not in str(caught.value)


def test_nobody_there_is_one_line_that_names_the_address() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ApiUnreachableError, match=f"127.0.0.1:{port}") as caught:
        Rest(Connection(f"http://127.0.0.1:{port}"), retries=0).get(PODS, Pod)
    assert "0x" not in str(caught.value)


def test_the_token_is_asked_for_each_request_and_never_shown() -> None:
    tokens = iter(["first", "second"])
    connection = Connection("", bearer_token=lambda: next(tokens))
    assert "first" not in repr(connection)
    with scripted_server(in_turn(Answer(body=json.dumps(pod("a")).encode()))) as server:
        rest = Rest(Connection(server.url, bearer_token=connection.bearer_token))
        rest.get(f"{PODS}/a", Pod)
        rest.get(f"{PODS}/a", Pod)
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer first", "Bearer second"]


def test_watch_yields_events_and_bookmarks_and_ends_with_the_stream() -> None:
    def event(kind: str, name: str, version: str) -> bytes:
        return json.dumps({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}).encode() + b"\n"

    body = event("ADDED", "a", "1") + event("BOOKMARK", "", "5") + event("DELETED", "a", "6")
    with scripted_server(in_turn(Answer(body=body))) as server:
        events = list(Rest(Connection(server.url)).watch(PODS, Pod, "0"))
    assert [(e.type, e.object.metadata.name if e.object else None, e.resource_version) for e in events] == [
        ("ADDED", "a", "1"),
        ("BOOKMARK", None, "5"),
        ("DELETED", "a", "6"),
    ]


def test_watch_reports_an_expired_version_as_410() -> None:
    gone = json.dumps({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}).encode() + b"\n"
    with scripted_server(in_turn(Answer(body=gone))) as server, pytest.raises(ApiError, match="too old") as caught:
        list(Rest(Connection(server.url)).watch(PODS, Pod, "1"))
    assert caught.value.status == 410


def test_delete_says_whether_there_was_something() -> None:
    with scripted_server(in_turn(Answer(), status(404, "NotFound", "gone"))) as server:
        rest = Rest(Connection(server.url))
        assert rest.delete(f"{PODS}/a") is True
        assert rest.delete(f"{PODS}/a") is False


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
clusters: [{{name: k, cluster: {{server: {server}}}}}]
users: [{{name: u, user: {{token: secret}}}}]
"""


def test_connection_comes_from_a_kubeconfig(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.format(server="http://10.0.0.1:6443"))
    connection = connect(str(path))
    assert (connection.base_url, connection.bearer_token()) == ("http://10.0.0.1:6443", "secret")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "no such file"),
        ("{not yaml", "cannot be used"),
        ("apiVersion: v1\nkind: Config\n", "cannot be used"),
        ("[]", "cannot be used"),
    ],
    ids=["missing", "no-yaml", "empty", "list"],
)
def test_a_bad_kubeconfig_is_one_line_that_names_the_file(tmp_path: Path, text: str | None, error: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=error) as caught:
        connect(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_in_a_pod_the_service_account_is_used(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--kubeconfig"):
        in_cluster_connection(tmp_path, {})
