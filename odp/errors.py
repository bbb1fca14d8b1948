"""The exceptions of ODP, one class per thing that a caller can act on.

::

    OdpError
    ├── ConfigurationError      a value, file or flag is wrong: change it
    │   └── DataError           a data set is missing, malformed or out of its declared bounds
    ├── PrivacyError            a privacy rule forbids the request
    │   ├── BudgetExceeded      the ledger has too little ε left for this release
    │   └── PopulationFull      a population has as much under way as it may: what ends there makes room
    ├── NotNow                  the person's device rests: paused, or a training condition does not hold
    ├── AttestationError        evidence of an enclave was not accepted: nothing was sent
    │   └── AddressRefused          a server names an address that the person did not pin: nothing was connected to
    ├── TransparencyError       the transparency log, or what it has to hold, was not accepted: nothing was sent
    ├── EnrolmentError          a token that says "one device, this round" was not given, or cannot be asked for
    ├── ContributionRefused     the enclave refused a contribution, with a reason of a closed set
    ├── ServiceError            another party answered with an error
    │   ├── StaleModel          the model's version is not served any more: check in again
    │   └── ServiceUnavailable  another party could not be reached, or did not answer in time
    │       ├── Busy              it has more callers than it can serve: come back within its retry window
    │       └── CertificateError  its TLS certificate is not one that the caller trusts
    └── StateError              a state folder cannot be used: locked, full, corrupt or of another version
        ├── DiskFull            there is no room for what has to be stored: free some, then start again
        ├── OutOfResources      this machine has no memory, thread or open file left for a call: free some, then retry
        ├── DiskFailed          the disk did not store what it was given: the program has to end; start it again
        ├── StoreUnreachable    a database does not answer, or is locked: the program waits for it, and goes on
        └── StoreDamaged        a device's store holds bytes that were not written so: repair it, or restore a backup

A caller writes::

    try:
        odp.connect("localhost:7100").submit(task)
    except odp.errors.ServiceUnavailable as error:
        print(error)          # one line: what was wrong, where, what to do
"""

from __future__ import annotations

import enum

#: What callers of ``import odp`` catch; the others are more exact, and each is one of these.
__all__ = [
    "AttestationError",
    "BudgetExceeded",
    "ConfigurationError",
    "ContributionRefused",
    "DataError",
    "DiskFull",
    "OdpError",
    "PrivacyError",
    "ServiceError",
    "ServiceUnavailable",
    "StateError",
]


class OdpError(Exception):
    """Root of all errors that ODP raises on purpose; ``str(error)`` is one line for a person."""


class ConfigurationError(OdpError, ValueError):
    """A value, file or flag is wrong; the message names it, what would be valid, and where it stands."""


class DataError(ConfigurationError):
    """A data set is missing, malformed, or holds values outside its declared bounds."""


class PrivacyError(OdpError):
    """A privacy rule forbids the request; the message names the rule's limit and the asked value."""


class BudgetExceeded(PrivacyError):
    """A release would exceed a privacy budget; nothing was spent.

    The message holds spent, asked and budgeted ε, and the number of rounds that would still fit.
    """


class PopulationFull(PrivacyError):
    """A population has as much under way as it may; nothing is wrong with the task, and what ends there makes room."""


class NotNow(OdpError):
    """The person's device does not take part at this time; later it may. ``names`` says by what, the message why."""

    def __init__(self, message: str, *names: str) -> None:
        super().__init__(message)
        self.names = names


class AttestationError(OdpError):
    """Evidence of an enclave was not accepted, so nothing was sent to it; ``reason`` says which check failed."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"evidence refused ({reason}): {message}")
        self.reason = reason


class AddressRefused(AttestationError):
    """A server names an address that the person did not pin, or one that they did not allow: nothing was sent there."""

    def __init__(self, message: str) -> None:
        OdpError.__init__(self, message)
        self.reason = "address"


class TransparencyError(OdpError):
    """The transparency log, or something that has to be in it, was not accepted; ``reason`` says which check failed.

    ``passes``: it would be accepted at another time of day, so that a clock that is set right again may end it.
    """

    def __init__(self, reason: str, message: str, *, passes: bool = False) -> None:
        super().__init__(f"transparency log refused ({reason}): {message}")
        self.reason = reason
        self.passes = passes


class EnrolmentError(OdpError):
    """The issuer of tokens does not count the device, or gave it the round's token already: it takes no part."""


class Refusal(enum.Enum):
    """Why an enclave refused a contribution: a closed set, so that a reason cannot carry data.

    The values are the numbers of ``odp.v1.Refusal``.
    """

    MALFORMED = 1
    WRONG_TASK = 2
    WRONG_ROUND = 3
    WRONG_MODEL = 4
    ALREADY_CONTRIBUTED = 5
    OUT_OF_BOUNDS = 6
    ROUND_CLOSED = 7
    TASK_ABANDONED = 8
    NO_TOKEN = 9
    NOT_DUE = 10
    WRONG_LEAF = 11


class ContributionRefused(OdpError):
    """The aggregator's enclave refused a contribution; ``refusal`` is one of a closed set of codes."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"contribution refused: {refusal.name}")
        self.refusal = refusal


class ServiceError(OdpError):
    """Another party answered with an error; the message carries its one line, ``code`` its grpc.StatusCode.

    ``unforeseen`` says that the other party met an error that nobody foresaw: most likely it will again.
    """

    code: object = None
    unforeseen: bool = False


class ServiceUnavailable(ServiceError):
    """Another party could not be reached at its address, or did not answer before the deadline."""


class StaleModel(ServiceError):
    """The version of a model or table is not served any more: newer ones replaced it; check in again."""


class Busy(ServiceUnavailable):
    """Another party has more callers than it can serve now: come back in ``low_seconds`` to ``high_seconds``."""

    def __init__(self, message: str, low_seconds: float, high_seconds: float) -> None:
        super().__init__(message)
        self.low_seconds = low_seconds
        self.high_seconds = high_seconds


class CertificateError(ServiceUnavailable):
    """A TLS certificate does not descend from the pinned CA, or is for another name: nothing was sent."""


class StateError(OdpError):
    """A state folder cannot be used: locked by another program, disk full, corrupt, or of another version."""


class DiskFull(StateError):
    """The disk has no room for what has to be stored; nothing was lost. It concerns all files of that disk."""


class OutOfResources(StateError):
    """This machine has no memory, thread, open file or disk space left for a call, which may succeed later.

    Nothing was found out about what the call was to open.
    """


class DiskFailed(StateError):
    """The disk did not store what it was given: only a new start of the program tells what it has."""


class StoreUnreachable(StateError):
    """A database does not answer, ended the connection, or is locked; the same call may succeed later."""


class StoreDamaged(StateError):
    """A device's store holds bytes that nobody wrote so; what it spent is never taken for nothing."""
