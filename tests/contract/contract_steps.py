"""One resize from request to result, as every success table checks it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from contract_cluster import Namespace, is_ready, is_settled
from contract_pods import (
    Container,
    adds_memory_limit,
    expected_restarts,
    has_resources,
    lowers_memory_limit,
    patch_of,
    restarts,
)

BELOW_USAGE = re.compile(r"memory limit \(\d+\) below current usage")
# Twice the longest housekeeping interval of cAdvisor: the kubelet's figure of the usage is no older.
STATS_SECONDS = 30.0
_BECAUSE_OF = {
    lowers_memory_limit: "memory limits cannot be decreased unless resizePolicy is RestartContainer",
    adds_memory_limit: "memory limits cannot be added unless resizePolicy is RestartContainer",
}


def resize_and_check(namespace: Namespace, before: Sequence[Container], after: Sequence[Container]) -> bool:
    """Resize ``pod``, wait for the result and check it; False when it is one that 1.33 refuses, and was refused.

    Spec, allocated and actual resources are the new ones, no condition is left, exactly the containers whose changed resource asks for a
    restart were restarted, each once, and an extended resource is as it was.
    """
    old = namespace.pod()
    changed = [c for was, c in zip(before, after, strict=True) if was.res != c.res]
    if namespace.cluster.minor == 33 and (refusals := _refused_by_1_33(before, after)):
        refusal = namespace.refused(patch_of(*changed))
        assert (refusal.code, refusal.reason) == (422, "Invalid")
        assert all(message in refusal.message for message in refusals)
        return False
    resized = namespace.resize(patch_of(*changed))
    assert resized["metadata"]["generation"] == old["metadata"]["generation"] + 1
    pod = namespace.wait("the resize is carried out", "pod", lambda pod: is_settled(pod) and is_ready(pod) and has_resources(pod, after))
    added = {c.name: expected_restarts(was, c) for was, c in zip(before, after, strict=True)}
    assert restarts(pod) == {name: count + added[name] for name, count in restarts(old).items()}
    return True


def resize_and_roll_back(namespace: Namespace, before: Sequence[Container], after: Sequence[Container]) -> None:
    if resize_and_check(namespace, before, after):
        resize_and_check(namespace, after, before)


def _refused_by_1_33(before: Sequence[Container], after: Sequence[Container]) -> list[str]:
    pairs = list(zip(before, after, strict=True))
    return [message for rule, message in _BECAUSE_OF.items() if any(rule(was, now) for was, now in pairs)]
