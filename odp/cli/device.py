"""`odp device`: a host of many devices, and what a device tells its own person.

`odp device doctor` shows what this machine enforces for a developer's on-device code, and what else a device finds.

Recommendations of a device as a terminal shows them: a prediction, and its range where one was asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp.cli import person
from odp.cli.console import console, print_error, print_json, print_text, results_console
from odp.cli.data_options import as_written, print_reading, takes_labelled_table, takes_table
from odp.cli.device_predict import predict
from odp.cli.outputs import output_file, writing_file
from odp.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from rich.table import Table

    from device_runtime import Recommendation
    from odp.datasets import Ratings
    from odp.datasets.item_texts import NamedItems
    from odp.models.example_columns import ExampleColumns

_MEANING = {
    "namespace-user": "users of its own: no rights outside",
    "namespace-network": "a network of its own, empty",
    "namespace-ipc": "shared memory and queues of its own",
    "namespace-process": "it sees no other process, and its number does not count calls",
    "no-shared-pages": "its memory is not merged with that of others, and takes no huge pages",
    "private-memory": "it maps no file: libraries are copies that no other process shares",
    "no-new-privileges": "no program could give it more rights",
    "not-dumpable": "no process of the same user may read its memory",
    "no-core-dumps": "its memory goes to no file when it crashes",
    "no-capabilities": "it has none of root's rights",
    "closed-descriptors": "it inherits its channel and nothing else",
    "memory-limit": "address space is limited",
    "processor-limit": "processor time is limited",
    "file-limit": "no file can grow, few descriptors",
    "landlock-no-files": "no file can be opened",
    "seccomp": "system calls: compute, its channel; no threads, no counters of the machine",
}


def doctor(
    state: Annotated[Path, typer.Option(help="State folder of the device host.")] = Path("odp-devices"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what this machine enforces for on-device services, how it keeps stores, and which sensors it has.

    Exit code 1 means that a promised restriction of services is not enforced.
    """
    from device_runtime import MachineSensors
    from device_runtime.host.doctor import examine

    examination = examine(MachineSensors(state if state.is_dir() else Path.cwd()), folder=state)
    if json:
        print_json(examination.as_json())
    else:
        print_text(f"python {examination.python}, {examination.system}")
        for name in (*examination.enforced, *examination.not_enforced):
            print_text(f"{'NOT ENFORCED' if name in examination.not_enforced else 'enforced':<13} {name}")
        if examination.problem:
            print_text(f"services do not run here: {examination.problem}")
        for name in (*examination.held, *examination.refused):
            print_text(f"  {'REFUSED' if name in examination.refused else 'holds':<8} {name:<19} {_MEANING[name]}")
        print_text(f"stores: {examination.store}")
        print_text(f"keyring: {examination.keyring}")
        for name, reason in examination.sensors.items():
            print_text(f"sensor {name}: {reason or 'readable'}")
    if examination.not_enforced:
        raise typer.Exit(1)


def listed(
    recommendation: Recommendation, names: Sequence[str] | None, keys: Sequence[str] | None = None
) -> dict[str, Any]:
    """Plain values: ``recommendations``, each with ``low`` and ``high`` beside the ``level`` where there are ranges.

    ``ratings_left_out`` counts the person's own ratings of items that the model does not know.
    """
    fields = ("item", "score", "low", "high")
    rows: list[dict[str, Any]] = [dict(zip(fields, row, strict=False)) for row in recommendation.rows()]
    for row, item in zip(rows, recommendation.items.tolist(), strict=True):
        row["item"] = item
    for column, texts in (("name", names), ("key", keys)):
        for row, text in zip(rows, texts or (), strict=False):
            row[column] = text
    for row, reasons in zip(rows, recommendation.reasons or (), strict=False):
        row["because"] = [{"item": item, "added": added} for item, added in reasons]
    level = {} if recommendation.ranges is None else {"level": recommendation.ranges.level}
    return {**level, "recommendations": rows, "ratings_left_out": recommendation.left_out}


