"""What differs between Kubernetes versions, as one table; the rows are the minors of the API server."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vpa_ippr.api.errors import UsageError


@dataclass(frozen=True, slots=True)
class VersionRules:
    """The rules of one minor version that a plan depends on.

    ``memory_limit_decrease``: a memory limit may go down although the memory resizePolicy is not RestartContainer (1.33 answers 422).
    ``stale_pod_cgroup``: a resize accepted while a container is not running does not reach the pod's cgroup (kubernetes#138760; its fix is
    in 1.37, and where it was ported back the remedy does no harm).
    """

    minor: int
    memory_limit_decrease: bool
    stale_pod_cgroup: bool


RULES: dict[str, VersionRules] = {
    "1.33": VersionRules(33, memory_limit_decrease=False, stale_pod_cgroup=True),
    "1.34": VersionRules(34, memory_limit_decrease=True, stale_pod_cgroup=True),
    "1.35": VersionRules(35, memory_limit_decrease=True, stale_pod_cgroup=True),
    "1.36": VersionRules(36, memory_limit_decrease=True, stale_pod_cgroup=True),
    "1.37": VersionRules(37, memory_limit_decrease=True, stale_pod_cgroup=False),
}
_OLDEST = min(rules.minor for rules in RULES.values())
_NEWEST = max(rules.minor for rules in RULES.values())
_VERSION = re.compile(r"v?1\.(\d+)")


def rules_for(version: str) -> VersionRules:
    """The rules of a server version such as ``1.36``, ``v1.34.2`` or ``v1.33.1-eks-1``; a newer minor gets the newest row.

    Raises:
        UsageError: the version cannot be read, or is older than 1.33 where resizing in place is not on by default.
    """
    match = _VERSION.match(version)
    if match is None:
        raise UsageError(f"cannot read Kubernetes version {version!r}: expected something like 1.36", reason="BadVersion")
    minor = int(match[1])
    if minor < _OLDEST:
        raise UsageError(
            f"Kubernetes {version} cannot resize pods in place by default: 1.{_OLDEST} or newer is needed", reason="VersionTooOld"
        )
    return RULES[f"1.{min(minor, _NEWEST)}"]
