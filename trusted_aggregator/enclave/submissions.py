"""The part of the enclave that takes contributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from odp.crypto.signing import SigningKey
from odp.errors import Refusal
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import Refused, Sealed, Status
from trusted_aggregator.enclave.refusing import ClosedRounds, sign_closed, sign_judged
from trusted_aggregator.rounds.enclave_half import Round

#: (task_sha256, round) to a round in memory; otherwise the refusal for a contribution to it.
FindRound = Callable[[bytes, int], Round | Refusal]


class Submissions:
    """Routes each contribution to its round. Thread-safe.

    Args:
        signing: signs refusals that are final.
        find_round: for each contribution; called by any thread.
        closed: what is remembered of closed rounds.
    """

    def __init__(self, signing: SigningKey, find_round: FindRound, closed: ClosedRounds) -> None:
        self._signing = signing
        self._find_round = find_round
        self._closed = closed

    def submit(self, task_sha256: bytes, round: int, sealed: bytes, *, host_sha256: bytes = b"") -> Refusal | None:
        """Counts one sealed contribution, once; None means accepted: the host stores it before it acknowledges it."""
        found = self._find_round(task_sha256, round)
        if isinstance(found, Refusal):
            return found
        return found.submit([sealed], host_sha256=[host_sha256])[0]

    def submit_batch(self, submits: Sequence[Sealed]) -> list[Refused | None]:
        """``submit`` for each, in order within a round; signs refusals that are final."""
        answers: list[Refused | None] = [None] * len(submits)
        rounds: dict[tuple[bytes, int], list[int]] = {}
        for number, given in enumerate(submits):
            rounds.setdefault((given.task_sha256, given.round), []).append(number)
        for key, numbers in rounds.items():
            held = self._find_round(*key)
            some = [submits[number] for number in numbers]
            if isinstance(held, Refusal) or held.is_closed:
                found: Sequence[Refused | None] = [self.sign_refusal(one) for one in some]
            else:
                found = self._kept(held, some)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        return answers

    def sign_refusal(self, given: Sealed) -> Refused:
        """The refusal of a contribution to a closed round, signed if it did not count; keeps nothing.

        The first bytes of the sealed contribution are enough (``odp.crypto.refusals``).
        """
        key = given.task_sha256, given.round
        held = self._find_round(*key)
        closed = self._closed.find(key)
        # Also of an opening that a hand-over ended: to this enclave it is a round that is not open yet.
        refusal = held if isinstance(held, Refusal) else Refusal.ROUND_CLOSED
        if refusal is Refusal.WRONG_ROUND and closed is not None:
            refusal = Refusal.ROUND_CLOSED
        return Refused(refusal, sign_closed(self._signing, closed, refusal, given))

    def _kept(self, held: Round, given: Sequence[Sealed]) -> list[Refused | None]:
        judged = held.judge(
            [one.sealed_contribution for one in given], host_sha256=[wire.host_sha256(one) for one in given]
        )
        answers: list[Refused | None] = []
        for one, found, refusal in zip(given, judged, held.keep(judged), strict=True):
            if refusal is None:
                answers.append(None)
                continue
            # What ``keep`` refuses may count after a restart: it depends on what came before.
            final = isinstance(found, Refusal) and held.signs_refusals
            signature = sign_judged(self._signing, held, refusal, one) if final else b""
            answers.append(Refused(refusal, signature))
        return answers

    def sealed_bytes(self, task_sha256: bytes, round: int) -> int | Refusal:
        """Length of every well-formed sealed contribution to a round: the limit of what a host accepts.

        The refusal that each of them would meet where the round takes none.
        """
        found = self._find_round(task_sha256, round)
        if isinstance(found, Refusal):
            return found
        return found.sealed_bytes if found.status is Status.OPEN else Refusal.ROUND_CLOSED

    def host_part_bytes(self, task_sha256: bytes, round: int) -> int | Refusal:
        """Length of the host's part of each contribution, 0 if there is none; or the refusal."""
        found = self._find_round(task_sha256, round)
        if isinstance(found, Refusal):
            return found
        return found.host_part_bytes if found.status is Status.OPEN else Refusal.ROUND_CLOSED
