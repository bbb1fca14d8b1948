"""`odp table`: public tables that devices look rows up in, without telling which."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from odp.cli.console import print_json, results_console

if TYPE_CHECKING:
    from odp.protocol.wire.encoding import Encoding
    from odp.signed.tables.table import OpenedTable

app = typer.Typer(help="Publish public tables whose rows devices look up privately.", no_args_is_help=True)

Server = Annotated[str, typer.Option(help="host:port of the server; several servers with commas between.")]
State = Annotated[Path, typer.Option(help="State folder of `odp up`, with the CA and the operator's token.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_LARGEST_FILE = 2**30


@app.command("publish")
def publish(
    file: Annotated[Path, typer.Argument(help="Matrix of the rows: .npy, or .csv of numbers without a header.")],
    name: Annotated[str, typer.Option(help="Name of the table; the same name again publishes its next version.")],
    encoding: Annotated[str, typer.Option(help="float32, float16 or int8 (a scale per row).")] = "float32",
    rows_per_request: Annotated[
        int, typer.Option(help="Number of rows in every request of a device; fixed for a name.")
    ] = 64,
    server: Server = "127.0.0.1:7200",
    state: State = Path("odp-state"),
    json: Json = False,
) -> None:
    """Publish a table of public rows: key i is row i of the file."""
    from odp.services.connection import connect
    from odp.signed.tables.table import Table

    table = Table(name, _rows(file), cast("Encoding", encoding), rows_per_request)
    with connect(server, state=state) as connection:
        _say(connection.publish_table(table), "published", json)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of the table.")],
    server: Server = "127.0.0.1:7200",
    state: State = Path("odp-state"),
    json: Json = False,
) -> None:
    """Verify the signatures of the newest version of a table, and show it."""
    from odp.services.connection import connect

    with connect(server, state=state) as connection:
        _say(connection.table(name), "is", json)


@app.command("candidates")
def candidates(
    task: Annotated[str, typer.Argument(help="Task id (hex), or its first digits.")],
    clusters: Annotated[
        int | None, typer.Option(help="Number of clusters \\[default: the square root of the items].")
    ] = None,
    buckets: Annotated[int, typer.Option(help="Number of buckets that a device fetches; fixed for a task.")] = 8,
    server: Server = "127.0.0.1:7200",
    state: State = Path("odp-state"),
    json: Json = False,
) -> None:
    """Cluster the items of a task's newest model after each release, for `odp device recommend --candidates`."""
    from odp.cli.task import find_task
    from odp.services.connection import connect
    from odp.signed.tables.candidates import candidate_tables
    from odp.signed.task import model_sha256, open_task

    with connect(server, state=state) as connection:
        status = find_task(connection, task)
        broadcast = connection.model(status)
        made = candidate_tables(
            open_task(status.task).name,
            broadcast,
            model_sha256(status.model),
            clusters=clusters,
            buckets_per_request=buckets,
        )
        # Devices look for the centroids first: while the buckets are older, they say so and take the whole model.
        published = [connection.publish_table(table) for table in (made.buckets, made.centroids)]
    if json:
        print_json({"tables": [public_table.name for public_table in published], "model_version": broadcast.version})
        return
    for opened in published:
        _say(opened, "published", json=False)


def _say(opened: OpenedTable, what: str, json: bool) -> None:
    from odp.protocol.wire.encoding import encoding_of
    from odp.protocol.wire.tables import entry_bytes

    entry = opened.entry
    facts: dict[str, Any] = {
        "name": opened.name,
        "version": opened.version,
        "rows": entry.rows,
        "width": entry.width,
        "encoding": encoding_of(entry.encoding),
        "bytes": entry_bytes(entry),
        "rows_per_request": opened.rows_per_request,
        "sha256": entry.sha256.hex(),
        "developer_key": opened.developer_key.hex(),
    }
    if json:
        print_json(facts)
        return
    results_console().print(
        f"table {opened.name} {what} version {opened.version}: {entry.rows} rows x {entry.width} as "
        f"{facts['encoding']}, {facts['bytes']} bytes; devices ask for {opened.rows_per_request} rows at a time"
    )


def _rows(file: Path) -> Any:
    import numpy as np

    from odp.errors import ConfigurationError

    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise ConfigurationError(f"{file} is larger than 1 GiB, the most that a distributor takes")
        if file.suffix == ".npy":
            return np.load(file, allow_pickle=False)
        if file.suffix == ".csv":
            return np.loadtxt(file, delimiter=",", dtype=np.float32, ndmin=2)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror or 'not such a file'}") from error
    except (ValueError, EOFError) as error:
        raise ConfigurationError(f"{file} does not hold a matrix of numbers") from error
    raise ConfigurationError(f"Expected {file} to end in .npy or .csv")
