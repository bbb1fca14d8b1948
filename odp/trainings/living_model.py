"""A model that is retrained for years by the devices of a population: tasks in a row, as a schedule says.

A folder holds what has to last: which trainings were begun, and the items of each release. Whoever runs ``advance``
from time to time, such as a daily timer, keeps the model alive. A program that dies at any moment goes on where it was:
what is submitted is stored before it is sent, and the server takes the same task for the same one.

The stored state of a living model, as it is read back.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import numpy as np

from odp import _validate
from odp._system.files.state_folder import remove_unfinished, state_errors, write_atomically
from odp._system.posix import fcntl
from odp.algorithms.registry import starting_for
from odp.errors import ConfigurationError, DataError, ServiceError, StateError
from odp.models.item_features import Float32Array
from odp.models.warm_start import WarmStart, checked_keys
from odp.privacy.accounting import epsilon, noised_coordinates
from odp.privacy.events import Event
from odp.protocol.catalogues.catalogue import Catalogue
from odp.protocol.catalogues.named import named_in
from odp.tasks.task import Task
from odp.trainings.charges import charges_of_task, payable, with_share
from odp.trainings.comparison import Comparison, ReleasedTraining
from odp.trainings.device_limits import DeviceLimits
from odp.trainings.schedule import Schedule, days
from odp.v1 import common_pb2, server_pb2

if TYPE_CHECKING:
    from odp.protocol.wire.model import ModelVersion

_STATES = ("submitting", "training", "finished", "ended")


def read_state(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """The state in a file, or that of a model without any training where there is none.

    Raises:
      StateError: it cannot be read, is damaged, is of another model, or is gone while releases are there.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if left := sorted(file.name for file in path.parent.glob("training-*.npz")):
            raise StateError(
                f"{path} is gone, and {left[-1]} beside it says that trainings were released: what they spent would be"
                " forgotten; restore the newest copy, or give another folder"
            ) from None
        return identity | {"trainings": [], "begin_with": None}
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"cannot read {path}: {error}; restore it from a backup") from error
    for name, expected in identity.items():
        stored = state.get(name) if isinstance(state, dict) else None
        if stored != expected:
            raise StateError(f"{path} is of another living model: it has {name}={stored!r}, not {expected!r}")
    trainings = state.get("trainings")
    if not isinstance(trainings, list) or not all(map(_is_training, trainings)):
        raise StateError(f"{path} is damaged: its trainings are none; restore the newest copy")
    if not _is_number_or_none(state.get("begin_with", -1), len(trainings)):
        raise StateError(f"{path} is damaged: begin_with is no training; restore the newest copy")
    return dict(state)


def _is_training(training: Any) -> bool:
    return (
        isinstance(training, dict)
        and training.get("state") in _STATES
        and isinstance(training.get("began"), int | float)
        and math.isfinite(training["began"])
        and _is_hexadecimal(training.get("task_sha256"), (0, 64))
        and _is_hexadecimal(training.get("definition_sha256"), (64,))
        and isinstance(training.get("columns"), int)
        and training["columns"] >= 0
        and isinstance(training.get("item_keys"), list)
        and all(isinstance(key, str) for key in training["item_keys"])
        and _is_number_or_none(training.get("begun_with", -1), 2**31)
    )


def _is_hexadecimal(value: Any, lengths: tuple[int, ...]) -> bool:
    return isinstance(value, str) and len(value) in lengths and not value.strip("0123456789abcdef")


def _is_number_or_none(value: Any, end: int) -> bool:
    return value is None or (type(value) is int and 0 <= value < end)


_FORMAT = "odp-living-model-1"
_STATE, _LOCK = "living.json", "lock"
_DAY_SECONDS = 86_400


class Stage(enum.Enum):
    """Where a living model stands."""

    WAITING = "waiting"  # for the next training to be due
    TRAINING = "training"
    COMPLETE = "complete"  # all trainings of the schedule are done


