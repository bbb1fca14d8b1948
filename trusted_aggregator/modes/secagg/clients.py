"""What a session of SecAgg+ holds of its clients, and the messages that they send and get."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from odp.crypto.secure_aggregation.server import Stage
from odp.v1 import secagg_service_pb2 as wire, secure_aggregation_pb2 as messages

#: The retry time of clients of a void session.
RETRY_SECONDS = 2

Message = (
    messages.SecAggAdvert
    | messages.SecAggReveal
    | messages.SecAggShares
    | messages.SecAggMasked
    | messages.SecAggAgreement
    | messages.SecAggUnmask
)
STAGES: dict[type, Stage] = {
    messages.SecAggAdvert: Stage.ADVERTS,
    messages.SecAggReveal: Stage.REVEALS,
    messages.SecAggShares: Stage.SHARES,
    messages.SecAggMasked: Stage.MASKED,
    messages.SecAggAgreement: Stage.AGREEMENTS,
    messages.SecAggUnmask: Stage.UNMASKS,
}
ORDER = list(STAGES.values())


class Phase(enum.Enum):
    """The phases of a session, as its round sees them."""

    RUNNING = "running"
    READY = "ready"  # its survivors are known and agreed; nothing is charged
    UNMASKING = "unmasking"
    OVER = "over"
    VOID = "void"


@dataclass
class Member:
    """A client with a seat; ``number`` is -1 before the session begins."""

    token: bytes
    advert: messages.SecAggAdvert
    seen: float
    last: Stage = Stage.ADVERTS
    address: str = ""
    number: int = -1
    left: bool = False


@dataclass
class Told:
    """The server's messages at the end of each stage."""

    adverts: wire.StepResponse | None = None
    reveals: wire.StepResponse | None = None
    survivors: wire.StepResponse | None = None
    inboxes: dict[int, messages.SecAggInbox] = field(default_factory=dict)
    agreements: dict[int, messages.SecAggAgreements] = field(default_factory=dict)


def place_of(stage: Stage) -> int:
    """The place of a stage in the order of stages."""
    return ORDER.index(stage)


def ended(reason: wire.SecAggEnd.Reason) -> wire.StepResponse:
    """The answer to a client for which the session is over."""
    return wire.StepResponse(end=wire.SecAggEnd(reason=reason, retry_seconds=RETRY_SECONDS))
