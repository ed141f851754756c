import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.timestamps import format_time, parse_time

NEW_YEAR = 1_767_225_600.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T00:00:00Z", NEW_YEAR),
        ("2026-01-01T01:00:00+01:00", NEW_YEAR),
        ("2025-12-31T19:00:00-05:00", NEW_YEAR),
        ("2026-01-01T00:00:00.250Z", NEW_YEAR + 0.25),
        ("2026-01-01T00:00:00.123456Z", NEW_YEAR + 0.123456),
        ("1970-01-01T00:00:00Z", 0.0),
    ],
)
def test_times_with_fractions_and_offsets(text: str, seconds: float) -> None:
    assert parse_time(text) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yesterday", "cannot read 'yesterday' as a time"),
        ("", "cannot read ''"),
        ("2026-13-01T00:00:00Z", "cannot read"),
        ("2026-01-01T00:00:00", "has no zone: add Z or an offset"),
        ("2026-01-01", "has no zone"),
    ],
)
def test_other_texts_are_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parse_time(text)


@pytest.mark.parametrize(("seconds", "text"), [(NEW_YEAR + 0.999, "2026-01-01T00:00:00Z"), (-0.5, "1969-12-31T23:59:59Z")])
def test_times_are_written_in_whole_seconds_rounded_down(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


@given(st.integers(0, 4_102_444_800))
def test_what_is_written_is_read_back(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds
