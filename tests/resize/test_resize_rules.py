"""The version table, and what a node's older kubelet takes away from it."""

import pytest

from vpa_ippr.api.cluster import Node
from vpa_ippr.resize.rules import INIT_CONTAINERS_FEATURE, POD_LEVEL_FEATURE, RULES, rules_for, rules_for_pod

COLUMNS = {
    #                           1.32   1.33   1.34   1.35   1.36   1.37
    "memory_limit_decrease": (True, False, True, True, True, True),
    "memory_limit_add": (True, False, True, True, True, True),
    "claims_block_resize": (False, False, False, False, True, False),
    "node_capacity_refused": (False, False, False, False, True, True),
    "sidecars": (False, True, True, True, True, True),
    "init_containers": (False, False, False, False, True, True),
    "pod_level_resources": (False, False, False, False, True, True),
    "container_memory_check": (False, False, True, True, True, True),
    "static_managers_block_any": (True, True, False, False, False, False),
    "stale_pod_cgroup": (True, True, True, True, True, False),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_the_table_is_the_version_matrix(column):
    assert tuple(getattr(RULES[f"1.{minor}"], column) for minor in range(32, 38)) == COLUMNS[column]


@pytest.mark.parametrize(
    ("server", "kubelet", "expected"),
    [
        pytest.param("1.36", "v1.36.1", {}, id="same"),
        pytest.param(
            "1.36",
            "v1.33.13-eks-1",
            {
                "container_memory_check": False,
                "static_managers_block_any": True,
                "init_containers": False,
                "pod_level_resources": False,
            },
            id="three-minors-older",
        ),
        pytest.param("1.36", "v1.35.0", {"init_containers": False, "pod_level_resources": False}, id="one-minor-older"),
        pytest.param("1.37", "v1.36.3", {"stale_pod_cgroup": True}, id="the-kubelets-fault"),
        pytest.param(
            "1.34",
            "v1.31.14",
            {"container_memory_check": False, "static_managers_block_any": True, "sidecars": False},
            id="older-than-the-table",
        ),
        pytest.param("1.36", "", {}, id="version-unknown"),
    ],
)
def test_the_older_of_server_and_kubelet_counts(server, kubelet, expected):
    rules = rules_for(server)
    found = rules_for_pod(rules, Node("n1", kubelet_version=kubelet))
    changed = {column: getattr(found, column) for column in COLUMNS if getattr(found, column) != getattr(rules, column)}
    assert (changed, found.minor) == (expected, rules.minor)


def test_an_unknown_node_is_no_less_able_than_the_server():
    assert rules_for_pod(rules_for("1.36"), None) == rules_for("1.36")


@pytest.mark.parametrize(
    ("declared", "pod_level", "init_containers"),
    [((), True, True), ((POD_LEVEL_FEATURE,), True, False), ((INIT_CONTAINERS_FEATURE,), False, True), (("SomethingElse",), False, False)],
)
def test_a_kubelet_that_declares_its_features_is_believed(declared, pod_level, init_containers):
    node = Node("n1", kubelet_version="v1.36.0", declared_features=frozenset(declared))
    found = rules_for_pod(rules_for("1.36"), node)
    assert (found.pod_level_resources, found.init_containers) == (pod_level, init_containers)
