from __future__ import annotations

from typing import Any

import pytest
from builtin_types_source import TARGET, build
from sandbox_api_support import DEFINITIONS, GEARS, MERGE, Api, a_definition, a_gear

from vpa_ippr.sandbox.protobuf import decode_body
from vpa_ippr.sandbox.status import StatusError

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
TEETH = {"properties": {"teeth": {"type": "integer", "minimum": 1, "maximum": 99}, "name": {"type": "string", "default": "g"}}}


@pytest.fixture
def api() -> Api:
    api = Api()
    api.must("POST", DEFINITIONS, a_definition(TEETH))
    return api


def test_a_definition_is_established_and_served_at_once(api: Api) -> None:
    status = api.must("GET", f"{DEFINITIONS}/gears.test.io")["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"NamesAccepted": "True", "Established": "True"}
    created = api.must("POST", GEARS, a_gear(teeth=3, unknown=1))
    assert created["spec"] == {"teeth": 3, "name": "g"}
    assert created["metadata"]["generation"] == 1
    assert api.store.get("gears.test.io", "default", "g") == created


def test_a_definition_that_goes_takes_its_objects_with_it(api: Api) -> None:
    api.must("POST", GEARS, a_gear())
    api.must("DELETE", f"{DEFINITIONS}/gears.test.io")
    assert api.send("GET", GEARS)[0] == 404
    api.must("POST", DEFINITIONS, a_definition(TEETH))
    assert api.must("GET", GEARS)["items"] == []


@pytest.mark.parametrize(
    ("schema", "value", "cause"),
    [
        ({"type": "integer", "maximum": 5}, 6, "spec.f: Invalid value: 6: spec.f in body should be less than or equal to 5"),
        ({"type": "string", "pattern": "^a"}, "b", "spec.f: Invalid value: \"b\": spec.f in body should match '^a'"),
        ({"type": "string", "minLength": 2}, "b", 'spec.f: Invalid value: "b": spec.f in body should be at least 2 chars long'),
        ({"type": "string", "maxLength": 1}, "bb", "spec.f: Too long: may not be more than 1 bytes"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 1}, ["a", "b"], "spec.f: Too many: 2: must have at most 1 items"),
        ({"type": "array", "items": {"type": "integer"}}, ["a"], 'spec.f[0]: Invalid value: "string": spec.f[0] in body must be of type'),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"k": "v"}, "spec.f.k: Invalid value"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {}, "spec.f.a: Required value"),
        ({"x-kubernetes-int-or-string": True}, [], "must be of type integer,string"),
        ({"type": "string", "format": "date-time"}, "yesterday", "must be of type date-time"),
        ({"type": "string", "oneOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, "ab", "must validate one and only one schema"),
        ({"type": "string", "anyOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, "cc", "must validate at least one schema"),
        ({"type": "string", "not": {"pattern": "^a"}}, "ab", "must not validate the schema"),
        ({"type": "boolean"}, 1, "must be of type boolean"),
        ({"type": "integer"}, True, "must be of type integer"),
        ({"type": "string", "enum": ["a"]}, "b", 'Unsupported value: "b": supported values: "a"'),
        (
            {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}}},
            },
            [{"k": "a"}, {"k": "a"}],
            "spec.f[1]: Duplicate value",
        ),
    ],
)
def test_what_breaks_the_schema(schema: dict[str, Any], value: Any, cause: str) -> None:
    api = Api()
    api.must("POST", DEFINITIONS, a_definition({"properties": {"f": schema}}))
    code, body = api.send("POST", GEARS, a_gear(f=value))
    assert (code, body["reason"]) == (422, "Invalid")
    assert cause in body["message"]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "nullable": True}, None),
        ({"x-kubernetes-int-or-string": True}, "50%"),
        ({"type": "number"}, 2),
        ({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, {"any": {"thing": [1]}}),
        ({"type": "string", "format": "date-time"}, "2026-01-01T00:00:00Z"),
    ],
)
def test_what_fits_the_schema_is_kept(schema: dict[str, Any], value: Any) -> None:
    api = Api()
    api.must("POST", DEFINITIONS, a_definition({"properties": {"f": schema}}))
    assert api.must("POST", GEARS, a_gear(f=value))["spec"] == {"f": value}


