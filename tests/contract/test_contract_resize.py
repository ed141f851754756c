"""What real API servers of three versions answered to ``/resize``, replayed through the pure pipeline and over HTTP.

Each record of ``resize-<version>.json`` says which objects to make first, the pod, its status, the patch, and what came of it.
"""

import itertools
import json
from pathlib import Path

import pytest
import urllib3

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.sandbox.patching import json_patch, merge_patch, strategic_merge
from vpa_ippr.sandbox.podresize import ResizeRequest, admit_create, admit_resize
from vpa_ippr.sandbox.quota import charge_quotas, quota_usage
from vpa_ippr.sandbox.schema import built_in_type
from vpa_ippr.sandbox.server import ApiServer
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import Store
from vpa_ippr.sandbox.versions import profile

FIXTURES = Path(__file__).parents[1] / "fixtures" / "contract"
VERSIONS = ("1.33", "1.35", "1.36")
RECORDS = {
    (version, record["name"]): record for version in VERSIONS for record in json.loads((FIXTURES / f"resize-{version}.json").read_text())
}
NUMBERS = itertools.count()
POD_TYPE = built_in_type("v1", "Pod")


def patched(pod, patch):
    match patch["contentType"]:
        case "application/json-patch+json":
            return json_patch(pod, patch["body"])
        case "application/merge-patch+json":
            return merge_patch(pod, patch["body"])
        case _:
            return strategic_merge(pod, patch["body"], POD_TYPE)


def objects_of(record, kind, when=("before-pod", "after-pod")):
    return [entry["object"] for entry in record["namespaceObjects"] if entry["object"]["kind"] == kind and entry["when"] in when]


def summary(pod):
    """What the records keep of a pod."""
    every = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
    return {
        "annotations": pod["metadata"].get("annotations"),
        "generation": pod["metadata"]["generation"],
        "images": [container["image"] for container in pod["spec"]["containers"]],
        "labels": pod["metadata"].get("labels"),
        "podResources": pod["spec"].get("resources"),
        "qosClass": pod["status"]["qosClass"],
        "resources": {container["name"]: container["resources"] for container in every},
    }


def node_of(record):
    return {"metadata": {"name": "n1", "labels": {"kubernetes.io/os": "linux"}}, "status": record["node"]}


class PureReplay:
    """One record through the pure functions: creates its pod, then sends its patch."""

    def __init__(self, version, record):
        self.record, self.profile = record, profile(version)
        quotas = objects_of(record, "ResourceQuota")
        self.pod = admit_create(record["pod"], objects_of(record, "LimitRange", ("before-pod",)), quotas, self.profile)
        self.quotas = charge_quotas(self.pod, quotas)
        if record["status"]:
            self.pod = strategic_merge(self.pod, {"status": record["status"]}, POD_TYPE)

    def send(self):
        """The pod after the resize."""
        node = node_of(self.record) if "nodeName" in self.pod["spec"] else None
        new = patched(self.pod, self.record["patch"])
        limit_ranges = objects_of(self.record, "LimitRange")
        return admit_resize(ResizeRequest(self.pod, new, self.profile, node, limit_ranges, self.quotas))


class HttpReplay:
    """One record through the sandbox's API server, in a namespace of its own; the server gathers and charges everything itself."""

    def __init__(self, server, record, namespace):
        self.record, self._server, self._pool = record, server, urllib3.PoolManager()
        self._namespace = f"/api/v1/namespaces/{namespace}"
        self._pod = f"{self._namespace}/pods/{record['pod']['metadata']['name']}"
        self._create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self._create_objects("before-pod")
        self._create(f"{self._namespace}/pods", record["pod"])
        if record["status"]:
            code, _ = self._call("PATCH", f"{self._pod}/status", {"status": record["status"]}, "application/strategic-merge-patch+json")
            assert code == 200
        self._create_objects("after-pod")

    def _create_objects(self, when):
        for entry in self.record["namespaceObjects"]:
            if entry["when"] == when:
                self._create(f"{self._namespace}/{entry['object']['kind'].lower()}s", entry["object"])

    def _create(self, path, obj):
        metadata = {key: value for key, value in obj["metadata"].items() if key != "namespace"}
        code, answer = self._call("POST", path, {**obj, "metadata": metadata}, "application/json")
        assert code == 201, answer

    def _call(self, method, path, body=None, content_type=None):
        headers = {"Authorization": f"Bearer {self._server.admin_token}", "Connection": "close"}
        if content_type:
            headers["Content-Type"] = content_type
        data = None if body is None else json.dumps(body)
        answer = self._pool.request(method, self._server.url + path, body=data, headers=headers)
        return answer.status, answer.json()

    @property
    def pod(self):
        return self._call("GET", self._pod)[1]

    @property
    def quotas(self):
        return self._call("GET", f"{self._namespace}/resourcequotas")[1]["items"]

    def send(self):
        """The stored pod after the resize."""
        code, answer = self._call("PATCH", f"{self._pod}/resize", self.record["patch"]["body"], self.record["patch"]["contentType"])
        if code != 200:
            raise StatusError(code, answer.get("reason", ""), answer["message"], details=answer.get("details"))
        return self.pod


@pytest.fixture(scope="module")
def servers():
    started = {}
    for version in VERSIONS:
        store = Store(SystemClock(), version=version)
        store.create("nodes", node_of(RECORDS[version, "noop"]))
        started[version] = ApiServer(store, tls=False)
        started[version].start()
    yield started
    for server in started.values():
        server.stop()


@pytest.fixture(params=RECORDS, ids="-".join)
def recorded(request):
    return request.param


@pytest.fixture(params=["pure", "http"])
def replay(request, recorded):
    version, record = recorded[0], RECORDS[recorded]
    if request.param == "pure":
        return PureReplay(version, record)
    return HttpReplay(request.getfixturevalue("servers")[version], record, f"n{next(NUMBERS)}")


def test_a_record(replay):
    record, pod, quotas = replay.record, replay.pod, replay.quotas
    assert summary(pod) == record["before"]
    assert [quota["status"]["used"] for quota in quotas] == [quota_usage([pod], quota) for quota in quotas]
    if record["response"]["code"] == 200:
        resized = replay.send()
        assert summary(resized) == record["after"]
        charged = replay.quotas if isinstance(replay, HttpReplay) else charge_quotas(resized, quotas, old=pod)
        assert [quota["status"]["used"] for quota in charged] == [quota_usage([resized], quota) for quota in charged]
    else:
        with pytest.raises(StatusError) as caught:
            replay.send()
        assert answer(caught.value) == expected_answer(replay)
        assert (replay.pod, replay.quotas) == (pod, quotas)


def answer(error):
    return {"code": error.code, "message": error.message, "reason": error.reason, "causes": error.causes or None}


def expected_answer(replay):
    expected = replay.record["response"]
    if replay.record["name"] == "bad-quantity" and isinstance(replay, PureReplay):
        # That a patch and not a whole object could not be read is known to the server alone, which words it as recorded.
        problem = expected["message"].partition('": ')[2]
        message = f'Pod in version "v1" cannot be handled as a Pod: {problem}'
        return {"code": 400, "message": message, "reason": "BadRequest", "causes": None}
    return expected
