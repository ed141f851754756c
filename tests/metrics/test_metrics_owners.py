"""Owner series to workloads."""

import numpy as np
import pytest

from vpa_ippr.api.series import WorkloadRef
from vpa_ippr.metrics.decode import Row
from vpa_ippr.metrics.owners import resolve_owners


def row(**labels: str) -> Row:
    return Row(labels, np.array([0.0]), np.array([1.0]))


def pod(name: str, kind: str, owner: str) -> Row:
    return row(pod=name, owner_kind=kind, owner_name=owner)


REPLICASETS = [
    row(replicaset="web-7f9", owner_kind="Deployment", owner_name="web"),
    row(replicaset="api-5c4", owner_kind="Rollout", owner_name="api"),
    row(replicaset="alone", owner_kind="<none>", owner_name="<none>"),
    row(replicaset="alone2"),
]
JOBS = [row(job_name="nightly-28", owner_kind="CronJob", owner_name="nightly"), row(job_name="once", owner_kind="", owner_name="")]


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("ReplicaSet", "web-7f9", ("Deployment", "web")),
        ("ReplicaSet", "api-5c4", ("Rollout", "api")),
        ("ReplicaSet", "alone", ("ReplicaSet", "alone")),
        ("ReplicaSet", "alone2", ("ReplicaSet", "alone2")),
        ("ReplicaSet", "never-seen", ("ReplicaSet", "never-seen")),
        ("Job", "nightly-28", ("CronJob", "nightly")),
        ("Job", "once", ("Job", "once")),
        ("StatefulSet", "db", ("StatefulSet", "db")),
        ("DaemonSet", "agent", ("DaemonSet", "agent")),
        ("StrimziPodSet", "kafka", ("StrimziPodSet", "kafka")),
        ("Node", "node-1", ("Pod", "p")),
        ("<none>", "<none>", ("Pod", "p")),
        ("", "", ("Pod", "p")),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_the_topmost_owner(kind, name, expected):
    owners = resolve_owners("shop", [pod("p", kind, name)], REPLICASETS, JOBS)

    assert owners == {("shop", "p"): WorkloadRef("shop", *expected)}


def test_duplicates_of_sharded_exporters_do_not_matter():
    pods = [pod("p", "ReplicaSet", "web-7f9"), pod("p", "ReplicaSet", "web-7f9"), pod("q", "<none>", "<none>")]

    assert resolve_owners("shop", pods + pods[::-1], REPLICASETS * 2, JOBS) == {
        ("shop", "p"): WorkloadRef("shop", "Deployment", "web"),
        ("shop", "q"): WorkloadRef("shop", "Pod", "q"),
    }


def test_a_name_that_was_reused_has_the_same_owner_in_any_order_and_prefers_one_to_none():
    pods = [pod("p", "StatefulSet", "new"), pod("p", "<none>", "<none>"), pod("p", "StatefulSet", "old")]
    expected = {("shop", "p"): WorkloadRef("shop", "StatefulSet", "new")}

    assert resolve_owners("shop", pods, [], []) == expected
    assert resolve_owners("shop", pods[::-1], [], []) == expected
