"""How many pods of one workload may be disturbed: a container restart or an eviction counts, a plain in-place change does not.

As upstream: a share of the configured replicas may be out of service, and at least one pod where all serve. Differently: a pod serves
when it is Ready and no resize of it is under way, whatever its phase says; and PodDisruptionBudgets count for restarts in place as for
evictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from vpa_ippr.api.pdb import PodDisruptionBudget, covering
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import is_complete, is_ready


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left of the budget of one workload.

    ``pdbs`` are those of the cluster, with what has been taken from them: a budget of another workload made later is to begin with them.
    """

    vpa: Vpa
    pods: tuple[Pod, ...]
    configured: int
    least: int
    tolerance: int
    pdbs: tuple[PodDisruptionBudget, ...]
    taken: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, pods: Sequence[Pod], configured_replicas: int | None, pdbs: Sequence[PodDisruptionBudget], vpa: Vpa, settings: Settings
    ) -> Budget:
        """The budget of the pods of a VPA; ``configured_replicas`` None: as many as there are."""
        live = tuple(pod for pod in pods if pod.metadata.deletion_timestamp is None)
        policy = vpa.spec.update_policy
        configured = len(live) if configured_replicas is None else configured_replicas
        least = (policy.min_replicas if policy else None) or settings.min_replicas
        return cls(vpa, live, configured, least, int(configured * settings.disruption_tolerance), tuple(pdbs))

    def allows(self, pod: Pod) -> str | None:
        """None when ``pod`` may be disturbed now, else why not."""
        if len(self.pods) < self.least:
            return f"{self.vpa.key} has {len(self.pods)} pods, fewer than the {self.least} that it takes to disturb one"
        return self._short_of(pod) or self._pdb_refuses(pod)

    def taking(self, pod: Pod) -> Budget:
        """What is left once ``pod`` is disturbed."""
        spent = {(pdb.metadata.namespace, pdb.metadata.name) for pdb in covering(self.pdbs, pod) if not _free(pdb, pod)}
        pdbs = tuple(_one_less(pdb) if (pdb.metadata.namespace, pdb.metadata.name) in spent else pdb for pdb in self.pdbs)
        return replace(self, taken=self.taken | {pod.metadata.uid}, pdbs=pdbs)

    def _short_of(self, pod: Pod) -> str | None:
        others = [one for one in self.pods if one.metadata.uid != pod.metadata.uid]
        serving = sum(is_complete(one) for one in others if one.metadata.uid not in self.taken)
        needed = self.configured - self.tolerance
        if serving >= needed:
            return None
        # Where the share comes to less than one pod, one may still go at a time.
        complete = len(self.pods) >= self.configured and serving == len(others)
        if self.tolerance == 0 and complete and not self.taken:
            return None
        return f"only {serving} other pods of {self.vpa.key} serve, of {self.configured} {needed} have to"

    def _pdb_refuses(self, pod: Pod) -> str | None:
        pdbs = covering(self.pdbs, pod)
        if len(pdbs) > 1:
            return f"pod {pod.key} has more than one PodDisruptionBudget, which evictions do not support"
        for pdb in pdbs:
            if _free(pdb, pod):
                continue
            if pdb.is_stale:
                return f"PodDisruptionBudget {pdb.metadata.name} is still being processed by the server"
            # The server counts a pod that is about to restart as healthy until it does.
            if pdb.status.disruptions_allowed <= sum(self._is_under_way(one) and pdb.covers(one) for one in self.pods if one is not pod):
                return f"PodDisruptionBudget {pdb.metadata.name} allows no disruption now"
        return None

    def _is_under_way(self, pod: Pod) -> bool:
        return pod.metadata.uid not in self.taken and is_ready(pod) and not is_complete(pod)


def _free(pdb: PodDisruptionBudget, pod: Pod) -> bool:
    return not is_ready(pod) and pdb.lets_unready_go


def _one_less(pdb: PodDisruptionBudget) -> PodDisruptionBudget:
    status = msgspec.structs.replace(pdb.status, disruptions_allowed=pdb.status.disruptions_allowed - 1)
    return msgspec.structs.replace(pdb, status=status)
