"""``odp``: the commands, and how their errors reach a person.

Exit codes: 0 done, 1 an error of ODP (one line on stderr), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

import typer

from odp.cli import compare, data, demo, device, enclave, report, services, simulate, task, tune
from odp.cli.console import print_error
from odp.errors import OdpError

app = typer.Typer(
    name="odp",
    help="On-device personalization: devices train on their own data, enclaves aggregate, releases are DP per user.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("demo")(demo.demo)
app.command("simulate")(simulate.simulate)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("tune")(tune.tune)
app.command("up")(services.up)
app.add_typer(task.app, name="task")
app.add_typer(services.server_app, name="server")
app.add_typer(services.distributor_app, name="distributor")
app.add_typer(services.aggregator_app, name="aggregator")
app.add_typer(device.app, name="device")
app.add_typer(enclave.app, name="enclave")
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from odp import __version__
        from odp.cli.console import print_text

        print_text(f"odp {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point of the ``odp`` command."""
    # Many small solves per device: a second BLAS thread costs more than it brings, and there are other processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except OdpError as error:
        print_error(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        print_error("interrupted")
        sys.exit(130)


if __name__ == "__main__":
    main()
