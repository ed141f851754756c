from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.sandbox.patching import json_patch, merge_patch, strategic_merge
from vpa_ippr.sandbox.schema import built_in_type
from vpa_ippr.sandbox.status import StatusError

POD = built_in_type("v1", "Pod")
assert POD is not None
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "b"])
VALUES = st.recursive(
    SCALARS, lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abcd"), below, max_size=3), max_leaves=12
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


C1 = {"name": "c1", "image": "i:1", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
C2 = {"name": "c2", "image": "i:2"}


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_as_in_rfc_7386(target: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(target, patch) == expected


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/c", "value": 1}], {"a": {"b": [1, 2]}, "c": 1}),
        ([{"op": "add", "path": "/a/b/1", "value": 9}], {"a": {"b": [1, 9, 2]}}),
        ([{"op": "add", "path": "/a/b/-", "value": 9}], {"a": {"b": [1, 2, 9]}}),
        ([{"op": "replace", "path": "/a/b/0", "value": 9}], {"a": {"b": [9, 2]}}),
        ([{"op": "remove", "path": "/a/b/0"}], {"a": {"b": [2]}}),
        ([{"op": "move", "from": "/a/b", "path": "/x"}], {"a": {}, "x": [1, 2]}),
        ([{"op": "copy", "from": "/a/b/0", "path": "/x~1y"}], {"a": {"b": [1, 2]}, "x/y": 1}),
        ([{"op": "test", "path": "/a/b/0", "value": 1}], {"a": {"b": [1, 2]}}),
    ],
    ids=["add", "insert", "append", "replace", "remove", "move", "copy-escaped", "test"],
)
def test_json_patch(operations: list[dict[str, Any]], expected: Any) -> None:
    target = {"a": {"b": [1, 2]}}
    assert json_patch(target, operations) == expected
    assert target == {"a": {"b": [1, 2]}}


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([{"op": "test", "path": "/a", "value": 2}], 422),
        ([{"op": "remove", "path": "/nope"}], 422),
        ([{"op": "replace", "path": "/nope", "value": 1}], 422),
        ([{"op": "add", "path": "/a/b/c", "value": 1}], 422),
        ([{"op": "fly", "path": "/a"}], 400),
        ([{"path": "/a"}], 400),
        ({"op": "add"}, 400),
    ],
)
def test_json_patch_refusals(operations: Any, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        json_patch({"a": 1}, operations)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (pod({"name": "c2", "image": "i:3"}), pod(C1, {"name": "c2", "image": "i:3"})),
        (pod({"name": "c3", "image": "i:9"}), pod({"name": "c3", "image": "i:9"}, C1, C2)),
        (pod({"name": "c1", "$patch": "delete"}), pod(C2)),
        (pod({"name": "c1", "env": [{"name": "A", "value": "9"}]}), pod({**C1, "env": [{"name": "A", "value": "9"}, C1["env"][1]]}, C2)),
        (pod({"name": "c1", "env": None}), pod({"name": "c1", "image": "i:1"}, C2)),
        (pod({"$patch": "replace"}, {"name": "z", "image": "i"}), pod({"name": "z", "image": "i"})),
        ({"spec": {"$setElementOrder/containers": [{"name": "c2"}, {"name": "c1"}]}}, pod(C2, C1)),
        ({"spec": {"containers": [{"name": "c1", "command": ["a"]}]}}, pod({**C1, "command": ["a"]}, C2)),
        ({"spec": {"nodeSelector": {"a": "b"}}}, pod(C1, C2, nodeSelector={"a": "b"})),
        ({"spec": {"$patch": "replace", "containers": [C2]}}, pod(C2)),
    ],
    ids=[
        "merge-by-name", "add", "delete", "nested-merge-key", "null", "replace-list", "order", "atomic-list", "new-map", "replace-struct",
    ],
)  # fmt: skip
def test_strategic_merge_of_a_pod(patch: dict[str, Any], expected: dict[str, Any]) -> None:
    target = pod(C1, C2)
    assert strategic_merge(target, patch, POD) == expected
    assert target == pod(C1, C2)


def test_strategic_merge_of_primitive_lists() -> None:
    target = {"metadata": {"finalizers": ["a", "b"]}}
    assert strategic_merge(target, {"metadata": {"finalizers": ["b", "c"]}}, POD) == {"metadata": {"finalizers": ["a", "b", "c"]}}
    removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert strategic_merge(target, removal, POD) == {"metadata": {"finalizers": ["b"]}}


def test_retain_keys_drops_the_others() -> None:
    deployment = built_in_type("apps/v1", "Deployment")
    assert deployment is not None
    target = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert strategic_merge(target, patch, deployment) == {"spec": {"strategy": {"type": "Recreate"}}}


@pytest.mark.parametrize("patch", [{"spec": {"containers": [{"image": "x"}]}}, {"spec": {"$patch": "explode"}}])
def test_strategic_merge_refusals(patch: dict[str, Any]) -> None:
    with pytest.raises(StatusError) as caught:
        strategic_merge(pod(C1), patch, POD)
    assert caught.value.code == 400


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_applied_twice_is_applied_once(target: dict, patch: dict) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(OBJECTS, OBJECTS)
def test_patches_leave_their_arguments_alone(target: dict, patch: dict) -> None:
    before = copy.deepcopy((target, patch))
    merge_patch(target, patch)
    strategic_merge(target, patch)
    assert (target, patch) == before


@given(OBJECTS, OBJECTS)
def test_json_patch_replacing_the_root_is_the_value(target: dict, value: dict) -> None:
    assert json_patch(target, [{"op": "replace", "path": "", "value": value}]) == value


CONTAINERS = st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True, max_size=4).map(
    lambda names: [{"name": n, "image": n} for n in names]
)


@given(CONTAINERS, CONTAINERS)
def test_strategic_merge_keeps_every_container_once(before: list[dict], patch: list[dict]) -> None:
    changed = [{**container, "image": "new"} for container in patch]
    merged = strategic_merge(pod(*before), pod(*changed), POD)["spec"]["containers"]
    names = [container["name"] for container in merged]
    assert sorted(names) == sorted({c["name"] for c in before} | {c["name"] for c in patch})
    assert {c["name"] for c in merged if c["image"] == "new"} == {c["name"] for c in patch}
    patched = {c["name"] for c in patch}
    assert [n for n in names if n in patched] == [c["name"] for c in patch]
    assert [n for n in names if n not in patched] == [c["name"] for c in before if c["name"] not in patched]


@given(CONTAINERS, st.randoms(use_true_random=False))
def test_set_element_order_orders(before: list[dict], random: Any) -> None:
    order = [{"name": container["name"]} for container in before]
    random.shuffle(order)
    merged = strategic_merge(pod(*before), {"spec": {"$setElementOrder/containers": order}}, POD)["spec"]["containers"]
    assert [c["name"] for c in merged] == [c["name"] for c in order]
