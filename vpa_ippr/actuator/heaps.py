"""What a container's own settings let its program use: language runtimes read the limit once, at their start, or not at all.

A JVM whose ``-Xmx`` is above the new limit uses little today and is killed when its heap fills (VictoriaMetrics#11276 is the same of Go).
Nothing in the cgroup shows that beforehand, so what is visible in command, arguments and environment counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vpa_ippr.actuator.policy import MIB, Policy
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.actuator.state import Ending
from vpa_ippr.api.pod_launch import ContainerLaunch
from vpa_ippr.api.shrink import Phase

_SCALE = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_JVM_HEAP = re.compile(r"(?:^|[\s\"'=])-(?:Xmx|XX:MaxHeapSize=)(\d{1,15})([kmgt]?)(?=$|[\s\"'])", re.IGNORECASE)
_JVM_SHARE = re.compile(r"(?:^|[\s\"'=])-XX:MaxRAMPercentage=(\d{1,3}(?:\.\d{1,6})?)(?=$|[\s\"'])")
_NODE_HEAP = re.compile(r"(?:^|[\s\"'=])--max[-_]old[-_]space[-_]size[= ](\d{1,9})(?=$|[\s\"'])")
_GO_LIMIT = re.compile(r"(\d{1,18})(?:([KMGT])iB|B)?")


@dataclass(frozen=True, slots=True)
class Heap:
    """A setting and the memory that it lets a program use."""

    setting: str
    amount_bytes: int


def declared_heap(launch: ContainerLaunch, limit_bytes: int | None) -> Heap | None:
    """The largest heap that the container's settings allow, if they say; ``limit_bytes`` is its present limit, which shares are of."""
    return max(_heaps(launch, limit_bytes), key=lambda heap: heap.amount_bytes, default=None)


def refuse_below(heap: Heap, target_bytes: int, policy: Policy) -> Ending | None:
    """Why the limit must not come down to the target, if the heap does not fit with the margin; the rest of the program needs some too."""
    least = policy.page_floor(heap.amount_bytes / (1 - policy.margin_ratio))
    if target_bytes >= least:
        return None
    message = f"{heap.setting} lets the program use {heap.amount_bytes / MIB:.0f} MiB, and it will not learn of a lower limit"
    return Ending(Phase.REFUSED, Reason.DECLARED_HEAP, message, least)


def _heaps(launch: ContainerLaunch, limit_bytes: int | None) -> Iterator[Heap]:
    for text in (" ".join([*launch.command, *launch.args]), *(variable.value for variable in launch.env)):
        # Of several the JVM and Node take the last.
        for found in _JVM_HEAP.findall(text)[-1:]:
            yield Heap(f"-Xmx{found[0]}{found[1]}", int(found[0]) * _SCALE[found[1].lower()])
        for found in _JVM_SHARE.findall(text)[-1:] if limit_bytes is not None else ():
            yield Heap(f"-XX:MaxRAMPercentage={found}", int(float(found) / 100 * (limit_bytes or 0)))
        for found in _NODE_HEAP.findall(text)[-1:]:
            yield Heap(f"--max-old-space-size={found}", int(found) * MIB)
    for variable in launch.env:
        match = _GO_LIMIT.fullmatch(variable.value) if variable.name == "GOMEMLIMIT" else None
        if match is not None:
            yield Heap(f"GOMEMLIMIT={variable.value}", int(match[1]) * _SCALE[(match[2] or "").lower()])
