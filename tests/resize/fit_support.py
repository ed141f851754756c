"""Pods whose desired, allocated and actual amounts differ, and wishes for them; amounts are millicores and MiB."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from resize_support import READY, a_container, a_pod

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.meta import Condition
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, ResourceRequirements
from vpa_ippr.resize.footprint import Wish

MIB = 1 << 20
Pair = tuple[int, int]


def quantities(amounts: Pair) -> dict[str, str]:
    return {"cpu": f"{amounts[0]}m", "memory": f"{amounts[1]}Mi"}


def amounts_of(pair: Pair) -> Amounts:
    return Amounts(pair[0], pair[1] * MIB)


def sized(
    name: str = "web-0",
    desired: Pair = (100, 100),
    *,
    allocated: Pair | None = None,
    actual: Pair | None = None,
    limits: Pair | None = None,
    actual_limits: Pair | None = None,
    pending: str = "",
    since: str | None = None,
    priority: int = 0,
    qos: str | None = None,
    namespace: str = "shop",
    **spec: Any,
) -> Pod:
    """A pod of one container; what is not given follows ``desired``."""
    limit = {"cpu_limit": f"{limits[0]}m", "memory_limit": f"{limits[1]}Mi"} if limits else {}
    conditions = (READY, Condition("PodResizePending", "True", pending, last_transition_time=since)) if pending else (READY,)
    pod = a_pod(a_container(**quantities(desired), **limit), name=name, qos=qos, conditions=conditions)
    pod = msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, namespace=namespace),
        spec=msgspec.structs.replace(pod.spec, priority=priority, **spec),
    )
    in_force = ResourceRequirements(
        quantities(actual or allocated or desired), quantities(actual_limits or limits) if actual_limits or limits else {}
    )
    return reported(pod, app=(quantities(allocated or desired), in_force))


def reported(pod: Pod, **containers: tuple[dict[str, str] | None, ResourceRequirements | None]) -> Pod:
    """The pod with other allocated and actual amounts in its status."""

    def changed(statuses):
        return [
            msgspec.structs.replace(s, allocated_resources=containers[s.name][0], resources=containers[s.name][1])
            if s.name in containers
            else s
            for s in statuses
        ]

    status = msgspec.structs.replace(
        pod.status,
        container_statuses=changed(pod.status.container_statuses),
        init_container_statuses=changed(pod.status.init_container_statuses),
    )
    return msgspec.structs.replace(pod, status=status)


def to(pod: Pod, requests: Pair, limits: Pair | None = None, container: str = "app") -> Wish:
    """The wish that the container has these requests, and these limits or those it has."""
    kept = pod.desired(container).limits
    return Wish(pod, {container: ContainerResources(amounts_of(requests), amounts_of(limits) if limits else kept)})


def carried_out(wish: Wish) -> Pod:
    """The pod as the API server has it once the wish was granted."""

    def changed(containers):
        return [
            msgspec.structs.replace(c, resources=requirements_of(wish.after[c.name])) if c.name in wish.after else c for c in containers
        ]

    spec = wish.pod.spec
    return msgspec.structs.replace(
        wish.pod,
        spec=msgspec.structs.replace(spec, containers=changed(spec.containers), init_containers=changed(spec.init_containers)),
    )


def requirements_of(resources: ContainerResources) -> ResourceRequirements:
    return ResourceRequirements(resources.requests.to_quantities(), resources.limits.to_quantities())


def as_json(pod: Pod) -> dict[str, Any]:
    """The object as it is on the wire, without what is not set."""

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: stripped(item) for key, item in value.items() if item is not None}
        return [stripped(item) for item in value] if isinstance(value, list) else value

    return stripped(msgspec.to_builtins(pod))


def a_node(cpu: int = 1000, memory: int = 1000) -> Node:
    return Node("n1", Amounts(cpu, memory * MIB))


AMOUNTS = st.tuples(st.integers(0, 900), st.integers(0, 900))
PENDING = st.sampled_from(["", "", "Deferred", "Infeasible"])


@st.composite
def pods_of_all_kinds(draw: st.DrawFn, name: str = "web-0") -> Pod:
    """A pod with regular, sidecar and init containers, any of whose amounts may differ, with or without overhead and pod level."""
    regular = [a_container(f"c{i}", **quantities(draw(AMOUNTS))) for i in range(draw(st.integers(1, 2)))]
    init = [
        a_container(f"i{i}", restart_policy=draw(st.sampled_from([None, "Always"])), **quantities(draw(AMOUNTS)))
        for i in range(draw(st.integers(0, 3)))
    ]
    pending = draw(PENDING)
    pod = a_pod(
        *regular,
        init=tuple(init),
        name=name,
        conditions=(READY, Condition("PodResizePending", "True", pending)) if pending else (READY,),
    )
    statuses = {
        container.name: (quantities(draw(AMOUNTS)), ResourceRequirements(quantities(draw(AMOUNTS)), quantities(draw(AMOUNTS))))
        for container in [*regular, *init]
    }
    pod = reported(pod, **statuses)
    overhead = draw(st.sampled_from([{}, quantities((10, 20))]))
    level = ResourceRequirements(quantities(draw(AMOUNTS)), quantities((5000, 5000))) if draw(st.booleans()) else None
    status = pod.status
    if level:
        status = msgspec.structs.replace(
            status, resources=ResourceRequirements(quantities(draw(AMOUNTS))), allocated_resources=quantities(draw(AMOUNTS))
        )
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, overhead=overhead, resources=level, priority=draw(st.integers(0, 2))), status=status
    )


@st.composite
def pods_of_one_container(draw: st.DrawFn, name: str) -> Pod:
    """As many stand on a node: settled, growing, shrinking, waiting or given up."""
    states = [draw(AMOUNTS) for _ in range(draw(st.integers(1, 3)))]
    desired, allocated, actual = states[0], states[-1], states[len(states) // 2]
    since = draw(st.sampled_from([None, "2026-01-01T00:00:00Z", "2026-01-01T00:00:07Z"]))
    return sized(name, desired, allocated=allocated, actual=actual, pending=draw(PENDING), since=since, priority=draw(st.integers(0, 1)))
