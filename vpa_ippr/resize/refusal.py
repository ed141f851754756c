"""What an error of the Kubernetes API means for a resize or an eviction: try again, read again, or leave it for a while."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vpa_ippr.api.errors import ClusterError
from vpa_ippr.resize.ports import ApiRefusal
from vpa_ippr.resize.reasons import RefusalReason


class Answer(StrEnum):
    """What to do next."""

    READ_AGAIN = "ReadAgain"
    GONE = "Gone"
    TRY_AGAIN = "TryAgain"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The meaning of an error; ``reason`` is set only for a refusal."""

    answer: Answer
    message: str
    reason: RefusalReason | None = None


_ANSWERS = {409: Answer.READ_AGAIN, 404: Answer.GONE}
_FORBIDDEN_TEXTS = (
    ("exceeded quota", RefusalReason.QUOTA_EXCEEDED),
    ("failed quota", RefusalReason.QUOTA_EXCEEDED),
    ("usage per container", RefusalReason.LIMIT_RANGE),
    ("usage per pod", RefusalReason.LIMIT_RANGE),
    ("limit to request ratio per", RefusalReason.LIMIT_RANGE),
    ("enough allocatable resources", RefusalReason.NODE_CAPACITY),
    ("not available on node", RefusalReason.NODE_UNSUPPORTED),
    ("only supported on linux nodes", RefusalReason.NODE_UNSUPPORTED),
    ("cannot patch resource", RefusalReason.PERMISSION_DENIED),
    ("cannot create resource", RefusalReason.PERMISSION_DENIED),
)
_INVALID_TEXTS = (
    ("qos class may not change", RefusalReason.QOS_WOULD_CHANGE),
    ("memory limits cannot be", RefusalReason.VERSION_FORBIDS_DECREASE),
    ("without support for resize", RefusalReason.NODE_UNSUPPORTED),
    ("windows pods", RefusalReason.NODE_UNSUPPORTED),
)


def classify(error: ClusterError) -> Refusal:
    """The meaning of ``error`` of a resize or an eviction; what is not told apart is worth another try next cycle."""
    message = str(error)
    if not isinstance(error, ApiRefusal):
        return Refusal(Answer.TRY_AGAIN, message)
    if error.status in _ANSWERS:
        return Refusal(_ANSWERS[error.status], message)
    reason = _refused_because(error, message)
    return Refusal(Answer.REFUSED if reason else Answer.TRY_AGAIN, message, reason)


def _refused_because(error: ApiRefusal, message: str) -> RefusalReason | None:
    causes = {cause.reason for cause in error.causes}
    match error.status:
        case 403 if "NodeCapacity" in causes:
            return RefusalReason.NODE_CAPACITY
        case 403:
            return _by_text(message, _FORBIDDEN_TEXTS, RefusalReason.ADMISSION_DENIED)
        case 400 | 422:
            return _by_text(message, _INVALID_TEXTS, RefusalReason.INVALID)
        case 429 if "DisruptionBudget" in causes:  # of an eviction: not that the server is busy
            return RefusalReason.DISRUPTION_BUDGET
        case 500 if "more than one poddisruptionbudget" in message.lower():  # of an eviction: so until one of them is removed
            return RefusalReason.SEVERAL_BUDGETS
        case _:
            return None


def _by_text(message: str, table: tuple[tuple[str, RefusalReason], ...], default: RefusalReason) -> RefusalReason:
    text = message.lower()
    return next((reason for part, reason in table if part in text), default)
