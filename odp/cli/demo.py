"""`odp demo`: the whole platform on this machine, from five programs to a private model, and what it was worth."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp._validate import finite, one_of
from odp.cli.console import console, print_json, results_console
from odp.cli.next_steps import next_steps
from odp.cli.outputs import output_folder, writing
from odp.errors import ConfigurationError, ServiceError, ServiceUnavailable
from odp.posix import require_linux

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from odp.cli.receipts import Receipts
    from odp.client import TaskHandle
    from odp.datasets import Split
    from odp.enclave.policy import EnclavePolicy
    from odp.evaluation.baselines import Baselines
    from odp.local.processes import Child, Services
    from odp.task import Task
    from odp.v1 import server_pb2
    from odp.wire.model import ModelVersion

_SYNTHETIC = "synthetic:n_users=1200,n_items=120,ratings_per_user=40,seed=7"
_POPULATION = "demo"
_MINIMUM_COHORT = 100
_POLL_SECONDS = 0.4
_RECOMMEND_SECONDS = 60.0


def demo(
    data: Annotated[
        str | None, typer.Option(help="Folder, file or name of a data set \\[default: an invented one].")
    ] = None,
    devices: Annotated[int | None, typer.Option(help="Number of devices \\[default: all users of the data].")] = None,
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε of the task, per user.")] = 8.0,
    delta: Annotated[float, typer.Option(help="δ of the budget; below 1 / devices.")] = 1e-6,
    rank: Annotated[int | None, typer.Option(help="Number of factors per item, item features not counted.")] = None,
    broadcast: Annotated[
        str, typer.Option(help="How devices get rows: enclave, all, pir (which also starts a helper) or auto.")
    ] = "enclave",
    seed: Annotated[int, typer.Option(help="Seed of the split into training and test ratings.")] = 1,
    output: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder for the picture and the reports.")
    ] = Path("odp-demo"),
    state: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps the state of all programs \\[default: one that is removed at the end]."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Give up after this many seconds.")] = 1800.0,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Train a private model on this machine, with all programs as real processes."""
    require_linux("odp demo")
    from odp.broadcast.config import Broadcast
    from odp.broadcast.terms import ALL, AUTO, ENCLAVE, PIR
    from odp.cli.device import take_users
    from odp.cli.receipts import collect
    from odp.client import connect
    from odp.datasets import load, random_split
    from odp.enclave.policy import EnclavePolicy
    from odp.local.processes import Child, Services
    from odp.simulation.engine import check_population

    started = time.monotonic()
    finite(epsilon=epsilon)
    source = data if data is not None else _SYNTHETIC
    ratings = load(source)
    if devices is not None:
        ratings = take_users(ratings, devices)
    split = random_split(ratings, seed=seed)
    one_of((ENCLAVE, ALL, PIR, AUTO), broadcast=broadcast)
    task = _task(split, epsilon=epsilon, delta=delta, rank=rank)
    check_population(task, split.train)
    if ratings.n_users < _MINIMUM_COHORT:
        raise ConfigurationError(
            f"Expected devices={ratings.n_users} to be at least {_MINIMUM_COHORT}: the enclave releases nothing below; "
            "take more --devices or a larger --data"
        )
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    out = console()
    out.print(
        f"[bold]{ratings.name}[/bold]: {ratings.n_users:,} devices, {ratings.n_items:,} items, "
        f"{split.train.n_ratings:,} training ratings that stay on the devices; ε = {epsilon:g}, δ = {delta:g} per user"
    )
    with _interruptible(state, out), contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-demo-"))) if state is None else state
        policy = EnclavePolicy(
            role="aggregator",
            minimum_cohort=_MINIMUM_COHORT,
            population_epsilon=max(20.0, epsilon),
            population_delta=max(1e-5, delta),
        )
        services = stack.enter_context(Services(root, policy=policy, helper=broadcast == PIR))
        for name, child in services.children.items():
            out.print(f"  started {name:<12} {child.address}  (process {child.process.pid}, TLS)")
        connection = stack.enter_context(connect(services.server_address, state=root))
        asking = Broadcast(method=broadcast, helper_key=services.helper_key if broadcast == PIR else "")
        task = dataclasses.replace(task, broadcast=asking)
        # Submitted first: a host that finds no task at all comes back only after half a minute.
        handle = connection.submit(task)
        arguments = ["device", "run", "--population", _POPULATION, "--server", services.server_address]
        arguments += ["--services", str(root), "--data", source, "--no-keyring", "--devices", str(ratings.n_users)]
        arguments += ["--split-seed", str(seed), "--no-durable", "--max-epsilon", repr(epsilon)]
        arguments += ["--max-total-epsilon", repr(epsilon), "--max-delta", repr(delta)]
        host = Child(
            "device host",
            arguments,
            state=root / "devices",
            log=root / "logs" / "devices.log",
        )
        stack.callback(host.stop)
        out.print(f"  started device host  {ratings.n_users:,} devices (process {host.process.pid})")
        watched = _watch(handle, services, host, split, task, out, timeout=timeout)
        recommended = _recommend(services, root)
        traffic = _traffic(root)
        with writing(output):
            receipts = collect(handle, services, output)
    seconds = time.monotonic() - started
    _finish(
        results_console(machine=json_output),
        task,
        split,
        watched,
        recommended,
        traffic,
        receipts,
        policy,
        source=source,
        seed=seed,
        seconds=seconds,
        output=output,
        json_output=json_output,
    )


