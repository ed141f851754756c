"""The writes of the updater on pods and shrinks, each with its event: the ledger first, then the resize, in two requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from vpa_ippr.api.cluster import EventType
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import ContainerResources, Resource
from vpa_ippr.api.shrink import Intent, MemoryShrink
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.ledger import Ledger, to_annotations, with_resize
from vpa_ippr.resize.patch import Change, changes_to, describe, format_amount, patch_for
from vpa_ippr.resize.plan import ShrinkNeed
from vpa_ippr.resize.ports import Patch, UpdaterPort, reference_to, with_precondition
from vpa_ippr.resize.reasons import AbortReason, EventReason
from vpa_ippr.resize.refusal import Answer, classify
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.shrink_terms import ShrinkTerms
from vpa_ippr.resize.shrinks import new_shrink

logger = logging.getLogger(__name__)

_WARNINGS = frozenset(
    {
        EventReason.RESIZE_DEFERRED,
        EventReason.RESIZE_REVERTED,
        EventReason.RESIZE_REFUSED,
        EventReason.SHRINK_REFUSED,
        EventReason.SHRINK_REVERTED,
    }
)


class Writer:
    """Carries out decisions; remembers only which events it has already recorded, so that none is repeated each cycle."""

    def __init__(self, cluster: UpdaterPort, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._said: dict[str, set[str]] = {}
        self._said_of_vpas: dict[ObjectKey, set[str]] = {}

    def remember(self, pod: Pod, ledger: Ledger) -> Pod:
        """Write the pod's ledger; nothing when it stands there already."""
        annotations = to_annotations(ledger)
        if all(pod.metadata.annotations.get(name) == value for name, value in annotations.items()):
            return pod
        return self._cluster.annotate_pod(pod.key, with_precondition(pod, {"metadata": {"annotations": annotations}}))

    def resize(
        self,
        pod: Pod,
        ledger: Ledger,
        after: dict[str, ContainerResources],
        now: float,
        *,
        reverting: bool = False,
        shrink: str = "",
        nudge: bool = False,
        rollout: str | None = None,
    ) -> tuple[Change, ...]:
        """Take the spec to ``after``; ``rollout`` as for ``with_resize``. Where the settings say so, a dry run comes first.

        Raises:
            ResizeRefusedError: the API server refused the resize itself; the error carries the pod as the ledger's write left it, or as
                it was when the dry run was refused.
            ClusterError: anything else went wrong, maybe before anything was written.
        """
        changes = changes_to(pod, after)
        patch = patch_for(pod, changes)
        if self._settings.dry_run_first:
            _ask(self._cluster.dry_run_resize, pod, patch)
        noted = self.remember(pod, with_resize(ledger, pod, after, now, reverting=reverting, shrink=shrink, nudge=nudge, rollout=rollout))
        _ask(self._cluster.resize_pod, noted, patch)
        logger.info("resize issued", extra={"pod": str(pod.key), "changes": describe(changes), "reverting": reverting, "shrink": shrink})
        return changes

    def open_shrink(self, pod: Pod, needs: Iterable[ShrinkNeed], taken: Iterable[str], terms: ShrinkTerms) -> MemoryShrink | None:
        """Open a MemoryShrink for the need that frees most: one a pod at a time. None when its container is not running."""
        need = max(needs, key=lambda n: (n.previous.limits.memory_bytes or 0) - n.target_bytes)
        shrink = new_shrink(pod, need, frozenset(taken), self._settings, terms)
        if shrink is None:
            return None
        try:
            self._cluster.create_shrink(shrink)
        except ClusterError as error:
            if classify(error).answer is not Answer.READ_AGAIN:
                raise
            return shrink  # it was there: an earlier life of this updater made it
        sizes = " -> ".join(format_amount(Resource.MEMORY, size) for size in (need.previous.limits.memory_bytes, need.target_bytes))
        self.say(pod, EventReason.SHRINK_OPENED, f"{need.container} memory limit {sizes}: memoryshrink {shrink.metadata.name}")
        return shrink

    def abort_shrink(self, shrink: MemoryShrink, reason: AbortReason, pod: Pod | None = None) -> None:
        """Ask the agent to give up."""
        self._cluster.patch_shrink_intent(shrink.key, Intent.ABORT)
        logger.info("shrink called off", extra={"shrink": str(shrink.key), "reason": reason})
        if pod is not None:
            self.say(pod, EventReason.SHRINK_ABORTED, f"memoryshrink {shrink.metadata.name}: {reason}")

    def say(self, pod: Pod, reason: EventReason, message: str) -> None:
        """Record an event on the pod."""
        event_type: EventType = "Warning" if reason in _WARNINGS else "Normal"
        self._cluster.record_event(reference_to(pod), event_type, reason, message)

    def unannotate(self, pod: Pod, names: Iterable[str]) -> None:
        """Remove annotations of the pod."""
        self._cluster.annotate_pod(pod.key, with_precondition(pod, {"metadata": {"annotations": dict.fromkeys(names)}}))

    def say_of_vpa(self, vpa: Vpa, event_type: EventType, reason: EventReason, message: str) -> None:
        """Record an event on the VPA."""
        self._cluster.record_event(vpa, event_type, reason, message)

    def say_once(self, pod: Pod, reason: EventReason, occasion: str, message: str) -> None:
        """Record an event unless this process has recorded it for this pod on the same occasion."""
        said = self._said.setdefault(pod.metadata.uid, set())
        if f"{reason}/{occasion}" not in said:
            said.add(f"{reason}/{occasion}")
            self.say(pod, reason, message)

    def say_once_of_vpa(self, vpa: Vpa, reason: EventReason, occasion: str, message: str) -> None:
        """Record an event on the VPA unless this process has recorded it there on the same occasion."""
        said = self._said_of_vpas.setdefault(vpa.key, set())
        if f"{reason}/{occasion}" not in said:
            said.add(f"{reason}/{occasion}")
            self.say_of_vpa(vpa, "Warning", reason, message)

    def forget_all_but(self, pod_uids: Iterable[str], vpas: Iterable[ObjectKey]) -> None:
        """Forget what was said of pods and VPAs that are gone."""
        kept, keys = set(pod_uids), set(vpas)
        self._said = {uid: said for uid, said in self._said.items() if uid in kept}
        self._said_of_vpas = {key: said for key, said in self._said_of_vpas.items() if key in keys}


class ResizeRefusedError(ClusterError):
    """The API server refused a resize; ``pod`` is as the ledger's write left it, ``cause`` the server's answer."""

    reason = "ResizeRefused"

    def __init__(self, pod: Pod, cause: ClusterError) -> None:
        super().__init__(str(cause))
        self.pod = pod
        self.cause = cause


def _ask(send: Callable[[ObjectKey, Patch], Pod], pod: Pod, patch: Patch) -> None:
    try:
        send(pod.key, with_precondition(pod, patch))
    except ClusterError as error:
        if classify(error).answer is Answer.REFUSED:
            raise ResizeRefusedError(pod, error) from error
        raise
