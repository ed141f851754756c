"""Kubernetes quantities: parsed, compared and printed exactly as ``resource.Quantity`` of apimachinery does.

The grammar is that of apimachinery's ``pkg/api/resource/quantity.go``: a signed decimal number and one suffix, either binary
(Ki Mi Gi Ti Pi Ei), decimal (n u m "" k M G T P E) or a decimal exponent (``e3``, ``E3``). The canonical text keeps the format of the
input: no fraction, the largest suffix that allows it, precision down to nano, rounded up beyond that.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_UP, Context, Decimal, localcontext
from functools import lru_cache

from vpa_ippr.api.errors import QuantityError

MAX_INT64 = 2**63 - 1
_NANO = Decimal("1e-9")
_EXACT = Context(prec=400, Emax=999_999, Emin=-999_999)

_BINARY_SUFFIXES = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX_OF = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_SUFFIX_OF = {power: suffix for suffix, power in _BINARY_SUFFIXES.items()}
_PATTERN = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)


class QuantityFormat(enum.Enum):
    """How a quantity prints; the names are apimachinery's."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount and the format it prints in; two quantities are equal in effect when their ``value`` is equal."""

    value: Decimal
    format: QuantityFormat = QuantityFormat.DECIMAL_SI

    def __str__(self) -> str:
        """The canonical text, as the API server stores it."""
        if self.value == 0:
            return "0"
        if self.format is QuantityFormat.BINARY_SI:
            # Below 1024, or with a fraction, apimachinery falls back to decimal suffixes.
            if abs(self.value) >= 1024 and self.value == self.value.to_integral_value():
                return _print_binary(int(self.value))
            return _print_decimal(self.value, exponent_form=False)
        return _print_decimal(self.value, exponent_form=self.format is QuantityFormat.DECIMAL_EXPONENT)

    def to_millicores(self) -> int:
        """Whole millicores, rounded up as ``Quantity.MilliValue`` does."""
        return _scaled_ceiling(self.value, 3)

    def to_bytes(self) -> int:
        """Whole bytes, rounded up as ``Quantity.Value`` does."""
        return _scaled_ceiling(self.value, 0)


def parse_quantity(text: object) -> Quantity:
    """Parse what a Kubernetes object holds in a quantity field: a string, or a bare JSON number.

    Raises:
        QuantityError: the text does not follow the grammar; the message quotes it.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise QuantityError(f"quantity must be a string or a number, not {type(text).__name__}")
    source = repr(text) if isinstance(text, float) else str(text)
    match = _PATTERN.fullmatch(source)
    if match is None:
        raise QuantityError(
            f"cannot read {source!r} as a quantity: expected a number with one of the suffixes "
            "n u m k M G T P E Ki Mi Gi Ti Pi Ei, or an exponent such as 1e3"
        )
    number, suffix = Decimal(match["number"]), match["suffix"] or ""
    with localcontext(_EXACT):
        if suffix in _BINARY_SUFFIXES:
            return Quantity(_bounded(number * 1024 ** _BINARY_SUFFIXES[suffix]), QuantityFormat.BINARY_SI)
        if suffix in _DECIMAL_SUFFIXES:
            return Quantity(_bounded(number.scaleb(_DECIMAL_SUFFIXES[suffix])), QuantityFormat.DECIMAL_SI)
        exponent = int(suffix[1:])
        if abs(exponent) > 1000:
            raise QuantityError(f"cannot read {source!r} as a quantity: exponent out of range")
        return Quantity(_bounded(number.scaleb(exponent)), QuantityFormat.DECIMAL_EXPONENT)


def parse_millicores(text: object) -> int:
    """CPU of a quantity in whole millicores, rounded up; negative amounts are refused."""
    return _millicores(text) if isinstance(text, str | int | float) else parse_quantity(text).to_millicores()


def parse_bytes(text: object) -> int:
    """Memory of a quantity in whole bytes, rounded up; negative amounts are refused."""
    return _bytes(text) if isinstance(text, str | int | float) else parse_quantity(text).to_bytes()


def format_millicores(millicores: int) -> str:
    """Canonical text of a CPU amount: ``1500`` -> ``1500m``, ``2000`` -> ``2``."""
    return str(Quantity(Decimal(millicores).scaleb(-3)))


def format_bytes(amount_bytes: int) -> str:
    """Canonical decimal text of a memory amount, as upstream VPA writes it: ``262144000`` -> ``262144k``."""
    return str(Quantity(Decimal(amount_bytes)))


def format_bytes_binary(amount_bytes: int) -> str:
    """Canonical binary text of a memory amount: ``268435456`` -> ``256Mi``."""
    return str(Quantity(Decimal(amount_bytes), QuantityFormat.BINARY_SI))


def humanize_bytes(amount_bytes: int) -> str:
    """A memory amount for people, as upstream VPA's ``--humanize-memory``: two decimals of the largest binary unit that it reaches."""
    unit = next((unit for unit in ("Ti", "Gi", "Mi", "Ki") if amount_bytes >= 1024 ** _BINARY_SUFFIXES[unit]), None)
    return str(amount_bytes) if unit is None else f"{amount_bytes / 1024 ** _BINARY_SUFFIXES[unit]:.2f}{unit}"


def _bounded(value: Decimal) -> Decimal:
    """Round up (away from zero) to nano and clamp to the int64 range, as ``ParseQuantity`` documents."""
    rounded = value.quantize(_NANO, rounding=ROUND_UP) if value % _NANO else value
    return max(Decimal(-MAX_INT64), min(Decimal(MAX_INT64), rounded))


def _scaled_ceiling(value: Decimal, exponent: int) -> int:
    with localcontext(_EXACT):
        return int(value.scaleb(exponent).to_integral_value(rounding=ROUND_CEILING))


# A cluster writes few different texts, and each is read in every cycle. Typed, since 1, 1.0 and True are equal as keys.
@lru_cache(maxsize=8192, typed=True)
def _millicores(text: str | float) -> int:
    return _non_negative(parse_quantity(text).to_millicores(), text)


@lru_cache(maxsize=8192, typed=True)
def _bytes(text: str | float) -> int:
    return _non_negative(parse_quantity(text).to_bytes(), text)


def _non_negative(amount: int, text: object) -> int:
    if amount < 0:
        raise QuantityError(f"quantity {text!r} is negative: requests and limits start at 0")
    return amount


def _print_binary(amount: int) -> str:
    power = 0
    while power < 6 and amount % 1024 == 0:
        amount, power = amount // 1024, power + 1
    return f"{amount}{_BINARY_SUFFIX_OF.get(power, '')}"


def _print_decimal(value: Decimal, *, exponent_form: bool) -> str:
    """Shortest text with no fraction: the largest multiple-of-three exponent that leaves a whole mantissa."""
    with localcontext(_EXACT):
        trailing_zeros = value.normalize().as_tuple().exponent
        assert isinstance(trailing_zeros, int)  # a quantity is never NaN or infinite
        exponent = trailing_zeros // 3 * 3
        exponent = max(-9, exponent if exponent_form else min(18, exponent))
        mantissa = int(value.scaleb(-exponent).to_integral_value(rounding=ROUND_UP))
    if exponent_form:
        return f"{mantissa}e{exponent}" if exponent else str(mantissa)
    return f"{mantissa}{_DECIMAL_SUFFIX_OF[exponent]}"
