"""How many pods of one workload may be disturbed: a container restart counts, a plain in-place change does not."""

from __future__ import annotations

from collections.abc import Sequence

from vpa_ippr.api.pod import Pod
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import is_complete


def may_restart(pod: Pod, group: Sequence[Pod], vpa: Vpa, settings: Settings) -> bool:
    """True when restarting containers of ``pod`` leaves every other pod of its VPA serving, and there are enough pods.

    One pod at a time: a pod whose own resize is not complete, or that is not Ready after it, blocks the next.
    """
    policy = vpa.spec.update_policy
    least = (policy.min_replicas if policy else None) or settings.min_replicas
    if len(group) < least:
        return False
    return all(is_complete(other) for other in group if other.key != pod.key)