def _task(split: Split, *, epsilon: float, delta: float, rank: int | None) -> Task:
    from odp.datasets import has_item_features
    from odp.simulation.presets import preset_task

    train = split.train
    task = preset_task("auto", train, epsilon=epsilon, delta=delta, features=rank is None and has_item_features(train))
    if rank is not None:
        model = dataclasses.replace(task.factorization, rank=rank)
        task = dataclasses.replace(task, model=model, training=type(task.training)())
    cohort = dataclasses.replace(
        task.cohort, minimum=min(_MINIMUM_COHORT, train.n_users), goal=train.n_users, round_seconds=600
    )
    return dataclasses.replace(task, name=_POPULATION, population=_POPULATION, cohort=cohort)


@dataclass
class _Watched:
    """What the demo observed: one entry per finished round, after an entry for the model before the first round.

    An RMSE is NaN where the next round had replaced the round's model before it was fetched.
    """

    rmse: list[float]
    epsilon: list[float]
    charges: list[dict[str, Any]]
    contributions: list[int]
    model: ModelVersion


def _watch(
    handle: TaskHandle,
    services: Services,
    host: Child,
    split: Split,
    task: Task,
    out: Console,
    *,
    timeout: float,
) -> _Watched:
    """Follows the task on a live table. Raises ServiceError when a program ends or the task fails."""
    from rich.live import Live

    from odp.algorithms.registry import algorithm_for, recommender_for
    from odp.algorithms.release import event_of
    from odp.datasets import merge
    from odp.evaluation.baselines import rmse
    from odp.v1 import common_pb2, server_pb2

    population = recommender_for(task.definition()).population()
    history = merge(split.train, split.validation)
    server = algorithm_for(task.definition()).server()
    before = server.broadcast(server.start())
    watched = _Watched([rmse(population.predict(before, history, split.test), split.test)], [0.0], [], [], before)
    until = time.monotonic() + timeout
    pause = threading.Event()
    with _last_line_ended(out), Live(console=out, refresh_per_second=4, transient=False) as live:
        while True:
            try:
                status = handle.status()
                done = [round for round in status.rounds if round.state == server_pb2.RoundStatus.STATE_APPLIED]
                new = done[len(watched.rmse) - 1 :]
                model = (_model(handle, status) or before) if new else before
            except ServiceUnavailable as error:
                raise _ended(services, host) or error from error
            for round in (entry for entry in new if entry.round < model.version):
                release = common_pb2.Release.FromString(round.release.release)
                watched.epsilon.append(release.epsilon_spent)
                watched.contributions.append(release.contributions)
                watched.charges += [
                    {"round": release.round, **event_of(charge).to_json()} for charge in release.charges
                ]
                # The demo owns the data set, so it may test each model on the held-out part; no device reports one.
                own = model.version == round.round + 1
                watched.rmse.append(
                    rmse(population.predict(model, history, split.test), split.test) if own else math.nan
                )
                watched.model = model
            live.update(_live_table(status, watched, _traffic(services.root)))
            if status.state == server_pb2.TaskStatus.STATE_FINISHED and len(watched.rmse) == status.planned_rounds + 1:
                return watched
            if status.state in (server_pb2.TaskStatus.STATE_FAILED, server_pb2.TaskStatus.STATE_CANCELLED):
                raise ServiceError(f"the task ended early: {status.failure or 'cancelled'}")
            ended = _ended(services, host)
            if ended is not None:
                raise ended
            if time.monotonic() > until:
                raise ServiceError(f"not finished after {timeout:.0f} s; raise --timeout")
            pause.wait(_POLL_SECONDS)


def _model(handle: TaskHandle, status: server_pb2.TaskStatus) -> ModelVersion | None:
    """The model of a status; None where the next round replaced it just now."""
    import grpc

    try:
        return handle.connection.model(status)
    except ServiceError as error:
        if error.code is grpc.StatusCode.NOT_FOUND:
            return None
        raise


