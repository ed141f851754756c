"""The errors of the whole project, drawn as one tree.

    VpaIpprError
    ├── UsageError            the command line or a file given on it is wrong        exit 2
    ├── QuantityError         a text is not a Kubernetes quantity                    exit 2
    ├── ValidationError       an object breaks its schema or a rule                  exit 2
    ├── SourceError           usage could not be read (metrics room)                 exit 1
    ├── ClusterError          the Kubernetes API refused or was not there            exit 1
    └── ActuatorError         the node's kernel or the journal refused               exit 1

Every error carries a ``reason``: one CamelCase code, the same in logs, status conditions, events and reports.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PARTIAL = 3


class VpaIpprError(Exception):
    """Base of all errors that we raise on purpose; the text is one line that says what, where and how to mend it."""

    reason = "Failed"
    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class UsageError(VpaIpprError):
    """The caller gave an argument or a file that cannot be used."""

    reason = "BadUsage"
    exit_code = EXIT_USAGE


class QuantityError(VpaIpprError):
    """A text is not a Kubernetes quantity, or is out of range for the resource it stands for."""

    reason = "BadQuantity"
    exit_code = EXIT_USAGE


class ValidationError(VpaIpprError):
    """An object breaks a rule of its type; ``fields`` holds one line for each broken rule."""

    reason = "Invalid"
    exit_code = EXIT_USAGE

    def __init__(self, message: str, *, fields: tuple[str, ...] = (), reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.fields = fields


class SourceError(VpaIpprError):
    """Usage could not be read from Prometheus or from a trace file."""

    reason = "SourceFailed"


class ClusterError(VpaIpprError):
    """The Kubernetes API could not be reached or refused a request."""

    reason = "ClusterFailed"


class ActuatorError(VpaIpprError):
    """The node refused: a cgroup file, the kernel's features, or the journal."""

    reason = "ActuatorFailed"
