"""`odp demo`: the whole platform on this machine, from five programs to a private model, and what it was worth.

Before it starts it shows who takes part, and after it ended what to do next. For later checks it keeps the
signed ledger, and an audited copy of the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from odp._system.posix import require_linux
from odp._validate import finite, integer, one_of
from odp.cli.console import console, print_json, results_console, resume_with
from odp.cli.data_options import print_reading
from odp.cli.outputs import output_folder, writing
from odp.errors import ConfigurationError, ServiceError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from odp.cli.demo_rounds import Watched
    from odp.datasets import Split
    from odp.evaluation.baselines import Baselines
    from odp.evaluation.trials import Outcome
    from odp.operations.local.processes import Child, Services
    from odp.services.connection import TaskHandle
    from odp.tasks.task import Task
    from odp.trust.enclave.policy import EnclavePolicy
    from odp.trust.log.audit import AuditReport

# The default ends within a minute on two slow cores; `benchmarks/demo_minute.py` measures it.
_DEVICES = 400
_SYNTHETIC = "synthetic:n_users={devices},n_items=80,ratings_per_user=40,seed=7"
_POPULATION = "demo"
_MINIMUM_COHORT = 100
# Of invented ratings: more devices of one machine take longer than anybody waits for a demo.
_MOST_DEVICES = 10_000
_MOST_ROUNDS = 64
# Each round takes many seconds, so that the demo takes a minute: with more, the alternations have Gram matrices, which
# need the fewest. On the invented ratings these are as good.
_USUAL_ROUNDS = 4
_RECOMMEND_SECONDS = 60.0


def demo(
    data: Annotated[
        str | None, typer.Option(help="Folder, file or name of a data set \\[default: an invented one].")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Number of devices \\[default: 400, or all users of --data].")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help=f"Number of rounds \\[default: what suits data and budget, {_USUAL_ROUNDS} at most]."),
    ] = None,
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
    from odp.cli.demo_rounds import chart, traffic, watch
    from odp.cli.device import take_users
    from odp.datasets import load, random_split
    from odp.evaluation.baselines import Baselines, baseline_outcomes
    from odp.evaluation.comparison import draw_progress
    from odp.operations.local.processes import Child, Services
    from odp.research.simulation.engine import check_population
    from odp.research.simulation.record import write_record
    from odp.services.connection import connect
    from odp.signed.broadcast.config import Broadcast
    from odp.signed.broadcast.terms import ALL, AUTO, ENCLAVE, PIR
    from odp.trust.enclave.policy import EnclavePolicy

    started = time.monotonic()
    finite(epsilon=epsilon)
    if data is None:
        devices = _DEVICES if devices is None else devices
        _require_cohort(devices)
        if devices > _MOST_DEVICES:
            raise ConfigurationError(
                f"Expected devices={devices} to be at most {_MOST_DEVICES} on invented ratings; take a larger --data"
            )
    source = data if data is not None else _SYNTHETIC.format(devices=devices)
    ratings = load(source)
    print_reading(ratings.notes)
    if devices is not None:
        ratings = take_users(ratings, devices)
    split = random_split(ratings, seed=seed)
    one_of((ENCLAVE, ALL, PIR, AUTO), broadcast=broadcast)
    task = _task(split, epsilon=epsilon, delta=delta, rank=rank, rounds=rounds)
    check_population(task, split.train)
    _require_cohort(ratings.n_users)
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    out = console()
    out.print(
        f"[bold]{ratings.name}[/bold]: {ratings.n_users:,} devices, {ratings.n_items:,} items, "
        f"{split.train.n_ratings:,} training ratings that stay on the devices; ε = {epsilon:g}, δ = {delta:g} per user"
    )
    out.print(parties_table(helper=broadcast == PIR))

    def tell(what: str) -> None:
        out.print(f"[dim]{time.monotonic() - started:5.1f} s[/dim]  {what}", soft_wrap=True)

    with _interruptible(state), contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-demo-"))) if state is None else state
        policy = EnclavePolicy(
            role="aggregator",
            minimum_cohort=_MINIMUM_COHORT,
            population_epsilon=max(20.0, epsilon),
            population_delta=max(1e-5, delta),
        )
        services = Services(root, policy=policy, helper=broadcast == PIR)
        stack.callback(services.stop)
        tell("starting the programs; each makes its keys, and measures the code of its enclave")
        # Done before the first round: while this process computes, a model could come and go.
        comparing = begin(functools.partial(baseline_outcomes, task, split, seed=seed))
        services.start(on_serving=lambda child: tell(f"{_started(child)}, serves at {child.address} over TLS"))
        connection = stack.enter_context(connect(services.server_address, state=root))
        asking = Broadcast(method=broadcast, helper_key=services.helper_key if broadcast == PIR else "")
        task = dataclasses.replace(task, broadcast=asking)
        outcomes = comparing.result()
        baseline_errors = Baselines.of(outcomes)
        tell("computed what other methods reach on the same ratings")
        # Submitted first: a host that finds no task at all comes back only after half a minute.
        handle = connection.submit(task)
        tell(f"submitted a task of {_planned(task)} rounds; it may spend ε = {epsilon:g} of each user, and no more")
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
        tell(f"{_started(host)}: {ratings.n_users:,} devices, each with its own store, secret and key")
        watched = watch(
            handle, services, host, split, task, out, timeout=timeout, references=_references(baseline_errors),
            tell=tell,
        )  # fmt: skip
        shown = results_console(machine=json_output)
        shown.print()
        shown.print(chart(watched, task, _references(baseline_errors)))
        shown.print()
        tell("trained; one device recommends, and an audit checks the log")
        recommending = stack.enter_context(_recommending(services, root))
        counted = traffic(root)
        picture = output / "rmse-and-epsilon.png"
        with writing(output):
            receipts = collect(handle, services, output)
            draw_progress(
                picture, rmse=watched.rmse, epsilon=watched.epsilon, budget=epsilon, baselines=baseline_errors
            )
            write_record(output, _record(task, split, watched, outcomes, seed=seed))
        recommended = _recommended(recommending)
    seconds = time.monotonic() - started
    _finish(
        shown,
        task,
        split,
        watched,
        recommended,
        counted,
        receipts,
        policy,
        baseline_errors,
        source=source,
        seconds=seconds,
        picture=picture,
        json_output=json_output,
    )


def _started(child: Child) -> str:
    return f"{child.name} (process {child.process.pid})"


def _require_cohort(devices: int) -> None:
    if devices < _MINIMUM_COHORT:
        raise ConfigurationError(
            f"Expected devices={devices} to be at least {_MINIMUM_COHORT}: the enclave releases nothing below; "
            "take more --devices or a larger --data"
        )


def _references(baseline_errors: Baselines) -> dict[str, float]:
    return {
        "DP item mean, same ε": baseline_errors.dp_item_mean,
        "DP item mean + user bias": baseline_errors.dp_item_user_bias,
        "ALS, all data in one place": baseline_errors.als_ceiling,
    }


def _task(split: Split, *, epsilon: float, delta: float, rank: int | None, rounds: int | None = None) -> Task:
    from odp.datasets import has_item_features
    from odp.research.simulation.presets import preset_task

    train = split.train
    task = preset_task("auto", train, epsilon=epsilon, delta=delta, features=rank is None and has_item_features(train))
    if rank is not None:
        model = dataclasses.replace(task.factorization, rank=rank)
        task = dataclasses.replace(task, model=model, training=type(task.training)())
    if rounds is None and _planned(task) > _USUAL_ROUNDS:
        task, rounds = dataclasses.replace(task, training=type(task.training)()), _USUAL_ROUNDS
    if rounds is not None:
        task = _with_rounds(task, rounds)
    cohort = dataclasses.replace(
        task.cohort, minimum=min(_MINIMUM_COHORT, train.n_users), goal=train.n_users, round_seconds=600
    )
    return dataclasses.replace(task, name=_POPULATION, population=_POPULATION, cohort=cohort)


def _planned(task: Task) -> int:
    from odp.algorithms.registry import algorithm_for

    return len(algorithm_for(task.definition()).planned_releases())


def _with_rounds(task: Task, rounds: int) -> Task:
    """``task`` with as many steps as make ``rounds`` rounds. Raises ConfigurationError where none do."""

    def with_steps(steps: int) -> Task:
        # Only alternating trainings come here, and all of them have steps.
        return dataclasses.replace(task, training=dataclasses.replace(cast("Any", task.training), steps=steps))

    integer(rounds=rounds, low=1, high=_MOST_ROUNDS)
    fewest = _planned(with_steps(1))
    if _planned(with_steps(2)) == fewest and rounds != fewest:
        raise ConfigurationError(f"Expected rounds={rounds} to be {fewest} for a model without factors; see --rank")
    if rounds < fewest:
        raise ConfigurationError(f"Expected rounds={rounds} to be at least {fewest} for this model")
    return with_steps(1 + rounds - fewest)


@contextlib.contextmanager
def _interruptible(state: Path | None) -> Iterator[None]:
    """SIGTERM ends the demo like Ctrl-C, at any point: what was started is stopped on the way out."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    resume_with("all programs stopped" + (f"; the same command goes on from {state}" if state is not None else ""))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _recommending(services: Services, root: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that computes the first device's ten recommendations from that device's store; it ends with this."""
    from odp.operations.local.processes import ODP

    command = ["device", "recommend", "--population", _POPULATION, "--device", "0", "--json"]
    command += ["--server", services.server_address, "--services", str(root), "--state", str(root / "devices")]
    with subprocess.Popen([*ODP, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _recommended(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What ``_recommending`` computes. Raises ServiceError."""
    try:
        output, errors = process.communicate(timeout=_RECOMMEND_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"no recommendations within {_RECOMMEND_SECONDS:.0f} s") from error
    if process.returncode:
        raise ServiceError(f"recommendations failed: {errors.strip().removeprefix('odp: ')}")
    recommendations: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return recommendations


def _finish(
    out: Console,
    task: Task,
    split: Split,
    watched: Watched,
    recommended: dict[str, Any],
    traffic: dict[int, dict[str, Any]],
    receipts: Receipts,
    policy: EnclavePolicy,
    baseline_errors: Baselines,
    *,
    source: str,
    seconds: float,
    picture: Path,
    json_output: bool,
) -> None:
    """Prints the comparison, the recommendations, what was spent; writes the reports beside ``picture``."""
    from rich.table import Table

    from odp.algorithms.registry import algorithm_for
    from odp.cli.broadcasting import broadcast_line
    from odp.cli.demo_rounds import rounds_table
    from odp.evaluation.comparison import comparison_table
    from odp.research.simulation.inputs import NOT_A_RELEASE
    from odp.signed.broadcast.terms import method_of

    privacy, output = task.privacy, picture.parent
    out.print(comparison_table(baseline_errors, watched.rmse[-1], watched.epsilon[-1], privacy.delta))
    out.print(f"note: {NOT_A_RELEASE}")
    titles = split.train.titles
    best = Table("", "item", "predicted value", title="top ten of device 0, computed on the device")
    for rank, entry in enumerate(recommended["recommendations"], start=1):
        best.add_row(str(rank), titles[entry["item"]] if titles else str(entry["item"]), f"{entry['score']:.2f}")
    out.print(best)
    out.print(rounds_table(watched, traffic))
    server = algorithm_for(task.definition()).server()
    whole = sum(table.rows.size * 4 for table in server.broadcast(server.start()).tables)
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
        "baselines": vars(baseline_errors),
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


def _record(
    task: Task, split: Split, watched: Watched, outcomes: Mapping[str, Outcome], *, seed: int
) -> dict[str, Any]:
    """What `odp report` reads: the demo owns the ratings, so it may diagnose the model on them."""
    from odp.algorithms.dpam.experiment import diagnose, standard_errors
    from odp.evaluation.baselines import Baselines
    from odp.privacy.events import Event, from_json
    from odp.research.simulation.inputs import NOT_A_RELEASE
    from odp.research.simulation.record import run_record

    charges: list[list[Event]] = [[] for _ in watched.contributions]
    for charge in watched.charges:
        charges[charge["round"]].append(from_json({key: charge[key] for key in charge if key != "round"}))
    record = run_record(
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
        baselines=asdict(Baselines.of(outcomes)),
        notes=[NOT_A_RELEASE],
        diagnostics=diagnose(task, split, watched.model),
    )
    return record | {"standard_errors": standard_errors(task, split, watched.model, outcomes)}


def _privacy_text(task: Task, ledger: bytes, users: int, policy: EnclavePolicy) -> str:
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
    )
    return render_text(report)


_PARTIES = (
    ("devices", "train on their own ratings", "each its own ratings"),
    ("issuer", "gives each device one token per round", "who takes part"),
    ("distributor", "an enclave; gives devices the rows that they ask for", "sealed requests"),
    ("aggregator", "an enclave; adds contributions up, and noise to the sum", "sealed contributions"),
    ("server", "opens rounds, makes the next model", "noisy sums"),
)
_HELPER = ("helper", "half of a private lookup, beside the distributor", "half of a lookup")


def parties_table(*, helper: bool) -> Table:
    """The programs that the demo starts, with ``helper`` the helper of private lookups too."""
    from rich.table import Table

    caption = "the enclaves are emulated: whoever runs this machine can read what is inside"
    table = Table("program", "what it does", "what its operator sees", caption=caption)
    for row in (*_PARTIES, *([_HELPER] if helper else [])):
        table.add_row(*row)
    return table


def next_steps(output: Path) -> str:
    """What to do after the demo, in three commands."""
    steps = (
        (f"odp report {shlex.quote(str(output))}", "a page about this run"),
        ("odp data check FILE.csv", "your own data: what is in it, and the ε that fits"),
        ("odp init my-app", "a small project of your own, with a device in it"),
    )
    width = max(len(command) for command, _ in steps)
    return "\n".join(["next:", *(f"  {command:<{width}}  {what}" for command, what in steps)])


_T = TypeVar("_T")


def begin(act: Callable[[], _T]) -> Future[_T]:
    """Starts ``act`` on a thread of its own, which an interrupted command does not wait for."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:  # whoever asks for the result raises it
            future.set_exception(error)

    threading.Thread(target=run, name="meanwhile", daemon=True).start()
    return future


_PINS = "reference_values.json"


@dataclass(frozen=True)
class Receipts:
    """Attributes: ``ledger`` is canonical JSON, ``audit`` what the audit of the copy in ``folder`` found."""

    ledger: bytes
    audit: AuditReport
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {
            "folder": str(self.folder),
            "size": self.audit.checkpoint.checkpoint.size,
            "entries": self.audit.counts,
            "epsilon": self.audit.tasks[-1].epsilon,
        }

    @property
    def lines(self) -> tuple[str, str]:
        """Lines for the terminal: what was checked, and how to repeat it."""
        pins = self.folder.parent / _PINS
        return (
            f"audit passed: {self.audit.checkpoint.checkpoint.size} entries of the transparency log, every signature, "
            f"ε {self.audit.tasks[-1].epsilon:.4f} from the charges alone; the attested enclave signed the ledger",
            f"again: odp audit verify --log {self.folder} --reference-values {pins}",
        )


def collect(handle: TaskHandle, services: Services, output: Path) -> Receipts:
    """Fetches the ledger and checks its signature; copies the log and what is pinned to ``output``; audits the copy.

    Raises:
        AttestationError, SignatureError, StateError: the ledger is not signed by the attested aggregator.
        AuditFailure: a record of the log is wrong.
        OSError: ``output`` cannot be written.
    """
    from odp.trust.enclave.reference_values import ReferenceValues
    from odp.trust.log.audit import audit
    from odp.trust.log.sources import LogFolder

    pinned = ReferenceValues.load(services.reference_values)
    status = handle.status()
    enclave = handle.connection.attested_aggregator(status, pinned)
    ledger = handle.connection.ledger(status).ledger(enclave.signing_key)
    copy = output / "log"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(services.root / "server" / "log", copy, ignore=shutil.ignore_patterns(".*"))
    shutil.copy(services.reference_values, output / _PINS)
    return Receipts(ledger.encode(), audit(LogFolder(copy), pinned), copy)
