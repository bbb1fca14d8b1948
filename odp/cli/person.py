"""`odp device privacy` and its like: what a person sees of their device, and what they decide for it.

`odp device view`: the person's page in their own browser.
"""

from __future__ import annotations

import dataclasses
import json as json_format
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp._validate import identifier, known_keys, nearest
from odp.cli.console import console, print_json, results_console
from odp.cli.outputs import output_file, writing_file
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from device_runtime import Store
    from device_runtime.person.conditions import Reading
    from device_runtime.person.ledger import TaskTerms
    from device_runtime.round.gate import Gate


def view(
    state: Annotated[Path, typer.Option(help="State folder of the device host: one store per device.")] = Path(
        "odp-devices"
    ),
    device: Annotated[int, typer.Option(help="Index of the device.")] = 0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 0,
    service: Annotated[
        Path | None, typer.Option(help="On-device code to run: a module file or a package folder.")
    ] = None,
    ask: Annotated[str, typer.Option(help="With --service: the request, a JSON object.")] = "{}",
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = False,
) -> None:
    """Serve a page on this machine that shows what the device read, sent and spent; Ctrl-C ends it.

    With --service, the page also shows a result. The address contains a secret: whoever knows it can see the page.
    """
    from contextlib import ExitStack

    from device_runtime.sdk import Device, Environment
    from device_runtime.view.front_door import opened
    from odp.isolated import Declined
    from odp.transport.sweeping import stop_event

    try:
        request = json_format.loads(ask)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise ConfigurationError(f"Expected --ask={ask!r} to be a JSON object")
    environment = Environment(index=device, create=False)
    stop: threading.Event = stop_event()
    with ExitStack() as stack:
        runtime = stack.enter_context(Device(state, service=service, say=console().print, environment=environment))
        shown = None
        if service is not None:
            answer = runtime.ask("person", request)
            if isinstance(answer, Declined):
                raise ConfigurationError(f"{runtime.service} declined: {answer.reason}")
            shown = answer
        url = runtime.show(shown, port=port)
        console().print(f"device {device}: {url}", soft_wrap=True, markup=False, highlight=False)
        console().print("Ctrl-C ends it")
        if open_browser:
            stack.enter_context(opened(url, state))
        while not stop.wait(0.5):
            pass


State = Annotated[Path, typer.Option(help="State folder of the device host: one store per device.")]
Device = Annotated[int, typer.Option(help="Index of the device.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_STATE = Path("odp-devices")
_HEX_OF_TASK = 64


def add_to(app: typer.Typer) -> None:
    """Adds the commands to `odp device`."""
    for name, command in (
        ("privacy", privacy),
        ("limit", limit),
        ("pause", pause),
        ("resume", resume),
        ("opt-out", opt_out),
        ("export", export),
        ("erase", erase),
        ("repair", repair),
        ("explain", explain),
        ("about", about),
        ("view", view),
    ):
        app.command(name)(command)


def privacy(state: State = _STATE, device: Device = 0, json: Json = False) -> None:
    """Show what the device read and sent, to whom, when, and what it cost."""
    from device_runtime.view.overview import overview

    with _store(state, device) as store:
        facts = overview(store, _gate(state), now=time.time())
    if json:
        print_json({"device": device, **facts})
        return
    _show(device, facts)


def limit(
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="NAME=VALUE, with commas in lists: max_total_epsilon=4 populations=films."),
    ] = None,
    state: State = _STATE,
    device: Device = 0,
    reset: Annotated[bool, typer.Option("--reset", help="Go back to the limits of the device host.")] = False,
    json: Json = False,
) -> None:
    """Show or set your own limits. They hold from the next step of the device on."""
    if settings and reset:
        raise ConfigurationError("Expected NAME=VALUE or --reset, not both")
    gate = _gate(state)
    with _store(state, device) as store:
        if reset:
            store.set_limits(None)
        if settings:
            changes = [_setting(text) for text in settings]

            def change(person: Any) -> Any:
                limits = dataclasses.replace(person.limits or gate.limits, **dict(changes))
                return dataclasses.replace(person, limits=limits)

            store.change_person(change)
        personal = store.person().limits
    values = dataclasses.asdict(personal or gate.limits)
    if json:
        print_json({"device": device, "set_by": "host" if personal is None else "person", "limits": values})
        return
    results_console().print(f"device {device}, limits set by the {'host' if personal is None else 'person'}")
    for name, value in values.items():
        results_console().print(f"  {name} = {_shown(value)}")