def notes_of(recommendation: Recommendation) -> list[str]:
    """What to know of recommendations before they are read."""
    from device_runtime.view.shown_items import left_out_note

    return [left_out_note(recommendation.left_out)] if recommendation.left_out else []


def table_of(
    recommendation: Recommendation, names: Sequence[str] | None, *, title: str, reasons: Sequence[str] | None = None
) -> Table:
    """A row per item: a value of the declared range, or a score that only ranks.

    A range says in its head how often it covers the person's own value.
    """
    from rich.table import Table
    from rich.text import Text

    ranges = recommendation.ranges
    head = [] if ranges is None else [f"{100 * ranges.level:g} times in 100 within"]
    head += [] if reasons is None else ["because of your"]
    shown = Table("", "item", "predicted value" if recommendation.values else "score", *head, title=title)
    for rank, (item, score, *ends) in enumerate(recommendation.rows()):
        name = str(item) if names is None else names[rank]
        # A title may hold what a terminal's markup would take for a style.
        within = [f"{ends[0]:.2f} to {ends[1]:.2f}"] if ends else []
        because = [] if reasons is None else [Text(reasons[rank])]
        shown.add_row(str(rank + 1), Text(name), f"{score:.2f}", *within, *because)
    return shown


_SWITCH_SECONDS = 5e-4

app = typer.Typer(help="Run devices, and decide what a device takes part in.", no_args_is_help=True)
person.add_to(app)
app.command("doctor")(doctor)
app.command("predict")(predict)

State = Annotated[Path, typer.Option(help="State folder of the device host: one store per device.")]
Server = Annotated[str, typer.Option(help="host:port of the server; several servers with commas between.")]
Services = Annotated[
    Path, typer.Option(help="State folder of a local `odp up`: default for --ca and --reference-values.")
]
Ca = Annotated[Path | None, typer.Option(help="PEM file of the CA of the services.")]
ReferenceFile = Annotated[Path | None, typer.Option(help="JSON file of the enclaves that the devices accept.")]
PrivateAddresses = Annotated[
    bool, typer.Option("--allow-private-addresses", help="Accept names of services that lead to private addresses.")
]


