"""The proof of the profiles: right verdicts, nobody judged by a model that saw it, and one command from trace files to the page."""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import islice

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bench.quality import __main__ as command
from bench.quality import evidence
from bench.quality.corpus import find_files, judged, read_recording, read_scales
from bench.quality.evidence import Cost
from bench.quality.findings import Run
from bench.quality.folds import dealt, fold_of
from bench.quality.measures import Pair, change, mean, mixed, ratio, reduction, take, volume_ratio
from bench.quality.models import SHIPPED, Recipe, RoutedBoosting, judges, train_one, training_grids
from bench.quality.page import NOTES_BEGIN, NOTES_END, notes_of, render
from bench.quality.run import Request, measure
from bench.quality.targets import SOURCE_RULES, TARGETS, Sense, Target, Verdict, best, judge, judge_coverage, judge_source
from bench.quality.variants import SHIPPED as AS_SHIPPED
from bench.quality.variants import variants
from vpa_ippr.api.errors import UsageError
from vpa_ippr.api.series import Resource
from vpa_ippr.backtest.averages import Average, average
from vpa_ippr.backtest.scores import SeriesScores
from vpa_ippr.forecast.boosting import BoostingForecaster
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.forecast.grid import UsageGrid
from vpa_ippr.forecast.training import TrainingOptions

CPU, MEMORY = Resource.CPU, Resource.MEMORY
START = 1_767_225_600  # 2026-01-01T00:00:00Z
TINY = Recipe(TrainingOptions(levels=(0.5, 0.7, 0.8, 0.9, 0.95, 0.98), rows=700, iterations=2), synthetic=1)


def scores(**columns) -> SeriesScores:
    """Scores of as many series as the columns have; what is not given is 1."""
    count = len(next(iter(columns.values())))
    return SeriesScores(**{field.name: np.array(columns.get(field.name, np.ones(count)), np.float64) for field in fields(SeriesScores)})


def point(value: float) -> Average:
    return Average(value, value, value)


def write_traces(path, series, days=4.1, seed=0):
    """One file with these (container, resource) series: a daily rhythm with noise, of a thousandth of a unit."""
    random, times = np.random.default_rng(seed), np.arange(round(days * 288)) * 300
    columns: dict[str, list] = {"series_id": [], "container": [], "resource": [], "timestamp": [], "value": []}
    for container, resource in series:
        rhythm = 1 + random.uniform(0.2, 0.8) * np.sin(times / 86_400 * 2 * np.pi + random.uniform(0, 6))
        values = random.lognormal(0, 0.5) * rhythm * random.gamma(20, 1 / 20, len(times)) / 1000
        columns["series_id"] += [f"{path.stem}/{container}/{resource}"] * len(times)
        columns["container"] += [container] * len(times)
        columns["resource"] += [resource] * len(times)
        columns["timestamp"] += (START + times).tolist()
        columns["value"] += values.tolist()
    parquet.write_table(pyarrow.table(columns), path)


@pytest.fixture
def corpus(tmp_path):
    """An open source with siblings, one that the shipped model never saw, and a file that is held out."""
    (tmp_path / "index.csv").write_text("source,resource,exp_scale\nnab,cpu,1000\nnab,memory,1e12\nother,cpu,2000\n", encoding="utf-8")
    write_traces(
        tmp_path / "dev_nab.parquet", [*((f"web{n}", "cpu") for n in range(4)), ("db-0", "cpu"), ("db-1", "cpu"), ("db-0", "memory")]
    )
    write_traces(tmp_path / "dev_other.parquet", [(f"app{n}", "cpu") for n in range(4)], seed=1)
    write_traces(tmp_path / "holdout_nab.parquet", [(f"new{n}", "cpu") for n in range(4)], seed=2)
    return tmp_path


def recordings(directory, held_out=()):
    return [read_recording(path, read_scales(directory)) for path in find_files(directory, held_out)]


