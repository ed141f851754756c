"""How limits follow requests: the annotation ``vpa-ippr.io/limit-policy`` of a VPA, read and applied.

One entry a resource, or one for both: ``ratio`` (the limit keeps its proportion to the request, as upstream; the default),
``fixed-headroom:25%`` or ``fixed-headroom:256Mi`` (that much above the request), ``cap:2`` (in proportion, but no higher than that unless
the request is), ``none`` (left as it is, as under RequestsOnly). For example ``cpu=none, memory=fixed-headroom:25%``. Where there is no
limit none is set, and a Guaranteed pod keeps its limits equal to its requests whatever the policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Final

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.names import ANNOTATION_LIMIT_POLICY
from vpa_ippr.api.quantity import MAX_INT64, parse_bytes, parse_millicores
from vpa_ippr.api.resources import Resource
from vpa_ippr.api.vpa import Vpa

_EXAMPLE = "cpu=none, memory=fixed-headroom:25%"
_PERCENT = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)%", re.ASCII)


class LimitKind(StrEnum):
    """The ways in which a limit may follow its request."""

    RATIO = "ratio"
    FIXED_HEADROOM = "fixed-headroom"
    CAP = "cap"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LimitRule:
    """The rule for one resource. ``amount`` (millicores or bytes) is the cap or the headroom; ``share`` is a headroom by the request."""

    kind: LimitKind = LimitKind.RATIO
    amount: int = 0
    share: Fraction = Fraction(0)

    @property
    def has_slack(self) -> bool:
        """True when the limit may be brought nearer to the request without breaking the rule's meaning."""
        return self.kind in (LimitKind.FIXED_HEADROOM, LimitKind.CAP)

    def limit_for(self, request: int, proportional: int, present: int) -> int:
        """The limit of a container that has one: ``proportional`` would keep the ratio, ``present`` is what the spec holds."""
        match self.kind:
            case LimitKind.NONE:
                return present
            case LimitKind.FIXED_HEADROOM:
                return min(request + self.amount - (-request * self.share.numerator // self.share.denominator), MAX_INT64)
            case LimitKind.CAP:
                return max(min(proportional, self.amount), request)
        return proportional


LimitRules = Mapping[Resource, LimitRule]
RATIO: Final = LimitRule()
UNCHANGED: Final = LimitRule(LimitKind.NONE)


@dataclass(frozen=True, slots=True)
class LimitPolicy:
    """The rules that the annotation states; a resource that it does not name keeps its ratio."""

    stated: LimitRules = field(default_factory=dict)

    def rules(self, *, guaranteed: bool, requests_only: bool) -> dict[Resource, LimitRule]:
        """The rule of each resource: ``RequestsOnly`` comes before the policy, and so does a Guaranteed pod's need of equality."""
        if requests_only:
            return dict.fromkeys(Resource, UNCHANGED)
        return {resource: RATIO if guaranteed else self.stated.get(resource, RATIO) for resource in Resource}


def limit_policy_of(vpa: Vpa) -> LimitPolicy:
    """The limit policy of a VPA; all in proportion where it has none.

    Raises:
        ValidationError: the annotation cannot be read (reason ``LimitPolicyInvalid``).
    """
    text = vpa.metadata.annotations.get(ANNOTATION_LIMIT_POLICY)
    return LimitPolicy() if text is None else parse_limit_policy(text)


@lru_cache(maxsize=1024)
def parse_limit_policy(text: str) -> LimitPolicy:
    """The policy that ``text`` states.

    Raises:
        ValidationError: it does not follow the syntax, or names a resource twice (reason ``LimitPolicyInvalid``).
    """
    stated: dict[Resource, LimitRule] = {}
    for entry in text.split(","):
        for resource, rule in _entry(entry.strip()).items():
            if resource in stated:
                raise _invalid(f"{resource} is named twice")
            stated[resource] = rule
    return LimitPolicy(stated)


def _entry(entry: str) -> dict[Resource, LimitRule]:
    name, equals, rule = (part.strip() for part in entry.rpartition("="))
    if not equals:
        resources = list(Resource)
    elif name in list(Resource):
        resources = [Resource(name)]
    else:
        raise _invalid(f"{name!r} is no resource: cpu or memory")
    kind, _, amount = (part.strip() for part in rule.partition(":"))
    if kind not in list(LimitKind):
        raise _invalid(f"{kind!r} is no limit policy: {', '.join(LimitKind)}")
    return {resource: _rule(LimitKind(kind), amount, resource, named=bool(equals)) for resource in resources}


def _rule(kind: LimitKind, amount: str, resource: Resource, *, named: bool) -> LimitRule:
    if kind in (LimitKind.RATIO, LimitKind.NONE):
        if amount:
            raise _invalid(f"{kind} takes no amount, found {amount!r}")
        return LimitRule(kind)
    if not amount:
        raise _invalid(f"{kind} needs an amount, such as {kind}:{'512Mi' if kind is LimitKind.CAP else '25%'}")
    percent = _PERCENT.fullmatch(amount)
    if percent is not None and kind is LimitKind.FIXED_HEADROOM:
        return LimitRule(kind, share=Fraction(percent[1]) / 100)
    if not named:
        raise _invalid(f"{kind}:{amount} is an amount of one resource: say cpu={kind}:... or memory={kind}:...")
    try:
        parsed = parse_millicores(amount) if resource is Resource.CPU else parse_bytes(amount)
    except QuantityError as error:
        raise _invalid(f"{resource}={kind}: {error}") from error
    if kind is LimitKind.CAP and parsed == 0:
        raise _invalid(f"{resource}={kind}: 0 would be no limit at all")
    return LimitRule(kind, amount=parsed)


def _invalid(message: str) -> ValidationError:
    return ValidationError(f"annotation {ANNOTATION_LIMIT_POLICY}: {message}; for example {_EXAMPLE}", reason="LimitPolicyInvalid")
