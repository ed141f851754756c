"""What a user expects of a container whose shape is known: followed up at once, down in time, and left alone when nothing happens."""

import numpy as np
import pytest

from bench.quality.families import BASELINE, BEGIN_HOUR

ENSEMBLES = ("balanced", "safe")
WARM_HOURS = 72  # after three days a profile is expected to know its container
HOUR_STEPS = 12
both = pytest.mark.parametrize("profile", ENSEMBLES)


@both
def test_flat_use_is_given_little_more_and_then_left_alone(profile, memory, cpu):
    for told in (memory[profile]["flat"], cpu[profile]["flat"]):
        after = told.from_hour(24)
        # The first wanders by half a percent, the last by three: one resize in four days is the most.
        assert after.resizes_per_day[0] == 0
        assert after.resizes_per_day.max() <= 0.25
        assert (after.held[:, -1] <= 1.15 * after.usage.max(axis=1)).all()
        assert after.over.max() == 0


@both
def test_a_step_up_kills_at_most_in_the_five_minutes_in_which_it_comes(profile, memory):
    told = memory[profile]["step up"]
    assert told.from_hour(BEGIN_HOUR).over.max() <= 1
    assert told.from_hour(BEGIN_HOUR + 1).over.max() == 0


def test_a_step_up_of_cpu_is_followed_within_an_hour_and_never_later_than_by_the_vpa(cpu):
    """A rise to three times, half an hour old at the decision, may be taken for a burst: one of the four waits as long as the VPA's."""
    day = {profile: cpu[profile]["step up"].from_hour(BEGIN_HOUR, BEGIN_HOUR + 24) for profile in cpu}
    for profile in ENSEMBLES:
        met = day[profile].over
        assert np.median(met) <= HOUR_STEPS
        assert (met <= day[BASELINE].over).all()


@both
def test_a_step_down_of_cpu_is_released_within_two_days(profile, cpu):
    told = cpu[profile]["step down"].from_hour(BEGIN_HOUR + 48)
    assert (told.held <= 1.3 * told.usage.mean(axis=1)[:, None]).mean() > 0.95
    assert (told.held.mean(axis=1) < 0.5 * cpu[BASELINE]["step down"].from_hour(BEGIN_HOUR).held.mean(axis=1)).any()


@both
def test_a_step_down_of_memory_is_released_when_a_week_has_shown_that_it_does_not_come_back(profile, memory):
    """Not within two days: what is kept for a weekly batch is kept here, too."""
    told = memory[profile]["step down"].from_hour(BEGIN_HOUR)
    assert told.over.max() == 0
    released = told.from_hour(7.5 * 24)
    assert (released.held <= 1.3 * released.usage.max(axis=1)[:, None]).all()


@both
def test_a_ramp_is_followed_without_a_kill(profile, memory, cpu):
    assert memory[profile]["ramp"].from_hour(WARM_HOURS).over.max() == 0
    assert cpu[profile]["ramp"].from_hour(BEGIN_HOUR).shortfall.max() <= 0.0025


@both
def test_a_heap_keeps_room_for_its_peaks_without_flapping(profile, memory):
    told = memory[profile]["sawtooth"].from_hour(WARM_HOURS)
    assert told.over.max() == 0
    assert told.resizes_per_day.max() <= 1
    assert (told.held.min(axis=1) >= told.usage.max(axis=1)).all()


@both
def test_a_nightly_batch_is_seen_coming_every_night(profile, memory, cpu):
    told = memory[profile]["cron"].from_hour(WARM_HOURS)
    assert told.over.max() == 0
    assert told.resizes_per_day.max() <= 5
    ours, theirs = (cpu[name]["cron"].from_hour(WARM_HOURS) for name in (profile, BASELINE))
    assert ours.over.sum() <= 0.5 * theirs.over.sum()
    assert ours.resizes_per_day.mean() <= 6


@both
def test_a_job_that_is_only_there_at_night_is_sized_by_its_runs(profile, memory, cpu):
    for told in (memory[profile]["cron job"].from_hour(WARM_HOURS), cpu[profile]["cron job"].from_hour(WARM_HOURS)):
        most = np.nanmax(told.usage, axis=1)
        assert told.over.max() == 0
        assert (told.held.min(axis=1) >= 0.9 * most).all()  # by day, too, when nothing is there
        assert (told.held.max(axis=1) <= 1.3 * most).all()
        assert told.resizes_per_day.max() <= 0.5


def test_the_third_weekly_batch_finds_its_memory(weekly):
    kills = {profile: [told.from_hour(168 * week, 168 * (week + 1)).over for week in range(3)] for profile, told in weekly.items()}
    assert kills["balanced"][0].sum() > 0, "nobody can know of the first"
    assert kills["balanced"][2].max() == 0
    assert sum(week.sum() for week in kills["balanced"]) <= sum(week.sum() for week in kills[BASELINE])


@both
def test_bursts_kill_no_more_often_than_with_the_vpa(profile, memory):
    ours, theirs = (memory[name]["bursty"].from_hour(WARM_HOURS) for name in (profile, BASELINE))
    assert ours.over.sum() <= theirs.over.sum()
    assert ours.resizes_per_day.max() <= 4


@both
@pytest.mark.parametrize("case", ["bursty", "idle"])
def test_what_is_given_stays_near_what_was_ever_used(profile, case, memory, cpu):
    for told in (memory[profile][case].from_hour(1), cpu[profile][case].from_hour(1)):
        most = np.fmax.accumulate(told.usage, axis=1)
        usual = np.median(told.usage, axis=1)[:, None]
        # Before it has burst for the first time, what others like it do is all there is to go by.
        assert (told.held <= np.maximum(2 * most, 5 * usual)).all()
        assert (told.held >= 0.9 * usual).all()


@both
def test_a_cache_that_has_filled_is_given_what_it_holds(profile, memory):
    told = memory[profile]["page cache"].from_hour(10 * 24)
    assert told.over.max() == 0
    assert (told.held <= 1.25 * told.usage.max(axis=1)[:, None]).all()
    assert told.resizes_per_day.max() <= 0.5