def about(
    settings: Annotated[
        list[str] | None, typer.Argument(help="NAME=VALUE, such as age_group=25-34; NAME= forgets one.")
    ] = None,
    state: State = _STATE,
    device: Device = 0,
    json: Json = False,
) -> None:
    """Show or set what you say of yourself. It stays on the device, and helps while you have few ratings."""
    from device_runtime.store.side import said_of, say

    said: dict[str, str | None] = {}
    for text in settings or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigurationError(f"Expected {text!r} to be NAME=VALUE")
        said[name] = value or None
    with _store(state, device) as store:
        if said:
            say(store, said, time=time.time())
        statements = said_of(store)
    if json:
        print_json({"device": device, "about": statements})
        return
    results_console().print(f"device {device}: what you said of yourself, kept on the device and never sent")
    for name, value in statements.items():
        results_console().print(f"  {name} = {value}", markup=False)


def pause(state: State = _STATE, device: Device = 0) -> None:
    """Pause the device: it requests no work and sends nothing until `odp device resume`."""
    now = time.time()
    with _store(state, device) as store:
        store.change_person(
            lambda person: dataclasses.replace(person, paused=person.paused if person.paused is not None else now)
        )
    results_console().print(f"device {device} is paused; `odp device resume` ends that")


def resume(state: State = _STATE, device: Device = 0) -> None:
    """End a pause. Queued contributions are sent if their rounds are still open."""
    with _store(state, device) as store:
        store.change_person(lambda person: dataclasses.replace(person, paused=None))
    results_console().print(f"device {device} takes part again, within its limits and opt-outs")


def opt_out(
    task: Annotated[str | None, typer.Argument(help="Name of the task, or its id or first digits.")] = None,
    state: State = _STATE,
    device: Device = 0,
    everything: Annotated[bool, typer.Option("--all", help="Opt out of all tasks.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Withdraw an opt-out.")] = False,
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Accept the name of a task that the device was never offered.")
    ] = False,
) -> None:
    """Opt out of a task, or of all: cancel queued uploads and delete local parameters."""
    if (task is None) is not everything:
        raise ConfigurationError("Expected a TASK or --all, one of them")
    with _store(state, device) as store:
        name = None if task is None else _name_or_id(store, task)
        if name is not None and ahead:
            identifier(task=name)
        elif name is not None:
            _require_met(store, name, undo=undo, device=device)
        now = time.time()
        store.change_person(lambda person: person.without_opt_out(name) if undo else person.with_opt_out(name, now))
        met = name is None or any(name in (offered.name, offered.task_sha256.hex()) for offered in store.tasks())
    what = "everything" if name is None else f"task {name}" if met else f"task {name} (never offered to it)"
    results_console().print(
        f"device {device} may take part in {what} again"
        if undo
        else f"device {device} opted out of {what}; what was sent before stays in the ledger and in the releases"
    )


def export(
    file: Annotated[
        Path, typer.Argument(callback=output_file, help="JSON file to write, readable by its owner alone.")
    ],
    state: State = _STATE,
    device: Device = 0,
) -> None:
    """Write everything that the device holds about its person as JSON."""
    from device_runtime.view.overview import export as everything
    from odp._system.files.state_folder import write_atomically

    with _store(state, device) as store:
        content = everything(store, _gate(state), now=time.time())
    with writing_file(file):
        write_atomically(file, json_format.dumps(content, indent=1).encode() + b"\n")
    results_console().print(
        f"device {device} is in {file}: {len(content['ratings'])} ratings, {len(content['examples'])} labelled "
        f"examples, {len(content['services'])} services' data, the ledger, local parameters"
    )