class TestTargets:
    @pytest.mark.parametrize(
        ("sense", "bound", "value", "room", "verdict"),
        [
            pytest.param(Sense.AT_LEAST, 0.27, 0.27, 0.0, Verdict.NARROW, id="at least, just"),
            pytest.param(Sense.AT_LEAST, 0.27, 0.297, 0.1, Verdict.MET, id="at least, with a tenth to spare"),
            pytest.param(Sense.AT_LEAST, 0.27, 0.2699, -0.0004, Verdict.MISSED, id="at least, missed by a hair"),
            pytest.param(Sense.AT_LEAST, 0.27, -0.27, -2.0, Verdict.MISSED, id="at least, went the other way"),
            pytest.param(Sense.AT_MOST, 6.0, 5.4, 0.1, Verdict.MET, id="at most, with a tenth to spare"),
            pytest.param(Sense.AT_MOST, 6.0, 5.5, 0.0833, Verdict.NARROW, id="at most, narrowly"),
            pytest.param(Sense.AT_MOST, 6.0, 6.01, -0.0017, Verdict.MISSED, id="at most, missed"),
            pytest.param(Sense.AT_MOST, 1.0, np.inf, -np.inf, Verdict.MISSED, id="infinitely worse"),
            pytest.param(Sense.AT_MOST, 1.0, np.nan, np.nan, Verdict.UNKNOWN, id="not measured"),
        ],
    )
    def test_a_number_is_judged_by_its_distance_to_the_bound(self, sense, bound, value, room, verdict):
        found = judge(Target(1, "balanced", CPU, "x", sense, bound, mean("resizes_per_day")), point(value))
        assert found.head_room == pytest.approx(room, abs=1e-4, nan_ok=True)
        assert found.verdict is verdict

    def test_the_promises_are_those_of_both_profiles_and_resources(self):
        assert {(target.profile, target.resource) for target in TARGETS} == {
            (profile, resource) for profile in ("balanced", "safe") for resource in Resource
        }

    @pytest.mark.parametrize(
        ("resource", "profile", "value", "series", "verdict"),
        [
            pytest.param(CPU, "balanced", 0.02, 4, Verdict.MET, id="two points more"),
            pytest.param(CPU, "balanced", 0.0201, 4, Verdict.MISSED, id="more than two points"),
            pytest.param(CPU, "balanced", 0.5, 3, Verdict.UNKNOWN, id="too few series to say"),
            pytest.param(MEMORY, "safe", 1.1, 4, Verdict.MET, id="a tenth more kills"),
            pytest.param(MEMORY, "safe", np.inf, 4, Verdict.MISSED, id="kills where the VPA has none"),
            pytest.param(MEMORY, "cost", 3.0, 9, Verdict.UNKNOWN, id="a profile that promises nothing"),
        ],
    )
    def test_no_source_may_be_much_worse(self, resource, profile, value, series, verdict):
        assert judge_source(SOURCE_RULES[resource], profile, point(value), series) is verdict

    @pytest.mark.parametrize(
        ("value", "series", "verdict"),
        [(0.88, 4, Verdict.MET), (0.92, 4, Verdict.MET), (0.87, 4, Verdict.MISSED), (0.93, 4, Verdict.MISSED), (0.5, 3, Verdict.UNKNOWN)],
    )
    def test_coverage_may_be_neither_low_nor_high(self, value, series, verdict):
        assert judge_coverage(point(value), series) is verdict

    @pytest.mark.parametrize(
        ("candidates", "expected"),
        [
            pytest.param({"a": (0.8, 0.30), "b": (0.8, 0.35)}, "b", id="both have room, the one that gains more"),
            pytest.param({"a": (0.9, 0.30), "b": (0.95, 0.35)}, "a", id="room before gain"),
            pytest.param({"a": (0.2, 0.30), "b": (0.9, 0.35)}, "b", id="room beyond a tenth counts no more"),
            pytest.param({"a": (1.3, 0.30), "b": (1.2, 0.10)}, "b", id="none keeps it, the nearest"),
            pytest.param({"a": (0.8, 0.30), "b": (0.8, 0.30)}, "a", id="the first of equals"),
        ],
    )
    def test_the_best_setting_first_keeps_what_must_not_be_paid(self, candidates, expected):
        targets = [target for target in TARGETS if target.text in ("violation volume, VPA = 1", "slack volume lower by")][:2]
        base = scores(violation_volume=[1.0] * 4, slack=[1.0] * 4)

        def pair_of(name):
            volume, gain = candidates[name]
            return Pair(scores(violation_volume=[volume] * 4, slack=[1 - gain] * 4), base, ("x",) * 4, 0)

        assert best(candidates, pair_of, [target for target in targets if target.resource is CPU]) == expected


