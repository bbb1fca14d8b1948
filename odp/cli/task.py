"""`odp task`: task files, and the tasks of a running server."""

from __future__ import annotations

import functools
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from odp.cli.broadcasting import show_plan
from odp.cli.console import console, print_json, print_result, print_text, results_console
from odp.cli.outputs import output_file
from odp.cli.task_retrain import retrain
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from odp.algorithms.capabilities import UsableAnswers
    from odp.algorithms.seam import Algorithm
    from odp.privacy.events import DistributedRelease, GaussianRelease
    from odp.privacy.local_events import LocalReport, ShuffledReports
    from odp.services.connection import Connection
    from odp.tasks.file import AnyTask
    from odp.v1 import server_pb2

app = typer.Typer(help="Write, check, submit and watch tasks.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="Task file (TOML).")]
Server = Annotated[str, typer.Option(help="host:port of the server; several servers with commas between.")]
State = Annotated[Path, typer.Option(help="State folder of `odp up`, which has the CA and the operator's token.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_CANCEL_SECONDS, _POLL_SECONDS = 20.0, 0.2
TaskId = Annotated[str, typer.Argument(help="Task id (hex), or its first digits.")]

_EXAMPLE = """\
# A task for `odp simulate` and `odp task submit`. `odp task show FILE` prints every default.
name = "films"

[model]
kind = "matrix_factorization"
items = 3706
rank = 2

[data]
low = 1.0
high = 5.0

[privacy]
epsilon = 8.0
delta = 1e-6

[training]
kind = "dpam"

[cohort]
minimum = 100
goal = 6040
"""


_STATISTICS_EXAMPLE = """\
# Statistics for `odp simulate` and `odp task submit`. `odp task show FILE` prints every default.
name = "hours"

[queries.hours]
kind = "histogram"
bins = 24

[queries.minutes]
kind = "mean"
low = 0.0
high = 60.0

[privacy]
epsilon = 1.0
delta = 1e-6

[cohort]
minimum = 100
goal = 1000
"""


@app.command("new")
def new(
    file: File = Path("task.toml"),
    statistics: Annotated[bool, typer.Option("--statistics", help="Write a statistics task.")] = False,
) -> None:
    """Write a task file to start from. An existing file stays as it is."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(_STATISTICS_EXAMPLE if statistics else _EXAMPLE)
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}; give another name") from error
    print_text(str(file))


@app.command("show")
def show(file: File, json: Json = False) -> None:
    """Check a task file, and print it with every default and every number that follows from it."""
    from odp.algorithms.choices import Question
    from odp.algorithms.computing_time import with_fixed_time
    from odp.algorithms.registry import algorithm_for
    from odp.algorithms.release import planned_charges, sampling_of
    from odp.privacy.accounting import epsilon, epsilon_if_alone
    from odp.privacy.events import releases_of
    from odp.protocol.aggregation import mode_of
    from odp.signed.broadcast.terms import method_of
    from odp.tasks.file import load_task, render_task
    from odp.tasks.task import Task

    task = load_task(file)
    definition = with_fixed_time(task.definition())
    algorithm = algorithm_for(definition)
    if not isinstance(task, (Task, Question)):
        _show_local(task, algorithm, json=json)
        return
    silent, delta = task.privacy.epsilon == math.inf, definition.privacy.delta
    question = task.usable_question() if isinstance(task, Task) else None
    rounds = [()] * len(algorithm.planned_releases()) if silent else planned_charges(algorithm)
    planned = math.inf if silent else definition.privacy.epsilon
    if rounds and not silent:
        planned = epsilon([event for events in rounds for event in events], delta=delta)
    mode = mode_of(definition.cohort)
    alone = functools.partial(epsilon_if_alone, [event for events in rounds for event in events], delta=delta)
    if json:
        from google.protobuf.json_format import MessageToDict

        stated = None if silent else planned
        facts = {"definition": MessageToDict(definition), "planned_epsilon": stated, "rounds": len(rounds)}
        if mode.in_session:
            facts["epsilon_if_alone"] = alone()
        if question is not None:
            facts["count"] = MessageToDict(with_fixed_time(question.definition()))
        print_json(facts)
        return
    print_text(render_task(task))
    lines = [f"# {len(rounds)} rounds; planned epsilon {planned:.6f} at delta {delta:g}"]
    if question is not None:
        lines.append(
            f"# before them, task {question.name} counts devices with usable rows: epsilon "
            f"{question.privacy.epsilon:.6f} at delta {question.privacy.delta:g}"
        )
    if not rounds:
        lines = [f"# no rounds and no enclave: each report is private by itself, epsilon {task.privacy.epsilon:g}"]
    for number, events in enumerate(rounds):
        lines += [f"# round {number}: {_of_release(release)}" for event in events for release in releases_of(event)]
    draws = (sampling_of(definition, number) for number in range(len(rounds)))
    lines += [
        f"# sampling: the enclave draws each contribution with probability {sampling.probability:g}, of at most "
        f"{sampling.population_bound}; a draw beyond {sampling.cap} counts nobody; every device still contributes"
        for sampling in dict.fromkeys(draw for draw in draws if draw is not None)
    ]
    if algorithm.rows_per_request is not None:
        lines.append(f"# broadcast: {method_of(definition)}; `odp task plan {file}` compares the methods")
    lines += [*mode.lines(definition.cohort, alone), _of_time(algorithm)]
    resolved = algorithm.resolved
    lines += [f"# {field.name} = {_one_line(getattr(resolved, field.name))}" for field in resolved.DESCRIPTOR.fields]
    print_text("\n".join(lines))


def _show_local(task: AnyTask, algorithm: Algorithm, *, json: bool) -> None:
    """A task that has no rounds and is no question."""
    from odp.tasks.file import render_task

    definition, charge, resolved = algorithm.definition, algorithm.local_charge, algorithm.resolved
    if json:
        from google.protobuf.json_format import MessageToDict

        facts = {"definition": MessageToDict(definition), "planned_epsilon": definition.privacy.epsilon, "rounds": 0}
        print_json(facts)
        return
    lines = [f"# no rounds and no enclave: {'' if charge is None else charge.in_words}"]
    if charge is not None and charge.certificate is not None:
        lines.append(f"# {charge.certificate.in_words}")
    lines.append(_of_time(algorithm))
    shown = (field.name for field in resolved.DESCRIPTOR.fields if field.name != "start")
    lines += [f"# {name} = {_one_line(getattr(resolved, name))}" for name in shown]
    print_text("\n".join([render_task(task), *lines]))


def _of_time(algorithm: Algorithm) -> str:
    """When contributions leave, and what that time is for."""
    cost, seconds = algorithm.computing_cost, algorithm.definition.computing_milliseconds / 1000
    caps = ", ".join(f"{name}={most}" for name, most in cost.caps.items())
    return (
        f"# computing time: {seconds:g} s on every device, whatever it holds; at its caps{' ' * bool(caps)}{caps} a "
        f"device computes for {cost.seconds:.2g} s"
    )


def _of_release(event: GaussianRelease | DistributedRelease | LocalReport | ShuffledReports) -> str:
    from odp.privacy.local_events import LocalReport, ShuffledReports

    if isinstance(event, LocalReport):
        return f"{event.name}: private by itself, epsilon {event.epsilon:.6g}"
    if isinstance(event, ShuffledReports):
        return (
            f"{event.name}: shuffled, {event.reports} of honest devices count; epsilon of each alone "
            f"{event.epsilon0:.6g}, to whoever reads it"
        )
    return f"{event.name}: sensitivity {event.sensitivity:.6g}, noise std {event.noise_std:.6g}"


def _one_line(value: object) -> str:
    """A number of a definition, a message or a list of them."""
    import json

    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import Message

    if isinstance(value, Message):
        return json.dumps(MessageToDict(value, preserving_proto_field_name=True))
    if isinstance(value, (str, bytes, bool, int, float)):
        return str(value)
    return "[" + ", ".join(map(_one_line, cast("Iterable[object]", value))) + "]"


app.command("plan")(show_plan)
app.command("retrain")(retrain)


@app.command("submit")
def submit(
    file: File,
    count_usable: Annotated[
        float | None,
        typer.Option(
            help="Share of ε for a count of the devices with usable rows, before the training; as `share` of "
            "\\[count_usable] in the file."
        ),
    ] = None,
    server: Server = "127.0.0.1:7200",
    state: State = Path("odp-state"),
    json: Json = False,
) -> None:
    """Submit a task file to a running server. The same file submitted again is the same task.

    The catalogue that the task names is published first, as by `odp catalogue publish`. A task with a count of usable
    rows opens no round before the count is released: the count is a task of its own, which is submitted first.
    """
    from odp.algorithms.computing_time import fixed_seconds, with_fixed_time
    from odp.signed.task import open_task
    from odp.tasks.file import load_task

    task = load_task(file)
    if count_usable is not None:
        task = _counting(task, count_usable)
    catalogue = getattr(getattr(task, "model", None), "catalogue", None)
    seconds = fixed_seconds(with_fixed_time(task.definition()))
    with open_connection(server, state) as connection:
        if catalogue is not None:
            connection.publish_catalogue(catalogue)
        handle = connection.submit(task)
        count = open_task(handle.status().task).count_first.task_sha256.hex()
    if json:
        counted = {"count": count} if count else {}
        print_json({"task": handle.task_sha256.hex(), **counted, "computing_seconds": seconds})
        return
    print_text(handle.task_sha256.hex())
    if count:
        console().print(f"count of usable rows: {count}; the training waits for it", highlight=False)
    if catalogue is not None:
        console().print(
            f"catalogue: version {catalogue.version} of {catalogue.population} is published, {catalogue.items} items",
            highlight=False,
        )
    console().print(f"computing time: {seconds:g} s on every device, whatever it holds", highlight=False)


def _counting(task: AnyTask, share: float) -> AnyTask:
    """The task with a count of usable rows. Raises ConfigurationError for one that trains on no rows in rounds."""
    import dataclasses

    from odp.tasks.task import CountUsable, Task

    if not isinstance(task, Task):
        raise ConfigurationError(
            f"Expected no --count-usable with task {task.name!r}: it goes with a training in rounds, and "
            f"odp.{type(task).__name__} is none"
        )
    changed = (
        CountUsable(share=share) if task.count_usable is None else dataclasses.replace(task.count_usable, share=share)
    )
    return dataclasses.replace(task, count_usable=changed)


@app.command("list")
def list_tasks(server: Server = "127.0.0.1:7200", state: State = Path("odp-state"), json: Json = False) -> None:
    """List the server's tasks, newest first."""
    with open_connection(server, state) as connection:
        counts = [(status, connection.usable(status)) for status in connection.tasks()]
    summaries = [_summary(status, counted) for status, counted in counts]
    if json:
        print_json({"tasks": summaries})
        return
    from rich.table import Table

    from odp.tasks.states import usable_in_brief

    table = Table("task", "name", "state", "round", "contributions", "ε spent", "usable")
    for row, (_, counted) in zip(summaries, counts, strict=True):
        cells = [str(row[key]) for key in ("name", "state", "round", "contributions", "epsilon")]
        table.add_row(str(row["task"])[:12], *cells, usable_in_brief(str(row.get("usable_examples", "")), counted))
    results_console().print(table)


@app.command("status")
def status(task: TaskId, server: Server = "127.0.0.1:7200", state: State = Path("odp-state")) -> None:
    """Print the status of a task as JSON."""
    with open_connection(server, state) as connection:
        task_status = find_task(connection, task)
        print_json(_summary(task_status, connection.usable(task_status)))


@app.command("results")
def results(
    task: TaskId,
    server: Server = "127.0.0.1:7200",
    state: State = Path("odp-state"),
    picture: Annotated[
        Path | None, typer.Option(callback=output_file, help="Also draw the results into this file (.png, .svg, .pdf).")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    json: Json = False,
) -> None:
    """Print what a task that asks a question released: statistics, quantiles or metrics of a model, with intervals.

    Of a task of local trust it prints what the reports of devices say so far, by the server's word. With reference
    values in the state folder, the command checks that the attested aggregator signed any other release.
    """
    from odp.algorithms.capabilities import Inquiry
    from odp.algorithms.registry import algorithm_for
    from odp.cli.answers import show_results
    from odp.signed.task import open_task
    from odp.tasks.states import usable_in_words

    with open_connection(server, state) as connection:
        status = find_task(connection, task)
        answers, definition = connection.results(status), open_task(status.task)
        # A question says it itself.
        is_training = not isinstance(algorithm_for(definition), Inquiry) and definition.HasField("examples")
        usable = usable_in_words(definition, connection.usable(status)) if is_training else ""
    show_results(answers, picture=picture, confidence=confidence, json=json, usable=usable)


@app.command("export")
def export(
    task: TaskId,
    file: Annotated[Path, typer.Argument(callback=output_file, help="File to write: .npz, .parquet, .onnx or .index.")],
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Keys of the items, one per line in the order of their numbers \\[default: those of "
            "the task's catalogue, else the numbers]."
        ),
    ] = None,
    server: Server = "127.0.0.1:7200",
    state: State = Path("odp-state"),
    json: Json = False,
) -> None:
    """Write a task's newest model for other tools: its items, or a classifier of labelled examples.

    The file has ε and the signature of the last release. A classifier (.npz) names the classes as the task does.

    With reference values in the state folder, the command checks that the attested aggregator signed the release.
    """
    from odp.cli.exporting import is_of_examples, keys_of, print_classifier
    from odp.serving.classifier import released_classifier
    from odp.serving.export import check_export, released_items
    from odp.signed.task import open_task

    check_export(file)
    item_keys = keys_of(keys)
    with open_connection(server, state) as connection:
        status = find_task(connection, task)
        if is_of_examples(open_task(status.task)):
            classifier = released_classifier(connection, status)
            classifier.save(file)
            if json:
                print_json({"file": str(file), "classes": list(classifier.classes), **classifier.facts})
            else:
                print_classifier(classifier, file, out=print_text)
            return
        trained = released_items(connection, status, item_keys)
    trained.save(file)
    table = trained.table
    text = f"items: {file}; {table.facts['privacy']}; signed by: {table.facts['signed_by']}"
    print_result({"file": str(file), "items": len(table.keys), **table.facts}, text, json=json)


@app.command("cancel")
def cancel(task: TaskId, server: Server = "127.0.0.1:7200", state: State = Path("odp-state")) -> None:
    """End a task: the contributions to its open rounds are erased, and nothing more is released.

    The budget that the task has spent stays spent. A training's count of usable rows is cancelled with it, unless it is
    released or another training needs it.
    """
    import time

    from odp.signed.task import task_sha256
    from odp.v1 import server_pb2

    with open_connection(server, state) as connection:
        sha256 = task_sha256(find_task(connection, task).task)
        connection.cancel(sha256)
        until = time.monotonic() + _CANCEL_SECONDS
        while connection.status(sha256).state == server_pb2.TaskStatus.STATE_CANCELLING:
            if time.monotonic() > until:
                print_text("cancelling: aggregator or distributor do not answer; the server goes on trying")
                return
            time.sleep(_POLL_SECONDS)
    print_text("cancelled")


@app.command("pause")
def pause(
    task: TaskId, server: Server = "127.0.0.1:7200", state: State = Path("odp-state"), json: Json = False
) -> None:
    """Open no further round of a task until `odp task resume`; one that is open goes on to its release."""
    _set_paused(task, True, server, state, json)


@app.command("resume")
def resume(
    task: TaskId, server: Server = "127.0.0.1:7200", state: State = Path("odp-state"), json: Json = False
) -> None:
    """Go on with a paused task."""
    _set_paused(task, False, server, state, json)


def _set_paused(task: str, paused: bool, server: str, state: Path, json: bool) -> None:
    from odp.signed.task import task_sha256
    from odp.tasks.states import in_one_line

    with open_connection(server, state) as connection:
        sha256 = task_sha256(find_task(connection, task).task)
        (connection.pause if paused else connection.resume)(sha256)
        task_status = connection.status(sha256)
        counted = connection.usable(task_status)
    print_result(_summary(task_status, counted), in_one_line(task_status), json=json)


def open_connection(server: str, state: Path) -> Connection:
    from odp.services.connection import connect

    return connect(server, state=state)


def find_task(connection: Connection, prefix: str) -> server_pb2.TaskStatus:
    from odp.signed.task import task_sha256

    if not prefix:
        # Every id begins so, and an unset variable of a script would name, and end, the only task.
        raise ConfigurationError("Expected the id of a task, or its first digits, got ''; `odp task list` shows all")
    matching = [status for status in connection.tasks() if task_sha256(status.task).hex().startswith(prefix.lower())]
    if len(matching) != 1:
        raise ConfigurationError(
            f"{len(matching)} tasks have an id that starts with {prefix!r}; `odp task list` shows all"
        )
    return matching[0]


def _summary(status: server_pb2.TaskStatus, counted: UsableAnswers | None = None) -> dict[str, object]:
    from odp.algorithms.computing_time import fixed_seconds
    from odp.signed.task import open_task, task_sha256
    from odp.tasks.states import state_name, usable_in_words

    definition = open_task(status.task)
    usable = usable_in_words(definition, counted)
    last = status.rounds[-1] if status.rounds else None
    until = status.waits_for.until
    return {
        "task": task_sha256(status.task).hex(),
        "name": definition.name,
        "state": state_name(status),
        "failure": status.failure,
        "round": f"{last.round + 1 if last else 0}/{status.planned_rounds}" if status.planned_rounds else "reports",
        "contributions": (last.contributions if last else 0) if status.planned_rounds else status.reports,
        "epsilon": round(status.epsilon_spent, 6) if status.planned_rounds else definition.privacy.epsilon,
        "delta": definition.privacy.delta,
        "computing_seconds": fixed_seconds(definition),
        **({"usable_examples": usable} if usable else {}),
        "waits_for": status.waits_for.reason,
        "waits_until": datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds") if until else "",
    }
