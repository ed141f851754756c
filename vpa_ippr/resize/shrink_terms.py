"""How memory shrinks of a VPA's pods are carried out: the annotation ``vpa-ippr.io/shrink-policy``, read and checked.

For example ``deadline=30m, observe=2m, max-pressure=1%``. What is not named is the node agent's own policy. The bounds are those of the
MemoryShrink's schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.names import ANNOTATION_SHRINK_POLICY
from vpa_ippr.api.quantity import parse_bytes
from vpa_ippr.api.shrink import ShrinkPolicy, SwapUse
from vpa_ippr.api.vpa import Vpa

_EXAMPLE = "deadline=30m, observe=2m, max-pressure=1%"
_NUMBER = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(%|[smh])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_SWAP = {"never": SwapUse.NEVER, "allow": SwapUse.ALLOW}
_UNCHANGED: Final = ShrinkPolicy()


@dataclass(frozen=True, slots=True)
class ShrinkTerms:
    """What a MemoryShrink says besides its target; ``deadline_seconds`` None is the updater's own."""

    policy: ShrinkPolicy = _UNCHANGED
    deadline_seconds: int | None = None


ORDINARY: Final = ShrinkTerms()


def shrink_terms_of(vpa: Vpa) -> ShrinkTerms:
    """The terms that a VPA states.

    Raises:
        ValidationError: the annotation cannot be read (reason ``ConfigUnsupported``).
    """
    text = vpa.metadata.annotations.get(ANNOTATION_SHRINK_POLICY)
    return ORDINARY if text is None else parse_shrink_terms(text)


@lru_cache(maxsize=1024)
def parse_shrink_terms(text: str) -> ShrinkTerms:
    """The terms that ``text`` states.

    Raises:
        ValidationError: it does not follow the syntax, names something twice or is out of bounds (reason ``ConfigUnsupported``).
    """
    stated: dict[str, object] = {}
    for entry in text.split(","):
        name, _, value = (part.strip() for part in entry.partition("="))
        if name not in _FIELDS:
            raise _invalid(f"{name!r} is not one of {', '.join(_FIELDS)}")
        field, read = _FIELDS[name]
        if field in stated:
            raise _invalid(f"{name} is named twice")
        stated[field] = read(name, value)
    deadline = stated.pop(_DEADLINE, None)
    policy = msgspec.convert(stated, ShrinkPolicy)
    return ShrinkTerms(policy, None if deadline is None else int(str(deadline)))


def _seconds(least: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        match = _NUMBER.fullmatch(value)
        seconds = float(match[1]) * _SECONDS[match[2]] if match is not None and match[2] in _SECONDS else None
        if seconds is None or not seconds.is_integer() or not least <= seconds <= most:
            raise _invalid(f"{name} must be whole seconds between {least}s and {most}s, such as 90s or 2m, not {value!r}")
        return int(seconds)

    return read


def _percent(least: float, most: float) -> Callable[[str, str], float]:
    def read(name: str, value: str) -> float:
        match = _NUMBER.fullmatch(value)
        percent = float(match[1]) if match is not None and match[2] == "%" else None
        if percent is None or not least <= percent <= most:
            raise _invalid(f"{name} must lie between {least:g}% and {most:g}%, not {value!r}")
        return percent

    return read


def _bytes(name: str, value: str) -> int:
    try:
        return parse_bytes(value)
    except QuantityError as error:
        raise _invalid(f"{name}: {error}") from error


def _swap(name: str, value: str) -> SwapUse:
    if value not in _SWAP:
        raise _invalid(f"{name} must be one of {', '.join(_SWAP)}, not {value!r}")
    return _SWAP[value]


_DEADLINE = "deadlineSeconds"
_FIELDS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "deadline": (_DEADLINE, _seconds(60, 86400)),
    "step": ("stepPercent", _percent(0.1, 10)),
    "settle": ("settleSeconds", _seconds(1, 300)),
    "stability": ("stabilitySeconds", _seconds(1, 3600)),
    "observe": ("observeSeconds", _seconds(10, 3600)),
    "horizon": ("horizonSeconds", _seconds(60, 86400)),
    "margin": ("marginPercent", _percent(1, 49)),
    "mapped-reserve": ("mappedReservePercent", _percent(0, 100)),
    "max-pressure": ("maxPressurePercent", _percent(0.01, 10)),
    "max-refault": ("maxRefaultPercent", _percent(0.1, 100)),
    "floor": ("floorBytes", _bytes),
    "swap": ("swap", _swap),
}


def _invalid(message: str) -> ValidationError:
    return ValidationError(f"annotation {ANNOTATION_SHRINK_POLICY}: {message}; for example {_EXAMPLE}", reason="ConfigUnsupported")
