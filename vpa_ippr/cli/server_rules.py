"""What the API server allows, asked of it once when a command begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpa_ippr.api.errors import ClusterError

if TYPE_CHECKING:
    from vpa_ippr.cluster.rest import Rest
    from vpa_ippr.resize.rules import VersionRules


def server_rules(rest: Rest) -> VersionRules:
    """The rules of the server's version.

    Raises:
        ClusterError: it does not serve ``pods/resize``, or could not be asked.
        UsageError: its version is too old.
    """
    from vpa_ippr.cluster.capabilities import discover
    from vpa_ippr.resize.rules import rules_for

    server = discover(rest)
    if not server.serves_resize:
        raise ClusterError(
            f"the API server (Kubernetes {server.version}) does not serve pods/resize: resizing in place needs 1.33 or newer",
            reason="ResizeNotServed",
        )
    return rules_for(server.version)
