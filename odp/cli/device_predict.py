"""`odp device predict`: predictions of a population's newest model, computed on the device."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp.cli.console import console, print_json, print_text
from odp.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    import numpy.typing as npt

    from odp.algorithms.predicting import RankedItems


def predict(
    population: Annotated[str, typer.Option(help="Population whose newest model is used.")],
    state: Annotated[Path, typer.Option(help="State folder of the device host: one store per device.")] = Path(
        "odp-devices"
    ),
    server: Annotated[
        str, typer.Option(help="host:port of the server; several servers with commas between.")
    ] = "127.0.0.1:7200",
    services: Annotated[
        Path, typer.Option(help="State folder of a local `odp up`: default for --ca and --reference-values.")
    ] = Path("odp-state"),
    ca: Annotated[Path | None, typer.Option(help="PEM file of the CA of the services.")] = None,
    reference_values: Annotated[
        Path | None, typer.Option(help="JSON file of the enclaves that the devices accept.")
    ] = None,
    device: Annotated[int, typer.Option(help="Index of the device.")] = 0,
    example: Annotated[
        list[str] | None,
        typer.Option(help='An example as JSON, such as \'{"age": 31, "kind": "film"}\'; may be given several times.'),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(help="npz file of examples: an array \\[n, ..] per feature.", exists=True, dir_okay=False),
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            min=1, help="Without examples: the newest of the device's own. Of a model that ranks items: how many items."
        ),
    ] = 10,
    allow_private_addresses: Annotated[
        bool, typer.Option("--allow-private-addresses", help="Accept names of services that lead to private addresses.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what the newest model says of examples, or which items it ranks best for them; computed on the device.

    Without --example and --examples, of the device's own, which never leave it.
    """
    from device_runtime.host.newest import fetch_newest
    from device_runtime.inference.predict import MOST_EXAMPLES, Predictor, shown
    from device_runtime.store.store import Store, store_path

    if count > MOST_EXAMPLES:
        raise ConfigurationError(f"Expected --count to be at most {MOST_EXAMPLES}")
    columns = _columns(example or (), examples)
    available = fetch_newest(
        population, state=state, server=server, ca=services / "ca" / "ca.pem" if ca is None else ca,
        reference_values=services / "reference_values.json" if reference_values is None else reference_values,
        allow_private_addresses=allow_private_addresses, of_examples=True,
    )  # fmt: skip
    with Predictor(available) as predictor:
        item = predictor.ranked_feature
        if item is not None and (columns is None or item not in columns):
            if columns is not None:
                ranked = predictor.rank(columns, count=count)
            else:
                with Store.open(store_path(state, device)) as store:
                    ranked = predictor.rank_for_person(store, count=count)
            _print_ranked(ranked, json=json)
            return
        if columns is not None and not predictor.is_personal:
            predictions = predictor.predict(columns)
        else:
            rows = None if columns is None else predictor.rows(columns)
            with Store.open(store_path(state, device)) as store:
                predictions = predictor.of_person(store, rows, count=count)
    if json:
        notes = {} if predictions.offline is None else {"offline": predictions.offline}
        print_json({"version": predictions.version, "predictions": predictions.rows(), **notes})
        return
    if predictions.offline is not None:
        console().print(predictions.offline, markup=False)
    for line in shown(predictions).lines():
        print_text(line)


def _print_ranked(ranked: RankedItems, *, json: bool) -> None:
    from device_runtime.inference.predict import ranked_in_words

    if json:
        notes = {} if ranked.offline is None else {"offline": ranked.offline}
        print_json({"version": ranked.version, "ranked": ranked.rows(), **notes})
        return
    for line in ranked_in_words(ranked).lines():
        print_text(line)


def _columns(texts: Sequence[str], path: Path | None) -> Mapping[str, npt.ArrayLike] | None:
    """Columns by name of what was handed in; None of nothing."""
    from odp.numerics.archives import arrays_of

    if path is not None:
        if texts:
            raise ConfigurationError("Expected --example or --examples, not both")
        with arrays_of(path, f"{path} is no npz file of examples; write it with numpy.savez") as arrays:
            return {name: arrays[name] for name in arrays.files}
    if not texts:
        return None
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        try:
            row = json_format.loads(text)
        except ValueError as error:
            raise DataError(f"--example number {number} is not JSON: {error}") from None
        if not isinstance(row, dict) or row.keys() != (rows[0] if rows else row).keys():
            raise DataError(f"--example number {number}: expected a JSON object with the columns of the first one")
        rows.append(row)
    return {name: [row[name] for row in rows] for name in rows[0]}
