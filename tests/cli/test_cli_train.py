"""``vpa-ippr train``: from trace files to a model that can be loaded and a card that says what it is; and bad input of every kind."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from support.cli import MI, START, run, write_csv
from support.usage_grids import SMALL_TRAINING, daily
from vpa_ippr.forecast.boosting import BoostingForecaster, load_model
from vpa_ippr.forecast.quantiles import Horizon

MODEL, CARD = "gradient-boosting.skops", "gradient-boosting.md"
# Good for nothing but that there are numbers.
TINY = replace(SMALL_TRAINING, levels=(0.5, 0.98), iterations=3)
QUICK = ("--synthetic", 1, "--folds", 2, "--date", "2026-02-01")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr("vpa_ippr.forecast.training.TrainingOptions", lambda seed: replace(TINY, seed=seed))
    monkeypatch.setattr("vpa_ippr.forecast.crossvalidation.MOMENTS", 100)
    monkeypatch.delenv("VPA_IPPR_LOG_LEVEL", raising=False)


def trace(path, *, names=("web-0", "web-1", "api"), days=4, memory=False, seed=0):
    rows = []
    for name, values in zip(names, daily(len(names), days, seed=seed).values, strict=True):
        times = START + 300 * np.arange(values.size)
        rows += [(f"{name}/cpu", "app", "cpu", int(time), f"{value:.4f}") for time, value in zip(times, values, strict=True)]
        if memory:
            rows += [(f"{name}/memory", "app", "memory", int(time), int(value * MI)) for time, value in zip(times, values, strict=True)]
    return write_csv(path, rows)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    directory = tmp_path_factory.mktemp("traces")
    return trace(directory / "shop.csv", memory=True), trace(directory / "bank.csv", seed=1), trace(directory / "new.csv", seed=2)


@pytest.fixture
def out(tmp_path):
    directory = tmp_path / "out"
    directory.mkdir()
    return directory


def test_it_writes_a_model_that_forecasts_and_its_card(traces, out):
    shop, bank, new = traces
    licences = ("--licence", "shop=CC0", "--licence", "new=for  eyes only")
    outcome = run("train", "--traces", shop, bank, "--unseen", new, *licences, *QUICK, "--out", out)
    assert (outcome.code, outcome.err) == (0, "")
    assert sorted(path.name for path in out.iterdir()) == [CARD, MODEL]
    data = (out / MODEL).read_bytes()
    forecast = BoostingForecaster(load_model(data)).fit(daily(2, 8)).predict(Horizon.HOUR, (0.9,))
    assert np.isfinite(forecast.values).all()
    digest = hashlib.sha256(data).hexdigest()
    assert outcome.out.splitlines()[0] == f"{out / MODEL}: {len(data):,} bytes, SHA-256 {digest}"
    card = (out / CARD).read_text()
    for text in (
        f"{len(data):,} bytes, SHA-256 `{digest}`",
        "Trained 2026-02-01",
        f"| shop | cpu | 3 | 12 | training | CC0 | shop.csv `{hashlib.sha256(shop.read_bytes()).hexdigest()[:16]}",
        "| shop | memory | 3 | 12 | training | CC0 |",
        "| bank | cpu | 3 | 12 | training | not stated |",
        "| new | cpu | 3 | 12 | judging only | for eyes only |",
        "| synthetic | any | 11 | 308 | training | own |",
        "leak, ramp, step",
        "- iterations: 3\n",
        "scikit-learn 1.",
        "vpa-ippr train --traces shop.csv bank.csv",
        "--unseen new.csv",
        "--licence 'new=for eyes only'",
        "--synthetic 1 --folds 2 --seed 0",
    ):
        assert text in card
    trained, unseen = card.split("Sources that it never saw")
    for line in ("| bank | cpu | next hour |", "| shop | memory | next day |", "| synthetic | any | next hour |"):
        assert line in trained
    assert "| new | cpu | next hour |" in unseen
    assert "| bank |" not in unseen
    assert max(len(line) for line in card.splitlines() if not line.startswith(("|", " ", "vpa"))) <= 140


def test_the_same_command_gives_the_same_bytes_and_another_seed_others(traces, tmp_path):
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        out = tmp_path / name / "models"
        out.mkdir(parents=True)
        assert run("train", "--traces", traces[0], *QUICK, "--seed", seed, "--out", out).code == 0
        files.append([(out / MODEL).read_bytes(), (out / CARD).read_text().replace(str(out), "")])
    assert files[0] == files[1]
    assert files[0][0] != files[2][0]


def test_made_up_series_alone_will_do(out):
    assert run("train", *QUICK, "--out", out).code == 0
    assert "| synthetic | any | 11 |" in (out / CARD).read_text()


def test_no_made_up_series_are_needed(traces, out):
    assert run("train", "--traces", *traces[:2], "--synthetic", 0, "--folds", 2, "--out", out).code == 0
    assert "synthetic |" not in (out / CARD).read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--synthetic", 0), "nothing to train on: give --traces FILE... or a --synthetic above 0"),
        (("--traces", "missing.csv"), "trace file missing.csv: No such file or directory"),
        (("--traces", "bad.csv"), "trace file bad.csv: no column series_id"),
        (("--traces", "t.csv", "--unseen", "missing.csv"), "missing.csv"),
        (("--traces", "t.csv", "sub/t.csv"), "two trace files are named alike"),
        (("--traces", "t.csv", "--unseen", "sub/t.csv"), "two trace files are named alike"),
        (("--traces", "synthetic.csv"), "that is what made-up series are called"),
        (("--traces", "t.csv", "--licence", "other=MIT"), "--licence other: no such source; there are t"),
        (("--traces", "t.csv", "--licence", "t"), "'t' is not SOURCE=TEXT such as nab=MIT"),
        (("--traces", "t.csv", "--licence", "t="), "'t=' is not SOURCE=TEXT"),
        (("--traces", "t.csv", "--folds", 1), "--folds"),
        (("--traces", "t.csv", "--date", "today"), "--date"),
        (("--traces", "t.csv", "--synthetic", 0, "--folds", 3), "cannot deal 2 workloads to 3 folds"),
        (("--traces", "short.csv", "--synthetic", 0, "--folds", 2), "rows to train on, at least 500 are needed"),
        (("t.csv",), "trace files are given with --traces"),
        (("--traces", "t.csv", "--out", "nowhere"), "--out nowhere: no such directory"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_bad_usage_writes_nothing(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    for name in ("t", "sub/t", "synthetic"):
        trace(tmp_path / f"{name}.csv", days=0.5)
    trace(tmp_path / "short.csv", days=0.1)
    outcome = run("train", "--out", "out", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.error_lines) == 1
    assert message in outcome.err
    assert list((tmp_path / "out").iterdir()) == []


def test_a_directory_that_cannot_be_written_keeps_what_is_there(traces, out, monkeypatch):
    (out / MODEL).write_bytes(b"old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    outcome = run("train", "--traces", traces[0], *QUICK, "--out", out)
    assert outcome.code == 2
    assert "No space left on device" in outcome.err
    assert [path.read_bytes() for path in out.iterdir()] == [b"old"]
