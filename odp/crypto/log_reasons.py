"""The reasons for which a transparency log, or a proof from it, is refused: a closed set, one member per check."""

from __future__ import annotations

import enum

from odp.errors import TransparencyError


class LogReason(enum.StrEnum):
    """Members equal their strings."""

    #: Not of the expected form.
    MALFORMED = "malformed"
    #: No proof came with an answer that needs one.
    MISSING = "missing"
    #: A checkpoint of another log.
    WRONG_ORIGIN = "wrong_origin"
    #: Not signed by a pinned key of the log, or a signature by one does not verify.
    WRONG_LOG_KEY = "wrong_log_key"
    BAD_SIGNATURE = "bad_signature"
    #: Fewer pinned witnesses have cosigned than the quorum asks for.
    WITNESS_QUORUM = "witness_quorum"
    #: Nobody vouched for the checkpoint recently enough, or somebody did in the future.
    STALE = "stale"
    NOT_YET_VALID = "not_yet_valid"
    #: The log had more entries before.
    SHRUNK = "shrunk"
    #: One size, two trees.
    SPLIT_VIEW = "split_view"
    #: The tree does not continue the one that was seen before.
    INCONSISTENT = "inconsistent"
    #: A proof does not lead from the wanted entry to the checkpoint.
    NOT_INCLUDED = "not_included"
    #: No endorsement in the log covers the enclave's role, code and policy at this time, by a pinned endorser.
    NOT_ENDORSED = "not_endorsed"
    WITHDRAWN = "withdrawn"


def refused(reason: LogReason, message: str, *, passes: bool = False) -> TransparencyError:
    """The error for one of the reasons; ``passes`` as in ``TransparencyError``."""
    return TransparencyError(reason.value, message, passes=passes)