class TestMeasures:
    def test_sources_count_the_same_and_ratios_are_of_averages(self):
        own = scores(violation_time=[0.1] * 4 + [0.4] * 8)
        base = scores(violation_time=[0.2] * 4 + [0.2] * 8)
        pair = Pair(own, base, ("a",) * 4 + ("b",) * 8, 0)
        assert ratio("violation_time")(pair).value == pytest.approx(0.25 / 0.2)
        assert change("violation_time")(pair).value == pytest.approx(0.05)
        assert ratio("violation_time")(pair.of_source("a")).value == pytest.approx(0.5)

    def test_a_ratio_to_nothing_is_infinite_unless_there_is_nothing(self):
        nothing, some = scores(ooms_per_day=[0.0] * 4), scores(ooms_per_day=[0.5, 0, 0, 0])
        assert ratio("ooms_per_day")(Pair(nothing, nothing, ("a",) * 4, 0)) == point(1.0)
        assert ratio("ooms_per_day")(Pair(some, nothing, ("a",) * 4, 0)).value == np.inf

    def test_an_interval_holds_the_value_and_a_reduction_turns_it_round(self):
        random = np.random.default_rng(3)
        pair = Pair(scores(slack=random.lognormal(-0.3, 0.4, 30)), scores(slack=np.ones(30)), ("a",) * 12 + ("b",) * 18, 0)
        found, lower = volume_ratio("slack")(pair), reduction(volume_ratio("slack"))(pair)
        assert found.low < found.value < found.high
        assert (lower.low, lower.value, lower.high) == pytest.approx((1 - found.high, 1 - found.value, 1 - found.low))

    def test_volumes_are_those_of_the_backtest(self):
        random = np.random.default_rng(4)
        own, base = (scores(slack=random.lognormal(0, 1, 20), resizes_per_day=random.uniform(0, 9, 20)) for _ in range(2))
        sources = ("a",) * 5 + ("b",) * 12 + ("few",) * 3
        expected = average(own, base, sources, 0).balanced
        assert volume_ratio("slack")(Pair(own, base, sources, 0)).value == pytest.approx(expected["slack_ratio"].value)
        assert mean("resizes_per_day")(Pair(own, base, sources, 0)).value == pytest.approx(expected["resizes_per_day"].value)

    def test_mixed_scores_take_each_row_from_its_part(self):
        first, second = scores(slack=[1.0, 2, 3]), scores(slack=[10.0, 20, 30])
        rows = np.array([True, False, True])
        assert mixed([(first, rows), (second, ~rows)]).slack.tolist() == [1, 20, 3]
        assert take(first, rows).slack.tolist() == [1, 3]


class TestModels:
    def test_a_container_and_its_siblings_lie_in_one_fold(self, corpus):
        fleets = [fleet for one in recordings(corpus) for fleet in one.fleets.values()]
        fold = dealt(fleets, 3, seed=0)
        assert len({group for group in fold if group.startswith("nab/db")}) == 1
        by_name = [dict(zip(fleet.names, fold_of(fleet, fold).tolist(), strict=True)) for fleet in fleets]
        folds_of_db = {number for found in by_name for name, number in found.items() if "/db-" in name}
        assert len(folds_of_db) == 1
        assert set(fold.values()) == {0, 1, 2}

    def test_nobody_is_judged_by_a_model_that_saw_it(self, corpus):
        read = recordings(corpus)
        fold = dealt([fleet for one in read for fleet in one.fleets.values()], 3, seed=0)
        fleet = judged(read, CPU)
        folds = fold_of(fleet, fold)
        model_of = judges(fleet.sources, folds, held_out=False)
        for row, model in enumerate(model_of.tolist()):
            if fleet.sources[row] == "other":
                assert model == SHIPPED
                continue
            trained_on = [values for grid in training_grids(read, fold, model, TINY) for values in grid.values[:, :100]]
            assert not any(np.array_equal(values, fleet.usage[row, :100]) for values in trained_on)
            elsewhere = [values for grid in training_grids(read, fold, (model + 1) % 3, TINY) for values in grid.values[:, :100]]
            assert any(np.array_equal(values, fleet.usage[row, :100]) for values in elsewhere)

    def test_held_out_series_are_judged_by_the_shipped_model(self):
        assert judges(("nab", "other"), np.array([0, 1]), held_out=True).tolist() == [SHIPPED, SHIPPED]

    @pytest.mark.slow
    def test_each_series_gets_the_answer_of_its_model(self, corpus):
        read = recordings(corpus)
        fold = dealt([fleet for one in read for fleet in one.fleets.values()], 3, seed=0)
        models = tuple(train_one(training_grids(read, fold, number, TINY), TINY) for number in range(2))
        fleet = judged(read, CPU)
        grid = UsageGrid(fleet.usage[:, :900], 900 * 300.0)
        model_of = np.array([1, 0, SHIPPED, 0, 1, 0, 1, 1, 0, 0])
        found = RoutedBoosting(models, model_of).fit(grid)
        for row, model in enumerate(model_of.tolist()):
            alone = BoostingForecaster(models[model]).fit(UsageGrid(grid.values[row : row + 1], grid.end))
            assert np.array_equal(found.hour[row], alone.hour[0])
            assert np.array_equal(found.day[row], alone.day[0])
            assert found.methods[found.method_of[row]] == alone.methods[alone.method_of[0]]


