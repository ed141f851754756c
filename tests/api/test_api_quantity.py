from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity as oracle

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.quantity import (
    MAX_INT64,
    format_bytes,
    format_bytes_binary,
    format_millicores,
    parse_bytes,
    parse_millicores,
    parse_quantity,
)

SUFFIXES = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"), ("0Ki", "0"), ("0m", "0"), ("-0", "0"),
        ("100m", "100m"), ("1000m", "1"), ("1500m", "1500m"), ("0.1", "100m"), ("1.5", "1500m"), (".5", "500m"), ("5.", "5"), ("+3", "3"),
        ("1000k", "1M"), ("1024", "1024"), ("262144000", "262144k"), ("380258472", "380258472"),
        ("1Ki", "1Ki"), ("1024Ki", "1Mi"), ("1.5Gi", "1536Mi"), ("1536Ki", "1536Ki"), ("1Ei", "1Ei"),
        ("0.5Ki", "512"), ("1023Ki", "1023Ki"), ("1.1Ki", "1126400m"),
        ("1e3", "1e3"), ("1E3", "1e3"), ("12e6", "12e6"), ("1e0", "1"), ("1e-3", "1e-3"), ("123e1", "1230"), ("100e2", "10e3"),
        ("1E", "1E"), ("1P", "1P"), ("1n", "1n"), ("1u", "1u"), ("1000n", "1u"),
        ("0.1n", "1n"), ("1.0000000001", "1000000001n"), ("-1.5", "-1500m"), ("-1Ki", "-1Ki"),
        ("10E", str(MAX_INT64)), ("-10E", f"-{MAX_INT64}"), ("1e30", str(MAX_INT64)), (100, "100"), (1.5, "1500m"),
    ],
)  # fmt: skip
def test_prints_the_canonical_form(text: object, canonical: str) -> None:
    assert str(parse_quantity(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 ",
        " 1",
        "1K",
        "1ki",
        "1mi",
        "1Kib",
        "abc",
        "1..2",
        "1,5",
        "--1",
        "1e",
        "1e1.5",
        "1e99999",
        "0x10",
        "٣",
        None,
        True,
        [],
        {},
    ],
)
def test_refuses_what_is_not_a_quantity_and_says_why(text: object) -> None:
    with pytest.raises(QuantityError, match="quantity"):
        parse_quantity(text)


@given(st.integers(-(10**6), 10**6), st.sampled_from(SUFFIXES))
def test_value_agrees_with_the_kubernetes_package(number: int, suffix: str) -> None:
    expected = max(Decimal(-MAX_INT64), min(Decimal(MAX_INT64), oracle(f"{number}{suffix}")))
    assert parse_quantity(f"{number}{suffix}").value == expected


@given(st.decimals(-(10**9), 10**9, places=9), st.sampled_from([*SUFFIXES, "e3", "E-2"]))
def test_canonical_text_round_trips(number: Decimal, suffix: str) -> None:
    quantity = parse_quantity(f"{number:f}{suffix}")
    again = parse_quantity(str(quantity))
    assert again.value == quantity.value
    assert str(again) == str(quantity)


@given(st.integers(0, 2**53))
def test_amounts_survive_being_printed(amount: int) -> None:
    assert parse_bytes(format_bytes(amount)) == amount
    assert parse_bytes(format_bytes_binary(amount)) == amount
    assert parse_millicores(format_millicores(amount)) == amount


@pytest.mark.parametrize(("text", "millicores"), [("1", 1000), ("1m", 1), ("0.1m", 1), ("100n", 1), ("1.0001", 1001), ("2k", 2_000_000)])
def test_cpu_rounds_up_to_whole_millicores(text: str, millicores: int) -> None:
    assert parse_millicores(text) == millicores


@pytest.mark.parametrize(("text", "amount"), [("1Ki", 1024), ("1.5", 2), ("100m", 1), ("128974848", 128974848), ("129e6", 129000000)])
def test_memory_rounds_up_to_whole_bytes(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


def test_negative_amounts_are_refused() -> None:
    with pytest.raises(QuantityError, match="negative"):
        parse_millicores("-1")
    with pytest.raises(QuantityError, match="negative"):
        parse_bytes("-1Gi")
