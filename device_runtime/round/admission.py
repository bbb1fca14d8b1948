"""A device's token of a round, from the issuer in the population's charter, before any data are read.

The calls are the same for every device, whatever its data: a challenge, then a statement about a blinded message. What
the issuer learns is which device asks for a token of which round; it cannot recognise the token later. That a device
gets none is a public fact: it takes no part now, and tries again.

A request follows from the device's secret, so a device that died asks for the same again and gets the same token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from device_runtime.network.services import Services, Traffic
from device_runtime.tasks.assignment import Work
from device_runtime.tasks.local_assignment import Offered
from odp.crypto import domains
from odp.crypto.signing import SigningKey
from odp.errors import EnrolmentError
from odp.signed.charter import Charter
from odp.trust.enrolment.attesters.emulated import EmulatedVendor
from odp.trust.enrolment.attesters.roster import RosterAttester
from odp.trust.enrolment.attesters.seam import Attester
from odp.trust.enrolment.token_key import TokenKey, open_token_key
from odp.trust.enrolment.tokens import TokenRequest
from odp.v1 import enrolment_pb2

#: What a round without an issuer asks for.
NO_TOKEN = b""
#: From a device's secret (32 bytes) to how it shows that it is a device.
MakeAttester = Callable[[bytes], Attester]


def attesters_of(
    *, emulated_vendor: Path | None, on_roster: bool, clock: Callable[[], float] = time.time
) -> tuple[MakeAttester, ...]:
    """The ways in which the devices of a host can show that they are some, best first.

    Args:
      emulated_vendor: folder of an emulated vendor, which vouches for whoever can read it.
      on_roster: whether the devices stand on a roster with the keys of ``odp device roster``.
      clock: seconds since the epoch.

    Raises:
      StateError: the vendor's files cannot be used.
    """
    made: list[MakeAttester] = []
    if on_roster:
        made.append(lambda secret: RosterAttester(SigningKey.from_bytes(domains.secagg_identity(secret, bytes(32)))))
    if emulated_vendor is not None:
        made.append(EmulatedVendor.open(emulated_vendor, clock=clock).device)
    return tuple(made)


@dataclass(frozen=True)
class Admission:
    """Gets tokens for the devices of a host; holds nothing of any device; thread-safe.

    Args:
      services: where the issuer is asked.
      attesters: see ``attesters_of``; none where rounds that ask for tokens are not for these devices.
      clock: seconds since the epoch.
    """

    services: Services
    attesters: Sequence[MakeAttester] = ()
    clock: Callable[[], float] = field(default=time.time)

    def contribution_token(self, work: Work, secret: bytes, traffic: Traffic) -> bytes:
        """The token of the device's contribution to ``work``; empty where it asks for none. Raises as ``token``."""
        contribution_id = domains.contribution_id(secret, work.model.task_sha256, work.round)
        return self.token(work, domains.contribution_token(contribution_id), secret, traffic)

    def session_token(self, work: Work, identity: bytes, secret: bytes, traffic: Traffic) -> bytes:
        """The token of a client of SecAgg+, the same in all attempts of ``work``. Raises as ``token``.

        ``identity`` is the client's public key, 32 bytes.
        """
        return self.token(work, domains.session_token(identity), secret, traffic)

    def token(self, work: Offered, message: bytes, secret: bytes, traffic: Traffic) -> bytes:
        """The token (256 bytes) over ``message``; empty where the population's charter names no issuer.

        The charter was found to be in force. Nothing was asked of the issuer where the round's key is not its own.

        Raises:
          EnrolmentError: the key is missing or not the issuer's, it has expired, the device has no attester that the
            issuer accepts, or the issuer refuses.
          AddressRefused: the issuer is not where the person pinned it.
          SignatureError: the issuer did not sign what it was asked to.
          ServiceError, ServiceUnavailable: it does not answer.
        """
        issuer_key = b"" if work.charter is None else work.charter.issuer_key
        if not issuer_key:
            if work.token_key is not None:
                raise EnrolmentError("the server gave a token key for a population whose charter names no issuer")
            return NO_TOKEN
        key = _checked_key(work, issuer_key)
        self.services.require_pinned(issuer=work.issuer)
        if not self.attesters:
            raise EnrolmentError(
                "the population admits devices with a token, and these devices have no way to show that they are some: "
                "pin a roster that they stand on (--roster), or name an emulated vendor in the reference values"
            )
        request = TokenRequest.of(key, message, issuer_key=issuer_key, secret=secret, now=self.clock())
        challenge = self.services.enrolment_challenge(work.issuer, traffic)
        answer = request.answer(challenge, self._attester(secret, challenge))
        return request.token(self.services.issue_token(work.issuer, answer, traffic))

    def _attester(self, secret: bytes, challenge: enrolment_pb2.GetChallengeResponse) -> Attester:
        """The first that the issuer accepts; where it accepts none, the first, which then says so."""
        made = [make(secret) for make in self.attesters]
        return next((attester for attester in made if attester.kind in challenge.attesters), made[0])


def _checked_key(work: Offered, issuer_key: bytes) -> TokenKey:
    """The round's key, under the signature of the issuer that the charter names."""
    charter: Charter | None = work.charter
    if charter is None or work.token_key is None:
        raise EnrolmentError("the population names an issuer of tokens, and the server gave no token key of the round")
    return open_token_key(
        work.token_key,
        issuer_key=issuer_key,
        population=charter.population,
        task_sha256=work.task_sha256,
        round=work.round,
    )
