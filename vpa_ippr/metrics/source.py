"""The ports through which every other room reads usage and the evidence on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vpa_ippr.api.series import Evidence, Usage, Window


class UsageSource(Protocol):
    """A place that knows what containers used."""

    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that have data, sorted.

        Raises:
            SourceError: the source cannot be read.
        """
        ...

    def fetch(self, window: Window, namespaces: Sequence[str] | None = None) -> Usage:
        """Everything known of the window, for these namespaces or for all; the same question always gives the same answer.

        Raises:
            SourceError: nothing at all could be read; a part that could not is in ``Usage.failures``.
        """
        ...


class EvidenceSource(Protocol):
    """A place that also knows what tells use from need; not every ``UsageSource`` does."""

    def fetch_evidence(self, window: Window, namespaces: Sequence[str] | None = None) -> Evidence:
        """All evidence of the window, for these namespaces or for all, on the same grid as the usage.

        Raises:
            SourceError: the namespaces cannot be listed; one that cannot be read is in ``Evidence.failures``.
        """
        ...
