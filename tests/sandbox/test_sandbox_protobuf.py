"""Bodies in protobuf, written here by hand from the published field numbers."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protobuf_types_source import MESSAGE, collect
from sandbox_api_support import Api

from vpa_ippr.sandbox.protobuf import MEDIA_TYPE, decode_body
from vpa_ippr.sandbox.schema import struct_fields, struct_names
from vpa_ippr.sandbox.status import StatusError

TABLE = json.loads(resources.files("vpa_ippr.sandbox").joinpath("protobuf_types.json").read_text())
KINDS: dict[str, str] = TABLE["kinds"]
MESSAGES: dict[str, dict[str, list[str]]] = TABLE["messages"]
JSON_TYPES = {"bytes": "string", "json": "any", "strings": "[string"}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    groups = []
    while value >> 7:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def message(*entries: tuple[int, int | str | bytes]) -> bytes:
    return b"".join(field(number, value) for number, value in entries)


def body(api_version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + message((1, message((1, api_version), (2, kind))), (2, raw), (3, ""), (4, ""))


def metadata(name: str, *more: tuple[int, int | str | bytes]) -> bytes:
    """``ObjectMeta`` as Go writes it: texts, the generation and the time of creation are there even when nothing is in them."""
    empty = [(2, ""), (3, ""), (4, ""), (5, ""), (6, ""), (7, 0), (8, b"")]
    return message((1, name), *empty, *more)


def read(api_version: str, kind: str, *entries: tuple[int, int | str | bytes]) -> dict[str, Any]:
    decoded = decode_body(body(api_version, kind, message(*entries)))
    assert (decoded.pop("apiVersion"), decoded.pop("kind")) == (api_version, kind)
    return decoded


def entry(key: str, value: str | bytes) -> bytes:
    return message((1, key), (2, value))


def container(*more: tuple[int, int | str | bytes]) -> bytes:
    written_always = [(5, ""), (13, ""), (14, ""), (16, 0), (17, 0), (18, 0), (20, "")]
    return message((1, "app"), (2, "nginx:1.27"), *more, *written_always)


def pod(spec: bytes) -> dict[str, Any]:
    """The specification of a deployment's pods."""
    template = message((1, metadata("")), (2, spec))
    decoded = read("apps/v1", "Deployment", (1, metadata("web")), (2, message((3, template), (4, message((1, ""))), (5, 0), (7, 0))))
    assert decoded["metadata"] == {"name": "web"}
    assert decoded["spec"]["template"]["metadata"] == {}
    return dict(decoded["spec"]["template"]["spec"])


def only_container(*more: tuple[int, int | str | bytes]) -> dict[str, Any]:
    [found] = pod(message((2, container(*more)), (11, 0), (12, 0), (13, 0)))["containers"]
    assert (found.pop("name"), found.pop("image")) == ("app", "nginx:1.27")
    return dict(found)


def test_maps_and_owners_of_the_metadata() -> None:
    owner = message((1, "Job"), (3, "j"), (4, "u-1"), (5, "batch/v1"), (6, 1), (7, 0))
    head = metadata("a", (11, entry("app", "web")), (11, entry("empty", "")), (13, owner), (14, "x/y"))
    expected = {
        "name": "a",
        "labels": {"app": "web", "empty": ""},
        "ownerReferences": [
            {"kind": "Job", "name": "j", "uid": "u-1", "apiVersion": "batch/v1", "controller": True, "blockOwnerDeletion": False}
        ],
        "finalizers": ["x/y"],
    }
    assert read("v1", "ConfigMap", (1, head), (2, entry("k", "v"))) == {"metadata": expected, "data": {"k": "v"}}


def test_bytes_become_base64() -> None:
    assert read("v1", "Secret", (2, entry("key", b"\xff\x00")), (2, entry("none", b"")), (3, "Opaque")) == {
        "data": {"key": "/wA=", "none": ""},
        "type": "Opaque",
    }


def test_an_empty_text_in_a_list_is_kept() -> None:
    rule = message((1, "get"), (1, "list"), (2, ""), (3, "pods"))
    assert read("rbac.authorization.k8s.io/v1", "Role", (1, metadata("r")), (2, rule)) == {
        "metadata": {"name": "r"},
        "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}],
    }


def test_quantities() -> None:
    found = only_container((8, message((1, entry("cpu", message((1, "1")))), (2, entry("memory", message((1, "64Mi")))))))
    assert found == {"resources": {"limits": {"cpu": "1"}, "requests": {"memory": "64Mi"}}}


