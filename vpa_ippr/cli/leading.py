"""Leader election, as the command line asks for it."""

from __future__ import annotations

import os
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from vpa_ippr.api.clock import Clock, SystemClock
from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.cli.options import LeaderOptions

if TYPE_CHECKING:
    from vpa_ippr.cluster.lease import Leading
    from vpa_ippr.cluster.rest import Connection, Rest
    from vpa_ippr.cluster.telemetry import Telemetry

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def open_leading(chosen: LeaderOptions, connection: Connection, clock: Clock, *, once: bool) -> Leading | None:
    """This process as a contender for the Lease; None when there is to be no election.

    In simulated time the election is held in simulated time, too.

    Raises:
        UsageError: an election is wanted for a single cycle, or in no known namespace.
    """
    if not chosen.wanted:
        return None
    if once:
        raise UsageError("--leader-elect is for a service that goes on: leave out --once or --leader-elect")
    namespace = chosen.namespace or pod_namespace()
    if namespace is None:
        raise UsageError("no namespace known for the Lease: give --leader-elect-namespace NAMESPACE")
    from vpa_ippr.cluster.lease import Elector, Leading, rest_for_leases

    now, wall = (time.monotonic, time.time) if isinstance(clock, SystemClock) else (clock.now, clock.now)
    # A process that comes back under the same host name is another one: it must not take itself for the holder.
    me = f"{socket.gethostname()}_{uuid.uuid4()}"
    return Leading(Elector(rest_for_leases(connection), ObjectKey(namespace, chosen.name), me, now=now, wall=wall), now)


def writing_rest(connection: Connection, leading: Leading | None, telemetry: Telemetry) -> Rest:
    """A transport that sends no write unless this process leads, or there is no election; what it does is counted."""
    from vpa_ippr.cluster.rest import Rest
    from vpa_ippr.cluster.telemetry import api_observer

    observe = api_observer(telemetry)
    if leading is None:
        return Rest(connection, observe=observe)
    telemetry.follow("leading", "1 while this process leads.", lambda: float(leading.is_leader()))
    return Rest(connection, guard=leading.require, observe=observe)


def pod_namespace(file: Path = _NAMESPACE_FILE) -> str | None:
    """The namespace that this pod is in: $POD_NAMESPACE, else its ServiceAccount's; None outside of a cluster."""
    named = os.environ.get("POD_NAMESPACE")
    if named:
        return named
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
