"""Builders for the tests of the sandbox's API server: a clock that stands still, a server without a socket, small objects."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from vpa_ippr.sandbox.requestinfo import Request, User, parse_query, parse_target
from vpa_ippr.sandbox.responses import Response, Stream
from vpa_ippr.sandbox.server import ApiServer
from vpa_ippr.sandbox.store import Store
from vpa_ippr.sandbox.watching import Gone

JSON = "application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
PODS = "/api/v1/namespaces/default/pods"
START = 1_767_225_600.0  # 2026-01-01T00:00:00Z


class StandingClock:
    def __init__(self, now: float = START) -> None:
        self.moment = now

    def now(self) -> float:
        return self.moment

    def wait_until(self, moment: float) -> bool:
        self.moment = max(self.moment, moment)
        return True

    def stop(self) -> None:
        return


class Api:
    """Sends requests to the handlers of an ``ApiServer`` that is not listening."""

    def __init__(self, **options: Any) -> None:
        self.clock = StandingClock()
        self.store = Store(self.clock, **options)
        self.server = ApiServer(self.store, tls=False, tokens={"t-bob": User("bob", ("system:authenticated",))})

    def raw(
        self, method: str, url: str, body: Any = None, kind: str = JSON, *, token: str | None = "", **headers: str
    ) -> Response | Stream:
        parts = urlsplit(url)
        if token is not None:
            headers["authorization"] = f"Bearer {token or self.server.admin_token}"
        headers = {"content-type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self.server._api.handle(Request(method, parts.path, parse_query(parts.query), headers, data, parse_target(parts.path)))

    def send(self, method: str, url: str, body: Any = None, kind: str = JSON, **options: Any) -> tuple[int, Any]:
        answer = self.raw(method, url, body, kind, **options)
        assert isinstance(answer, Response), answer
        text = answer.body.decode()
        return answer.code, json.loads(text) if answer.content_type.startswith(JSON) else text

    def must(self, *arguments: Any, **options: Any) -> Any:
        code, body = self.send(*arguments, **options)
        assert code < 300, body
        return body

    def watch(self, url: str) -> Stream:
        answer = self.raw("GET", url)
        assert isinstance(answer, Stream), answer
        return answer


def events(stream: Stream) -> list[tuple[str, Any]]:
    """What a watch has to say now; an error event ends the list."""
    found: list[tuple[str, Any]] = []
    try:
        for line in stream.watch.poll():
            event = json.loads(line)
            found.append((event["type"], event["object"]))
    except Gone:
        found.append(("END", None))
    return found


def seen(stream: Stream) -> list[tuple[str, str]]:
    return [(kind, obj["metadata"].get("name", "")) for kind, obj in events(stream)]


def a_pod(name: str = "p", *, labels: dict[str, str] | None = None, owner: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "default"}
    if labels:
        metadata["labels"] = labels
    if owner:
        metadata["ownerReferences"] = [owner]
    container = {"name": "app", "image": "app:1", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def a_config_map(name: str = "c", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": data}


def a_deployment(name: str = "web", replicas: int = 2, image: str = "app:1") -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "app", "image": image}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def owned_by(obj: dict[str, Any], *, block: bool = False) -> dict[str, Any]:
    metadata = obj["metadata"]
    reference = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    return {**reference, "blockOwnerDeletion": True} if block else reference


def a_definition(spec_schema: dict[str, Any], *, status: bool = True, columns: list[dict[str, str]] | None = None) -> dict[str, Any]:
    properties = {"spec": {"type": "object", **spec_schema}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version: dict[str, Any] = {"name": "v1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    if status:
        version["subresources"] = {"status": {}}
    if columns:
        version["additionalPrinterColumns"] = columns
    names = {"plural": "gears", "kind": "Gear", "shortNames": ["gr"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gears.test.io"},
        "spec": {"group": "test.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }


GEARS = "/apis/test.io/v1/namespaces/default/gears"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def a_gear(name: str = "g", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "test.io/v1", "kind": "Gear", "metadata": {"name": name}, "spec": spec}