def erase(
    state: State = _STATE,
    device: Device = 0,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    ledger_too: Annotated[bool, typer.Option("--ledger-too", help="Also forget what was sent.")] = False,
) -> None:
    """Wipe the device's data, local parameters and queued uploads."""
    ledger_note = (
        "the ledger of what was sent goes too: limits then count from zero, though the releases stay"
        if ledger_too
        else "the ledger of what was sent stays, because the limits count on it (--ledger-too wipes it)"
    )
    with _store(state, device) as store:
        examples = store.count_examples()
        rows = f"{examples} ratings, events and labelled examples"
        question = f"Wipe {rows}, and all parameters of device {device}? {ledger_note}"
        if not yes and not typer.confirm(question, err=True):
            results_console().print("nothing was changed")
            raise typer.Exit(1)
        store.erase(ledger_too=ledger_too)
    results_console().print(
        f"device {device}: {rows}, local and downloaded data, parameters and queued uploads are wiped; {ledger_note}"
    )


def repair(state: State = _STATE, device: Device = 0) -> None:
    """Rebuild a damaged store from what is readable, or set it aside if its ledger is not readable."""
    from device_runtime import store_path
    from device_runtime.store.recovery import repair as rebuild

    done = rebuild(store_path(state, device))
    if done.aside is None:
        results_console().print(f"device {device}: its store is whole; nothing was changed")
        return
    results_console().print(
        f"device {device}: rebuilt with all of its ledger; rows were lost of {', '.join(done.incomplete)}; "
        f"the damaged store is {done.aside}"
    )


def explain(
    task: Annotated[str | None, typer.Argument(help="Name of a task that the device knows, or its id.")] = None,
    state: State = _STATE,
    device: Device = 0,
    last: Annotated[
        bool, typer.Option("--last", help="Verify again, offline, what the last contribution relied on.")
    ] = False,
    population: Annotated[str | None, typer.Option(help="Population that the device would check in for.")] = None,
    conditions: Annotated[
        Path | None, typer.Option(help="TOML file of training conditions \\[default: those of the host].")
    ] = None,
    reference_values: Annotated[
        Path | None, typer.Option(help="With --last: today's reference values, to compare with the earlier ones.")
    ] = None,
    json: Json = False,
) -> None:
    """Print whether the device would train now, condition by condition; exit code 1 if it would not."""
    from device_runtime.person.conditions import Conditions
    from device_runtime.view import overview

    if last:
        _replay(state, device, task, reference_values, json)
        return
    gate = _gate(state)
    if conditions is not None:
        gate = dataclasses.replace(gate, conditions=Conditions.load(conditions))
    with _store(state, device) as store:
        task_round = None
        if task is not None:
            if (terms := _task_of(store, task)) is None:
                raise ConfigurationError(f"Expected task={task!r} to be one that device {device} was offered")
            task_round = (terms, overview.next_round(store, terms))
        readings = overview.explain(store, gate, population=population, task=task_round)
    _say(device, "would train now", "would not train now", readings, json)


