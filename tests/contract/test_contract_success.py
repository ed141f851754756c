"""Resizes that succeed (upstream e2e ``common/node/pod_resize.go``): each is carried out, checked, and rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from contract_cluster import NODES, STRATEGIC, Cluster, Namespace, is_ready, is_settled
from contract_pods import EXTENDED, Container, Res, guaranteed, has_resources, measured, patch_of, pod_of, restarts, specs, statuses
from contract_steps import resize_and_check, resize_and_roll_back

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("kubelet")]


@dataclass(frozen=True)
class Policy:
    id: str
    restart: tuple[str, ...]
    with_sidecar: bool = False


@dataclass(frozen=True)
class Operation:
    id: str
    res: Res


GUARANTEED = guaranteed(20, 35)
GUARANTEED_POLICIES = (
    Policy("none", ()),
    Policy("none-and-sidecar", (), with_sidecar=True),
    Policy("memory-restart", ("memory",)),
    Policy("cpu-restart", ("cpu",)),
    Policy("both-restart", ("cpu", "memory")),
    Policy("both-restart-and-sidecar", ("cpu", "memory"), with_sidecar=True),
)
GUARANTEED_OPERATIONS = (
    Operation("cpu-up", guaranteed(25, 35)),
    Operation("memory-up", guaranteed(20, 40)),
    Operation("cpu-and-memory-up", guaranteed(25, 40)),
    Operation("cpu-up-memory-down", guaranteed(25, 30)),
)
BURSTABLE = Res(cpu=20, cpu_limit=30, memory=35, memory_limit=45)
BURSTABLE_POLICIES = tuple(policy for policy in GUARANTEED_POLICIES if not policy.with_sidecar)
BURSTABLE_OPERATIONS = (
    Operation("cpu-request", BURSTABLE.but(cpu=25)),
    Operation("cpu-limit", BURSTABLE.but(cpu_limit=35)),
    Operation("memory-request", BURSTABLE.but(memory=40)),
    Operation("memory-limit", BURSTABLE.but(memory_limit=50)),
    Operation("all-up", Res(25, 35, 40, 50)),
    Operation("cpu-up-memory-down", Res(25, 35, 30, 40)),
    Operation("cpu-request-down-limit-up-memory-the-reverse", Res(15, 35, 40, 42)),
)
THREE = tuple(Container(f"c{i + 1}", guaranteed(20 + 2 * i, 35 + 2 * i)) for i in range(3))
# By container: how CPU and memory change, in millicores and MiB.
THREE_CHANGES = {
    "net-increase": ((5, 5), (5, 5), (-5, -5)),
    "net-decrease": ((5, 5), (-5, -5), (-5, -5)),
    "cpu-and-memory-of-different-containers": ((5, 0), (-5, 5), (5, 5)),
}


def by_id(case: Policy | Operation) -> str:
    return case.id


@pytest.fixture(scope="module")
def extended(cluster: Cluster) -> Iterator[None]:
    """An extended resource that no device plugin is needed for."""
    if cluster.node is None:
        yield
        return
    path = f"{NODES}/{cluster.node}/status"
    cluster.send("PATCH", path, {"status": {kind: {EXTENDED: "3"} for kind in ("capacity", "allocatable")}}, STRATEGIC)
    yield
    cluster.send("PATCH", path, {"status": {kind: {EXTENDED: None} for kind in ("capacity", "allocatable")}}, STRATEGIC)


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize("operation", GUARANTEED_OPERATIONS, ids=by_id)
@pytest.mark.parametrize("policy", GUARANTEED_POLICIES, ids=by_id)
def test_guaranteed(namespace: Namespace, policy: Policy, operation: Operation) -> None:
    main = Container("c1", GUARANTEED, policy.restart, extended=True)
    sidecar = Container("sidecar", GUARANTEED, policy.restart if policy.with_sidecar else (), "sidecar")
    namespace.run_pod(pod_of(main, sidecar))
    resized = (main.of(operation.res), sidecar.of(operation.res if policy.with_sidecar else GUARANTEED))
    resize_and_roll_back(namespace, (main, sidecar), resized)
    pod = namespace.pod()
    for resources in (specs(pod)["c1"]["resources"], statuses(pod)["c1"]["resources"]):
        assert [resources[kind][EXTENDED] for kind in ("requests", "limits")] == ["1", "1"]


@pytest.mark.parametrize("operation", BURSTABLE_OPERATIONS, ids=by_id)
@pytest.mark.parametrize("policy", BURSTABLE_POLICIES, ids=by_id)
def test_burstable(namespace: Namespace, policy: Policy, operation: Operation) -> None:
    main = Container("c1", BURSTABLE, policy.restart)
    namespace.run_pod(pod_of(main))
    resize_and_roll_back(namespace, (main,), (main.of(operation.res),))


@pytest.mark.parametrize("changes", THREE_CHANGES.values(), ids=THREE_CHANGES.keys())
def test_three_guaranteed_containers(namespace: Namespace, changes: tuple[tuple[int, int], ...]) -> None:
    namespace.run_pod(pod_of(*THREE))
    resized = [c.of(guaranteed(c.res.cpu + cpu, c.res.memory + memory)) for c, (cpu, memory) in zip(THREE, changes, strict=True)]
    resize_and_roll_back(namespace, THREE, resized)


def test_five_burstable_containers_are_given_more(namespace: Namespace) -> None:
    """Without a rollback: what was added cannot be taken away."""
    before = (
        Container("c1", Res(cpu=20, memory=35)),
        Container("c2", Res(cpu=22, memory=37)),
        Container("c3", Res(cpu=24, memory=39)),
        Container("c4", Res(cpu=26)),
        Container("c5", Res(memory=43)),
    )
    after = (
        before[0].of(Res(cpu=20, cpu_limit=30, memory=35)),
        before[1].of(Res(cpu=22, memory=32, memory_limit=47)),
        before[2].of(Res(cpu=24, memory=34)),
        before[3].of(Res(cpu=21, memory=41)),
        before[4].of(Res(cpu=28, memory=48)),
    )
    namespace.run_pod(pod_of(*before))
    resize_and_check(namespace, before, after)


def test_values_that_are_the_same_to_the_kernel(namespace: Namespace) -> None:
    """Shares of 1m and 2m, quotas of 5m and 10m: the status says what was asked for, and nothing restarts."""
    before = Container("c1", Res(cpu=2, cpu_limit=10, memory=35, memory_limit=45))
    namespace.run_pod(pod_of(before))
    resize_and_roll_back(namespace, (before,), (before.of(before.res.but(cpu=1, cpu_limit=5)),))


def test_replacing_the_pod(namespace: Namespace) -> None:
    before = Container("c1", BURSTABLE)
    after = before.of(Res(25, 35, 40, 50))
    assert namespace.run_pod(pod_of(before))["metadata"]["generation"] == 1
    path = f"{namespace.path}/pods/pod/resize"
    pod = namespace.cluster.send("GET", path)
    assert pod == namespace.pod()
    pod["spec"]["containers"][0]["resources"] = after.res.json
    assert namespace.cluster.send("PUT", path, pod)["metadata"]["generation"] == 2
    done = namespace.wait("the resize is carried out", "pod", lambda pod: is_settled(pod) and has_resources(pod, (after,)))
    assert restarts(done) == {"c1": 0}


def test_a_running_init_container(namespace: Namespace) -> None:
    namespace.cluster.kubelet_since(36, "init containers that are not sidecars are resized")
    init, main = Container("init", GUARANTEED, role="init"), Container("c1", GUARANTEED)
    namespace.create_pod(pod_of(init, main, restartPolicy="Never"))
    namespace.wait("the init container runs", "pod", lambda pod: "running" in statuses(pod).get("init", {}).get("state", {}))
    for res in (guaranteed(25, 40), GUARANTEED):
        namespace.resize(patch_of(init.of(res)))
        pod = namespace.wait("it is resized", "pod", lambda pod, res=res: is_settled(pod) and has_resources(pod, (init.of(res),)))
        assert restarts(pod)["init"] == 0
        assert not is_ready(pod)
        assert measured(specs(pod)["c1"]["resources"]) == GUARANTEED
