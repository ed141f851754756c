"""What the server says it can do."""

import json

import pytest

from support.http import Answer, scripted_server
from support.sandbox import running_sandbox
from vpa_ippr.cluster.capabilities import ServerCapabilities, discover
from vpa_ippr.cluster.rest import ApiUnreachableError, Connection, Rest


def test_a_current_server_resizes(cluster):
    assert discover(cluster.rest) == ServerCapabilities("1.36", serves_resize=True)


def test_the_version_is_the_servers(tmp_path):
    with running_sandbox(tmp_path, version="1.33", kubelet=False, tls=False) as running:
        assert discover(running.rest) == ServerCapabilities("1.33", serves_resize=True)


@pytest.mark.parametrize(
    ("minor", "resources", "expected"),
    [
        ("33+", [{"name": "pods/resize", "verbs": ["get", "patch"]}], ServerCapabilities("1.33", serves_resize=True)),
        ("32", [{"name": "pods", "verbs": ["patch"]}], ServerCapabilities("1.32", serves_resize=False)),
        ("33", [{"name": "pods/resize", "verbs": ["get"]}], ServerCapabilities("1.33", serves_resize=False)),
    ],
    ids=["vendor-suffix", "old", "read-only"],
)
def test_what_counts_is_that_resize_can_be_patched(minor, resources, expected):
    bodies = {"/version": {"major": "1", "minor": minor}, "/api/v1": {"resources": resources}}
    with scripted_server(lambda request: Answer(body=json.dumps(bodies[request.path]).encode())) as server:
        assert discover(Rest(Connection(server.url))) == expected


def test_a_server_that_is_no_kubernetes():
    with scripted_server(lambda _: Answer(body=b"<html>")) as server, pytest.raises(ApiUnreachableError, match="/version"):
        discover(Rest(Connection(server.url)))