def test_embedded_structs_are_laid_flat() -> None:
    key_of_a_map = message((3, message((1, message((1, "maps"))), (2, "key"))))
    port = message((1, 1), (2, 0), (3, "http"))
    probe = message((1, message((2, message((1, "/ready"), (2, port), (3, ""), (4, ""))))), (2, 0), (3, 0), (4, 5), (5, 0), (6, 0))
    assert only_container((7, message((1, "E"), (2, ""), (3, key_of_a_map))), (10, probe)) == {
        "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "maps", "key": "key"}}}],
        "livenessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5},
    }


def test_volumes() -> None:
    empty_dir = message((1, "tmp"), (2, message((2, message((1, ""))))))
    claim = message((1, "data"), (2, message((10, message((1, "disk"), (2, 0))))))
    secret = message((1, "tls"), (2, message((6, message((1, "cert"), (3, 0o400), (4, 0))))))
    assert pod(message((1, empty_dir), (1, claim), (1, secret)))["volumes"] == [
        {"name": "tmp", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "disk"}},
        {"name": "tls", "secret": {"secretName": "cert", "defaultMode": 0o400, "optional": False}},
    ]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([(4, 0)], {"terminationGracePeriodSeconds": 0}, id="zero-of-a-pointer"),
        pytest.param([(21, 0)], {"automountServiceAccountToken": False}, id="false-of-a-pointer"),
        pytest.param([(25, -10)], {"priority": -10}, id="negative"),
        pytest.param([(11, 1)], {"hostNetwork": True}, id="true-of-a-value"),
        pytest.param([(11, 0), (3, "")], {}, id="zero-of-a-value"),
        pytest.param([(14, message((4, 1), (4, 2)))], {"securityContext": {"supplementalGroups": [1, 2]}}, id="repeated-integers"),
        pytest.param([(14, message((4, b"\x01\x96\x01")))], {"securityContext": {"supplementalGroups": [1, 150]}}, id="packed-integers"),
        pytest.param([(900, "new"), (901, 7)], {}, id="unknown-fields"),
        pytest.param([(22, message((1, "k"), (2, "Exists"), (3, ""), (4, ""), (5, 0)))], {"tolerations": [
            {"key": "k", "operator": "Exists", "tolerationSeconds": 0}]}, id="toleration"),
    ],
)  # fmt: skip
def test_which_zeros_say_something(entries: list[tuple[int, int | str | bytes]], expected: dict[str, Any]) -> None:
    assert pod(message(*entries)) == expected


def test_fields_of_a_fixed_width_are_passed_over() -> None:
    raw = varint(900 << 3 | 1) + bytes(8) + varint(901 << 3 | 5) + bytes(4) + field(1, metadata("a"))
    assert decode_body(body("v1", "ConfigMap", raw)) == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}