@app.command("run")
@takes_labelled_table
def run(
    columns: dict[str, Any],
    population: Annotated[str, typer.Option(help="Population that the devices check in for.")],
    state: State = Path("odp-devices"),
    server: Server = "127.0.0.1:7200",
    services: Services = Path("odp-state"),
    ca: Ca = None,
    reference_values: ReferenceFile = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set whose users become the devices, or with --label a table of labelled examples; without it "
            "the stores must exist."
        ),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            help="npz file of labelled examples whose users become the devices: an array `user` \\[n], from 0, and an "
            "array \\[n, ..] per feature and label."
        ),
    ] = None,
    split_seed: Annotated[
        int | None, typer.Option(help="Seed of an 80/10/10 split; devices get its training part.")
    ] = None,
    devices: Annotated[int | None, typer.Option(help="Number of devices \\[default: the users of the data].")] = None,
    first: Annotated[int, typer.Option(help="Index of the first device.")] = 0,
    threads: Annotated[
        int,
        typer.Option(
            help="Number of devices that work at the same time, beside those that wait for their fixed times."
        ),
    ] = 3,
    max_epsilon: Annotated[float, typer.Option(help="Largest ε of one task.")] = 10.0,
    max_delta: Annotated[float, typer.Option(help="Largest δ of one task.")] = 1e-5,
    max_total_epsilon: Annotated[float, typer.Option(help="Largest ε of all contributions together.")] = 20.0,
    max_computing_seconds: Annotated[
        float, typer.Option(help="Longest time of one contribution, which the signed task fixes.")
    ] = 64.0,
    min_cohort: Annotated[int, typer.Option(help="Refuse tasks that may release below this many contributions.")] = 100,
    conditions: Annotated[
        Path | None, typer.Option(help="TOML file that says when devices may train \\[default: at any time].")
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the key that the stores are encrypted under: 32 bytes or 64 hexadecimal digits "
            "\\[default: ODP_DEVICE_KEY_FILE, else the system's keyring, else store.key beside the stores]."
        ),
    ] = None,
    keyring: Annotated[bool, typer.Option(help="Keep a new key in the operating system's keyring.")] = True,
    retention: Annotated[
        Path | None, typer.Option(help="TOML file of the days that each table keeps its rows.")
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="File of the devices that may be in `secagg+` sessions (`odp device roster`).")
    ] = None,
    durable: Annotated[
        bool,
        typer.Option(help="Sync every step to the disk; without it, a power cut may damage a store."),
    ] = True,
    until_finished: Annotated[bool, typer.Option(help="End when the population's task is finished.")] = False,
    end_after: Annotated[
        float | None,
        typer.Option(
            "--for", help="End after this many seconds; with --until-finished an unfinished task is then an error."
        ),
    ] = None,
    keep_running: Annotated[
        bool,
        typer.Option("--keep-running", help="Retry after a service's certificate or evidence was refused."),
    ] = False,
    allow_private_addresses: PrivateAddresses = False,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Run devices in the foreground. Each has its own identity, key and store; its data never leave it."""
    from device_runtime import Conditions, Config, Limits, start
    from device_runtime.store.retention import Retention
    from odp.models.example_columns import ExampleColumns
    from odp.operations.local.foreground import parent_watch
    from odp.transport.sweeping import stop_event

    stop = stop_event()
    if with_parent:
        parent_watch(stop)
    config = Config(
        state=state,
        server=server,
        ca=ca if ca is not None else services / "ca" / "ca.pem",
        reference_values=reference_values if reference_values is not None else services / "reference_values.json",
        population=population,
        first=first,
        count=devices,
        threads=threads,
        durable=durable,
        key_file=key_file,
        keyring=keyring,
        retention=Retention() if retention is None else Retention.load(retention),
        limits=Limits(
            max_epsilon=max_epsilon,
            max_delta=max_delta,
            max_total_epsilon=max_total_epsilon,
            min_cohort=min_cohort,
            max_computing_seconds=max_computing_seconds,
        ),
        conditions=Conditions.load(conditions) if conditions is not None else Conditions(),
        roster=roster,
        until_finished=until_finished,
        end_after=end_after,
        keep_running=keep_running,
        allow_private_addresses=allow_private_addresses,
    )
    # A computation gives the interpreter away at each row that it reads, and has little time: it gets it back soon.
    sys.setswitchinterval(_SWITCH_SECONDS)
    people = people_of(data, examples, devices, split_seed, columns)
    running = start(
        config,
        ratings=None if isinstance(people, ExampleColumns) else people,
        examples=people if isinstance(people, ExampleColumns) else None,
    )
    # Waiting in slices lets the signal handler run.
    while not running.join(timeout=0.5):
        if stop.is_set():
            running.stop()
    if stop.is_set() and not with_parent:
        print_error(f"stopped; the same command goes on with the devices in {state}")


@app.command("roster")
def roster(
    output: Annotated[Path, typer.Argument(callback=output_file, help="File to write: one public key per line.")],
    state: State = Path("odp-devices"),
    devices: Annotated[int, typer.Option(help="Number of devices.")] = 1,
    first: Annotated[int, typer.Option(help="Index of the first device.")] = 0,
) -> None:
    """Write the public keys of devices for `secagg+` sessions and issuers, and print what a task file needs of them.

    Devices that the folder lacks are made, and have no data yet.
    """
    from device_runtime import Store, store_path
    from device_runtime.round.secagg import identity_key
    from odp._system.files.state_folder import write_atomically
    from odp.crypto.roster import hash_of

    keys = []
    for device in range(first, first + devices):
        with Store.open_or_create(store_path(state, device)) as store:
            keys.append(identity_key(store.identity().secret, b"").public)
    with writing_file(output):
        write_atomically(output, "".join(f"{key.hex()}\n" for key in keys).encode(), mode=0o644)
    print_text(f'roster_size = {len(keys)}\nroster_sha256 = "{hash_of(keys).hex()}"')


@app.command("recommend")
@takes_table
def recommend(
    columns: dict[str, Any],
    population: Annotated[str, typer.Option(help="Population whose newest model is used.")],
    state: State = Path("odp-devices"),
    server: Server = "127.0.0.1:7200",
    services: Services = Path("odp-state"),
    ca: Ca = None,
    reference_values: ReferenceFile = None,
    device: Annotated[int, typer.Option(help="Index of the device.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Number of items.")] = 10,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Fetch clusters of items privately, not the whole model.")
    ] = False,
    index: Annotated[
        Path | None,
        typer.Option(help="Item index (`odp task export TASK items.index`): scan it, and make no network call."),
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(help="Show ranges that cover the person's values at this level, from 0.5 to 0.99."),
    ] = None,
    explore: Annotated[
        bool,
        typer.Option("--explore", help="Rank by the upper ends of the ranges, at --level or else 0.9."),
    ] = False,
    side: Annotated[
        Path | None,
        typer.Option(help="Begin at what the person says of themselves: a file of odp.items.side_prior.", exists=True),
    ] = None,
    titles: Annotated[
        str | None,
        typer.Option(
            help="File or data set with the items' titles, found by key (columns item and title, or ratings)."
        ),
    ] = None,
    why: Annotated[
        bool, typer.Option("--why", help="Show the person's own three items that move each prediction most.")
    ] = False,
    allow_private_addresses: PrivateAddresses = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print one device's recommendations, computed on the device from its own store. They never leave it."""

    from device_runtime import (
        Enclaves,
        Lookup,
        PinnedAddresses,
        Services as Clients,
        Store,
        TableCache,
        catalogue_memory,
        charter_memory,
        find_candidates,
        indexed_model,
        log_guard,
        newest_model,
        recommend as best_items,
        recommend_candidates,
        recommend_indexed,
        store_path,
    )
    from odp.datasets.item_texts import ItemTitles
    from odp.models.side_prior import SidePrior
    from odp.trust.enclave.reference_values import ReferenceValues

    prior = None if side is None else SidePrior.load(side)
    if prior is not None and candidates:
        raise ConfigurationError("Expected --side or --candidates, not both: a side prior goes with the whole model")
    titled = None if titles is None else ItemTitles.load(titles, columns)
    if index is not None:
        if candidates:
            raise ConfigurationError("Expected --candidates or --index, not both: an index has every item")
        if level is not None or explore or prior is not None or why:
            raise ConfigurationError(
                "Expected --index alone: --level, --explore, --side and --why go with a downloaded model"
            )
        model = indexed_model(index, population=population)
        with Store.open(store_path(state, device)) as store:
            recommendation = recommend_indexed(store, model, k=count)
        indexed = model.index.keys
        items = tuple(indexed[item] for item in recommendation.items.tolist())
        named = None if titled is None else titled.of_model(indexed, len(indexed), task=model.definition.name)
        _print_recommendations(device, recommendation, items, named, json=json)
        return
    pinned = ReferenceValues.load(
        reference_values if reference_values is not None else services / "reference_values.json"
    )
    addresses = PinnedAddresses.of(pinned, allow_private=allow_private_addresses)
    clients = Clients(server, ca if ca is not None else services / "ca" / "ca.pem", pinned=addresses)
    try:
        guard, charters = log_guard(clients, pinned, state), charter_memory(pinned, state)
        if guard is None:
            console().print("the reference values pin no transparency log; the model's signature alone is checked")
        cache, catalogues = TableCache(state / "tables"), catalogue_memory(clients, state)
        if candidates:
            lookup = Lookup(services=clients, enclaves=Enclaves(clients, lambda: pinned))
            offer = clients.newest_model(population)
            clusters = find_candidates(
                lookup, offer, cache=cache, charters=charters, log=guard, population=population, catalogues=catalogues
            )
            with Store.open(store_path(state, device)) as store:
                recommendation = recommend_candidates(
                    store, clusters, lookup, k=count, level=level, explore=explore, why=why
                )
            definition, catalogue = clusters.model.definition, clusters.catalogue
        else:
            available = newest_model(
                clients, population, cache=cache, folder=state / "models", charters=charters, log=lambda: guard,
                catalogues=catalogues,
            )  # fmt: skip
            if available.offline is not None:
                console().print(available.offline, markup=False)
            with Store.open(store_path(state, device)) as store:
                recommendation = best_items(
                    store, available.downloaded, k=count, level=level, explore=explore, side=prior, why=why
                )
            definition, catalogue = available.downloaded.model.definition, available.downloaded.catalogue
        if cache.failure is not None:
            console().print(cache.failure, markup=False)
    finally:
        clients.close()
    keys = None if catalogue is None else catalogue.keys
    named = None if titled is None else titled.of_model(keys, definition.model.items, task=definition.name)
    _print_recommendations(device, recommendation, recommendation.keys, named, json=json)


