"""How often, and how far apart, one user may take part in a stream; and the record that refuses everything else.

The noise of a stream is not charged by the round: its sensitivity is a maximum over the rounds that one user can be in.
So the two numbers that it is computed from are enforced, by the enclave and by the device (rule P27).

Source: Choquette-Choo et al. 2023, "Multi-epoch matrix factorization mechanisms for private machine learning"
(b-min-separation), Kairouz et al. 2021, "Practical and private (deep) learning without sampling or shuffling".
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

from odp import _validate
from odp.errors import PrivacyError, StateError

MOST_ROUNDS = 2**20

_HEADER = struct.Struct("<4sIIIQ")  # magic, rounds, most, separation, participants
_MAGIC = b"OPR1"
_ENTRY = struct.Struct("<III")  # count, last round, least distance (0: none yet)
_ID_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Participation:
    """At most ``most`` of ``rounds`` rounds per user, any two of them at least ``separation`` apart.

    Rounds i < j are j - i apart: with a separation of 1, a user may be in every round, and with 2 in every second.

    Raises:
        ConfigurationError: a number is out of range.
    """

    rounds: int
    most: int
    separation: int

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=MOST_ROUNDS, rounds=self.rounds)
        _validate.integer(low=1, high=self.rounds, most=self.most, separation=self.separation)

    @property
    def largest(self) -> int:
        """The most rounds that a user can really be in: ``most``, or what the separation leaves."""
        return min(self.most, -(-self.rounds // self.separation))

    def until(self, rounds: int) -> Participation:
        """The same rule for the first ``rounds`` rounds."""
        return Participation(rounds=rounds, most=min(self.most, rounds), separation=min(self.separation, rounds))


class ParticipationRecord:
    """Who was in which rounds of one stream, as far as the rule needs it: per user a count and the last round.

    It grows by 44 bytes per user that took part, and never shrinks: a user that is forgotten could come back. It is as
    secret as the contributions, and belongs to the sealed state of the stream.

    Args:
        allowed: the rule of the stream.
    """

    def __init__(self, allowed: Participation) -> None:
        self.allowed = allowed
        self._users: dict[bytes, tuple[int, int, int]] = {}

    def __len__(self) -> int:
        """Number of users that took part."""
        return len(self._users)

    def admits(self, user: bytes, round: int) -> bool:
        """Whether the user may be in ``round``, given the rounds on record."""
        if not 0 <= round < self.allowed.rounds:
            return False
        count, last, _ = self._users.get(user, (0, -self.allowed.separation, 0))
        return count < self.allowed.most and round - last >= self.allowed.separation

    def record(self, round: int, users: Collection[bytes]) -> None:
        """Puts the users of one round on record: all of them, or none where one may not take part.

        Args:
            round: of the stream, from 0; not before one on record.
            users: 32-byte pseudonyms of the task, pairwise distinct.

        Raises:
            ConfigurationError: a round out of range, a pseudonym of another length, or one twice.
            PrivacyError: a user was in too many rounds, or in one too close; the message says how many users.
        """
        _validate.integer(low=0, high=self.allowed.rounds - 1, round=round)
        if any(len(user) != _ID_BYTES for user in users) or len(set(users)) != len(users):
            _validate.integer(low=len(users), high=len(users), distinct_pseudonyms=len(set(users)))
            _validate.integer(low=_ID_BYTES, high=_ID_BYTES, bytes_of_pseudonym=min(map(len, users)))
            _validate.integer(low=_ID_BYTES, high=_ID_BYTES, bytes_of_pseudonym=max(map(len, users)))
        refused = sum(not self.admits(user, round) for user in users)
        if refused:
            raise PrivacyError(
                f"{refused} of {len(users)} contributions to round {round} are refused: a user takes part at most "
                f"{self.allowed.most} times, at least {self.allowed.separation} rounds apart"
            )
        for user in users:
            count, last, least = self._users.get(user, (0, round, 0))
            apart = round - last
            nearest = apart if not least else min(least, apart)
            self._users[user] = (count + 1, round, nearest if count else 0)

    def after(self, round: int, users: Collection[bytes]) -> ParticipationRecord:
        """A copy with the users of one round on record. Raises as ``record``."""
        copy = ParticipationRecord(self.allowed)
        copy._users = dict(self._users)
        copy.record(round, users)
        return copy

    @property
    def observed_most(self) -> int:
        """The most rounds that any user was in; 0 before the first. It is about users: to be charged if published."""
        return max((count for count, _, _ in self._users.values()), default=0)

    @property
    def observed_separation(self) -> int | None:
        """The least distance of two rounds of one user, as secret as that; None where nobody came twice."""
        return min((least for _, _, least in self._users.values() if least), default=None)

    def to_bytes(self) -> bytes:
        """Everything, in an order that tells nothing but the pseudonyms'."""
        rule = self.allowed
        parts = [_HEADER.pack(_MAGIC, rule.rounds, rule.most, rule.separation, len(self._users))]
        parts += [user + _ENTRY.pack(*self._users[user]) for user in sorted(self._users)]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, allowed: Participation, data: bytes) -> ParticipationRecord:
        """The record that ``to_bytes`` wrote. Raises StateError for other bytes, or those of another rule."""
        wanted = (_MAGIC, allowed.rounds, allowed.most, allowed.separation)
        header = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (b"", 0, 0, 0, 0)
        width = _ID_BYTES + _ENTRY.size
        if header[:4] != wanted or len(data) != _HEADER.size + header[4] * width:
            raise StateError("The record of participations is of another stream, or was cut: restore a backup")
        record = cls(allowed)
        for start in range(_HEADER.size, len(data), width):
            user = data[start : start + _ID_BYTES]
            count, last, least = _ENTRY.unpack_from(data, start + _ID_BYTES)
            record._users[user] = (count, last, least)
        return record