def test_a_class_of_storage_may_be_none_at_all() -> None:
    claim = message((2, message((3, ""), (5, ""))))
    assert pod(message((1, message((1, "v"), (2, message((29, message((1, claim)))))))))["volumes"] == [
        {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": ""}}}}
    ]


def test_numbers_or_names() -> None:
    port = message((1, ""), (2, "TCP"), (3, 80), (4, message((1, 0), (2, 8080), (3, ""))), (5, 0))
    named = message((1, "b"), (2, ""), (3, 81), (4, message((1, 1), (2, 0), (3, "web"))), (5, 30080))
    assert read("v1", "Service", (2, message((1, port), (1, named)))) == {
        "spec": {
            "ports": [
                {"protocol": "TCP", "port": 80, "targetPort": 8080},
                {"name": "b", "port": 81, "targetPort": "web", "nodePort": 30080},
            ]
        }
    }
    share = message((1, 1), (2, 0), (3, "50%"))
    budget = read("policy/v1", "PodDisruptionBudget", (2, message((1, share), (2, message((1, entry("app", "web")))))))
    assert budget == {"spec": {"minAvailable": "50%", "selector": {"matchLabels": {"app": "web"}}}}


def test_times() -> None:
    started = message((1, 1_767_225_600), (2, 999_999_999))
    completed = message((1, 0), (2, 0))
    assert read("batch/v1", "Job", (3, message((2, started), (3, completed), (4, 0)))) == {
        "status": {"startTime": "2026-01-01T00:00:00Z", "completionTime": "1970-01-01T00:00:00Z"}
    }
    assert read("v1", "Namespace", (1, message((1, "a"), (8, b"")))) == {"metadata": {"name": "a"}}


def test_json_within_the_metadata() -> None:
    managed = message((1, "kubectl"), (2, "Update"), (3, "v1"), (6, "FieldsV1"), (7, message((1, '{"f:data":{}}'))), (8, ""))
    assert read("v1", "ConfigMap", (1, metadata("a", (17, managed))))["metadata"]["managedFields"] == [
        {"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}}}
    ]


def test_what_a_user_brings_along_in_a_review() -> None:
    spec = message((3, "ann"), (4, "dev"), (5, entry("scopes", message((1, "a"), (1, "b")))), (6, ""))
    assert read("authorization.k8s.io/v1", "SubjectAccessReview", (2, spec)) == {
        "spec": {"user": "ann", "groups": ["dev"], "extra": {"scopes": ["a", "b"]}}
    }


@pytest.mark.parametrize("api_version", ["v1", "apps/v1", "policy/v1", "meta.k8s.io/v1"])
def test_the_options_of_a_deletion_come_in_the_version_of_any_group(api_version: str) -> None:
    assert read(api_version, "DeleteOptions", (1, 0), (2, message((1, "u"))), (4, "Foreground")) == {
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Foreground",
    }


def test_an_eviction() -> None:
    assert read("policy/v1", "Eviction", (1, metadata("p")), (2, message((1, 5)))) == {
        "metadata": {"name": "p"},
        "deleteOptions": {"gracePeriodSeconds": 5},
    }


def test_a_priority_class_of_zero() -> None:
    assert read("scheduling.k8s.io/v1", "PriorityClass", (1, metadata("low")), (2, 0), (3, 0), (4, ""), (5, "Never")) == {
        "metadata": {"name": "low"},
        "value": 0,
        "preemptionPolicy": "Never",
    }


def test_the_server_stores_what_it_reads() -> None:
    template = message((1, metadata("", (11, entry("app", "web")))), (2, message((2, container((8, b""))))))
    spec = message((1, 0), (2, message((1, entry("app", "web")))), (3, template), (4, message((1, ""))), (5, 0), (7, 0))
    deployment = body("apps/v1", "Deployment", message((1, metadata("web")), (2, spec), (3, message((1, 0), (2, 0)))))
    api = Api()
    code, answer = api.send("POST", "/apis/apps/v1/namespaces/default/deployments?fieldValidation=Strict", deployment, MEDIA_TYPE)
    assert (code, answer["spec"]["replicas"]) == (201, 0)
    stored = api.store.get("deployments.apps", "default", "web")
    assert stored["spec"]["template"]["metadata"] == {"labels": {"app": "web"}}
    assert stored["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:1.27"
    code, answer = api.send("PUT", "/apis/apps/v1/namespaces/default/deployments/web", deployment, MEDIA_TYPE)
    assert code == 200


# What cannot be read

METADATA_OF_A = field(1, metadata("a"))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        pytest.param(METADATA_OF_A[:-3], "ends too early", id="cut"),
        pytest.param(b"\x0a", "ends too early", id="no-length"),
        pytest.param(varint(9 << 3 | 1) + bytes(7), "ends too early", id="fixed-cut"),
        pytest.param(b"\x02\x00", "0 is the number of no field", id="number-0"),
        pytest.param(b"\x0b", "unknown wire type 3", id="group"),
        pytest.param(b"\x08" + b"\xff" * 11, "more than 64 bits", id="varint"),
        pytest.param(field(1, 7), "a number where bytes are expected", id="number-for-message"),
        pytest.param(field(4, "x"), "bytes where a number is expected", id="bytes-for-number"),
        pytest.param(field(1, field(1, b"\xff")), "can't decode byte 0xff", id="no-utf-8"),
        pytest.param(field(1, field(8, message((1, 1 << 60)))), "are no time", id="time"),
        pytest.param(field(1, field(17, field(7, field(1, "{")))), "JSON inside it", id="json"),
        pytest.param(field(1, field(17, field(7, field(1, "[" * 100_000)))), "JSON inside it", id="deep-json"),
    ],
)
def test_a_malformed_body_is_a_bad_request(raw: bytes, said: str) -> None:
    with pytest.raises(StatusError, match=said) as caught:
        decode_body(body("v1", "ConfigMap", raw))
    assert caught.value.code == 400


@pytest.mark.parametrize("envelope", [b"", b"\x0a", field(2, METADATA_OF_A), field(1, 3), field(1, field(2, b"\xff"))])
def test_a_malformed_envelope_is_a_bad_request(envelope: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        decode_body(b"k8s\x00" + envelope)
    assert caught.value.code == 400


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(StatusError, match=r'"Ingress" in version "networking\.k8s\.io/v1"') as caught:
        decode_body(body("networking.k8s.io/v1", "Ingress", b""))
    assert (caught.value.code, caught.value.reason) == (415, "UnsupportedMediaType")


def survives(data: bytes) -> None:
    """Neither another error than a refusal, nor anything that is no JSON."""
    try:
        outcome: Any = decode_body(data)
    except StatusError as error:
        outcome = error.code
    assert outcome in (400, 415) or json.loads(json.dumps(outcome)) == outcome


@given(kind=st.sampled_from(sorted(KINDS)), raw=st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(kind: str, raw: bytes) -> None:
    api_version, _, name = kind.rpartition("/")
    survives(body(api_version, name, raw))


@given(st.binary(max_size=60))
def test_random_envelopes_are_read_or_refused(data: bytes) -> None:
    survives(b"k8s\x00" + data)


@st.composite
def written(draw: st.DrawFn, of: str, depth: int = 4) -> bytes:
    """A message with fields of the table, whose values are of the right form as often as not."""
    data = b""
    for number in draw(st.lists(st.sampled_from(sorted(MESSAGES[of])), max_size=4)):
        kind = MESSAGES[of][number][1]
        nested = written(of=kind, depth=depth - 1) if kind in MESSAGES and depth else st.nothing()
        data += field(int(number), draw(nested | st.binary(max_size=12) | st.integers(-(1 << 63), (1 << 63) - 1)))
    return data


@given(st.data())
def test_messages_with_wrong_values_are_read_or_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    api_version, _, name = kind.rpartition("/")
    survives(body(api_version, name, data.draw(written(of=KINDS[kind]))))


# The table


def json_fields(name: str) -> dict[str, str]:
    """The fields of a message as the published schemas write their types."""
    found: dict[str, str] = {}
    for json_name, kind, *mode in MESSAGES[name].values():
        if mode == ["inline"]:
            found |= json_fields(kind)
            continue
        prefix = {"repeated": "[", "map": "{"}.get("".join(mode), "")
        found[json_name] = prefix + (f"#{kind}" if kind in MESSAGES else JSON_TYPES.get(kind, kind))
    return found


@pytest.mark.parametrize("name", sorted(set(struct_names()) & set(MESSAGES)))
def test_the_table_has_the_fields_that_json_has(name: str) -> None:
    expected = {field: entry.type for field, entry in struct_fields(name).items() if field not in ("apiVersion", "kind")}
    expected |= {field: struct_fields(name)[field].type for field in ("apiVersion", "kind") if field in json_fields(name)}
    assert {field: kind for field, kind in json_fields(name).items() if field in expected} == expected


def test_no_message_contains_itself() -> None:
    def depth(name: str, above: tuple[str, ...] = ()) -> int:
        assert name not in above, above
        return 1 + max((depth(kind, (*above, name)) for _, kind, *_ in MESSAGES[name].values() if kind in MESSAGES), default=0)

    assert max(depth(name) for name in KINDS.values()) < 20


PUBLISHED = """
package k8s.io.api.core.v1;

// Volume is a message {
message Volume {
  // name of the volume.
  // optional string other = 3;
  optional string name = 1;

  // +optional
  optional VolumeSource volumeSource = 2;

  map<string, .k8s.io.apimachinery.pkg.api.resource.Quantity> sizes = 4;

  repeated k8s.io.apimachinery.pkg.apis.meta.v1.Time times = 5;
}

message VolumeSource {
  optional int32 mode = 1;
}
"""


def test_the_table_is_made_from_published_types() -> None:
    bodies = {f"k8s.io.api.core.v1.{name}": text for name, text in MESSAGE.findall(PUBLISHED)}
    made: dict[str, dict[str, list[str]]] = {}
    assert collect("k8s.io.api.core.v1.Volume", bodies, made) == "core.v1.Volume"
    assert made == {
        "core.v1.Volume": {
            "1": ["name", "string"],
            "2": ["volumeSource", "core.v1.VolumeSource", "inline"],
            "4": ["sizes", "quantity", "map"],
            "5": ["times", "time", "repeated"],
        },
        "core.v1.VolumeSource": {"1": ["mode", "integer"]},
    }
