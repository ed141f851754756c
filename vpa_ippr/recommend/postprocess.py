"""What becomes of a recommendation before it is written, in upstream's order: controlled resources, rounding, whole cores, policy."""

from __future__ import annotations

from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.capping import cap_to_policy, controlled_only
from vpa_ippr.recommend.policy import PolicyRules
from vpa_ippr.recommend.result import Recommendation
from vpa_ippr.recommend.rounding import AS_COMPUTED, Rounding, to_whole_cores, wants_whole_cores


def postprocess(
    found: Recommendation, vpa: Vpa, rules: PolicyRules, max_allowed: Amounts = Amounts(), rounding: Rounding = AS_COMPUTED
) -> Recommendation | None:
    """The recommendation as the VPA wants it; None when its policy controls no resource of it.

    ``max_allowed`` and ``rounding`` are the operator's, for all containers. Caps are not rounded: they are what somebody has written.
    """
    estimate = rounding.of(controlled_only(found.estimate, rules))
    if estimate.target == Amounts():
        return None
    if wants_whole_cores(vpa.metadata.annotations, found.container):
        estimate = to_whole_cores(estimate)
    capped = cap_to_policy(estimate, rules, max_allowed)
    return found.with_estimate(capped.estimate, capped.notes)