@contextlib.contextmanager
def _last_line_ended(out: Console) -> Iterator[None]:
    try:
        yield
    finally:
        if not out.is_terminal:
            out.print()  # a live table in a pipe ends without it


def _ended(services: Services, host: Child) -> ServiceError | None:
    """Which program ended by itself, and why; None while all run."""
    dead = services.dead() or (host if host.process.poll() is not None else None)
    return None if dead is None else ServiceError(f"{dead.name} ended by itself: {dead.last_line()}")


@contextlib.contextmanager
def _interruptible(state: Path | None, out: Console) -> Iterator[None]:
    """SIGTERM ends the demo like Ctrl-C, at any point: what was started is stopped on the way out."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        out.print("interrupted; all programs stopped", end="\n" if state is None else "")
        if state is not None:
            out.print(f"; the same command goes on from {state}")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _live_table(status: server_pb2.TaskStatus, watched: _Watched, traffic: dict[int, dict[str, Any]]) -> Table:
    from rich.table import Column, Table

    from odp.v1 import server_pb2

    table = Table("round", Column("releases", no_wrap=True), "in", "out", "down", "up", "ε spent", "RMSE")
    table.add_row("before", "", "", "", "", "", "0", f"{watched.rmse[0]:.4f}")
    for round in status.rounds:
        counted = traffic.get(round.round, {})
        devices = max(counted.get("devices_in", 0), 1)
        applied = round.round + 1 < len(watched.rmse)
        names = ", ".join(charge["name"] for charge in watched.charges if charge["round"] == round.round)
        table.add_row(
            f"{round.round + 1}/{status.planned_rounds}",
            names or ("[dim]open[/dim]" if round.state == server_pb2.RoundStatus.STATE_OPEN else "[dim]summing[/dim]"),
            f"{max(round.contributions, counted.get('devices_in', 0)):,}",
            str(counted.get("refused", 0) + counted.get("declined", 0)),
            f"{counted.get('bytes_down', 0) / devices:,.0f} B",
            f"{counted.get('bytes_up', 0) / devices:,.0f} B",
            f"{watched.epsilon[round.round + 1]:.4f}" if applied else "",
            _shown(watched.rmse[round.round + 1]) if applied else "",
        )
    return table


def _shown(rmse: float) -> str:
    return "-" if math.isnan(rmse) else f"{rmse:.4f}"


def _traffic(root: Path) -> dict[int, dict[str, Any]]:
    """What the device host counted, by round; empty before its first file."""
    try:
        content = json.loads((root / "devices" / "stats.json").read_text())
    except (OSError, ValueError):
        return {}
    return {entry["round"]: entry for entry in content["rounds"]}


def _recommend(services: Services, root: Path) -> dict[str, Any]:
    """The first device's ten recommendations, computed by a process that has that device's store."""
    from odp.local.processes import ODP

    command = ["device", "recommend", "--population", _POPULATION, "--device", "0", "--json"]
    command += ["--server", services.server_address, "--services", str(root), "--state", str(root / "devices")]
    try:
        finished = subprocess.run(
            [*ODP, *command], capture_output=True, text=True, timeout=_RECOMMEND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"no recommendations within {_RECOMMEND_SECONDS:.0f} s") from error
    if finished.returncode:
        raise ServiceError(f"recommendations failed: {finished.stderr.strip().removeprefix('odp: ')}")
    found: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    return found


def _finish(
    out: Console,
    task: Task,
    split: Split,
    watched: _Watched,
    recommended: dict[str, Any],
    traffic: dict[int, dict[str, Any]],
    receipts: Receipts,
    policy: EnclavePolicy,
    *,
    source: str,
    seed: int,
    seconds: float,
    output: Path,
    json_output: bool,
) -> None:
    """Prints the comparison, the recommendations, what was spent; writes picture and reports."""
    from rich.table import Table

    from odp.broadcast.terms import method_of
    from odp.cli.broadcasting import broadcast_line
    from odp.evaluation.baselines import baselines
    from odp.evaluation.comparison import comparison_table, draw_progress
    from odp.simulation.inputs import NOT_A_RELEASE
    from odp.simulation.record import write_record

    privacy = task.privacy
    found: Baselines = baselines(task, split, seed=seed)
    out.print(comparison_table(found, watched.rmse[-1], watched.epsilon[-1], privacy.delta))
    out.print(f"note: {NOT_A_RELEASE}")
    titles = split.train.titles
    best = Table("", "item", "predicted value", title="top ten of device 0, computed on the device")
    for rank, entry in enumerate(recommended["recommendations"], start=1):
        best.add_row(str(rank), titles[entry["item"]] if titles else str(entry["item"]), f"{entry['score']:.2f}")
    out.print(best)
    picture = output / "rmse-and-epsilon.png"
    with writing(output):
        draw_progress(picture, rmse=watched.rmse, epsilon=watched.epsilon, budget=privacy.epsilon, baselines=found)
    whole = sum(table.rows.size * 4 for table in _last_model_tables(task))
    per_device = {number: entry["bytes_down"] / max(entry["devices_in"], 1) for number, entry in traffic.items()}
    summary: dict[str, Any] = {
        "data": source,
        "devices": split.train.n_users,
        "items": split.train.n_items,
        "rank": task.factorization.rank,
        "test_rmse": watched.rmse[-1],
        "epsilon": watched.epsilon[-1],
        "epsilon_left": privacy.epsilon - watched.epsilon[-1],
        "delta": privacy.delta,
        "rounds": len(watched.rmse) - 1,
        "seconds": round(seconds, 2),
        "rmse_by_round": [None if math.isnan(value) else value for value in watched.rmse],
        "epsilon_by_round": watched.epsilon,
        "charges": watched.charges,
        "baselines": vars(found),
        "bytes_down_per_device": per_device,
        "broadcast": method_of(task.definition()),
        "whole_model_bytes": whole,
        "recommendations": recommended["recommendations"],
        "picture": str(picture),
        "log": receipts.summary,
    }
    report = _privacy_text(task, receipts.ledger, split.train.n_users, policy)
    with writing(output):
        (output / "report.json").write_text(json.dumps(summary, indent=1) + "\n")
        write_record(output, _record(task, split, watched, found, seed=seed))
        (output / "ledger.json").write_bytes(receipts.ledger)
        (output / "privacy.txt").write_text(report, encoding="utf-8")
    out.print(
        f"ε spent {watched.epsilon[-1]:.4f} of {privacy.epsilon:g} at δ = {privacy.delta:g} "
        "(per user, all data or none); "
        f"left {max(privacy.epsilon - watched.epsilon[-1], 0.0):.4f}"
    )
    out.print(broadcast_line(task, traffic, whole))
    for line in receipts.lines:
        out.print(line, soft_wrap=True)
    out.print(f"every charge: {output / 'privacy.txt'}; all figures: {output / 'report.json'}; picture: {picture}")
    out.print(f"{seconds:.1f} s; all programs stopped")
    out.print(next_steps(output), markup=False)
    if json_output:
        print_json(summary)


def _record(task: Task, split: Split, watched: _Watched, found: Baselines, *, seed: int) -> dict[str, Any]:
    """What `odp report` reads: the demo owns the ratings, so it may diagnose the model on them."""
    from odp.algorithms.dpam.diagnostics import diagnose
    from odp.privacy.events import Event, from_json
    from odp.simulation.inputs import NOT_A_RELEASE
    from odp.simulation.record import run_record

    charges: list[list[Event]] = [[] for _ in watched.contributions]
    for charge in watched.charges:
        charges[charge["round"]].append(from_json({key: charge[key] for key in charge if key != "round"}))
    return run_record(
        kind="platform",
        task=task,
        split=split,
        rounds=[
            {"round": number, "contributions": count, "epsilon": epsilon, "test_rmse": rmse}
            for number, (count, epsilon, rmse) in enumerate(
                zip(watched.contributions, watched.epsilon[1:], watched.rmse[1:], strict=True)
            )
        ],
        charges=charges,
        metrics={"test_rmse": watched.rmse[-1]},
        seed=seed,
        baselines=asdict(found),
        notes=[NOT_A_RELEASE],
        diagnostics=diagnose(task, split, watched.model),
    )


def _privacy_text(task: Task, ledger: bytes, users: int, policy: EnclavePolicy) -> str:
    """The privacy report of the task, from the enclave's ledger."""
    from odp.algorithms.registry import algorithm_for
    from odp.algorithms.release import round_charges, sampling_of
    from odp.privacy.ledger import Ledger
    from odp.privacy.ledger_entry import Budget
    from odp.privacy.rendering import render_text
    from odp.privacy.report import privacy_report

    charged = Ledger.decode(ledger)
    definition = task.definition()
    algorithm = algorithm_for(definition)
    report = privacy_report(
        charged,
        charged.entries[-1].task_id,
        planned_rounds=[
            round_charges(algorithm.query(number), sampling_of(definition, number))
            for number in range(len(algorithm.planned_releases()))
        ],
        n_users=users,
        local=algorithm.local_charge,
        task_budget=Budget(task.privacy.epsilon, task.privacy.delta),
        population_budget=Budget(policy.population_epsilon, policy.population_delta),
        minimum_cohort=task.cohort.minimum,
        cross_check=True,
    )
    return render_text(report)


def _last_model_tables(task: Task) -> Iterator[Any]:
    from odp.algorithms.registry import algorithm_for

    server = algorithm_for(task.definition()).server()
    yield from server.broadcast(server.start()).tables
