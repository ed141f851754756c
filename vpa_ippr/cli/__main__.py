"""``python -m vpa_ippr.cli`` is ``vpa-ippr``."""

from vpa_ippr.cli.main import run

run()
