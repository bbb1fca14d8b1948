"""Admission to a session of SecAgg+: one check per client, before the host stores anything about it."""

from __future__ import annotations

from odp.crypto import domains
from odp.errors import EnrolmentError
from odp.trust.enrolment.token_key import TOKEN_BYTES
from odp.v1 import secagg_service_pb2 as wire
from trusted_aggregator.modes.secagg.rounds import SecAggRounds


class WithToken:
    """Admits clients with a token over their identity under the round's key; everybody if the round has no key.

    This host is not trusted, and a client's devices cannot see whether it asks: docs/threat-model.md, R233.
    """

    def __init__(self, rounds: SecAggRounds) -> None:
        self._rounds = rounds

    def require(self, request: wire.StepRequest) -> None:
        """Returns if the client of this advert, which has no seat in a session yet, may take one.

        Args:
            request: its ``client`` names task, round, attempt and identity; its signature is checked after this.

        Raises EnrolmentError, and NotFound if the round is not open here.
        """
        client = request.client
        if (key := self._rounds.token_key((client.task_sha256, client.round))) is None:
            return
        if len(request.admission_token) != TOKEN_BYTES:
            raise EnrolmentError(f"the round admits clients with a token of its issuer alone, of {TOKEN_BYTES} bytes")
        if not key.admits(domains.session_token(client.identity), request.admission_token):
            raise EnrolmentError("the admission token is not one over this identity under the round's key")
