"""Replays what a real 1.36.2 API server answered (``tests/fixtures/contract/api-1.36.json``) against the sandbox, over HTTPS.

Everything must be equal but what differs from run to run (``<uid>`` and the like) and what ``EXCLUDED`` names.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.sandbox.requestinfo import User
from vpa_ippr.sandbox.server import ApiServer
from vpa_ippr.sandbox.store import Store

STEPS = json.loads((Path(__file__).parents[1] / "fixtures" / "contract" / "api-1.36.json").read_text())
PODS = "/api/v1/namespaces/default/pods"
JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
# What the sandbox does not reproduce, by step: facts of the build that was recorded, not behaviour.
EXCLUDED = {"/version": {"gitVersion", "gitCommit", "goVersion", "compiler", "buildDate", "platform"}}
WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.test.io"},
    "spec": {
        "group": "test.io",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["n"],
                                "x-kubernetes-validations": [
                                    {"rule": "!has(oldSelf.t) || self.t == oldSelf.t", "message": "t is immutable"}
                                ],
                                "properties": {
                                    "n": {"type": "integer", "minimum": 1},
                                    "mode": {"type": "string", "enum": ["A", "B"], "default": "A"},
                                    "t": {"type": "string"},
                                },
                            },
                            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                        },
                    }
                },
            }
        ],
    },
}
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "pdb"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"e": "1"}}},
}
RULES = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch", "update"]}
ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [RULES]}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "r"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
    "subjects": [{"kind": "ServiceAccount", "name": "updater", "namespace": "default"}],
}


def a_pod(name: str, labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    containers = [
        {"image": "i:1", "name": "c1", "resources": {"requests": {"cpu": "10m"}}},
        {"image": "i:2", "name": "c2", "env": [{"name": "A", "value": "1"}]},
    ]
    common = {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": {**common, **spec}}


class Client:
    def __init__(self, server: ApiServer, tokens: dict[str, str]) -> None:
        self.server = server
        self.tokens = tokens
        self.context = ssl.create_default_context(cadata=server.ca_certificate.decode())

    def send(self, method: str, path: str, body: Any = None, kind: str | None = JSON, identity: str = "admin") -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.tokens[identity]}"}
        if kind:
            headers["Content-Type"] = kind
        request = urllib.request.Request(self.server.url + path, data=data, headers=headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=20) as answer:  # noqa: S310
                return answer.status, self.read(answer.read(), path)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, self.read(error.read(), path)

    @staticmethod
    def read(raw: bytes, path: str) -> Any:
        text = raw.decode()
        if "watch=1" in path and not text.startswith('{"kind":"Status"'):
            return [json.loads(line) for line in text.splitlines()]
        try:
            return json.loads(text)
        except ValueError:
            return {"text": text}

    def must(self, *arguments: Any, **options: Any) -> Any:
        code, body = self.send(*arguments, **options)
        assert code < 300, body
        return body


@pytest.fixture(scope="module")
def replayed() -> Iterator[list[tuple[int, Any]]]:
    """The answers to all steps, in order: the steps build on each other."""
    server = ApiServer(Store(SystemClock(), version="1.36"), tokens={"t-alice": User("alice", ("system:authenticated",))})
    server.start()
    tokens = {
        "admin": server.admin_token,
        "view": "t-alice",
        "sa": server.token_for_service_account("default", "updater"),
        "wrong": "no-such-token",
    }
    client = Client(server, tokens)
    try:
        yield replay(client)
    finally:
        server.stop()


def replay(client: Client) -> list[tuple[int, Any]]:
    answers: list[tuple[int, Any]] = []
    known = {"rv": "", "cont": "", "uid": ""}
    for number, step in enumerate(STEPS):
        prepare(client, number, known)
        path = fill(step["path"], known)
        if number in (5, 12, 69):
            known["rv"] = STALE[number](client)
        answer = send_step(client, step, path, known, number)
        answers.append(answer)
        remember(answer[1], known)
    return answers


def older_revision(path: str) -> Any:
    return lambda client: str(int(client.must("GET", path)["metadata"]["resourceVersion"]) - 1)


STALE = {
    5: older_revision(f"{PODS}/p1"),
    12: older_revision(f"{PODS}/p1"),
    69: older_revision("/apis/coordination.k8s.io/v1/namespaces/default/leases/x"),
}


def send_step(client: Client, step: dict[str, Any], path: str, known: dict[str, str], number: int) -> tuple[int, Any]:
    body = json.loads(fill(json.dumps(step["body"]), known)) if step["body"] is not None else None
    if number not in (30, 31):
        return client.send(step["method"], path, body, step["contentType"], step["as_"])
    # The recorded watches were open while a helper created, labelled, relabelled and deleted w1.
    helper = threading.Thread(target=life_of_w1, args=(client,))
    if number == 30:
        helper.start()
    answer = client.send(step["method"], path, body, step["contentType"], step["as_"])
    if number == 30:
        helper.join()
    return answer


def life_of_w1(client: Client) -> None:
    client.must("POST", PODS, a_pod("w1", {"app": "a"}))
    client.must("PATCH", f"{PODS}/w1", {"metadata": {"labels": {"s": "1"}}}, kind=MERGE)
    client.must("PATCH", f"{PODS}/w1", {"metadata": {"labels": {"app": "b"}}}, kind=MERGE)
    client.must("DELETE", f"{PODS}/w1")


def prepare(client: Client, number: int, known: dict[str, str]) -> None:
    """The helper steps, which made objects and are not recorded."""
    if number == 20:
        for index in range(5):
            client.must("POST", PODS, a_pod(f"l{index}", {"app": "a", "g": "odd" if index % 2 else "even"}))
    if number == 30:
        known["rv"] = client.must("GET", PODS)["metadata"]["resourceVersion"]
    if number == 35:
        client.must("POST", PODS, a_pod("d1", {"app": "a"}, nodeName="n1", terminationGracePeriodSeconds=30))
        client.must("POST", PODS, a_pod("d2", {"app": "a"}))
    if number == 41:
        prepare_eviction(client)
    if number == 42:
        status = {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
        client.must("PATCH", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/pdb/status", {"status": status}, kind=MERGE)
    if number == 45:
        client.must("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", ROLE)
        client.must("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", BINDING)
    if number == 52:
        client.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", WIDGETS)


def prepare_eviction(client: Client) -> None:
    client.must("POST", PODS, a_pod("e1", {"app": "a", "e": "1"}))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    client.must("PATCH", f"{PODS}/e1/status", {"status": status}, kind=STRATEGIC)
    client.must("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", BUDGET)


def fill(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace("{" + name + "}", value)
    return text


def remember(body: Any, known: dict[str, str]) -> None:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    if metadata and metadata.get("resourceVersion") and body.get("kind") != "Status":
        known["rv"] = metadata["resourceVersion"]
        known["uid"] = metadata.get("uid", known["uid"])
        known["cont"] = metadata.get("continue", known["cont"])


def placeholders(expected: Any, actual: Any) -> Any:
    """The answer with everything that the record replaces by ``<...>`` replaced too."""
    if isinstance(expected, str) and re.fullmatch(r"<\w+>", expected) and isinstance(actual, str):
        return expected
    if isinstance(expected, dict) and isinstance(actual, dict):
        return {key: placeholders(expected.get(key), value) for key, value in actual.items()}
    if isinstance(expected, list) and isinstance(actual, list):
        pairs = zip(expected, actual, strict=False)
        return [placeholders(e, a) for e, a in pairs] + actual[len(expected) :]
    return masked(actual) if isinstance(actual, str) else actual


UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def masked(text: str) -> str:
    """A text without the parts that depend on the run: uids, times, and the oldest revision that a server still holds."""
    text = UID.sub(lambda m: m[0] if m[0].startswith("00000000") else "<uid>", text)
    text = re.sub(r"(too old resource version: 1) \(\d+\)", r"\1 (N)", text)
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "<time>", text)


def deep_masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: deep_masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [deep_masked(item) for item in value]
    return masked(value) if isinstance(value, str) else value


@pytest.mark.parametrize(
    "number", range(len(STEPS)), ids=[f"{i:02}-{s['scenario']}-{s['method']}-{s['note'] or s['path'][-40:]}" for i, s in enumerate(STEPS)]
)
def test_step_is_answered_as_recorded(replayed: list[tuple[int, Any]], number: int) -> None:
    step = STEPS[number]
    code, body = replayed[number]
    expected = step["response"]
    assert code == expected["code"], body
    excluded = EXCLUDED.get(step["path"], set())
    wanted, found = expected["body"], placeholders(expected["body"], body)
    if excluded:
        assert set(body) >= set(wanted) - excluded
        wanted, found = ({k: v for k, v in side.items() if k not in excluded} for side in (wanted, found))
    assert deep_masked(found) == deep_masked(wanted)
