"""The endpoint for metrics and probes, as the command line asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vpa_ippr.cluster.telemetry import Probe, Telemetry


@contextlib.contextmanager
def serving(
    telemetry: Telemetry,
    listen: tuple[str, int] | None,
    *,
    healthy: Mapping[str, Probe] | None = None,
    ready: Mapping[str, Probe] | None = None,
) -> Iterator[None]:
    """Serve it within the block; nothing is served when no address is given.

    Raises:
        UsageError: the address cannot be listened on.
    """
    if listen is None:
        yield
        return
    from vpa_ippr.cluster.telemetry import Exposition

    with Exposition(telemetry, listen, healthy=healthy or {}, ready=ready or {}):
        yield
