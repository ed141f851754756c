"""What the updater sees of one pod in one cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import ContainerResources
from vpa_ippr.api.shrink import MemoryShrink
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits
from vpa_ippr.resize.circumstances import ORDINARY, Circumstances
from vpa_ippr.resize.due import IN_PLACE_MODES
from vpa_ippr.resize.ledger import History, Ledger, read_ledger, tidied
from vpa_ippr.resize.reasons import AbortReason, OutcomeCode
from vpa_ippr.resize.result import PodOutcome
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import ResizeState, resize_state
from vpa_ippr.resize.targets import targets_of


@dataclass(frozen=True, slots=True)
class View:
    """A pod with its VPA, the pods of the same VPA, its node and its shrinks, as of ``now``."""

    pod: Pod
    vpa: Vpa | None
    group: Sequence[Pod]
    node: Node | None
    shrinks: tuple[MemoryShrink, ...]
    ledger: Ledger
    state: ResizeState
    now: float
    namespace_limits: NamespaceLimits | QuantityError = UNLIMITED
    known_circumstances: Circumstances | ValidationError = ORDINARY

    @property
    def circumstances(self) -> Circumstances:
        """What keeps changes from being made.

        Raises:
            ValidationError: an annotation of the VPA cannot be read.
        """
        if isinstance(self.known_circumstances, ValidationError):
            raise ValidationError(str(self.known_circumstances), reason=self.known_circumstances.reason)
        return self.known_circumstances

    @property
    def halted(self) -> AbortReason | None:
        """Why shrinks under way are given up, if they are; circumstances that cannot be read stop nothing that has begun."""
        known = self.known_circumstances
        return None if isinstance(known, ValidationError) else known.halted

    @property
    def limits(self) -> NamespaceLimits:
        """What the namespace's LimitRanges allow.

        Raises:
            QuantityError: one of them cannot be read.
        """
        if isinstance(self.namespace_limits, QuantityError):
            raise QuantityError(str(self.namespace_limits), reason=self.namespace_limits.reason)
        return self.namespace_limits

    @property
    def is_readable(self) -> bool:
        """False when what belongs to the pod's VPA or namespace cannot be read."""
        return not isinstance(self.namespace_limits, QuantityError) and not isinstance(self.known_circumstances, ValidationError)

    @property
    def active(self) -> tuple[MemoryShrink, ...]:
        """The shrinks that are not finished."""
        return tuple(shrink for shrink in self.shrinks if not shrink.status.phase.is_terminal)

    @property
    def history(self) -> History:
        """What deciding and planning may know of the past."""
        return History(self.ledger, {shrink.spec.container.name: shrink.spec.target_bytes for shrink in self.active})

    @property
    def node_shape(self) -> str:
        """The node's name and size; its name alone when nothing more is known."""
        return self.node.shape if self.node else self.pod.spec.node_name

    def desired(self, container: str) -> ContainerResources | None:
        """What the VPA wants for a container; None when it may not be resized in place."""
        if self.vpa is None or self.vpa.update_mode not in IN_PLACE_MODES:
            return None
        # A shrink under way goes on where a LimitRange cannot be read: the API server knows it, and has the last word.
        limits = UNLIMITED if isinstance(self.namespace_limits, QuantityError) else self.namespace_limits
        return next((t.desired for t in targets_of(self.pod, self.vpa, self.ledger, limits) if t.container == container), None)

    def outcome(self, code: OutcomeCode, reason: str = "", message: str = "") -> PodOutcome:
        """An outcome for this pod."""
        return PodOutcome(self.pod.key, self.vpa.key if self.vpa else None, code, reason, message)


def look(
    pod: Pod,
    vpa: Vpa | None,
    group: Sequence[Pod],
    node: Node | None,
    shrinks: Sequence[MemoryShrink],
    now: float,
    settings: Settings,
    namespace_limits: NamespaceLimits | QuantityError = UNLIMITED,
) -> View:
    """The view of ``pod`` in ordinary circumstances, in a namespace with these limits, or the error with which they were read.

    Raises:
        QuantityError, ValidationError: the pod cannot be read.
    """
    ledger = tidied(read_ledger(pod), now, settings, node.shape if node else None, [s.metadata.uid for s in shrinks])
    return View(pod, vpa, group, node, tuple(shrinks), ledger, resize_state(pod), now, namespace_limits)
