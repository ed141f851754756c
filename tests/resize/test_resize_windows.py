"""When a maintenance window is open."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resize_support import a_recommendation, a_vpa

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.resize.windows import is_paused, open_at, opens_next, parse_windows, windows_of

NIGHTS = "Mon-Fri 22:00-06:00 Europe/Berlin; Sat,Sun 00:00-24:00 UTC"


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def annotated(**annotations):
    vpa = a_vpa(a_recommendation(cpu="1"))
    metadata = msgspec.structs.replace(vpa.metadata, annotations={f"vpa-ippr.io/{k.replace('_', '-')}": v for k, v in annotations.items()})
    return msgspec.structs.replace(vpa, metadata=metadata)


# 2026-06-01 is a Monday.
@pytest.mark.parametrize(
    ("windows", "moment", "is_open"),
    [
        pytest.param("Mon-Fri 08:00-17:30 UTC", at("2026-06-01T08:00"), True, id="at-its-begin"),
        pytest.param("Mon-Fri 08:00-17:30 UTC", at("2026-06-01T07:59:59"), False, id="a-second-before"),
        pytest.param("Mon-Fri 08:00-17:30 UTC", at("2026-06-01T17:29:59"), True, id="its-last-second"),
        pytest.param("Mon-Fri 08:00-17:30 UTC", at("2026-06-01T17:30"), False, id="at-its-end"),
        pytest.param("Mon-Fri 08:00-17:30 UTC", at("2026-06-06T12:00"), False, id="another-day"),
        pytest.param("Mon 22:00-06:00 UTC", at("2026-06-02T05:59"), True, id="past-midnight"),
        pytest.param("Mon 22:00-06:00 UTC", at("2026-06-01T05:59"), False, id="the-night-before-is-sunday's"),
        pytest.param("Sun 22:00-06:00 UTC", at("2026-06-01T05:59"), True, id="past-midnight-into-monday"),
        pytest.param("Mon 22:00-00:00 UTC", at("2026-06-02T00:00"), False, id="until-midnight"),
        pytest.param("Sat 00:00-24:00 UTC", at("2026-06-06T23:59:59"), True, id="a-whole-day"),
        pytest.param("Sat 00:00-24:00 UTC", at("2026-06-07T00:00"), False, id="a-whole-day-ends"),
        pytest.param("Fri-Mon 12:00-13:00 UTC", at("2026-06-01T12:30"), True, id="days-over-the-week-end"),
        pytest.param("Fri-Mon 12:00-13:00 UTC", at("2026-06-02T12:30"), False, id="days-over-the-week-end-stop"),
        pytest.param("mon,WED 12:00-13:00 UTC", at("2026-06-03T12:30"), True, id="days-in-any-case"),
        pytest.param(NIGHTS, at("2026-06-01T22:00", "Europe/Berlin"), True, id="its-own-zone"),
        pytest.param(NIGHTS, at("2026-06-01T20:30", "Europe/Berlin"), False, id="its-own-zone-not-ours"),
        pytest.param(NIGHTS, at("2026-06-07T12:00"), True, id="the-second-window"),
        pytest.param("Sun 02:00-03:00 Europe/Berlin", at("2026-03-29T01:00"), False, id="an-hour-that-is-skipped"),
        pytest.param("Sun 02:00-03:00 Europe/Berlin", at("2026-10-25T00:30"), True, id="a-repeated-hour-the-first-time"),
        pytest.param("Sun 02:00-03:00 Europe/Berlin", at("2026-10-25T01:30"), True, id="a-repeated-hour-the-second-time"),
        pytest.param("Sun 02:00-03:00 Europe/Berlin", at("2026-10-25T02:00"), False, id="a-repeated-hour-ends"),
    ],
)
def test_open(windows, moment, is_open):
    assert open_at(parse_windows(windows), moment) is is_open


def test_no_windows_are_always_open():
    assert open_at((), 0.0)
    assert opens_next((), 7.0) == 7.0


@pytest.mark.parametrize(
    ("windows", "now", "opening"),
    [
        pytest.param("Mon 22:00-06:00 UTC", at("2026-06-01T12:00"), at("2026-06-01T22:00"), id="today"),
        pytest.param("Mon 22:00-06:00 UTC", at("2026-06-02T06:00"), at("2026-06-08T22:00"), id="in-a-week"),
        pytest.param("Mon 22:00-06:00 UTC", at("2026-06-02T01:00"), at("2026-06-02T01:00"), id="open-already"),
        pytest.param(NIGHTS, at("2026-06-06T06:00", "Europe/Berlin"), at("2026-06-06T04:00"), id="another-window-is-open"),
        pytest.param("Sun 02:00-03:00 Europe/Berlin", at("2026-03-29T00:00"), at("2026-04-05T00:00"), id="a-skipped-window"),
        pytest.param("Sun 02:30-03:15 Europe/Berlin", at("2026-03-29T00:00"), at("2026-03-29T01:00"), id="a-skipped-begin"),
        pytest.param("Sun 00:00-02:30 Europe/Berlin", at("2026-10-25T00:45"), at("2026-10-25T01:00"), id="a-repeated-end"),
    ],
)
def test_opens_next(windows, now, opening):
    assert opens_next(parse_windows(windows), now) == opening


minutes = st.integers(0, 24 * 60 - 1)
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Cairo"])
days = st.sets(st.sampled_from(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]), min_size=1)


@st.composite
def windows(draw):
    begin, end = draw(minutes), draw(st.integers(0, 24 * 60))
    end = end if end != begin else (end + 1) % (24 * 60)
    hours = f"{begin // 60:02}:{begin % 60:02}-{end // 60:02}:{end % 60:02}"
    return f"{','.join(sorted(draw(days)))} {hours} {draw(zones)}"


@settings(max_examples=60, deadline=None)
@given(st.lists(windows(), min_size=1, max_size=3), st.sampled_from(["2026-03-26", "2026-04-02", "2026-10-22", "2026-11-01"]), minutes)
def test_nothing_is_open_before_the_next_opening(texts, day, minute):
    found = parse_windows(";".join(texts))
    now = (datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(minutes=minute)).timestamp()
    opening = opens_next(found, now)
    assert open_at(found, opening)
    assert not any(open_at(found, moment) for moment in range(int(now), int(opening), 300))
    assert opening == now or not open_at(found, opening - 1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("", "names no window", id="empty"),
        pytest.param(" ; ", "names no window", id="only-separators"),
        pytest.param("22:00-06:00 UTC", "days, hours and a zone", id="no-days"),
        pytest.param("Mon 22:00-06:00", "days, hours and a zone", id="no-zone"),
        pytest.param("Mo 22:00-06:00 UTC", "'mo'", id="no-day"),
        pytest.param("Mon- 22:00-06:00 UTC", "'mon-'", id="half-a-range"),
        pytest.param("Mon 22-06 UTC", "'22-06'", id="no-minutes"),
        pytest.param("Mon 22:60-23:00 UTC", "'22:60-23:00'", id="minute-60"),
        pytest.param("Mon 24:00-06:00 UTC", "'24:00-06:00'", id="begins-at-24"),
        pytest.param("Mon 00:00-24:01 UTC", "'00:00-24:01'", id="ends-after-24"),
        pytest.param("Mon 06:00-06:00 UTC", "a whole day is 00:00-24:00", id="nothing"),
        pytest.param("Mon 22:00-06:00 Europe/Atlantis", "'Europe/Atlantis'", id="no-zone-of-that-name"),
        pytest.param("Mon 22:00-06:00 ../../etc/passwd", "no time zone", id="a-path"),
        pytest.param("Mon 22:00-06:00 Europe", "no time zone", id="a-directory"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(text, names):
    with pytest.raises(ValidationError, match="window") as caught:
        parse_windows(text)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.reason == "ConfigUnsupported"


def test_a_vpas_own_windows_win():
    default, own = parse_windows("Mon 01:00-02:00 UTC"), "Tue 01:00-02:00 UTC"
    assert windows_of(annotated(), default) == default
    assert windows_of(annotated(maintenance_windows=own), default) == parse_windows(own)
    with pytest.raises(ValidationError, match=r"annotation vpa-ippr.io/maintenance-windows: window 'never'"):
        windows_of(annotated(maintenance_windows="never"), default)


@pytest.mark.parametrize(("annotations", "paused"), [({}, False), ({"pause": "true"}, True), ({"pause": "false"}, False)])
def test_paused(annotations, paused):
    assert is_paused(annotated(**annotations)) is paused


def test_a_pause_that_is_neither_yes_nor_no_is_an_error():
    with pytest.raises(ValidationError, match=r"annotation vpa-ippr.io/pause: 'yes'"):
        is_paused(annotated(pause="yes"))
