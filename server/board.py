"""The answers to devices that check in or ask for a model, ready to be sent.

Either is one dictionary look-up: 10^4 check-ins arrive per round, and all that a device names is its population. The
answers are messages built once per change of a round, when the driver or an operator calls ``refresh``.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from odp.signed.task import task_sha256
from odp.v1 import common_pb2, enrolment_pb2, log_pb2, population_pb2, server_pb2
from server.local.desk import Desk
from server.storage import OpenRound, PublishedModel, Storage

_CHANCE = random.SystemRandom()

#: Seconds until a device comes back: a round of its population has just closed, and the next one opens in a moment.
NEXT = (0, 1)
#: A task of its population is between two rounds, and has been for longer than ``NEXT_SECONDS``.
SOON = (1, 2)
#: Opening the next round takes less than a second, or as long as a party that is away takes to come back.
NEXT_SECONDS = 3.0
#: Its population has no active task, or its task is paused.
LATER = (30, 60)

_SignedCharter = population_pb2.SignedCharter
TokenKeyOf = Callable[[common_pb2.SignedTask, int], enrolment_pb2.SignedTokenKey | None]
Charters = Callable[[str], _SignedCharter | None]
Proofs = Callable[
    [common_pb2.SignedTask, common_pb2.SignedManifest | None, _SignedCharter | None], log_pb2.LogProof | None
]


class Addresses(NamedTuple):
    """Where devices find the other services, each host:port; ``leaves`` in the order of their tree.

    ``distributors`` gives those of a task (its SHA-256), one or more: devices are told them in turn.
    """

    distributors: Callable[[bytes], Sequence[str]]

    aggregator: str
    issuer: str = ""
    leaves: tuple[str, ...] = ()


class Board:
    """Answers to devices, by population. Thread-safe."""

    def __init__(
        self,
        storage: Storage,
        *,
        addresses: Addresses,
        charter: Charters | None = None,
        proof: Proofs | None = None,
        token_key: TokenKeyOf | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        desk: Desk | None = None,
    ) -> None:
        """Devices will connect to ``addresses``.

        ``charter`` gives the charter in force of a population, and ``proof`` the log's proofs of a task, a model and a
        charter; ``token_key`` the key of a round's tokens, which devices get at the issuer. Each gives None
        where there is none. ``desk`` has the open tasks of local trust.
        """
        self._desk = desk
        self._token_key: TokenKeyOf = token_key if token_key is not None else lambda task, round: None
        self._addresses = addresses
        self._charter: Charters = charter if charter is not None else lambda population: None
        self._proof: Proofs = proof if proof is not None else lambda task, model, charter: None
        self._storage = storage
        self._lock = threading.Lock()
        self._answers: Mapping[str, Sequence[server_pb2.CheckInResponse]] = {}
        self._models: Mapping[tuple[str, bool], Sequence[server_pb2.GetModelResponse]] = {}
        self._read: tuple[list[OpenRound], list[PublishedModel]] = [], []
        self._model_turn = itertools.count()
        self._left: dict[str, list[server_pb2.CheckInResponse]] = {}
        self._monotonic = monotonic
        self._paused, self._soon, self._next = map(_retry, (LATER, SOON, NEXT))
        self._without_task = _retry(LATER)
        self._without_task.retry.without_task = True
        # Of populations between two rounds, when the round closed; none where this server did not see it open.
        self._closed_at: dict[str, float] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reads open rounds and published models again; call it after every change of one."""
        # The lock keeps a slow reader from putting its older answers over newer ones.
        with self._lock:
            self._rebuild(self._storage.open_rounds(), self._storage.published_models())

    def refresh_if_changed(self) -> None:
        """As ``refresh`` where another server changed something; two queries where none did."""
        with self._lock:
            rounds, models = self._storage.open_rounds(), self._storage.published_models()
            if (rounds, models) != self._read:
                self._rebuild(rounds, models)

    def _rebuild(self, rounds: list[OpenRound], published: list[PublishedModel]) -> None:
        answers: dict[str, list[server_pb2.CheckInResponse]] = {}
        waiting: set[str] = set()
        paused: set[str] = set()
        for entry in rounds:
            if entry.paused and entry.round is None:
                paused.add(entry.population)
            elif self._desk is not None and self._desk.is_open(task_sha256(entry.task)):
                answers.setdefault(entry.population, []).append(self._local(entry, self._desk))
            elif entry.round is None:
                waiting.add(entry.population)
            else:
                answers.setdefault(entry.population, []).extend(self._assignments(entry))
        now, closed_at = self._monotonic(), {}
        for population in waiting - answers.keys():
            if any(answer.HasField("assignment") for answer in self._answers.get(population, ())):
                closed_at[population] = now
            elif population in self._closed_at:
                closed_at[population] = self._closed_at[population]
            answers[population] = [self._soon]
        answers.update({population: [self._paused] for population in paused - answers.keys()})
        self._closed_at = closed_at
        models = {(entry.population, entry.of_examples): self._published(entry) for entry in published}
        self._left = {}
        self._answers, self._models, self._read = answers, models, (rounds, published)

    def knows(self, population: str) -> bool:
        """Whether a population has an active task."""
        return population in self._answers

    def answer(self, population: str) -> server_pb2.CheckInResponse:
        """An open task of ``population``, each in turn; or a retry window.

        The order is new each time. In a fixed one, two callers that take turns themselves would each see the same task
        for ever, of which one may be none that it takes part in.
        """
        if (answers := self._answers.get(population)) is None:
            return self._without_task
        closed_at = self._closed_at.get(population)
        if closed_at is not None and self._monotonic() - closed_at < NEXT_SECONDS:
            return self._next
        if len(answers) == 1:
            return answers[0]
        left = self._left.setdefault(population, [])
        try:
            return left.pop()
        except IndexError:
            chosen, *rest = _CHANCE.sample(answers, len(answers))
            left.extend(rest)
            return chosen

    def model(self, population: str, *, of_examples: bool = False) -> server_pb2.GetModelResponse | None:
        """The newest published model of ``population`` that predicts of examples, or that scores items; or None."""
        models = self._models.get((population, of_examples))
        return None if models is None else models[next(self._model_turn) % len(models)]

    def _published(self, entry: PublishedModel) -> list[server_pb2.GetModelResponse]:
        charter = self._charter(entry.population)
        log = self._proof(entry.task, entry.model, charter)
        return [
            server_pb2.GetModelResponse(
                task=entry.task, model=entry.model, distributor_address=distributor, log=log, charter=charter
            )
            for distributor in self._addresses.distributors(task_sha256(entry.task))
        ]

    def _local(self, entry: OpenRound, desk: Desk) -> server_pb2.CheckInResponse:
        charter = self._charter(entry.population)
        proof = self._proof(entry.task, None, charter)
        local = server_pb2.LocalAssignment(task=entry.task, log=proof, charter=charter)
        if (admission := desk.admission(task_sha256(entry.task))) is not None:
            local.token_key.CopyFrom(admission.token_key or enrolment_pb2.SignedTokenKey())
            local.issuer_address, local.period = self._addresses.issuer, admission.period
        return server_pb2.CheckInResponse(local=local)

    def _assignments(self, entry: OpenRound) -> Iterator[server_pb2.CheckInResponse]:
        """One for each distributor."""
        charter = self._charter(entry.population)
        token_key = None if entry.round is None else self._token_key(entry.task, entry.round)
        log = None if entry.model is None else self._proof(entry.task, entry.model, charter)
        for distributor in self._addresses.distributors(task_sha256(entry.task)):
            yield server_pb2.CheckInResponse(
                assignment=server_pb2.Assignment(
                    task=entry.task,
                    round=entry.round,
                    model=entry.model,
                    distributor_address=distributor,
                    aggregator_address=self._addresses.aggregator,
                    log=log,
                    charter=charter,
                    round_key=entry.round_key,
                    token_key=token_key,
                    issuer_address="" if token_key is None else self._addresses.issuer,
                    leaf_addresses=self._addresses.leaves,
                )
            )


def _retry(window: tuple[int, int]) -> server_pb2.CheckInResponse:
    return server_pb2.CheckInResponse(retry=server_pb2.RetryWindow(min_seconds=window[0], max_seconds=window[1]))