class TestCorpus:
    def test_sources_are_named_after_files_and_scaled_by_the_index(self, corpus):
        read = {one.source: one for one in recordings(corpus)}
        assert set(read) == {"nab", "other"}
        assert 0.05 < np.nanmean(read["nab"].fleets[CPU].usage) < 20
        assert np.nanmean(read["nab"].fleets[MEMORY].usage) > 1e8
        assert MEMORY not in read["other"].fleets

    def test_held_out_files_are_those_of_the_patterns(self, corpus):
        assert [path.name for path in find_files(corpus, ("holdout_*.parquet",))] == ["holdout_nab.parquet"]
        assert [path.name for path in find_files(corpus / "..", (str(corpus / "holdout_*"),))] == ["holdout_nab.parquet"]

    def test_a_directory_without_traces_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match="no trace file"):
            find_files(tmp_path, ())

    def test_a_bad_index_is_refused(self, tmp_path):
        (tmp_path / "index.csv").write_text("source,resource,exp_scale\nnab,disk,1\n", encoding="utf-8")
        with pytest.raises(UsageError, match="exp_scale"):
            read_scales(tmp_path)

    def test_too_short_a_recording_is_refused(self, tmp_path):
        write_traces(tmp_path / "dev_short.parquet", [("one", "cpu")], days=3)
        with pytest.raises(UsageError, match="no cpu series has 4 days"):
            judged(recordings(tmp_path), CPU)


class TestVariants:
    @pytest.mark.parametrize("resource", Resource)
    def test_one_setting_at_a_time_is_moved(self, resource):
        profile = load_catalogue()["balanced"]
        found = variants(profile, resource)
        assert next(iter(found)) == AS_SHIPPED
        assert found.pop(AS_SHIPPED) is profile
        assert len(found) >= 6
        assert len({repr(one) for one in found.values()} | {repr(profile)}) == len(found) + 1
        other = MEMORY if resource is CPU else CPU
        assert all(one.ensemble.resource(other) == profile.ensemble.resource(other) for one in found.values())


class TestPage:
    def test_notes_are_kept(self):
        run = Run("2026-01-01", False, 0, 3, "abc", 20, (Cost(1.0, 2.0),), 3.0)
        page = render(run, [], None, "What the data say.\nAnd why.", "")
        assert notes_of(page) == "What the data say.\nAnd why."
        assert render(run, [], None, notes_of(page), "") == page

    @pytest.mark.parametrize("page", ["", "# Quality", f"{NOTES_BEGIN}\nbroken off", f"{NOTES_BEGIN}\n{NOTES_END}"])
    def test_a_page_without_notes_has_none(self, page):
        assert notes_of(page) == ""


@pytest.mark.slow
class TestCommand:
    def test_from_trace_files_to_the_page(self, corpus, tmp_path, monkeypatch):
        monkeypatch.setattr(evidence, "variants", lambda *profile: dict(islice(variants(*profile).items(), 3)))  # the others take as long
        monkeypatch.setattr(command, "DEFAULT_TRAINING", TINY.options)
        page, document = tmp_path / "quality.md", tmp_path / "quality.json"
        arguments = ["--profiles", "balanced", "--resource", "cpu", "--jobs", "1", "--synthetic", "1", "--date", "2026-01-01"]
        monkeypatch.setattr(
            "sys.argv", ["quality", "--traces-dir", str(corpus), "--no-families", *arguments, "--out", str(page), "--json", str(document)]
        )
        assert command.main() == 0
        text, numbers = page.read_text(encoding="utf-8"), json.loads(document.read_text(encoding="utf-8"))
        assert "Measured on 2026-01-01" in text
        assert "| nab | 6 | models that did not see it |" in text
        assert "| other | 4 | the shipped model |" in text
        assert "chosen on other folds" in text
        assert "web1" not in text + document.read_text(encoding="utf-8")
        assert (tmp_path / "quality.svg").read_text(encoding="utf-8").startswith("<svg")
        (cpu,) = numbers["resources"]
        assert len(cpu["targets"]) == 5
        assert all(target["measured"]["value"] is not None for target in cpu["targets"])
        assert all(0.5 < check["coverage"]["value"] <= 1 for check in cpu["forecast_checks"])

    def test_held_out_files_are_judged_without_training(self, corpus):
        request = Request(corpus, ("holdout_*",), ("balanced",), (CPU,), TINY, 0, 1, "2026-01-01")
        run, (cpu,) = measure(request)
        assert run.held_out
        assert run.training == ()
        assert dict(cpu.sources) == {"nab": 4}
        assert cpu.choice is None
        assert "nobody tuned on them" in render(run, [cpu], None, "", "")

    def test_an_unknown_profile_is_one_line(self, corpus, monkeypatch, capsys):
        monkeypatch.setattr("sys.argv", ["quality", "--traces-dir", str(corpus), "--profiles", "nonesuch"])
        assert command.main() == 2
        assert capsys.readouterr().err.startswith("quality: no profile is named 'nonesuch'")
