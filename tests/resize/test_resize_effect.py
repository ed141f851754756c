"""Which amounts cannot be told apart by the kernel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.resize.effect import same_in_effect, same_limit, same_request

CPU, MEMORY = Resource.CPU, Resource.MEMORY


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(1, 2, True, id="two-shares"),
        pytest.param(2, 3, False, id="three-shares"),
        pytest.param(256_000, 300_000, True, id="most-shares"),
        pytest.param(255_999, 256_000, False, id="below-most-shares"),
        pytest.param(411, 417, False, id="requests-are-not-rounded"),
        pytest.param(None, 1, False, id="unset"),
        pytest.param(None, None, True, id="both-unset"),
    ],
)
def test_cpu_requests(one, other, same):
    assert same_request(Amounts(one), Amounts(other), CPU) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(1, 10, True, id="least-quota"),
        pytest.param(10, 11, False, id="next-step"),
        pytest.param(411, 420, True, id="systemd-rounds-up-to-10-ms"),
        pytest.param(420, 421, False, id="another-step"),
        pytest.param(None, 5, False, id="unset"),
    ],
)
def test_cpu_limits(one, other, same):
    assert same_limit(Amounts(one), Amounts(other), CPU) is same


@pytest.mark.parametrize(("one", "other", "same"), [(8192, 12287, True), (8191, 8192, False), (None, 4096, False)])
def test_memory_is_kept_in_pages(one, other, same):
    assert same_limit(Amounts(None, one), Amounts(None, other), MEMORY) is same
    assert same_request(Amounts(None, one), Amounts(None, other), MEMORY) is same


amounts = st.builds(Amounts, st.none() | st.integers(1, 50), st.none() | st.integers(1, 20_000))
resources = st.builds(ContainerResources, amounts, amounts)


@given(one=resources, other=resources, third=resources)
def test_sameness_is_an_equivalence(one, other, third):
    """Else a chain of resizes without effect would be one with an effect."""
    assert same_in_effect(one, one)
    assert same_in_effect(one, other) == same_in_effect(other, one)
    if same_in_effect(one, other) and same_in_effect(other, third):
        assert same_in_effect(one, third)
