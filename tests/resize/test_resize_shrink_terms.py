"""The annotation that says how memory shrinks are carried out, and that a MemoryShrink says it on."""

import msgspec
import pytest
from resize_support import a_container, a_pod

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.names import ANNOTATION_SHRINK_POLICY
from vpa_ippr.api.shrink import ShrinkPolicy, SwapUse
from vpa_ippr.resize.plan import ShrinkNeed
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.shrink_terms import ShrinkTerms, parse_shrink_terms
from vpa_ippr.resize.shrinks import new_shrink

SETTINGS = Settings()


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("deadline=30m", ShrinkTerms(deadline_seconds=1800)),
        ("observe=2m, horizon=1h", ShrinkTerms(ShrinkPolicy(observe_seconds=120, horizon_seconds=3600))),
        ("margin=8%,mapped-reserve=50%", ShrinkTerms(ShrinkPolicy(margin_percent=8, mapped_reserve_percent=50))),
        (" swap = allow ", ShrinkTerms(ShrinkPolicy(swap=SwapUse.ALLOW))),
        ("swap=never, floor=256Mi", ShrinkTerms(ShrinkPolicy(swap=SwapUse.NEVER, floor_bytes=256 << 20))),
        ("step=0.5%, settle=10s, stability=1.5m", ShrinkTerms(ShrinkPolicy(step_percent=0.5, settle_seconds=10, stability_seconds=90))),
        ("max-pressure=1%, max-refault=20%", ShrinkTerms(ShrinkPolicy(max_pressure_percent=1, max_refault_percent=20))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_stated_is_read(text, terms):
    assert parse_shrink_terms(text) == terms


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not one of"),
        ("speed=1%", "'speed' is not one of"),
        ("deadline", "deadline must be whole seconds"),
        ("deadline=30", "deadline must be whole seconds"),
        ("deadline=10s", "between 60s and 86400s"),
        ("settle=0.5s", "settle must be whole seconds"),
        ("step=11%", "between 0.1% and 10%"),
        ("step=2", "step must lie"),
        ("margin=50%", "margin must lie"),
        ("floor=-1", "floor"),
        ("swap=yes", "one of never, allow"),
        ("step=1%, step=2%", "named twice"),
    ],
    ids=lambda value: value,
)
def test_what_cannot_be_is_told(text, complaint):
    with pytest.raises(ValidationError, match=complaint) as caught:
        parse_shrink_terms(text)
    assert caught.value.reason == "ConfigUnsupported"
    assert ANNOTATION_SHRINK_POLICY in str(caught.value)


def test_a_shrink_carries_its_terms():
    pod = a_pod(a_container(cpu="1", memory="1Gi"))
    need = ShrinkNeed("app", 1 << 30, pod.desired("app"), 512 << 20)
    shrink = new_shrink(pod, need, (), SETTINGS, parse_shrink_terms("deadline=20m, observe=2m, swap=allow"))
    assert shrink.spec.deadline_seconds == 1200
    assert msgspec.to_builtins(shrink)["spec"]["policy"] == {"observeSeconds": 120, "swap": "Allow"}
    assert new_shrink(pod, need, (), SETTINGS).spec.deadline_seconds == SETTINGS.shrink_deadline_seconds
