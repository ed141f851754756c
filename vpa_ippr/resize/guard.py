"""The PromQL guard that a user may set on a VPA: anything above zero that it gives for the canary is harm."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import promql_parser

from vpa_ippr.api.errors import SourceError, ValidationError
from vpa_ippr.api.names import ANNOTATION_ROLLOUT_GUARD
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.resize.ports import GuardSource

MAX_GUARD_BYTES: Final = 2048
_NOT_VECTORS: Final = (promql_parser.NumberLiteral, promql_parser.StringLiteral, promql_parser.MatrixSelector)
_PLACEHOLDER: Final = re.compile(r"\$(namespace|pod)\b")
# What the API server takes as a name needs no escape, however the user quotes it.
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class GuardAnswer:
    """``value``: the largest that the guard gave, None for nothing; ``problem``: why it could not be asked, empty when it was."""

    value: float | None = None
    problem: str = ""


def read_guard(vpa: Vpa) -> str | None:
    """The guard as the user wrote it, with ``$namespace`` and ``$pod`` in it; None when there is none.

    Raises:
        ValidationError: it is too long, or is no PromQL expression that gives a vector (reason ``InvalidGuard``).
    """
    text = vpa.metadata.annotations.get(ANNOTATION_ROLLOUT_GUARD)
    if text is None:
        return None
    size = len(text.encode())
    if size > MAX_GUARD_BYTES:
        raise _invalid(f"{size} bytes are more than the {MAX_GUARD_BYTES} that are allowed")
    try:
        tree = promql_parser.parse(text)
    except ValueError as error:
        raise _invalid(f"{' '.join(str(error).split())}; $namespace and $pod belong into the quotes of a label matcher") from error
    if isinstance(tree, _NOT_VECTORS):
        raise _invalid("it gives no instant vector")
    return text


def guard_query(guard: str, pod: Pod) -> str:
    """The query to ask about ``pod``.

    Raises:
        ValidationError: the pod's name or namespace is none that Kubernetes would take.
    """
    values = {"namespace": pod.metadata.namespace, "pod": pod.metadata.name}
    for value in values.values():
        if not _NAME.fullmatch(value):
            raise _invalid(f"{value!r} is not the name of a pod or of a namespace")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], guard)


def ask_guard(source: GuardSource | None, vpa: Vpa, pod: Pod | None) -> GuardAnswer:
    """What the VPA's guard says of ``pod``, the canary; without a pod the guard is only looked at. A problem holds the rollout."""
    try:
        guard = read_guard(vpa)
        if guard is None:
            return GuardAnswer()
        if source is None:
            return GuardAnswer(problem=f"annotation {ANNOTATION_ROLLOUT_GUARD}: the updater knows no Prometheus to ask")
        return GuardAnswer(source.evaluate(guard_query(guard, pod)) if pod is not None else None)
    except (SourceError, ValidationError) as error:
        return GuardAnswer(problem=str(error))


def _invalid(what: str) -> ValidationError:
    return ValidationError(f"annotation {ANNOTATION_ROLLOUT_GUARD}: {what}", reason="InvalidGuard")
