"""ResourceQuota and LimitRange against resizes (upstream e2e ``node/pod_resize.go``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from contract_cluster import Namespace
from contract_pods import Amounts, Container, amounts_of, guaranteed, patch_of, pod_of
from contract_steps import resize_and_check

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("kubelet")]

Json = dict[str, Any]
# The quota controller counts again when a pod's status has changed, or in its full resync (5 min).
RECOUNT_SECONDS = 400.0
MIB = 1024**2


@dataclass(frozen=True)
class Case:
    """``asked`` as CPU and memory of a Guaranteed container; ``says`` is empty when it is granted."""

    id: str
    asked: tuple[int, int]
    says: str = ""


QUOTA = (
    Case("cpu", (600, 400), "requested: cpu=300m, used: cpu=600m, limited: cpu=800m"),
    Case("memory", (250, 750), "requested: memory=450Mi, used: memory=600Mi, limited: memory=800Mi"),
    Case("both", (600, 750), "requested: cpu=300m,memory=450Mi, used: cpu=600m,memory=600Mi, limited: cpu=800m,memory=800Mi"),
    Case("cpu-within", (350, 300)),
    Case("both-within", (350, 350)),
    Case("more-within", (400, 400)),
)
LIMIT_RANGE = (
    Case("cpu-above", (600, 300), "maximum cpu usage per Container is 500m, but limit is 600m"),
    Case("memory-above", (300, 750), "maximum memory usage per Container is 500Mi, but limit is 750Mi"),
    Case(
        "both-above",
        (600, 600),
        "[maximum cpu usage per Container is 500m, but limit is 600m, maximum memory usage per Container is 500Mi, but limit is 600Mi]",
    ),
    Case("cpu-below", (10, 300), "minimum cpu usage per Container is 50m, but request is 10m"),
    Case("memory-below", (300, 10), "minimum memory usage per Container is 50Mi, but request is 10Mi"),
    Case(
        "both-below",
        (10, 10),
        "[minimum cpu usage per Container is 50m, but request is 10m, minimum memory usage per Container is 50Mi, but request is 10Mi]",
    ),
    Case("cpu-up", (400, 300)),
    Case("memory-up", (300, 400)),
    Case("both-up", (500, 500)),
    Case("cpu-down", (200, 300)),
    Case("memory-down", (300, 200)),
    Case("both-down", (50, 50)),
)
# So that 1.33 lets the memory go down too.
START = Container("c1", guaranteed(300, 300), restart=("memory",))


def by_id(case: Case) -> str:
    return case.id


def check(namespace: Namespace, case: Case, before: str) -> None:
    after = START.of(guaranteed(*case.asked))
    if not case.says:
        resize_and_check(namespace, (START,), (after,))
        return
    refusal = namespace.refused(patch_of(after))
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    assert refusal.message == f'pods "pod" is forbidden: {before}{case.says}'


def with_quota(namespace: Namespace, *names: str) -> None:
    """Pods of 300m and 300Mi under a quota of 800m and 800Mi that has counted them."""
    namespace.create("resourcequotas", "ResourceQuota", "quota", spec={"hard": {"cpu": "800m", "memory": "800Mi"}})
    path = f"{namespace.path}/resourcequotas/quota"
    get = namespace.cluster.send
    # The controller writes a new quota's status; until then the real server admits no pod.
    namespace.cluster.wait("the quota is known", lambda: get("GET", path).get("status", {}).get("hard"), shown=lambda: get("GET", path))
    for name in names:
        namespace.run_pod(pod_of(START, name=name))


def used(namespace: Namespace) -> Amounts:
    return amounts_of(namespace.cluster.send("GET", f"{namespace.path}/resourcequotas/quota")["status"]["used"])


@pytest.mark.parametrize("case", QUOTA, ids=by_id)
def test_resource_quota(namespace: Namespace, case: Case) -> None:
    with_quota(namespace, "pod", "other")
    check(namespace, case, "exceeded quota: quota, ")


def test_a_quota_is_charged_at_once_and_gives_back_when_the_pod_has_shrunk(namespace: Namespace) -> None:
    with_quota(namespace, "pod")
    up, down = START.of(guaranteed(400, 400)), START.of(guaranteed(100, 100))
    namespace.resize(patch_of(up))
    assert used(namespace) == Amounts(400, 400 * MIB)
    namespace.wait("it has grown", "pod", lambda pod: amounts_of(pod["status"]["containerStatuses"][0]["allocatedResources"]).cpu == 400)
    resize_and_check(namespace, (up,), (down,))
    namespace.cluster.wait(
        "the quota is counted again", lambda: used(namespace) == Amounts(100, 100 * MIB),
        seconds=RECOUNT_SECONDS, shown=lambda: str(used(namespace)),
    )  # fmt: skip


def test_a_quota_wants_every_container_to_say_what_it_needs(namespace: Namespace) -> None:
    without_cpu = Container("c2", guaranteed(300, 300).but(cpu=None, cpu_limit=None))
    namespace.run_pod(pod_of(Container("c1", guaranteed(300, 300)), without_cpu))
    namespace.create("resourcequotas", "ResourceQuota", "quota", spec={"hard": {"limits.cpu": "2"}})
    refusal = namespace.refused({"containers": [{"name": "c1", "resources": {"limits": {"cpu": "400m"}}}]})
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    assert "failed quota: quota: must specify limits.cpu for: c2" in refusal.message


@pytest.mark.parametrize("case", LIMIT_RANGE, ids=by_id)
def test_limit_range(namespace: Namespace, case: Case) -> None:
    limit = {
        "type": "Container",
        "max": {"cpu": "500m", "memory": "500Mi"},
        "min": {"cpu": "50m", "memory": "50Mi"},
        "default": {"cpu": "100m", "memory": "100Mi"},
        "defaultRequest": {"cpu": "50m", "memory": "50Mi"},
    }
    namespace.create("limitranges", "LimitRange", "range", spec={"limits": [limit]})
    namespace.run_pod(pod_of(START))
    check(namespace, case, "")