def _print_recommendations(
    device: int, recommendation: Recommendation, keys: tuple[str, ...] | None, named: NamedItems | None, *, json: bool
) -> None:
    """Prints items by title, else by key, else by number."""
    names = keys if named is None else named.names(recommendation.items.tolist() if keys is None else keys)
    from device_runtime.view.shown_items import untitled_note

    untitled = 0 if named is None else named.missing
    if json:
        titles = {} if named is None else {"items_without_title": untitled}
        print_json({"device": device, **listed(recommendation, names, keys), **titles})
        return
    if untitled:
        console().print(f"note: {untitled_note(untitled)}")
    for line in notes_of(recommendation):
        console().print(f"note: {line}", markup=False)
    if not len(recommendation.items):
        results_console().print(
            f"there is nothing to recommend to device {device}: it has rated every item that was found"
        )
        return
    reasons = recommendation.reasons_in_words(named)
    title = f"device {device}, computed on the device"
    results_console().print(table_of(recommendation, names, title=title, reasons=reasons))


def people_of(
    data: str | None, examples: Path | None, devices: int | None, split_seed: int | None, columns: dict[str, Any]
) -> Ratings | ExampleColumns | None:
    """What the devices are given; how a table was read is printed."""
    from odp.datasets import load, random_split
    from odp.models.example_columns import ExampleColumns
    from odp.models.example_tables import load_examples

    labelled = examples is not None or "label" in columns or "text" in columns
    if labelled and split_seed is not None:
        raise ConfigurationError("Expected no --split-seed with labelled examples: devices get all of theirs")
    if data is None or examples is not None:
        if columns or (data is not None and examples is not None):
            raise ConfigurationError("Expected --data with the options of a table, or --examples alone")
        return None if examples is None else ExampleColumns.load(examples)
    if labelled:
        people = load_examples(data, **columns)
        print_reading(people.notes)
        return people
    ratings = load(data, **as_written(columns))
    print_reading(ratings.notes)
    if named := int((ratings.item_numbers < 0).sum()):
        unnumbered = f"{named:,} items have ids that are no whole numbers from 0"
        print_reading([f"{unnumbered}: histograms by item without labels leave them out"])
    if devices is not None:
        ratings = take_users(ratings, devices)
    return ratings if split_seed is None else random_split(ratings, seed=split_seed).train


def take_users(ratings: Ratings, devices: int) -> Ratings:
    """The first ``devices`` users of a data set. Raises DataError where it has fewer."""
    if not 1 <= devices <= ratings.n_users:
        raise DataError(f"Expected devices={devices} to be from 1 to {ratings.n_users}, the users of {ratings.name!r}")
    return ratings if devices == ratings.n_users else ratings.select_users(range(devices))
