"""`odp privacy`: what a task has cost its users, and what a budget buys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp.cli.console import console, print_result
from odp.cli.outputs import output_file, writing_file
from odp.errors import ConfigurationError, PrivacyError, ServiceError

if TYPE_CHECKING:
    from odp.privacy.ledger import Ledger
    from odp.services.connection import Connection
    from odp.trust.enclave.verifier import VerifiedEnclave
    from odp.v1 import server_pb2

app = typer.Typer(help="Plan what a privacy budget buys, and report what was spent.", no_args_is_help=True)

_LARGEST_LEDGER = 2**26

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("report")
def report(
    task: Annotated[
        str, typer.Argument(help="Task id (hex), or its first digits; optional if --ledger holds one task.")
    ] = "",
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger file (as `odp demo` writes it) to read instead of a server.")
    ] = None,
    server: Annotated[
        str, typer.Option(help="host:port of the server; several servers with commas between.")
    ] = "127.0.0.1:7200",
    state: Annotated[
        Path, typer.Option(help="State folder of `odp up`: CA, operator's token, reference values.")
    ] = Path("odp-state"),
    html: Annotated[
        Path | None, typer.Option(callback=output_file, help="Also write the report as one HTML page.")
    ] = None,
    json: Json = False,
    cross_check: Annotated[
        bool, typer.Option(help="Also compute ε in two other ways, and for the replacement of a user; takes seconds.")
    ] = True,
) -> None:
    """Print what a task has spent, on which releases, under which assumptions, and what was not charged."""
    from odp.privacy.rendering import render_html, render_text
    from odp.privacy.report import report_of_ledger

    privacy_report = (
        _of_server(task, server, state, cross_check=cross_check)
        if ledger is None
        else report_of_ledger(_read_ledger(ledger), task, cross_check=cross_check)
    )
    if html is not None:
        with writing_file(html):
            html.write_text(render_html(privacy_report), encoding="utf-8")
    print_result(privacy_report, render_text(privacy_report), json=json)


@app.command("plan")
def plan(
    epsilon: Annotated[float | None, typer.Option(help="ε of the budget per user.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="δ of the budget \\[default: at most a tenth of 1 / population].")
    ] = None,
    population: Annotated[int | None, typer.Option(help="Number of devices that can take part.")] = None,
    cohort: Annotated[float | None, typer.Option(help="Expected number of contributions that count per round.")] = None,
    probability: Annotated[
        float | None,
        typer.Option(help="Probability that a contribution counts, instead of --cohort; 1 is full participation."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of releases.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise std of the sum, divided by the clip.")] = None,
    clip: Annotated[float, typer.Option(help="L2 bound of one user's contribution.")] = 1.0,
    dimension: Annotated[int, typer.Option(help="Number of values per release.")] = 1,
    error: Annotated[
        float | None, typer.Option(help="Largest norm of the noise on the mean, divided by the clip; 0.1 is usable.")
    ] = None,
    task: Annotated[Path | None, typer.Option(help="Task file to plan instead: noise and signal per release.")] = None,
    json: Json = False,
) -> None:
    """Compute what is not given: sigma, epsilon, rounds, cohort or population.

    Two of --epsilon, --sigma and --rounds, with --population, give the third; all three give the cohort; --error gives
    the population. Without --cohort and --probability, every device counts in every round.
    """
    from odp.privacy.calibration import Question, answer, render_plan

    if task is not None:
        from odp.algorithms.choices import Question as RoundsQuestion
        from odp.algorithms.noise_plan import plan_of_task, render_task_plan
        from odp.tasks.file import load_task
        from odp.tasks.task import Task

        options = {"--epsilon": epsilon, "--delta": delta, "--cohort": cohort, "--probability": probability}
        options |= {"--rounds": rounds, "--sigma": sigma, "--error": error}
        for name, value in options.items():
            if value is not None:
                raise ConfigurationError(f"{name} is the task file's own; only --population goes with --task")
        planned = load_task(task)
        if not isinstance(planned, (Task, RoundsQuestion)):
            raise ConfigurationError(f"{task} has a task without rounds: `odp task show` says what each report costs")
        task_plan = plan_of_task(planned, population=population)
        print_result(task_plan, render_task_plan(task_plan), json=json)
        return
    solved = answer(
        Question(
            epsilon=epsilon,
            delta=delta,
            population=population,
            cohort=cohort,
            probability=probability,
            rounds=rounds,
            sigma=sigma,
            clip=clip,
            dimension=dimension,
            error=error,
        )
    )
    print_result(solved, render_plan(solved), json=json)


@app.command("reconstruction")
def reconstruction(
    epsilon: Annotated[float | None, typer.Option(help="Pure ε of one participation, of all its reports.")] = None,
    delta: Annotated[float, typer.Option(help="δ of the mechanism; only 0 has a certificate.")] = 0.0,
    participations: Annotated[int, typer.Option(help="Times that a device takes part over its life.")] = 1,
    ledger: Annotated[Path | None, typer.Option(help="Ledger file to take ε of all rounds from, instead.")] = None,
    task: Annotated[str, typer.Option(help="With --ledger: task id (hex), or its first digits \\[default: all].")] = "",
    dimension: Annotated[int | None, typer.Option(help="Dimensions of the unit vector to rebuild.")] = None,
    correlation: Annotated[float | None, typer.Option(help="Least cosine of a breach, 0 to 1.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest distance of a breach, instead of its cosine.")
    ] = None,
    excess: Annotated[float, typer.Option(help="The prior's density is at most e^excess times the uniform one.")] = 0.0,
    dictionary: Annotated[
        Path | None, typer.Option(help="File with one probability per line: that a person has the item of that line.")
    ] = None,
    precision: Annotated[float, typer.Option(help="With --dictionary: least precision of a breach.")] = 0.5,
    recall: Annotated[float, typer.Option(help="With --dictionary: least recall of a breach.")] = 0.5,
    json: Json = False,
) -> None:
    """Bound the probability that an observer of local reports rebuilds a person's data.

    For a unit vector (--dimension with --correlation or --tolerance) or a set of items (--dictionary). Only mechanisms
    with pure ε have such a certificate; ε counts every participation.
    """
    from odp.privacy.reconstruction import dictionary_breach, projection_breach

    total = _pure_epsilon(epsilon, delta, participations, ledger, task)
    if dictionary is not None and dimension is None:
        breach = dictionary_breach(total, _read_numbers(dictionary), precision=precision, recall=recall)
    elif dimension is not None and dictionary is None:
        breach = projection_breach(total, dimension, correlation=correlation, tolerance=tolerance, excess=excess)
    else:
        raise ConfigurationError("Expected exactly one of --dimension and --dictionary: what is there to rebuild?")
    lines = {
        "target": breach.target,
        "prior": breach.prior,
        "breach": breach.tolerance,
        "epsilon": f"{breach.epsilon:g}, of all participations",
        "without": f"{breach.prior_probability:.3e} is the probability of a breach before any report, at most",
        "with": f"{breach.probability:.3e} after every possible report, at most"
        + ("" if breach.probability < 1.0 else ": no protection against this reconstruction"),
    }
    text = "".join(f"  {label:<9}{value}\n" for label, value in lines.items())
    print_result(breach.to_json(), text, json=json)


def _pure_epsilon(epsilon: float | None, delta: float, participations: int, ledger: Path | None, task: str) -> float:
    from odp import _validate
    from odp.privacy.reconstruction import lifetime_epsilon

    if (epsilon is None) == (ledger is None):
        raise ConfigurationError("Expected exactly one of --epsilon and --ledger")
    _validate.within(low=0.0, high=1.0, delta=delta)
    if delta > 0.0:
        raise PrivacyError(
            f"delta={delta:g} is not pure epsilon: Gaussian noise, (epsilon, delta) and Renyi bounds give no"
            " certificate against reconstruction; take a task of local trust"
        )
    if ledger is not None:
        entries = [entry for entry in _read_ledger(ledger).entries if entry.task_id.startswith(task.lower())]
        if not entries:
            raise ConfigurationError(f"No task of the ledger {ledger} has an id that starts with {task!r}")
        return lifetime_epsilon(event for entry in entries for event in entry.charged)
    _validate.positive(epsilon=epsilon or 0.0)
    _validate.integer(low=1, high=10**9, participations=participations)
    return participations * (epsilon or 0.0)


def _read_numbers(path: Path) -> list[float]:
    try:
        return [float(line) for line in path.read_text(encoding="utf-8").split()]
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(f"cannot read probabilities from {path}, one number per line: {error}") from error


def _read_ledger(path: Path) -> Ledger:
    from odp.privacy.ledger import Ledger

    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_LEDGER + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read the ledger {path}: {error.strerror}; check the path") from error
    if len(data) > _LARGEST_LEDGER:
        raise ConfigurationError(f"{path} is larger than {_LARGEST_LEDGER} bytes; that is not a ledger")
    ledger = Ledger.decode(data)
    ledger.verify()
    return ledger


def _of_server(task: str, server: str, state: Path, *, cross_check: bool) -> dict[str, Any]:
    from odp.algorithms.registry import algorithm_for
    from odp.algorithms.release import round_charges, sampling_of
    from odp.cli.task import find_task, open_connection
    from odp.privacy.ledger_entry import Budget
    from odp.privacy.report import privacy_report
    from odp.signed.task import model_sha256, open_task, task_sha256
    from odp.trust.enclave.reference_values import ReferenceValues

    with open_connection(server, state) as connection:
        status = find_task(connection, task)
        # By the reference values in the state folder: the report's word is the enclave's.
        enclave = connection.attested_aggregator(status, ReferenceValues.load(state / "reference_values.json"))
        ledger = _ledger_of(connection, status, enclave)
    definition = open_task(status.task)
    algorithm = algorithm_for(definition)
    hashes = {"code": enclave.image_digest, "policy": enclave.policy.sha256.hex()}
    if status.model.manifest:
        hashes["model"] = model_sha256(status.model).hex()
    return privacy_report(
        ledger,
        task_sha256(status.task).hex(),
        planned_rounds=[
            round_charges(algorithm.query(number), sampling_of(definition, number))
            for number in range(len(algorithm.planned_releases()))
        ],
        n_users=None,
        local=algorithm.local_charge,
        task_budget=Budget(definition.privacy.epsilon, definition.privacy.delta),
        population_budget=Budget(enclave.policy.population_epsilon, enclave.policy.population_delta),
        minimum_cohort=max(definition.cohort.minimum, enclave.policy.minimum_cohort),
        emulated=enclave.emulated,
        cross_check=cross_check,
        hashes=hashes,
    )


def _ledger_of(connection: Connection, status: server_pb2.TaskStatus, enclave: VerifiedEnclave) -> Ledger:
    """The population's ledger under the attested key; an empty one before the task's first round was opened."""
    import grpc

    from odp.privacy.ledger import Ledger
    from odp.signed.task import open_task

    try:
        reply = connection.ledger(status)
    except ServiceError as error:
        if error.code is not grpc.StatusCode.NOT_FOUND:
            raise
        console().print("note: the aggregator does not know the task yet; this is its plan")
        return Ledger(open_task(status.task).population)
    ledger = reply.ledger(enclave.signing_key)
    ledger.verify()
    return ledger
