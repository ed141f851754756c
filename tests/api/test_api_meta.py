"""The parts that objects share, and the names that other programs rely on."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.meta import Condition, ObjectKey, ObjectMeta, OwnerReference, find_condition
from vpa_ippr.api.names import node_label
from vpa_ippr.api.shrink import ContainerReference, Phase, PodReference, ShrinkSpec

LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def test_the_controller_is_the_managing_owner() -> None:
    web, helper = OwnerReference("apps/v1", "ReplicaSet", "web", controller=True), OwnerReference("v1", "ConfigMap", "settings")
    assert ObjectMeta(owner_references=[helper, web]).controller is web
    assert ObjectMeta(owner_references=[helper]).controller is None


def test_conditions_are_found_by_type() -> None:
    ready, pending = Condition("Ready", "True"), Condition("PodResizePending", "True")
    assert find_condition([ready, pending], "PodResizePending") is pending
    assert find_condition([ready], "PodResizePending") is None


def test_keys_sort_and_read_as_kubectl_writes_them() -> None:
    keys = [ObjectKey("shop", "b"), ObjectKey("shop", "a"), ObjectKey("bank", "z")]
    assert [str(key) for key in sorted(keys)] == ["bank/z", "shop/a", "shop/b"]


def test_fields_that_we_do_not_read_are_skipped() -> None:
    owners = b'[{"apiVersion": "v1", "kind": "K", "name": "n", "more": 1}]'
    text = b'{"name": "web", "generateName": "web-", "managedFields": [{}], "ownerReferences": %s}' % owners
    meta = msgspec.json.decode(text, type=ObjectMeta)
    assert (meta.name, meta.owner_references[0].controller) == ("web", False)


def test_a_short_node_name_is_its_own_label() -> None:
    assert node_label("n" * 63) == "n" * 63


_part = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=20)
_node_names = st.lists(_part, min_size=1, max_size=12).map(".".join)


@given(_node_names)
def test_every_node_name_makes_a_valid_label_value(name: str) -> None:
    assert LABEL_VALUE.fullmatch(node_label(name))


@pytest.mark.parametrize("length", range(50, 56))
def test_a_label_never_ends_its_readable_part_on_a_dot(length: int) -> None:
    label = node_label("a" * length + ".-" + "b" * 40)
    assert LABEL_VALUE.fullmatch(label)
    assert not re.search(r"[.-]{2}", label)


@given(st.lists(_part.map(lambda end: "a" * 60 + end), min_size=2, max_size=20, unique=True))
def test_long_names_stay_different(names: list[str]) -> None:
    assert len({node_label(name) for name in names}) == len(names)


def test_a_shrink_is_written_with_all_that_its_schema_requires() -> None:
    written = msgspec.to_builtins(ShrinkSpec(PodReference("web-0", "u"), "n1", ContainerReference("app", "containerd://1"), 1 << 20))
    assert written["deadlineSeconds"] == 900


def test_the_end_of_a_shrink() -> None:
    ends = {Phase.DONE, Phase.REFUSED, Phase.REVERTED, Phase.ABORTED, Phase.EXPIRED, Phase.GONE}
    assert {phase for phase in Phase if phase.is_terminal} == ends
