"""`odp task retrain`: one step of a model that lives on the devices of a population."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odp.cli.console import console, print_result
from odp.cli.outputs import output_folder
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.services.connection import Connection
    from odp.tasks.task import Task
    from odp.trainings.living_model import LivingModel


def retrain(
    file: Annotated[Path, typer.Argument(help="Task file (TOML) of a recommender, from which every training is made.")],
    folder: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder that keeps the trainings; one per living model.")
    ],
    catalogue: Annotated[
        Path | None, typer.Option(help="Catalogue file (`odp catalogue make`): its newest version is published first.")
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option(
            help="In place of a catalogue, where items never change and devices know them by number: text file with "
            "the key of each item, one per line, in order."
        ),
    ] = None,
    every: Annotated[str, typer.Option(help="Time between trainings: 7d, 2w, 1y.")] = "7d",
    horizon: Annotated[str, typer.Option(help="How long the lifetime budget has to last.")] = "1y",
    lifetime_epsilon: Annotated[float, typer.Option(help="ε of all trainings together, per user.")] = 20.0,
    rule: Annotated[str, typer.Option(help="How the budget is divided: uniform or front-loaded.")] = "uniform",
    start: Annotated[
        Path | None, typer.Option(help="What the first training begins with (.npz of `odp simulate --save-start`).")
    ] = None,
    roll_back: Annotated[
        int | None, typer.Option(help="Begin the next training with the items of this earlier one.")
    ] = None,
    withdraw: Annotated[
        int | None, typer.Option(help="No training begins with the items of this one any more; needs --reason.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why a training is withdrawn.")] = None,
    compare: Annotated[
        str | None,
        typer.Option(help="In place of a step: test two trainings on random halves of the devices, such as 3,4."),
    ] = None,
    compare_epsilon: Annotated[
        float | None, typer.Option(help="ε of that test, per user, on top of --lifetime-epsilon \\[default: 1].")
    ] = None,
    device_epsilon: Annotated[
        float, typer.Option(help="Limit of your devices on ε in total, if it is not the default.")
    ] = 20.0,
    device_epsilon_30_days: Annotated[
        float, typer.Option(help="Limit of your devices on ε in 30 days, if it is not the default.")
    ] = 20.0,
    server: Annotated[
        str, typer.Option(help="host:port of the server; several servers with commas between.")
    ] = "127.0.0.1:7200",
    state: Annotated[
        Path, typer.Option(help="State folder of `odp up`, which has the CA and the operator's token.")
    ] = Path("odp-state"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Take the release of the last training, and begin the next one if it is due. Run it once a day, by a timer.

    δ is that of the task file; its ε is replaced by the share that the schedule gives to each training. The command can
    die at any moment: the next one goes on where it was. A schedule is refused if devices would decline a training by
    their limits.
    """
    from odp.cli.catalogue import item_keys
    from odp.models.warm_start import WarmStart
    from odp.protocol.catalogues.catalogue import Catalogue
    from odp.services.connection import connect
    from odp.tasks.file import load_task
    from odp.tasks.task import Task
    from odp.trainings.device_limits import DeviceLimits
    from odp.trainings.living_model import LivingModel
    from odp.trainings.schedule import Schedule

    task = load_task(file)
    if not isinstance(task, Task):
        raise ConfigurationError(f"{file} has a question: only models are retrained")
    if (catalogue is None) == (items is None):
        raise ConfigurationError("Expected one of --catalogue and --items: which items the model has")
    pair = None if compare is None else _pair(compare)
    if pair is not None and (withdraw is not None or roll_back is not None):
        raise ConfigurationError("Expected --compare without --withdraw and --roll-back: it takes no step")
    for name, value, needs, other in (
        ("--compare-epsilon", compare_epsilon, "--compare", compare), ("--reason", reason, "--withdraw", withdraw),
    ):  # fmt: skip
        if value is not None and other is None:
            raise ConfigurationError(f"{name} goes with {needs}: without it, it would be ignored")
    if withdraw is not None and withdraw == roll_back:
        raise ConfigurationError(f"Expected --roll-back={roll_back} to be another training than the withdrawn one")
    version = None if catalogue is None else Catalogue.load(catalogue)
    schedule = Schedule(
        every=every, horizon=horizon, lifetime_epsilon=lifetime_epsilon, delta=task.privacy.delta, rule=rule
    )
    limits = DeviceLimits(max_total_epsilon=device_epsilon, max_total_epsilon_30_days=device_epsilon_30_days)
    living = LivingModel(
        folder,
        task=task,
        schedule=schedule,
        item_keys=None if items is None else item_keys(items),
        catalogue=version,
        start=None if start is None else WarmStart.load(start),
        limits=limits,
    )
    if pair is not None:
        test_epsilon = 1.0 if compare_epsilon is None else compare_epsilon
        limits.check_beside(living.epsilon, test_epsilon, delta=schedule.delta)
        with connect(server, state=state) as connection:
            _compare(living, connection, task, pair, epsilon=test_epsilon, json=json)
        return
    later: tuple[int, ...] = ()
    if withdraw is not None and (later := living.withdraw(withdraw, reason=reason or "")):
        began = ", ".join(map(str, later))
        console().print(f"note: training {withdraw} is withdrawn; later ones began with it: {began}")
    if roll_back is not None:
        living.roll_back(roll_back)
    with connect(server, state=state) as connection:
        if version is not None:
            connection.publish_catalogue(version)
        step = living.advance(connection, now=time.time())
    text = f"{step.words}; ε = {step.epsilon:.4g} of {lifetime_epsilon:g} is spent or promised"
    if step.due is not None:
        text += f"\nnext training from {datetime.fromtimestamp(step.due, UTC):%Y-%m-%d %H:%M} UTC"
    print_result(asdict(step) | {"stage": step.stage.value, "begun_with_withdrawn": list(later)}, text, json=json)


def _pair(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts) or int(parts[0]) == int(parts[1]):
        raise ConfigurationError(f"Expected --compare={text!r} to be two numbers of trainings, such as 3,4")
    return int(parts[0]), int(parts[1])


def _compare(
    living: LivingModel, connection: Connection, task: Task, pair: tuple[int, int], *, epsilon: float, json: bool
) -> None:
    """Submits the evaluation of two trainings, and says how to see what it finds."""
    from odp.algorithms.model_evaluation.task import Evaluation
    from odp.protocol.terms import UserLevelDP

    evaluation = Evaluation(
        name=f"{task.name}-{pair[0]}-{pair[1]}",
        privacy=UserLevelDP(epsilon=epsilon, delta=task.privacy.delta),
        cohort=task.cohort,
        **living.compared(connection, *pair),
    )
    sha256 = connection.submit(evaluation).task_sha256.hex()
    print_result(
        {"task": sha256},
        f"{evaluation.name}: devices test training {pair[0]} (a) or {pair[1]} (b), ε = {epsilon:g} per user\n"
        f"`odp task results {sha256[:12]}` shows the difference, once the task is finished",
        json=json,
    )