@dataclass(frozen=True)
class Standing:
    """What ``advance`` found and did.

    Attributes:
      stage: after it.
      training: number of the last training that was begun; -1 before the first.
      task_sha256: of that training's task, hexadecimal; empty before the first.
      due: when the next training may begin, in seconds since 1970; None while there is none to come.
      epsilon: of all trainings that were begun, whole, per user.
      words: what happened, in one line.
    """

    stage: Stage
    training: int
    task_sha256: str
    due: float | None
    epsilon: float
    words: str


class Submitted(Protocol):
    """What ``odp.TaskHandle`` tells."""

    @property
    def task_sha256(self) -> bytes:
        """Id of the task."""


class Submitting(Protocol):
    """What of ``odp.Connection`` is used here."""

    def submit(self, task: Any) -> Submitted:
        """As of ``Connection``."""

    def status(self, task_sha256: bytes) -> server_pb2.TaskStatus:
        """As of ``Connection``."""

    def model(self, status: server_pb2.TaskStatus) -> ModelVersion:
        """As of ``Connection``."""


@dataclass(frozen=True)
class _StoredTask:
    """A task as it was stored, which is submitted as often as it takes."""

    name: str
    content: bytes
    public_matrix: Float32Array | None

    def definition(self) -> common_pb2.TaskDefinition:
        return common_pb2.TaskDefinition.FromString(self.content)


