"""The trap of kubernetes#138760, and the way out of it.

A resize that the kubelet accepts while a container is not running (crash loop, OOM kill) is only used for the container's next start:
the pod's own cgroup keeps the old ``memory.max``, and the container is killed at its old size for ever, although spec and status show the
new one. Another resize while the container runs writes the pod's cgroup, so a raise that may have been lost is followed by one of a page.
"""

from __future__ import annotations

from dataclasses import replace

from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import ContainerResources
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.resize.ledger import Record, parse_stored, spec_is
from vpa_ippr.resize.state import Idle, ResizeState

_PAGE_BYTES = 4096


def nudge(pod: Pod, state: ResizeState, record: Record | None) -> dict[str, ContainerResources] | None:
    """The resize that brings the pod's cgroup up to date; None when nothing suggests that it is stale, or it cannot be done now.

    Suspicious is a raise of a memory limit that was issued while a container of the pod was stopped, or after which one was killed for
    memory. Each raise is followed up once.
    """
    if record is None or record.nudge or record.reverting or not isinstance(state, Idle) or not spec_is(pod, record.after):
        return None
    if any(status.state.running is None for status in pod.status.container_statuses):
        return None
    before, after = parse_stored(record.before), parse_stored(record.after)
    raised = {name: wanted for name, wanted in after.items() if _raises(before.get(name), wanted)}
    if not raised or not (record.stopped or any(_killed_since(pod, name, record.issued_at) for name in raised)):
        return None
    name, wanted = next(iter(raised.items()))
    return {name: _one_page_more(wanted)}


def _raises(before: ContainerResources | None, after: ContainerResources) -> bool:
    old = before.limits.memory_bytes if before else None
    return old is not None and after.limits.memory_bytes is not None and after.limits.memory_bytes > old


def _killed_since(pod: Pod, container: str, moment: float) -> bool:
    status = pod.container_status(container)
    ended = status.last_state.terminated if status else None
    return ended is not None and ended.reason == "OOMKilled" and ended.finished_at is not None and parse_time(ended.finished_at) >= moment


def _one_page_more(resources: ContainerResources) -> ContainerResources:
    """The memory limit grows by a page; a request that equals it goes along, or the QoS class would change."""
    limit = resources.limits.memory_bytes
    assert limit is not None  # only raised limits get here
    request = resources.requests.memory_bytes
    grown = limit + _PAGE_BYTES
    return ContainerResources(
        requests=replace(resources.requests, memory_bytes=grown) if request == limit else resources.requests,
        limits=replace(resources.limits, memory_bytes=grown),
    )
