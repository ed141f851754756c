"""Taking part in an election that is held by means of a Lease, and reading how fresh somebody else's Lease is."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from vpa_ippr.api.errors import ClusterError, ValidationError
from vpa_ippr.api.lease import LEASE_API_VERSION, Lease, LeaseSpec
from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.election import Action, Observed, Terms, next_action, observe, spec_after, spec_given_back
from vpa_ippr.cluster.rest import ApiError, Connection, Rest

logger = logging.getLogger(__name__)

ADMISSION_LEASE = "vpa-admission-controller"
"""That of the upstream VPA."""
ADMISSION_LEASES = ("vpa-ippr-admission", ADMISSION_LEASE)
"""The Lease that upstream's admission controller renews each 10 s."""


_CONFLICT_SECONDS = 0.1


class NotLeadingError(ClusterError):
    """Another process may be leading by now: this one must not write."""

    reason = "NotLeading"


class Elector:
    """One contender. ``step`` is for one thread, ``is_leader`` for any.

    It leads from a renewal until ``renew_deadline_seconds`` after the moment before that renewal was sent; others wait longer than that.
    """

    def __init__(
        self,
        rest: Rest,
        place: ObjectKey,
        me: str,
        *,
        terms: Terms = Terms(),  # noqa: B008 - frozen
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """``rest``: one of its own, from ``rest_for_leases``. ``now``: a clock that never jumps; ``wall``: the time of day."""
        self._rest = rest
        self._place = place
        self._me = me
        self._terms = terms
        self._now = now
        self._wall = wall
        self._draw = draw
        self._observed: Observed | None = None
        self._held: Lease | None = None
        self._leads_until: float | None = None
        self._was_leading = False
        self._told_holder: str | None = None
        self._trouble = ""

    def is_leader(self) -> bool:
        """Whether nobody else can be acting now; time alone can end it."""
        until = self._leads_until
        return until is not None and self._now() < until

    def require(self) -> None:
        """Raise NotLeadingError unless leading; the guard of a ``Rest`` through which only the leader may write."""
        if not self.is_leader():
            raise NotLeadingError(f"lease {self._place} is not held any more: nothing is written")

    def step(self) -> float:
        """Try once to get or to keep the lease; returns how many seconds to wait before the next try."""
        try:
            self._try()
            self._trouble = ""
        except ClusterError as error:
            self._held = None
            if isinstance(error, ApiError) and error.status == 409:  # somebody wrote it meanwhile: see at once who, and what
                return _CONFLICT_SECONDS
            if str(error) != self._trouble:
                self._trouble = str(error)
                logger.warning("lease not reached", extra={"lease": str(self._place), "reason": error.reason, "error": self._trouble})
        leading = self.is_leader()
        if leading != self._was_leading:
            self._was_leading = leading
            logger.info("leading begins" if leading else "leading ends", extra={"lease": str(self._place), "identity": self._me})
        # Those who wait are spread, so that they do not all come at the moment at which the lease expires.
        return self._terms.retry_seconds * (1.0 if leading else 1.0 + self._draw() / 2)

    def release(self) -> None:
        """Give the lease back, so that another can take it at once; only after the last write. A failure is logged: it expires anyway."""
        held, leading = self._held, self.is_leader()
        self._leads_until = self._held = None
        if held is None or not leading:
            return
        try:
            self._write(held, spec_given_back(held.spec, self._wall()))
            logger.info("lease given back", extra={"lease": str(self._place)})
        except ClusterError as error:
            logger.warning("lease not given back", extra={"lease": str(self._place), "reason": error.reason, "error": str(error)})

    def _try(self) -> None:
        lease = self._held if self.is_leader() else None
        if lease is None:
            lease = self._rest.find(self._path(), Lease)
        began = self._now()
        if lease is not None:
            self._observed = observe(lease, self._observed, began)
        action = next_action(lease, self._me, self._observed, began, self._terms)
        if action is Action.WAIT:
            assert lease is not None
            self._follow(lease)
            return
        spec = spec_after(action, lease, self._me, self._wall(), self._terms)
        self._held = self._create(spec) if lease is None else self._write(lease, spec)
        self._observed = observe(self._held, self._observed, began)
        self._leads_until = began + self._terms.renew_deadline_seconds

    def _follow(self, lease: Lease) -> None:
        self._leads_until = self._held = None
        holder = lease.spec.holder_identity
        if holder != self._told_holder:
            self._told_holder = holder
            logger.info("another leads", extra={"lease": str(self._place), "holder": holder})

    def _create(self, spec: LeaseSpec) -> Lease:
        collection = paths.collection(LEASE_API_VERSION, self._place.namespace, "leases")
        lease = Lease(ObjectMeta(name=self._place.name, namespace=self._place.namespace), spec)
        return self._rest.create(collection, lease, Lease)

    def _write(self, lease: Lease, spec: LeaseSpec) -> Lease:
        # A patch keeps the fields that we do not know; the version in it makes the API server refuse when anybody was quicker.
        metadata = {"uid": lease.metadata.uid, "resourceVersion": lease.metadata.resource_version}
        return self._rest.patch(self._path(), {"metadata": metadata, "spec": spec}, Lease)

    def _path(self) -> str:
        return paths.named(LEASE_API_VERSION, self._place, "leases")


class Leading:
    """An elector that is kept going: in a thread of its own, or by somebody who calls ``advance``."""

    def __init__(self, elector: Elector, now: Callable[[], float]) -> None:
        """``now``: the elector's clock."""
        self._elector = elector
        self._now = now
        self._due = now()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def is_leader(self) -> bool:
        """Whether this process may act now; cheap, to be asked before each cycle and between writes."""
        return self._elector.is_leader()

    def require(self) -> None:
        """Raise NotLeadingError unless leading."""
        self._elector.require()

    def advance(self) -> float:
        """Take the step that is due, if one is; returns the moment of the next one."""
        if self._now() >= self._due:
            self._due = self._now() + self._elector.step()
        return self._due

    def start(self, changed: Callable[[], None]) -> None:
        """Keep it going in a daemon thread, which calls ``changed`` whenever leading begins or ends."""
        self._thread = threading.Thread(target=self._run, args=(changed,), name="lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Try no more, and give the lease back. After the last write of the process."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._elector.release()

    def _run(self, changed: Callable[[], None]) -> None:
        was = False
        while not self._ended.is_set():
            seconds = self._step()
            leads = self.is_leader()
            if leads != was:
                was = leads
                changed()
            self._ended.wait(seconds)

    def _step(self) -> float:
        try:
            return self._elector.step()
        except Exception:
            logger.exception("lease failed unexpectedly")
            return 1.0


def rest_for_leases(connection: Connection, terms: Terms = Terms()) -> Rest:  # noqa: B008 - frozen
    """A transport for an elector: an answer that takes longer than half of the deadline comes too late for another try."""
    return Rest(connection, timeout_seconds=terms.renew_deadline_seconds / 2, retries=0)


def admission_renewed_at(rest: Rest, namespaces: Sequence[str], name: str = ADMISSION_LEASE) -> float | None:
    """When an admission controller last said that it is there, seconds since the epoch on ITS clock: the newest in these namespaces.

    None when none has a Lease of that name that says so.

    Raises:
        ClusterError: the API server could not be asked.
    """
    found = (rest.find(paths.named(LEASE_API_VERSION, ObjectKey(namespace, name), "leases"), Lease) for namespace in namespaces)
    return max((moment for lease in found if lease is not None and (moment := _renewed_at(lease)) is not None), default=None)


def _renewed_at(lease: Lease) -> float | None:
    try:
        return parse_time(lease.spec.renew_time) if lease.spec.renew_time else None
    except ValidationError as error:
        logger.warning("lease not readable", extra={"lease": f"{lease.metadata.namespace}/{lease.metadata.name}", "error": str(error)})
        return None