class LivingModel:
    """One model of ratings, one schedule, one folder.

    Args:
      folder: made if it is not there; one living model each.
      task: what every training is made of: its name gets the number of the training, its budget is the schedule's.
      schedule: as at the first ``advance``; another one in the same folder is refused.
      item_keys: keys of the items of ``task``, in the order of their numbers, where devices know items by number.
      catalogue: the version of the population's catalogue that the next training is of, published already
        (``Connection.publish_catalogue``), in place of ``item_keys``: the items of ``task`` become its items.
      start: what the first training begins with.
      limits: of the devices, if they are not the default.

    Raises:
      ConfigurationError: items of the task's model cannot begin others, or the keys do not fit its items.
      PrivacyError: devices of these limits would decline a training of the schedule.
      StateError: the folder belongs to another schedule or population, or its state cannot be read.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        task: Task,
        schedule: Schedule,
        item_keys: Sequence[str] | None = None,
        catalogue: Catalogue | None = None,
        start: WarmStart | None = None,
        limits: DeviceLimits | None = None,
    ) -> None:
        if (item_keys is None) == (catalogue is None):
            raise ConfigurationError("Expected item_keys or catalogue: which items the model has")
        if task.count_usable is not None:
            raise ConfigurationError("Expected count_usable=None: the schedule's budget is of trainings alone")
        if catalogue is not None:
            model = replace(task.factorization, items=catalogue.items, catalogue=catalogue)
            task, item_keys = replace(task, model=model, population=task.population), catalogue.keys
        starting_for(task.definition())
        first = with_share(schedule, 0, task).definition()
        (limits or DeviceLimits()).check(schedule, coordinates=noised_coordinates(charges_of_task(first)))
        self._folder, self._task, self._schedule, self._start = Path(folder), task, schedule, start
        self._catalogue = catalogue
        self._keys = checked_keys(item_keys or (), name="item_keys")
        if len(self._keys) != task.factorization.items:
            raise ConfigurationError(
                f"Expected item_keys for {task.factorization.items} items of the task (got {len(self._keys)})"
            )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"cannot make the folder {self._folder}: {error.strerror}") from error
        self._state = self._read()

    def advance(self, connection: Submitting, *, now: float) -> Standing:
        """Takes what is finished, and begins the next training if it is due at ``now``, in seconds since 1970.

        Raises:
          BudgetExceeded: the next training would exceed the lifetime budget; it does not begin.
          ServiceError: the server does not answer; nothing is lost, and a later call goes on.
          StateError: another program works in the folder at this moment, or the folder cannot be read or written.
        """
        _validate.finite(now=now)
        with self._alone():
            return self._advance(connection, now)

    def _advance(self, connection: Submitting, now: float) -> Standing:
        trainings = self._state["trainings"]
        if trainings and trainings[-1]["began"] > now:
            # By a clock that was ahead: the next one is due after one period from now, and not from then.
            trainings[-1]["began"] = now
            self._write()
        if trainings and trainings[-1]["state"] == "submitting":
            self._submit_again(connection)
        words = self._collect(connection)
        if trainings and trainings[-1]["state"] == "training":
            return self._standing(Stage.TRAINING, words or f"training {len(trainings) - 1} goes on")
        if len(trainings) == self._schedule.trainings:
            return self._standing(Stage.COMPLETE, words or "all trainings of the schedule are done")
        due = self._due()
        if now < due:
            return self._standing(Stage.WAITING, words or f"training {len(trainings)} is not due")
        self._begin(now)
        self._submit(connection)
        began = f"training {len(trainings) - 1} began"
        if self._state["begin_with"] is not None and trainings[-1]["begun_with"] is None:
            began += ", from nothing: the release before tells nothing of these items"
        return self._standing(Stage.TRAINING, f"{words}; {began}" if words else began)

    def roll_back(self, training: int) -> None:
        """The next training begins with the items of ``training``, an earlier one, instead of the last one's.

        Also where a training is under way: its release, once it is collected, does not take the place of ``training``.
        What was spent stays spent. Idempotent.

        Raises:
          ConfigurationError: that training has no release, or was withdrawn.
          StateError: as ``advance``.
        """
        _validate.integer(training=training, low=0, high=2**31)
        with self._alone():
            self.start_of(training)
            self._state |= {"begin_with": training, "rolled_back": True}
            self._write()

    def withdraw(self, training: int, *, reason: str) -> tuple[int, ...]:
        """No training begins with the release of ``training`` any more; the next one takes the last that is left.

        What was spent stays spent, and what is public stays public. A training that began with it and that a step
        before has stored, and not submitted for all it knows, ends there. Idempotent; the first reason stays.

        Args:
          training: one with a release.
          reason: for whoever asks for it later; not empty.

        Returns:
          Later trainings that began with it, or with one of those: what was wrong with it may be in them, too.

        Raises:
          ConfigurationError: that training has no release, or the reason is empty.
          StateError: as ``advance``.
        """
        if not reason.strip():
            raise ConfigurationError(f"Expected reason={reason!r} to say why training {training} is withdrawn")
        with self._alone():
            trainings = self._state["trainings"]
            self._require_released(training)
            trainings[training].setdefault("withdrawn", reason)
            if self._state["begin_with"] == training:
                left = self._usable()
                self._state |= {"begin_with": left[-1] if left else None, "rolled_back": False}
            tainted = {training}
            for number in range(training + 1, len(trainings)):
                if trainings[number]["begun_with"] in tainted:
                    tainted.add(number)
            if trainings[-1]["state"] == "submitting" and len(trainings) - 1 in tainted:
                trainings[-1]["state"] = "ended"
            self._write()
            return tuple(sorted(tainted - {training}))

    def compared(self, connection: Submitting, first: int, second: int) -> dict[str, Any]:
        """Arguments of an ``odp.Evaluation`` that tests two versions on random halves of the population.

        ``odp.Evaluation(name=.., privacy=.., cohort=.., **living.compared(connection, 3, 4))`` is a task of its own.
        Its ε comes on top of the schedule's, in the same ledger. Of trainings of a catalogue, devices test the items of
        the later version of the two; what a training did not have yet, it predicts by the person's mean.

        Raises:
          ConfigurationError: one of them has no release or was withdrawn, their later catalogue version was, or they
            are of different scales, or, without a catalogue, of different items.
          ServiceError: the server does not answer.
          StateError: as ``advance``.
        """
        self._state = self._read()  # another program may have taken a step since
        trainings = []
        for number in (first, second):
            self._require_usable(number)
            keys = tuple(self._state["trainings"][number]["item_keys"])
            trainings.append(ReleasedTraining(number, self._stored_task(number).definition(), keys))
        data: Any = self._task.data
        comparison = Comparison.of(*trainings, data=data, catalogue=self._catalogue)
        ids = [bytes.fromhex(self._state["trainings"][number]["task_sha256"]) for number in (first, second)]
        of, against = comparison.vectors(*[connection.model(connection.status(sha256)) for sha256 in ids])
        return {
            "population": self._task.population,
            "model": comparison.model,
            "data": data,
            "of": of,
            "against": against,
        }

    def start_of(self, training: int) -> WarmStart:
        """The items that ``training`` released.

        Raises:
          ConfigurationError: it released none, or was withdrawn.
          StateError: its file is gone or damaged.
        """
        self._require_usable(training)
        try:
            return WarmStart.load(self._start_path(training))
        except DataError as error:
            raise StateError(f"{error}; restore the file from a backup, or withdraw training {training}") from error

    def _require_usable(self, training: int) -> None:
        self._require_released(training)
        if (reason := self._state["trainings"][training].get("withdrawn")) is not None:
            raise ConfigurationError(
                f"training {training} was withdrawn ({reason}) and begins no other; those that can: "
                f"{self._usable() or 'none'}"
            )

    def _require_released(self, training: int) -> None:
        trainings = self._state["trainings"]
        if not 0 <= training < len(trainings) or trainings[training]["state"] != "finished":
            released = [place for place, entry in enumerate(trainings) if entry["state"] == "finished"]
            raise ConfigurationError(f"training {training} has no release; those with one: {released or 'none'}")

    def _usable(self) -> list[int]:
        """Trainings with a release that was not withdrawn."""
        return [
            place
            for place, entry in enumerate(self._state["trainings"])
            if entry["state"] == "finished" and entry.get("withdrawn") is None
        ]

    @property
    def epsilon(self) -> float:
        """Of all trainings that were begun, per user, as if all their rounds were done."""
        spent = self._spent()
        return epsilon(spent, delta=self._schedule.delta) if spent else 0.0

    def _due(self) -> float:
        trainings = self._state["trainings"]
        # Counted from the last one and not from the first: after a pause, trainings do not come in a crowd.
        return trainings[-1]["began"] + days(every=self._schedule.every) * _DAY_SECONDS if trainings else 0.0

    def _begin(self, now: float) -> None:
        """Stores the next training before anybody hears of it."""
        trainings = self._state["trainings"]
        number, begin_with = len(trainings), self._state["begin_with"]
        if self._start_path(number).exists():
            raise StateError(
                f"{self._start_path(number)} says that training {number} was released, of which the state does not"
                " know: it is an old copy, and what was spent since would be forgotten; restore the newest copy"
            )
        start = self._start if begin_with is None else self.start_of(begin_with)
        if begin_with is not None and start is not None and not start.tells(self._keys):
            # Such as of a catalogue of which nothing is left: the model goes on, from nothing.
            start, begin_with = None, None
        model = self._task.factorization
        if start is not None:
            model = replace(model, start=start, item_keys=self._keys if self._catalogue is None else None)
        name = f"{self._task.name}-{number}"
        task, spent = replace(self._task, name=name, population=self._task.population, model=model), self._spent()
        task = with_share(self._schedule, number, task, spent=spent)
        definition = task.definition()
        payable(self._schedule, number, definition, spent)
        content = definition.SerializeToString(deterministic=True)
        if task.public_matrix is not None:
            _write_whole(self._matrix_path(number), task.public_matrix.astype("<f4").tobytes())
        _write_whole(self._task_path(number), content)
        trainings.append(
            {
                "state": "submitting",
                "began": now,
                "task_sha256": "",
                "definition_sha256": hashlib.sha256(content).hexdigest(),
                "columns": 0 if task.public_matrix is None else task.public_matrix.shape[1],
                "item_keys": list(self._keys),
                "begun_with": begin_with,
            }
        )
        self._state["rolled_back"] = False
        self._write()

    def _submit(self, connection: Submitting) -> None:
        number = len(self._state["trainings"]) - 1
        handle = connection.submit(self._stored_task(number))
        self._state["trainings"][number] |= {"state": "training", "task_sha256": handle.task_sha256.hex()}
        self._write()

    def _submit_again(self, connection: Submitting) -> None:
        """What a step that died left; a training whose catalogue version was withdrawn since then never begins."""
        number = len(self._state["trainings"]) - 1
        named = named_in(self._stored_task(number).definition())
        try:
            self._submit(connection)
        except ServiceError as error:
            if (
                error.code is not grpc.StatusCode.INVALID_ARGUMENT
                or self._catalogue is None
                or named is None
                or named.version not in self._catalogue.withdrawn
            ):
                raise
            self._state["trainings"][number]["state"] = "ended"
            self._write()

    def _collect(self, connection: Submitting) -> str:
        """Takes the release of the last training if it has ended. Returns what happened; empty for nothing."""
        trainings = self._state["trainings"]
        if not trainings or trainings[-1]["state"] != "training":
            return ""
        number, last = len(trainings) - 1, trainings[-1]
        status = connection.status(bytes.fromhex(last["task_sha256"]))
        if status.state in (server_pb2.TaskStatus.STATE_CANCELLED, server_pb2.TaskStatus.STATE_FAILED):
            last["state"] = "ended"
            self._write()
            return f"training {number} ended without a model: {status.failure or 'cancelled'}"
        if status.state != server_pb2.TaskStatus.STATE_FINISHED:
            return ""
        definition = self._stored_task(number).definition()
        start = starting_for(definition).warm_start(connection.model(status), last["item_keys"])
        _write_whole(self._start_path(number), start.to_bytes())
        last["state"] = "finished"
        # Whoever rolled back meant the next training, whatever ended in between.
        if not self._state.get("rolled_back"):
            self._state["begin_with"] = number
        self._write()
        return f"training {number} finished"

    def _standing(self, stage: Stage, words: str) -> Standing:
        trainings = self._state["trainings"]
        return Standing(
            stage=stage,
            training=len(trainings) - 1,
            task_sha256=trainings[-1]["task_sha256"] if trainings else "",
            due=None if len(trainings) == self._schedule.trainings else self._due(),
            epsilon=self.epsilon,
            words=words,
        )

    def _spent(self) -> Counter[Event]:
        spent: Counter[Event] = Counter()
        for number in range(len(self._state["trainings"])):
            spent.update(charges_of_task(self._stored_task(number).definition()))
        return spent

    def _stored_task(self, number: int) -> _StoredTask:
        stored = self._state["trainings"][number]
        try:
            content = self._task_path(number).read_bytes()
            matrix = None
            if stored["columns"]:
                flat = np.frombuffer(self._matrix_path(number).read_bytes(), dtype="<f4")
                matrix = flat.reshape(-1, stored["columns"]).astype(np.float32)
        except (OSError, ValueError) as error:
            raise StateError(f"cannot read training {number} in {self._folder}: {error}") from error
        if hashlib.sha256(content).hexdigest() != stored["definition_sha256"]:
            raise StateError(f"{self._task_path(number)} is not the task that was stored: restore it from a backup")
        return _StoredTask(common_pb2.TaskDefinition.FromString(content).name, content, matrix)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other programs out, such as a timer's next step, and reads what the last of them left."""
        path = self._folder / _LOCK
        try:
            file = path.open("ab")
        except OSError as error:
            raise StateError(f"cannot write {path}: {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StateError(f"another program works in {self._folder}; try again when it has ended") from error
            with state_errors(self._folder):
                remove_unfinished(self._folder)
            self._state = self._read()
            yield

    def _task_path(self, number: int) -> Path:
        return self._folder / f"training-{number}.task"

    def _matrix_path(self, number: int) -> Path:
        return self._folder / f"training-{number}.features"

    def _start_path(self, number: int) -> Path:
        return self._folder / f"training-{number}.npz"

    def _identity(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "schedule": asdict(self._schedule),
            "name": self._task.name,
            "population": self._task.population,
        }

    def _read(self) -> dict[str, Any]:
        return read_state(self._folder / _STATE, self._identity())

    def _write(self) -> None:
        _write_whole(self._folder / _STATE, json.dumps(self._state).encode())


def _write_whole(path: Path, content: bytes) -> None:
    """All or nothing, on the disk before it returns. Raises StateError."""
    with state_errors(path.parent):
        write_atomically(path, content, mode=0o666)
