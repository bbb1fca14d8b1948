"""A whole SecAgg+ session in one process, step by step, with clients that vanish where a test says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.server import Server
from odp.crypto.secure_aggregation.session import Configuration
from odp.crypto.signing import SigningKey
from odp.v1 import secure_aggregation_pb2 as messages

#: The messages of a client, in order.
STEPS = ("advertise", "reveal", "share", "masked", "agree", "unmask")


def config(**changes: Any) -> bytes:
    values = {
        "task_sha256": bytes(32), "round": 1, "model_sha256": b"m" * 32, "length": 5, "bits": 32, "bound": 1000,
        "maximum": 200, "minimum": 3, "corrupt": 0.1, "dropout": 0.3, "lying_server": False, "attempt": 0,
    }  # fmt: skip
    return messages.SecAggConfig(**{**values, **changes}).SerializeToString(deterministic=True)


class Round:
    """``clients`` clients with random vectors; ``gone`` maps a step to the clients that vanish before it."""

    def __init__(
        self, clients: int, *, seed: int = 0, gone: Mapping[str, Collection[int]] | None = None, **changes: Any
    ) -> None:
        rng = np.random.default_rng(seed)
        self.configuration = Configuration.open(config(**changes))
        random: Callable[[int], bytes] = rng.bytes
        identities = [SigningKey.from_bytes(rng.bytes(32)) for _ in range(clients)]
        self.roster = {identity.public for identity in identities}
        self.clients = [
            Client(self.configuration, identity, roster=self.roster, random_bytes=random) for identity in identities
        ]
        bound = self.configuration.ring.bound
        self.vectors = rng.integers(-bound, bound, (clients, self.configuration.length), endpoint=True)
        self.server = Server(self.configuration, roster=self.roster)
        self.gone = gone or {}
        self.here = list(range(clients))
        self.adverts: messages.SecAggAdverts
        self.reveals: messages.SecAggReveals
        self.inboxes: dict[int, messages.SecAggInbox]
        self.survivors: messages.SecAggSurvivors
        self.agreements: dict[int, messages.SecAggAgreements]

    def _remaining(self, step: str) -> list[int]:
        self.here = [number for number in self.here if number not in self.gone.get(step, ())]
        return self.here

    def advertise(self) -> None:
        for number in self._remaining("advertise"):
            self.server.advertise(self.clients[number].advert)
        # From here on, a client's number is its place in the session.
        self.clients = [self.clients[number] for number in self.here]
        self.vectors = self.vectors[self.here]
        self.here = list(range(len(self.clients)))
        self.adverts = self.server.close_adverts()

    def reveal(self) -> None:
        for number in self._remaining("reveal"):
            self.server.reveal(number, self.clients[number].reveal(self.adverts))
        self.reveals = self.server.close_reveals()

    def share(self) -> None:
        for number in self._remaining("share"):
            self.server.share(number, self.clients[number].share(self.reveals))
        self.inboxes = self.server.close_shares()

    def masked(self) -> None:
        for number in self._remaining("masked"):
            self.server.masked(number, self.clients[number].mask(self.inboxes[number], self.vectors[number]))
        self.survivors = self.server.close_masked()

    def agree(self) -> None:
        for number in self._remaining("agree"):
            self.server.agree(number, self.clients[number].agree(self.survivors))
        self.agreements = self.server.close_agreements()

    def unmask(self) -> None:
        for number in self._remaining("unmask"):
            self.server.unmask(number, self.clients[number].unmask(self.agreements[number]))

    def until(self, step: str) -> Round:
        """Runs everything before ``step``."""
        for name in STEPS[: STEPS.index(step)]:
            getattr(self, name)()
        return self

    def sum(self) -> npt.NDArray[np.int64]:
        """Runs everything, and gives the server's sum."""
        for name in STEPS:
            getattr(self, name)()
        return self.server.finish()


@pytest.fixture(scope="session")
def make_round() -> type[Round]:
    """The class of whole sessions."""
    return Round


@pytest.fixture(scope="session")
def make_config() -> Callable[..., bytes]:
    """Serialized configurations."""
    return config
