"""The command as a whole: help, version, usage errors, logs, and what reaches which stream."""

import json
import logging

import click
import pytest

from support.cli import run, steady_rows, write_csv
from vpa_ippr import __version__
from vpa_ippr.api.errors import ClusterError, UsageError
from vpa_ippr.cli.logs import configure_logging
from vpa_ippr.cli.main import app

COMMANDS = ("actuator", "backtest", "demo", "explain", "recommend", "recommender", "report", "sandbox", "train", "updater")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in ("PROMETHEUS_URL", "KUBECONFIG", "VPA_IPPR_LOG_LEVEL", "VPA_IPPR_LOG_FORMAT", "VPA_IPPR_CLOCK_URL"):
        monkeypatch.delenv(name, raising=False)


def test_help_lists_every_command():
    outcome = run("--help")
    assert (outcome.code, outcome.err) == (0, "")
    listed = [line.split()[0] for line in outcome.out.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_explains_itself(command):
    outcome = run(command, "--help")
    assert outcome.code == 0
    options = [param for param in app.commands[command].params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_version():
    assert run("--version").out == f"vpa-ippr, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("recommend", "--nope"), "vpa-ippr: No such option '--nope' (see vpa-ippr recommend --help)"),
        (("nope",), "vpa-ippr: No such command 'nope' (see vpa-ippr --help)"),
        (("recommend", "--format", "xml"), "'xml' is not one of 'table', 'json' (see vpa-ippr recommend --help)"),
        (("recommend", "--as-of", "yesterday"), "cannot read 'yesterday' as a time: expected RFC 3339"),
        (("recommend", "--history", "-3d"), "'-3d' is not a duration above 0 such as 30s, 15m, 36h or 8d"),
        (("recommend", "--history", "infd"), "'infd' is not a duration"),
        (("recommend", "--traces"), "requires an argument"),
        (("sandbox",), "Missing option '--kubeconfig'"),
        (("sandbox", "--kubeconfig", "k", "--listen", "localhost"), "'localhost' is not HOST:PORT such as 127.0.0.1:6443"),
        (("--log-level", "loud", "recommend"), "--log-level 'loud' is not one of debug, info, warning, error"),
        (("--log-format", "xml", "recommend"), "--log-format 'xml' is not one of text, json"),
        (("recommend", "--prometheus-url", "http://h", "--prometheus-header", "token"), "--prometheus-header 'token': expected NAME:VALUE"),
        (("recommend", "--prometheus-url", "h:9090"), "h:9090"),
        (("recommend", "--prometheus-url", "http://h", "--prometheus-password-file", "/nowhere"), "cannot read /nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments, line):
    outcome = run(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    (said,) = outcome.error_lines
    assert said.startswith("vpa-ippr: ")
    assert line in said


def test_no_command_shows_the_help_and_exit_code_2():
    outcome = run()
    assert outcome.code == 2
    assert "Commands:" in outcome.err


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 1), (UsageError("u"), 2), (ClusterError("c"), 1)]
)
def test_exit_code_of_what_ends_a_command(monkeypatch, error, code):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr("vpa_ippr.cli.recommend.answer", fail)
    assert run("recommend", "--traces", "t.csv").code == code


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}], ids=["plain", "NO_COLOR", "FORCE_COLOR"])
@pytest.mark.parametrize("form", ["table", "json"])
def test_piped_output_holds_the_report_alone_and_no_escape_codes(tmp_path, monkeypatch, environment, form):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    outcome = run("recommend", "--traces", write_csv(tmp_path / "t.csv", steady_rows()), "-f", form)
    assert (outcome.code, outcome.err) == (0, "")
    assert "\x1b" not in outcome.out


@pytest.mark.parametrize(("setting", "coloured"), [(None, True), ("1", False), ("", True)], ids=["unset", "set", "empty"])
def test_a_terminal_gets_colours_unless_no_color_says_otherwise(tmp_path, monkeypatch, setting, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if setting is not None:
        monkeypatch.setenv("NO_COLOR", setting)
    trace = write_csv(tmp_path / "t.csv", steady_rows())
    assert ("\x1b[" in run("recommend", "--traces", trace, terminal=True).out) is coloured


@pytest.mark.parametrize("columns", [80, 100, 120, 200])
def test_the_table_names_its_workloads_on_any_terminal(tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    trace = write_csv(tmp_path / "t.csv", steady_rows())
    header, row, *_ = run("recommend", "--traces", trace, terminal=True).out.splitlines()
    assert max(len(header), len(row)) <= columns
    assert "Deployment/" in row
    assert {"default", "app", "126m", "363Mi", "WARNING"} <= set(row.split())


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_logs_are_a_message_and_pairs(root_logger, capsys):
    configure_logging("info", "text")
    logging.getLogger("vpa_ippr.cluster.kube").info("object left out", extra={"error": "no name", "count": 2})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.partition(" ")[2] == "info cluster.kube: object left out error=no name count=2\n"


def test_json_logs_are_one_object_a_line(root_logger, capsys):
    configure_logging("warning", "json")
    logger = logging.getLogger("vpa_ippr.test")
    logger.info("too low")
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        logger.exception("failed", extra={"pod": ("a", "b"), "attempt": 2})
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry | {"time": "", "trace": ""} == {
        "time": "", "level": "error", "logger": "vpa_ippr.test", "message": "failed", "pod": "('a', 'b')", "attempt": 2, "trace": "",
    }  # fmt: skip
    assert "ValueError: broken" in entry["trace"]


def test_a_hostile_name_cannot_forge_a_log_line(capsys):
    import logging

    from vpa_ippr.cli.logs import configure_logging

    configure_logging("info", "text")
    logging.getLogger("vpa_ippr.test").info("pod seen", extra={"pod": "web\n12:00:00 error cluster: all is lost\x1b[31m"})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "\x1b" not in lines[0]
