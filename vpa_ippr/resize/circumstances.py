"""What keeps a change from being made although the recommendation asks for it: a pause, a closed window, an HPA, a startup boost."""

from __future__ import annotations

from dataclasses import dataclass

from vpa_ippr.api.cluster import Workload
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.boost import boosted_containers
from vpa_ippr.resize.hpa import NOT_SHARED, HpaIndex, Sharing, sharing_of
from vpa_ippr.resize.reasons import AbortReason
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.shrink_terms import ORDINARY as ORDINARY_TERMS
from vpa_ippr.resize.shrink_terms import ShrinkTerms, shrink_terms_of
from vpa_ippr.resize.windows import is_paused, open_at, opens_next, windows_of


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The circumstances of one pod.

    ``paused``: nothing new is begun. ``closed_until``: when the next maintenance window opens, None while one is open or none are set.
    ``sharing``: what HPAs scale on. ``boosted``: the containers whose CPU is in its startup boost. ``shrink_terms``: how memory shrinks are
    to be carried out.
    """

    paused: bool = False
    closed_until: float | None = None
    sharing: Sharing = NOT_SHARED
    boosted: frozenset[str] = frozenset()
    shrink_terms: ShrinkTerms = ORDINARY_TERMS

    @property
    def halted(self) -> AbortReason | None:
        """Why shrinks under way are given up, if they are: their limit must not be lowered now, nor memory be held back meanwhile."""
        if self.paused:
            return AbortReason.PAUSED
        return AbortReason.OUTSIDE_WINDOW if self.closed_until is not None else None


ORDINARY = Circumstances()


def circumstances_of(pod: Pod, vpa: Vpa, workload: Workload | None, hpas: HpaIndex, now: float, settings: Settings) -> Circumstances:
    """The circumstances of a pod of this VPA; ``workload`` is the VPA's target, if it was found.

    Raises:
        ValidationError: an annotation of the VPA cannot be read; the reason is ``ConfigUnsupported``.
    """
    windows = windows_of(vpa, settings.maintenance_windows)
    return Circumstances(
        paused=settings.paused or is_paused(vpa),
        closed_until=None if open_at(windows, now) else opens_next(windows, now),
        sharing=sharing_of(vpa, workload, hpas),
        boosted=boosted_containers(pod),
        shrink_terms=shrink_terms_of(vpa),
    )
