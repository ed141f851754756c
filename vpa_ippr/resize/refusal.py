"""What an error of the Kubernetes API means for a resize: try again, read again, or leave it for a while."""

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
)
_INVALID_TEXTS = (
    ("qos class may not change", RefusalReason.QOS_WOULD_CHANGE),
    ("memory limits cannot be", RefusalReason.VERSION_FORBIDS_DECREASE),
    ("without support for resize", RefusalReason.NODE_UNSUPPORTED),
    ("windows pods", RefusalReason.NODE_UNSUPPORTED),
)


def classify(error: ClusterError) -> Refusal:
    """The meaning of ``error``: 409, 404, 403 and 422 are told apart; everything else is worth another try next cycle."""
    message = str(error)
    if not isinstance(error, ApiRefusal):
        return Refusal(Answer.TRY_AGAIN, message)
    match error.status:
        case 409:
            return Refusal(Answer.READ_AGAIN, message)
        case 404:
            return Refusal(Answer.GONE, message)
        case 403:
            if any(cause.reason == "NodeCapacity" for cause in error.causes):
                return Refusal(Answer.REFUSED, message, RefusalReason.NODE_CAPACITY)
            return Refusal(Answer.REFUSED, message, _by_text(message, _FORBIDDEN_TEXTS, RefusalReason.ADMISSION_DENIED))
        case 400 | 422:
            return Refusal(Answer.REFUSED, message, _by_text(message, _INVALID_TEXTS, RefusalReason.INVALID))
        case _:
            return Refusal(Answer.TRY_AGAIN, message)


def _by_text(message: str, table: tuple[tuple[str, RefusalReason], ...], default: RefusalReason) -> RefusalReason:
    text = message.lower()
    return next((reason for part, reason in table if part in text), default)