def test_rules_see_the_old_object_and_name_their_field() -> None:
    rules = [
        {"rule": "self.max >= self.min", "message": "max must not be below min", "fieldPath": ".max"},
        {"rule": "self.min == oldSelf.min", "reason": "FieldValueForbidden", "message": "min is fixed"},
    ]
    numbers = {"min": {"type": "integer"}, "max": {"type": "integer"}}
    api = Api()
    api.must("POST", DEFINITIONS, a_definition({"properties": numbers, "x-kubernetes-validations": rules}))
    assert "spec.max: Invalid value: max must not be below min" in api.send("POST", GEARS, a_gear(min=2, max=1))[1]["message"]
    api.must("POST", GEARS, a_gear(min=1, max=2))
    assert "spec: Forbidden: min is fixed" in api.send("PATCH", f"{GEARS}/g", {"spec": {"min": 2}}, MERGE)[1]["message"]
    assert api.must("PATCH", f"{GEARS}/g", {"spec": {"max": 3}}, MERGE)["spec"] == {"min": 1, "max": 3}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"x-kubernetes-validations": [{"rule": "self.x.lowerAscii() == 'a'"}]}, "the function 'lowerAscii' is not supported"),
        ({"x-kubernetes-validations": [{"rule": "true", "messageExpression": "'a'"}]}, "messageExpression is not supported"),
        ({"properties": {"f": {}}}, "must not be empty for specified object fields"),
    ],
)
def test_a_definition_with_more_than_is_understood_is_refused(schema: dict[str, Any], message: str) -> None:
    code, body = Api().send("POST", DEFINITIONS, a_definition(schema))
    assert code == 422
    assert message in body["message"]


def test_status_has_its_own_endpoint_only_when_asked_for() -> None:
    with_status, without = Api(), Api()
    with_status.must("POST", DEFINITIONS, a_definition(TEETH))
    without.must("POST", DEFINITIONS, a_definition(TEETH, status=False))
    obj = {**a_gear(), "status": {"phase": "x"}}
    assert "status" not in with_status.must("POST", GEARS, obj)
    assert without.must("POST", GEARS, obj)["status"] == {"phase": "x"}
    assert without.send("PATCH", f"{GEARS}/g/status", {}, MERGE)[0] == 404


def test_a_write_to_status_changes_nothing_else(api: Api) -> None:
    api.must("POST", GEARS, a_gear(teeth=3))
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"teeth": 9}, "status": {"phase": "x"}}
    body = api.must("PATCH", f"{GEARS}/g/status", patch, MERGE)
    assert (body["spec"]["teeth"], body["status"], body["metadata"]["generation"]) == (3, {"phase": "x"}, 1)
    assert "labels" not in body["metadata"]


def test_printer_columns() -> None:
    columns = [
        {"name": "Teeth", "type": "integer", "jsonPath": ".spec.teeth"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
        {"name": "First", "type": "string", "jsonPath": ".status.list[0].v"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    api = Api()
    api.must("POST", DEFINITIONS, a_definition(TEETH, columns=columns))
    api.must("POST", GEARS, a_gear(teeth=3))
    status = {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}], "list": [{"v": "one"}]}
    api.must("PATCH", f"{GEARS}/g/status", {"status": status}, MERGE)
    api.clock.moment += 65
    table = api.must("GET", GEARS, accept=TABLE)
    assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Teeth", "Ready", "First", "Age"]
    assert table["rows"][0]["cells"] == ["g", 3, "True", "one", "65s"]


def test_a_custom_resource_is_only_replaced_with_its_revision(api: Api) -> None:
    created = api.must("POST", GEARS, a_gear(teeth=3))
    assert api.send("PUT", f"{GEARS}/g", a_gear(teeth=4))[0] == 422
    created["spec"]["teeth"] = 4
    assert api.must("PUT", f"{GEARS}/g", created)["spec"]["teeth"] == 4
    assert api.send("PUT", f"{GEARS}/g", created)[0] == 409


def test_the_built_in_types_are_those_that_kubernetes_publishes() -> None:
    assert TARGET.read_text() == build()


def test_a_review_in_protobuf_is_read() -> None:
    assert decode_body(_review()) == {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": {"namespace": "default", "verb": "get", "resource": "pods", "subresource": "log"}},
        "status": {"allowed": False},
    }


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def _review() -> bytes:
    attributes = b"".join(_field(n, text) for n, text in ((1, b"default"), (2, b"get"), (3, b""), (5, b"pods"), (6, b"log")))
    review = _field(1, b"") + _field(2, _field(1, attributes)) + _field(3, b"\x08\x00")
    head = _field(1, b"authorization.k8s.io/v1") + _field(2, b"SelfSubjectAccessReview")
    return b"k8s\x00" + _field(1, head) + _field(2, review)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"nothing", 400),
        (_review()[:-20], 400),
        (b"k8s\x00" + _field(1, _field(1, b"v1") + _field(2, b"Pod")), 415),
        (b"k8s\x00", 400),
    ],
)
def test_other_protobuf_bodies_are_refused(body: bytes, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        decode_body(body)
    assert caught.value.code == code
