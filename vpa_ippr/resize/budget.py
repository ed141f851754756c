"""How many pods of one workload may be disturbed: a container restart or an eviction counts, a plain in-place change does not.

As upstream: a share of the configured replicas may be out of service, and at least one pod where all serve. Differently: a pod serves
when it is Ready and no resize of it is under way, whatever its phase says; and PodDisruptionBudgets count for restarts in place as for
evictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from vpa_ippr.api.errors import VpaIpprError
from vpa_ippr.api.pdb import PodDisruptionBudget, covering
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import is_complete, is_ready


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left of the budget of one workload.

    ``live``: how many pods it has; ``serving``: the UIDs of those that serve and are not going to be disturbed; ``under_way``: by
    PodDisruptionBudget the UIDs of those that are Ready and being resized, so that they may be about to restart. ``pdbs`` are those of the
    namespace, with what has been taken from them: a budget of another workload made later is to begin with them.
    """

    vpa: Vpa
    live: int
    configured: int
    least: int
    tolerance: int
    pdbs: tuple[PodDisruptionBudget, ...]
    serving: frozenset[str]
    under_way: Mapping[str, frozenset[str]]
    is_untouched: bool = True

    @classmethod
    def of(
        cls, pods: Sequence[Pod], configured_replicas: int | None, pdbs: Sequence[PodDisruptionBudget], vpa: Vpa, settings: Settings
    ) -> Budget:
        """The budget of the pods of a VPA; ``configured_replicas`` None: as many as there are. A pod that cannot be read does not serve.

        The replicas may be known from a while ago. More pods than that are no surplus: the workload may have been scaled up since.
        """
        live = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
        policy = vpa.spec.update_policy
        configured = max(configured_replicas or 0, len(live))
        serving, unsure = _told_apart(live)
        return cls(
            vpa=vpa,
            live=len(live),
            configured=configured,
            least=(policy.min_replicas if policy else None) or settings.min_replicas,
            tolerance=int(configured * settings.disruption_tolerance),
            pdbs=tuple(pdbs),
            serving=frozenset(serving),
            under_way={pdb.metadata.name: frozenset(pod.metadata.uid for pod in unsure if pdb.covers(pod)) for pdb in pdbs}
            if unsure
            else {},
        )

    @property
    def left(self) -> int:
        """How many more pods that serve may be disturbed at the same time."""
        return 0 if self.live < self.least else max(0, len(self.serving) - (self.configured - self.tolerance))

    def allows(self, pod: Pod) -> str | None:
        """None when ``pod`` may be disturbed now, else why not."""
        if self.live < self.least:
            return f"{self.vpa.key} has {self.live} pods, fewer than the {self.least} that it takes to disturb one"
        return self._short_of(pod) or self._pdb_refuses(pod)

    def taking(self, pod: Pod) -> Budget:
        """What is left once ``pod`` is disturbed."""
        spent, uid = {pdb.metadata.name for pdb in covering(self.pdbs, pod) if not _free(pdb, pod)}, pod.metadata.uid
        return replace(
            self,
            pdbs=tuple(_one_less(pdb) if pdb.metadata.name in spent else pdb for pdb in self.pdbs) if spent else self.pdbs,
            serving=self.serving - {uid},
            under_way={name: uids - {uid} for name, uids in self.under_way.items()},
            is_untouched=False,
        )

    def _short_of(self, pod: Pod) -> str | None:
        serving = len(self.serving) - (pod.metadata.uid in self.serving)
        needed = self.configured - self.tolerance
        if serving >= needed:
            return None
        # Where the share comes to less than one pod, one may still go at a time.
        complete = self.live >= self.configured and serving >= self.live - 1
        if self.tolerance == 0 and complete and self.is_untouched:
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
            if pdb.status.disruptions_allowed <= len(self.under_way.get(pdb.metadata.name, frozenset()) - {pod.metadata.uid}):
                return f"PodDisruptionBudget {pdb.metadata.name} allows no disruption now"
        return None


def _told_apart(pods: Sequence[Pod]) -> tuple[list[str], list[Pod]]:
    """The UIDs of those that serve, and the pods that are Ready while a resize of them is under way."""
    serving: list[str] = []
    unsure: list[Pod] = []
    for pod in pods:
        try:
            if is_complete(pod):
                serving.append(pod.metadata.uid)
            elif is_ready(pod):
                unsure.append(pod)
        except VpaIpprError:
            continue
    return serving, unsure


def _free(pdb: PodDisruptionBudget, pod: Pod) -> bool:
    return not is_ready(pod) and pdb.lets_unready_go


def _one_less(pdb: PodDisruptionBudget) -> PodDisruptionBudget:
    status = msgspec.structs.replace(pdb.status, disruptions_allowed=pdb.status.disruptions_allowed - 1)
    return msgspec.structs.replace(pdb, status=status)
