"""What the families' tests look at; each is made once, and only if a test asks for it."""

import pytest

from bench.quality import families
from bench.quality.families import BASELINE, CASES, DAYS, WEEKLY, WEEKS_DAYS
from vpa_ippr.api.series import Resource

PROFILES = ("balanced", "safe", BASELINE)


@pytest.fixture(scope="session")
def memory():
    """By profile and case: what was used and what was in force, in GiB."""
    return families.replayed(CASES, DAYS, Resource.MEMORY, PROFILES)


@pytest.fixture(scope="session")
def cpu():
    """The same of CPU, in cores."""
    return families.replayed(CASES, DAYS, Resource.CPU, PROFILES)


@pytest.fixture(scope="session")
def weekly():
    """A batch each week, for three weeks and a day: memory by profile."""
    replays = families.replayed({"weekly": WEEKLY}, WEEKS_DAYS, Resource.MEMORY, ("balanced", BASELINE))
    return {profile: cases["weekly"] for profile, cases in replays.items()}


@pytest.fixture(scope="session")
def loop():
    """By name what became of containers that are killed at the limit: eight days of the recommender's service."""
    return families.looped(("balanced", BASELINE))
