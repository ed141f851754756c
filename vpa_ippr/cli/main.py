"""The ``vpa-ippr`` command: one sub-command a module, each importing what it needs only when it runs."""

from __future__ import annotations

import sys

import click

from vpa_ippr import __version__
from vpa_ippr.api.errors import EXIT_FAILED, EXIT_USAGE, VpaIpprError
from vpa_ippr.cli.actuator import actuator
from vpa_ippr.cli.backtest import backtest
from vpa_ippr.cli.demo import demo
from vpa_ippr.cli.explain import explain
from vpa_ippr.cli.logs import configure_logging
from vpa_ippr.cli.recommend import recommend
from vpa_ippr.cli.recommender import recommender
from vpa_ippr.cli.report import report
from vpa_ippr.cli.sandbox import sandbox
from vpa_ippr.cli.train import train
from vpa_ippr.cli.updater import updater

# Their logs are all that they say; a command's own output says what a person needs.
_COMPONENTS = ("recommender", "updater", "actuator")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="vpa-ippr")
@click.option("--log-level", envvar="VPA_IPPR_LOG_LEVEL", help="debug, info, warning or error; default: info for components, else error.")
@click.option("--log-format", default="text", show_default=True, envvar="VPA_IPPR_LOG_FORMAT", help="text or json; logs go to stderr.")
@click.pass_context
def app(context: click.Context, log_level: str | None, log_format: str) -> None:
    """Vertical pod autoscaler that resizes pods in place and makes them smaller safely."""
    configure_logging(log_level or ("info" if context.invoked_subcommand in _COMPONENTS else "error"), log_format)


for command in (recommend, report, explain, backtest, train, recommender, updater, actuator, sandbox, demo):
    app.add_command(command)


def run() -> None:
    """Entry point: errors that we expect become one line on stderr and an exit code (0 done, 1 failed, 2 usage, 3 partial)."""
    sys.exit(_exit_code())


def _exit_code() -> int:
    try:
        outcome = app(prog_name="vpa-ippr", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "vpa-ippr"
        click.echo(f"vpa-ippr: {error.format_message().rstrip('.')} (see {command} --help)", err=True)
        return EXIT_USAGE
    except VpaIpprError as error:
        click.echo(f"vpa-ippr: {error}", err=True)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has gone, as in `vpa-ippr report | head`; keep the interpreter from complaining at exit.
        sys.stderr.close()
        return EXIT_FAILED
    except (KeyboardInterrupt, click.Abort):
        return 130
    return outcome if isinstance(outcome, int) else 0
