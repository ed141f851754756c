"""A resize that is due and planned for one pod, before it is known whether it may go now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vpa_ippr.api.resources import ContainerResources, Resource
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.plan import Plan
from vpa_ippr.resize.view import View


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is to be done with the pod of ``view``; ``plan`` is not empty. ``rollout``: the key of the rollout that it is part of."""

    view: View
    vpa: Vpa
    plan: Plan
    rollout: str | None = None

    @property
    def wanted(self) -> Mapping[str, ContainerResources]:
        """What the touched containers are to have in the end, the limits included that come down with a shrink."""
        wanted = dict(self.plan.after)
        for need in self.plan.shrinks:
            base = wanted.get(need.container) or self.view.pod.desired(need.container)
            requests = base.requests.having(Resource.MEMORY, need.request_bytes)
            wanted[need.container] = ContainerResources(requests, base.limits.having(Resource.MEMORY, need.target_bytes))
        return wanted