def _replay(state: Path, device: int, task: str | None, reference_values: Path | None, json: bool) -> None:
    from device_runtime.person.conditions import Reading
    from device_runtime.round.verification import FOLDER, replay
    from device_runtime.store.schema import State as Participated
    from odp.trust.enclave.reference_values import ReferenceValues

    pinned = None if reference_values is None else ReferenceValues.load(reference_values)
    with _store(state, device) as store:
        terms = None if task is None else _task_of(store, task)
        if task is not None and terms is None:
            raise ConfigurationError(f"Expected task={task!r} to be one that device {device} contributed to")
        lines = [
            line
            for line in store.ledger()
            if line.state is not Participated.REFUSED and (terms is None or line.task_sha256 == terms.task_sha256)
        ]
    if not lines:
        raise ConfigurationError(f"Expected a contribution of device {device}: there is none yet")
    findings = replay(state / FOLDER, lines[-1], pinned=pinned)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(lines[-1].time))
    _say(
        device,
        f"verified again what the contribution of {when} to round {lines[-1].round} rests on",
        f"cannot verify again what the contribution of {when} to round {lines[-1].round} rests on",
        tuple(Reading(finding.what, finding.holds, "holds", finding.observed) for finding in findings),
        json,
    )


def _say(device: int, well: str, badly: str, readings: tuple[Reading, ...], json: bool) -> None:
    holds = all(reading.met for reading in readings)
    if json:
        print_json(
            {"device": device, "holds": holds, "findings": [dataclasses.asdict(reading) for reading in readings]}
        )
    else:
        results_console().print(f"device {device} {well if holds else badly}")
        for condition in readings:
            results_console().print(
                f"  {'yes' if condition.met else 'NO '} {condition.name}: {condition.read}", markup=False
            )
    if not holds:
        raise typer.Exit(1)


def _leaves(read: dict[str, Any]) -> str:
    """What leaves the device of data that a task read."""
    if read["local_trust"]:
        return "reports leave that have noise of their own, to the developer's server alone"
    return "one bounded contribution per round leaves, to be summed with noise"


def _show(device: int, facts: dict[str, Any]) -> None:
    from rich.table import Table

    out = results_console()
    for entry in facts["read"]:
        out.print(
            f"read: table {entry['table']} ({facts['examples']} rows now), by task {entry['task']}, "
            f"{entry['rounds']} rounds"
        )
        if entry["columns"]:
            by = "a program of the developer, without network and files," if entry["program"] else "the device"
            out.print(
                f"  columns {', '.join(entry['columns'])}; {by} computes on them; {_leaves(entry)}: "
                f"ε {entry['epsilon']:g} at δ {entry['delta']:g} for the whole task",
                markup=False,
            )
    table = Table("when", "task", "round", "developer", "policy", "state", "ε so far", title=f"device {device}: sent")
    for entry in facts["contributions"]:
        table.add_row(
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["time"])), entry["name"], str(entry["round"]),
            f"{entry['developer'][:8]}..", "no enclave" if entry["local_trust"] else f"{entry['policy_sha256'][:8]}..",
            entry["refusal"] or entry["state"],
            _epsilon(entry["so_far"]),
        )  # fmt: skip
    out.print(table if facts["contributions"] else f"device {device} sent nothing")
    if facts["empty_contributions"]:
        out.print(
            f"{facts['empty_contributions']} of them were empty: the data could not be used as the task asks; nobody "
            "else can tell, and they are charged like the others"
        )
    for who, spent in [("in total", facts["spent"])] + [
        (f"to developer {developer['developer'][:8]}..", developer) for developer in facts["developers"]
    ]:
        out.print(
            f"ε {_epsilon(spent['total'])} {who} at δ {spent['total']['delta']:g}; "
            f"in the last 30 days {_epsilon(spent['30_days'])}"
        )
    local = facts["local"]
    if local["reports"]:
        out.print(
            f"{local['reports']} reports were private by themselves: ε {local['epsilon']:.4f} together, whoever reads "
            f"them, of at most {facts['limits']['max_local_epsilon']:g}"
        )
    for entry in local["tasks"]:
        out.print(f"  task {entry['name']}, {entry['sent']} sent: {entry['in_words']}", markup=False)
        if entry["certificate"] is not None:
            out.print(f"  task {entry['name']}: {entry['certificate']}", markup=False)
    if alone := sum(contribution["local_trust"] for contribution in facts["contributions"]):
        out.print(f"{alone} of them went to their developer's server alone: no enclave takes part, and none is trusted")
    for entry in facts["answers"]:
        out.print(
            f"told app {entry['app']} one of {entry['choices']} choices, with noise, by service {entry['service']}: "
            f"ε {entry['epsilon']:.4f}"
        )
    limits = facts["limits"]
    out.print(
        f"limits of the {facts['limits_set_by']}: ε {limits['max_total_epsilon']:g} in total, "
        f"{limits['max_total_epsilon_30_days']:g} in 30 days, {limits['max_developer_epsilon']:g} per developer, "
        f"{limits['max_epsilon']:g} per task; `odp device limit` shows all"
    )
    if facts["at_rest"] is not None:
        out.print(f"store: {facts['at_rest']['text']}", markup=False)
    for service, counts in facts["services"].items():
        listed = ", ".join(f"{count} {table}" for table, count in counts.items())
        out.print(f"service {service} keeps {listed}", markup=False)
    if facts["paused_since"] is not None:
        out.print("paused")
    for name in ["everything"] * (facts["opted_out_since"] is not None) + sorted(facts["opt_outs"]):
        out.print(f"opted out of {name}")


