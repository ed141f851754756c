"""The operator's pages: every field of the policy with its default, every reason."""

from dataclasses import fields
from pathlib import Path

import pytest

from vpa_ippr.actuator.policy import Policy
from vpa_ippr.actuator.policy_table import POLICIES, table, with_table
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.node_memory import NodeMemoryStatus, PressingContainer, PressingReason

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_page_holds_the_table_of_the_policy_as_the_class_has_it(name):
    page = (DOCS / name).read_text()
    assert with_table(page, POLICIES[name]) == page, f"python -m vpa_ippr.actuator.policy_table docs/{name}"
    assert all(f"| `{field.name}` |" in page for field in fields(POLICIES[name]))


def test_every_field_has_its_row_with_unit_default_and_reason():
    rows = [[cell.strip() for cell in row.split(" | ")] for row in table().splitlines()[2:]]
    assert [row[0].strip("| `") for row in rows] == [field.name for field in fields(Policy)]
    assert all(len(row) == 4 and all(row) for row in rows)
    by_name = {row[0].strip("| `"): row[1:3] for row in rows}
    assert by_name["settle_seconds"] == ["s", "5"]
    assert by_name["step_max_bytes"] == ["bytes", "256Mi"]
    assert by_name["may_swap"] == ["yes or no", "no"]
    assert by_name["excluded_namespaces"] == ["list", "`kube-system`"]
    assert by_name["swap_out_bytes_per_second"] == ["bytes/s", "1Mi"]


def test_every_reason_is_explained():
    page = (DOCS / "memoryshrink.md").read_text()
    assert [reason for reason in Reason if f"`{reason}`" not in page] == []


def test_every_reason_and_field_of_a_node_memory_is_explained():
    page = (DOCS / "nodememory.md").read_text()
    assert [reason for reason in PressingReason if f"`{reason}`" not in page] == []
    names = {*NodeMemoryStatus.__struct_encode_fields__, *PressingContainer.__struct_encode_fields__}
    assert [name for name in sorted(names) if f"`{name}" not in page and f"`.{name}" not in page] == []
