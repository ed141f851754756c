import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource, ResourceRequirements, parse_amounts

MIB = 1 << 20


@pytest.mark.parametrize(
    ("quantities", "expected"),
    [
        ({"cpu": "250m", "memory": "64Mi"}, Amounts(250, 64 * MIB)),
        ({"cpu": 2, "memory": 1000}, Amounts(2000, 1000)),
        ({"cpu": 0.5}, Amounts(500, None)),
        ({"memory": "1G", "nvidia.com/gpu": "one", "ephemeral-storage": "1Gi"}, Amounts(None, 10**9)),
        ({}, Amounts()),
    ],
    ids=["texts", "numbers", "fraction", "others-are-skipped", "empty"],
)
def test_resource_lists(quantities: dict[str, object], expected: Amounts) -> None:
    assert parse_amounts(quantities, "here") == expected


@pytest.mark.parametrize("quantities", [{"cpu": "lots"}, {"memory": "64MB"}, {"cpu": "-1"}, {"memory": None}], ids=str)
def test_a_quantity_that_cannot_be_read_says_where(quantities: dict[str, object]) -> None:
    with pytest.raises(QuantityError, match=r"^pod shop/web-0 requests: "):
        parse_amounts(quantities, "pod shop/web-0 requests")


@given(st.integers(0, 10**6), st.integers(0, 2**50))
def test_amounts_survive_the_way_through_quantities(millicores: int, memory_bytes: int) -> None:
    amounts = Amounts(millicores, memory_bytes)
    assert parse_amounts(amounts.to_quantities(), "here") == amounts


def test_amounts_that_are_not_set_are_not_written() -> None:
    assert Amounts(cpu_millicores=100).to_quantities() == {"cpu": "100m"}
    assert Amounts(memory_bytes=0).to_quantities() == {"memory": "0"}
    assert Amounts().to_quantities() == {}


def test_one_amount_is_read_or_replaced_and_the_other_stays() -> None:
    amounts = Amounts(100, 200)
    assert [amounts.get(resource) for resource in (Resource.CPU, Resource.MEMORY)] == [100, 200]
    assert amounts.having(Resource.CPU, None) == Amounts(None, 200)
    assert amounts.having(Resource.MEMORY, 5) == Amounts(100, 5)


def test_requirements_have_requests_and_limits() -> None:
    requirements = ResourceRequirements({"cpu": "100m"}, {"memory": "1Gi"})
    assert requirements.parse("here") == ContainerResources(Amounts(100), Amounts(None, 1 << 30))
    with pytest.raises(QuantityError, match=r"^here\.limits: "):
        ResourceRequirements({}, {"memory": "x"}).parse("here")