def _epsilon(value: dict[str, float | None]) -> str:
    return "unlimited" if value["epsilon"] is None else f"{value['epsilon']:.4f}"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "any"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _setting(text: str) -> tuple[str, Any]:
    from device_runtime import Limits

    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigurationError(f"Expected a limit as NAME=VALUE, got {text!r}")
    defaults = dataclasses.asdict(Limits())
    known_keys([name], list(defaults), where="the limits")
    if isinstance(defaults[name], tuple):
        return name, tuple(part for part in value.split(",") if part)
    try:
        return name, type(defaults[name])(value)
    except ValueError:
        raise ConfigurationError(f"Expected {name}={value!r} to be a number") from None


def _store(state: Path, device: int) -> Store:
    from device_runtime import Store, store_path

    return Store.open(store_path(state, device))


def _gate(state: Path) -> Gate:
    from device_runtime.round.gate import Gate

    return Gate.load(state)


def _task_of(store: Store, task: str) -> TaskTerms | None:
    """The task of that name, the latest of several, or the one whose id begins so. Raises where several ids do."""
    order = {line.task_sha256: line.time for line in store.ledger()}
    named = sorted(
        (terms for terms in store.tasks() if terms.name == task), key=lambda terms: order.get(terms.task_sha256, 0.0)
    )
    if named:
        return named[-1]
    matching = [terms for terms in store.tasks() if task and terms.task_sha256.hex().startswith(task)]
    if len(matching) > 1:
        raise ConfigurationError(f"Expected task={task!r} to be the id of one task: {len(matching)} begin so")
    return matching[0] if matching else None


def _require_met(store: Store, name: str, *, undo: bool, device: int) -> None:
    """Returns if the device was offered a task of this name or id, or if an opt-out of it can be taken back."""
    tasks = store.tasks()
    if any(name in (terms.name, terms.task_sha256.hex()) for terms in tasks) or (
        undo and name in store.person().opt_outs
    ):
        return
    names = sorted({terms.name for terms in tasks})
    listing = f"it knows {', '.join(names)}" if names else "it knows no task yet"
    raise ConfigurationError(
        f"Expected task={name!r} to be one that device {device} was offered: {listing}{nearest(name, names)}; "
        "--ahead opts out of a name before it is offered"
    )


def _name_or_id(store: Store, task: str) -> str:
    """As an opt-out names a task: by its name, whoever made it and in all its versions, or by its whole id."""
    if len(task) < _HEX_OF_TASK and all(terms.name != task for terms in store.tasks()):
        named = _task_of(store, task)
        return task if named is None else named.task_sha256.hex()
    return task
