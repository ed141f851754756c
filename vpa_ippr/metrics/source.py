"""The port through which every other room reads usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vpa_ippr.api.series import Usage, Window


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
