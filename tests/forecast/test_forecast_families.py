"""Made-up series do what their truth says."""

import numpy as np
import pytest

from support.usage_grids import PER_DAY, PER_HOUR
from vpa_ippr.forecast.families import (
    FAMILIES,
    bursty,
    cron,
    diurnal,
    flat,
    idle,
    leak,
    make_up,
    page_cache,
    pooled,
    ramp,
    sawtooth,
    step,
    weekly,
)


def random(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_use_without_gaps_and_its_truth(name):
    made = FAMILIES[name](random(), 7, 2.5)
    assert made.usage.shape == (7, 2.5 * PER_DAY)
    assert np.isfinite(made.usage).all()
    assert (made.usage > 0).all()
    assert {"level", "noise"} <= set(made.truth)
    assert all(len(np.unique(values)) == 7 for values in made.truth.values())
    assert made.grid(5.0).end == 5.0


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_gives_the_same_series(name):
    one, two, other = (FAMILIES[name](random(seed), 3, 2).usage for seed in (1, 1, 2))
    assert one.tolist() == two.tolist()
    assert one.tolist() != other.tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_given_parameter_is_kept_and_leaves_the_other_draws(name):
    drawn, given = FAMILIES[name](random(), 4, 2), FAMILIES[name](random(), 4, 2, level=7.0, noise=0.0)
    assert given.truth["level"].tolist() == [7.0] * 4
    untouched = set(drawn.truth) - {"level", "noise", "growth_per_hour"}  # what a leak grows by is drawn relative to its level
    assert all(drawn.truth[key].tolist() == given.truth[key].tolist() for key in untouched)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_unknown_parameter_is_refused(name):
    with pytest.raises(TypeError, match=r"no parameter hieght: there are .*level"):
        FAMILIES[name](random(), 1, 1, hieght=2.0)


def at(made, hour):
    return made.usage[:, round(hour * PER_HOUR)]


def test_leak():
    made = leak(random(), 2, 3, level=300.0, growth_per_hour=np.array([10.0, 5.0]), begin_hour=24.0, noise=0.0)
    assert at(made, 23).tolist() == [300, 300]
    assert at(made, 48).tolist() == pytest.approx([540, 420])


def test_ramp():
    made = ramp(random(), 1, 3, level=2.0, factor=3.0, begin_hour=12.0, length_hours=24.0, noise=0.0)
    assert [at(made, hour)[0] for hour in (0, 12, 24, 36, 71)] == pytest.approx([2, 2, 4, 6, 6])


def test_step():
    made = step(random(), 30, 4, noise=0.0)
    before, after = made.usage[:, 0], made.usage[:, -1]
    assert after / before == pytest.approx(made.truth["factor"])
    assert (made.usage == before[:, None]).sum(axis=1) == pytest.approx(made.truth["at_hour"] * PER_HOUR, abs=1)


def test_sawtooth():
    made = sawtooth(random(), 1, 3, level=100.0, height=1.0, period_hours=6.0, phase=0.5, noise=0.0)
    assert [at(made, hour)[0] for hour in (0, 2.5, 3, 6)] == pytest.approx([150, 191.7, 100, 150], abs=0.1)


@pytest.mark.parametrize(("family", "period_hours", "days"), [(cron, 24, 6), (weekly, 168, 21)], ids=["cron", "weekly"])
def test_batches(family, period_hours, days):
    made = family(random(), 20, days, level=1.0, height=5.0, noise=0.0)
    hours = np.arange(days * PER_DAY) / PER_HOUR
    runs = (hours - made.truth["start_hour"][:, None]) % period_hours < made.truth["length_hours"][:, None]
    assert made.usage.tolist() == np.where(runs, 6.0, 1.0).tolist()
    assert runs.any(axis=1).all()


def test_diurnal():
    made = diurnal(random(), 1, 7, level=10.0, swing=0.5, peak_hour=15.0, weekend_factor=0.5, noise=0.0)
    assert [at(made, hour)[0] for hour in (15, 27, 135)] == pytest.approx([15, 5, 7.5])


def test_bursts_are_as_many_and_as_heavy_as_said():
    made = bursty(random(), 40, 60, level=1.0, bursts_per_day=10.0, tail=2.0, length_hours=1 / PER_HOUR, noise=0.0)
    sizes = made.usage[made.usage > 1]
    assert sizes.size / (40 * 60) == pytest.approx(10, rel=0.05)
    assert (sizes > 10).mean() == pytest.approx(10**-2.0, rel=0.3)


def test_a_burst_lasts_as_long_as_said():
    made = idle(random(3), 20, 60, level=1.0, bursts_per_day=0.1, height=50.0, length_hours=2.0, noise=0.0)
    edges = np.diff((made.usage > 2).astype(int), axis=1)
    assert (made.usage > 2).sum() / (edges == 1).sum() / PER_HOUR == pytest.approx(2, rel=0.1)
    assert np.median(made.usage[made.usage > 2]) == pytest.approx(51, rel=0.3)


def test_flat():
    assert np.unique(flat(random(), 1, 2, level=3.0, noise=0.0).usage).tolist() == [3.0]
    assert np.log(flat(random(), 50, 20, level=1.0, noise=0.1).usage).std() == pytest.approx(0.1, rel=0.05)


def test_page_cache():
    made = page_cache(random(), 1, 5, level=100.0, cache=3.0, fill_hours=5.0, drops_per_day=0.0, noise=0.0)
    assert [at(made, hour)[0] for hour in (0, 5, 100)] == pytest.approx([100, 100 + 300 * (1 - np.exp(-1)), 400])
    dropping = page_cache(random(), 20, 30, level=100.0, cache=3.0, fill_hours=5.0, drops_per_day=1.0, noise=0.0).usage
    assert ((np.diff(dropping) < 0).sum() / (20 * 30)) == pytest.approx(1, rel=0.1)


def test_all_families_at_once():
    made = make_up(3, 2, 1.0)
    assert list(made) == list(FAMILIES)
    assert make_up(3, 2, 1.0)["leak"].usage.tolist() == made["leak"].usage.tolist()
    assert make_up(4, 2, 1.0)["leak"].usage.tolist() != made["leak"].usage.tolist()
    assert pooled(made).values.tolist() == [row for one in made.values() for row in one.usage.tolist()]
