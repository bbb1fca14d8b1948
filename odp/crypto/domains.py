"""Every domain string of ``odp.v1``, and the byte strings that are built from them.

A signature, a ciphertext or an identifier made for one purpose must be worthless for any other. So each purpose has an
ASCII domain string in front of what is signed, bound or hashed, and every variable part behind it has a fixed length:
no two different inputs give the same bytes.
"""

from __future__ import annotations

import hashlib
import hmac

from odp import _validate
from odp.errors import ConfigurationError

TASK = b"odp/v1/task"
MANIFEST = b"odp/v1/manifest"
OPEN = b"odp/v1/open"
CLOSE = b"odp/v1/close"
RELEASE = b"odp/v1/release"
LEDGER = b"odp/v1/ledger"
REPORT = b"odp/v1/report"
ENDORSEMENT = b"odp/v1/endorsement"
WITHDRAWAL = b"odp/v1/withdrawal"
CHARTER = b"odp/v1/charter"
CATALOGUE = b"odp/v1/catalogue"
ABANDON = b"odp/v1/abandon"
ROUND_KEY = b"odp/v1/round-key"
VOIDED_KEY = b"odp/v1/voided-key"
REFUSAL = b"odp/v1/refusal"
HAND_OVER = b"odp/v1/hand-over/statement"
HAND_OVER_PACKAGE = b"odp/v1/hand-over/package"
DELEGATION = b"odp/v1/delegation/order"

HAND_OVER_KEY = b"odp/v1/hand-over/key"
HAND_OVER_STREAMS = b"odp/v1/hand-over/streams"
DELEGATION_KEY = b"odp/v1/delegation/key"
PART_KEY = b"odp/v1/part/key"
PART_SET = b"odp/v1/part/set"
LEAF = b"odp/v1/leaf"

CONTRIBUTION = b"odp/v1/contribution"
LARGE_CONTRIBUTION = b"odp/v1/large-contribution"
SEGMENT = b"odp/v1/segment"
MASKED_VECTOR = b"odp/v1/masked-vector"
MASKED_SET = b"odp/v1/masked-set"
CONTRIBUTION_ID = b"odp/v1/contribution-id"
PSEUDONYM = b"odp/v1/pseudonym"
SELECT = b"odp/v1/select"
SELECTED = b"odp/v1/selected"
HELPER_QUERY = b"odp/v1/helper-query"
SEALING = b"odp/v1/sealing"
ROUND_SEALING = b"odp/v1/round-sealing"
STREAM_SEALING = b"odp/v1/stream-sealing"
SECAGG_ADVERT = b"odp/v1/secagg/advert"
SECAGG_SURVIVORS = b"odp/v1/secagg/survivors"
SECAGG_SESSION = b"odp/v1/secagg/session"
SECAGG_SELF_MASK = b"odp/v1/secagg/self-mask"
SECAGG_CHANNEL = b"odp/v1/secagg/channel"
SECAGG_PAIR_MASK = b"odp/v1/secagg/pair-mask"
SECAGG_IDENTITY = b"odp/v1/secagg/identity"
GRAPH_COMMITMENT = b"odp/v1/secagg/commitment"
GRAPH_SEED = b"odp/v1/secagg/graph"
PIR_PRG = b"odp/v1/pir/prg"
PIR_LAYOUT = b"odp/v1/pir/layout"
PIR_ROW = b"odp/v1/pir/row"
PIR_NODE = b"odp/v1/pir/node"
PIR_SHAPE = b"odp/v1/pir/shape"
PIR_PAD = b"odp/v1/pir/pad"
EVENTS_BUCKET = b"odp/v1/events-bucket"

TOKEN_KEY = b"odp/v1/token-key"
TOKEN_ORDER = b"odp/v1/token-order"
DEVICE_STATEMENT = b"odp/v1/device-statement"
DEVICE_NAME = b"odp/v1/device-name"
EMULATED_DEVICE = b"odp/v1/emulated-device"
ENROLMENT_NONCE = b"odp/v1/enrolment-nonce"
CONTRIBUTION_TOKEN = b"odp/v1/contribution-token"
SESSION_TOKEN = b"odp/v1/session-token"
TOKEN_BLINDING = b"odp/v1/token-blinding"

# What Ed25519 keys may sign. The data follows the domain without a separator, so this set has to stay prefix-free.
SIGNED = frozenset(
    {
        TASK, MANIFEST, OPEN, CLOSE, RELEASE, LEDGER, ENDORSEMENT, WITHDRAWAL, CHARTER, ABANDON, SECAGG_ADVERT,
        SECAGG_SURVIVORS, TOKEN_KEY, TOKEN_ORDER, DEVICE_STATEMENT, ROUND_KEY, VOIDED_KEY, REFUSAL,
        HAND_OVER, HAND_OVER_PACKAGE, DELEGATION, CATALOGUE,
    }
)  # fmt: skip

#: Of what an issuer of tokens wants a statement about.
CHALLENGE_BYTES = 56

_SHA256_BYTES = 32
_SECRET_BYTES = 32
_LARGEST_ROUND = 2**32 - 1


def contribution_info(task_sha256: bytes, round: int, model_sha256: bytes, policy_sha256: bytes) -> bytes:
    """HPKE ``info`` of a contribution: opens for this task, round, model and policy of the enclave only.

    Args:
        task_sha256: 32 bytes, the task's id.
        round: round number, 0 .. 2^32 - 1.
        model_sha256: 32 bytes, the id of the model that the device trained on.
        policy_sha256: 32 bytes, of the policy in the evidence that the device verified.

    Raises:
        ConfigurationError: a hash is not 32 bytes, or the round is out of range.

    Source: ``SubmitRequest.sealed_contribution`` of aggregator.proto.
    """
    named = _hash(task_sha256=task_sha256) + _round(round) + _hash(model_sha256=model_sha256)
    return CONTRIBUTION + named + _hash(policy_sha256=policy_sha256)


def large_contribution_info(task_sha256: bytes, round: int, model_sha256: bytes, policy_sha256: bytes) -> bytes:
    """HPKE ``info`` of the key of a contribution in segments; arguments and errors as ``contribution_info``.

    Source: ``SubmitStreamRequest.chunk`` of aggregator.proto.
    """
    named = _hash(task_sha256=task_sha256) + _round(round) + _hash(model_sha256=model_sha256)
    return LARGE_CONTRIBUTION + named + _hash(policy_sha256=policy_sha256)


def round_key(task_sha256: bytes, round: int, model_sha256: bytes, policy_sha256: bytes, hpke_key: bytes) -> bytes:
    """The message that an enclave signs (domain ``ROUND_KEY``) for a round's key: devices then seal to ``hpke_key``.

    Raises:
        ConfigurationError: a hash or the key is not 32 bytes, or the round is out of range.

    Source: ``SignedRoundKey`` of common.proto.
    """
    named = _hash(task_sha256=task_sha256) + _round(round) + _hash(model_sha256=model_sha256)
    return named + _hash(policy_sha256=policy_sha256) + _hash(hpke_key=hpke_key)


def voided_key(task_sha256: bytes, round: int, hpke_key: bytes) -> bytes:
    """The message that an enclave signs (domain ``VOIDED_KEY``) for an opening of a round that never has a release.

    Raises:
        ConfigurationError: the hash or the key is not 32 bytes, or the round is out of range.

    Source: ``VoidedKey`` of common.proto.
    """
    return _hash(task_sha256=task_sha256) + _round(round) + _hash(hpke_key=hpke_key)


def refusal(
    task_sha256: bytes, round: int, code: int, hpke_key: bytes, sealed_sha256: bytes, masked_sha256: bytes
) -> bytes:
    """The message that an enclave signs (domain ``REFUSAL``) for a contribution that can never count in the round.

    Args:
        task_sha256: 32 bytes.
        round: 0 .. 2^32 - 1.
        code: number of the ``odp.v1.Refusal``, 1 .. 255.
        hpke_key: 32 bytes, the round's.
        sealed_sha256: 32 bytes, of the sealed contribution.
        masked_sha256: 32 bytes, of the masked vector that came with it; empty without one.

    Raises:
        ConfigurationError: a value has another length, or is out of range.

    Source: ``SubmitResponse.signature`` of aggregator.proto.
    """
    _validate.integer(low=1, high=255, code=code)
    named = _hash(task_sha256=task_sha256) + _round(round) + bytes([code]) + _hash(hpke_key=hpke_key)
    masked = _hash(masked_sha256=masked_sha256) if masked_sha256 else bytes(_SHA256_BYTES)
    return named + _hash(sealed_sha256=sealed_sha256) + masked


def hand_over_package(nonce: bytes, statement_sha256: bytes, sealed: bytes) -> bytes:
    """The message that an enclave signs (domain ``HAND_OVER_PACKAGE``) for its successor, who drew ``nonce``.

    Raises:
        ConfigurationError: nonce or hash is not 32 bytes.

    Source: ``HandOverPackage`` of hand_over.proto.
    """
    return _hash(nonce=nonce) + _hash(statement_sha256=statement_sha256) + sealed


def hand_over_info(nonce: bytes, statement_sha256: bytes) -> bytes:
    """HPKE ``info`` of the sealing key in a package; arguments and errors as ``hand_over_package``."""
    return HAND_OVER_KEY + _hash(statement_sha256=statement_sha256) + _hash(nonce=nonce)


def hand_over_streams_info(nonce: bytes, statement_sha256: bytes) -> bytes:
    """HPKE ``info`` of the secrets of streams in a package; arguments and errors as ``hand_over_package``."""
    return HAND_OVER_STREAMS + _hash(statement_sha256=statement_sha256) + _hash(nonce=nonce)


def delegation(nonce: bytes, statement_sha256: bytes, sealed: bytes) -> bytes:
    """The message that the root of a tree signs (domain ``DELEGATION``) for a leaf.

    Raises:
        ConfigurationError: the nonce or the hash is not 32 bytes.

    Source: ``Delegation.signature`` of leaf.proto.
    """
    return _hash(nonce=nonce) + _hash(statement_sha256=statement_sha256) + hashlib.sha256(sealed).digest()


def delegation_info(nonce: bytes, statement_sha256: bytes) -> bytes:
    """HPKE ``info`` of the round's record in a delegation; arguments and errors as ``delegation``."""
    return DELEGATION_KEY + _hash(nonce=nonce) + _hash(statement_sha256=statement_sha256)


def part_info(task_sha256: bytes, round: int, leaf: int) -> bytes:
    """HKDF ``info`` of the keys that seal the sum of a leaf to its root.

    Raises:
        ConfigurationError: the hash is not 32 bytes, or a number is out of range.
    """
    return PART_KEY + _hash(task_sha256=task_sha256) + _round(round) + _round(leaf)


def part_aad(salt: bytes, number: int, last: bool) -> bytes:
    """Additional data of segment ``number`` of the sum under ``salt`` (32 bytes)."""
    return PART_KEY + _hash(salt=salt) + _round(number) + bytes([last])


def part_set(task_sha256: bytes, round: int) -> bytes:
    """The prefix of the list of leaves whose hash names the set of a round; errors as ``part_info``."""
    return PART_SET + _hash(task_sha256=task_sha256) + _round(round)


def leaf(task_sha256: bytes, round: int, pseudonym: bytes) -> bytes:
    """What is hashed to find a device's leaf.

    Raises:
        ConfigurationError: a hash is not 32 bytes, or the round is out of range.
    """
    return LEAF + _hash(task_sha256=task_sha256) + _round(round) + _hash(pseudonym=pseudonym)


def masked_vector_info(task_sha256: bytes, round: int) -> bytes:
    """The purpose of a contribution's mask: a seed gives unrelated masks in two rounds.

    Raises:
        ConfigurationError: the hash is not 32 bytes, or the round is out of range.

    Source: ``SubmitRequest.masked_vector`` of aggregator.proto.
    """
    return MASKED_VECTOR + _hash(task_sha256=task_sha256) + _round(round)


def masked_set(task_sha256: bytes, round: int) -> bytes:
    """The prefix of the digests of a round's masked vectors, when host and enclave name their set by a hash.

    Raises:
        ConfigurationError: the hash is not 32 bytes, or the round is out of range.

    Source: ``HostSum.set_sha256`` of enclave.proto.
    """
    return MASKED_SET + _hash(task_sha256=task_sha256) + _round(round)


def segment_aad(index: int, *, last: bool) -> bytes:
    """Additional data of one segment: segments cannot change places, nor can the last ones be cut off.

    Raises:
        ConfigurationError: the index is not within 0 .. 2^32 - 1.

    Source: ``SubmitStreamRequest.chunk`` of aggregator.proto.
    """
    return SEGMENT + _round(index) + bytes([last])


def select_info(model_sha256: bytes) -> bytes:
    """HPKE ``info`` of a request for rows: opens for this model only.

    Raises:
        ConfigurationError: the hash is not 32 bytes.

    Source: ``SelectRequest.sealed_keys`` of distributor.proto.
    """
    return SELECT + _hash(model_sha256=model_sha256)


def selected_aad(model_sha256: bytes) -> bytes:
    """Additional data of the sealed rows that answer a request: rows of another model version do not open.

    Raises:
        ConfigurationError: the hash is not 32 bytes.

    Source: ``SelectResponse.sealed_rows`` of distributor.proto.
    """
    return SELECTED + _hash(model_sha256=model_sha256)


def helper_query_info(model_sha256: bytes) -> bytes:
    """HPKE ``info`` of the helper's share of a query: opens for this model only.

    Raises:
        ConfigurationError: the hash is not 32 bytes.

    Source: ``SelectPrivatelyRequest.sealed_helper_query`` of retrieval.proto.
    """
    return HELPER_QUERY + _hash(model_sha256=model_sha256)


def contribution_id(secret: bytes, task_sha256: bytes, round: int) -> bytes:
    """Identifier (32 bytes) of one device in one round; unlinkable across rounds without ``secret``.

    Args:
        secret: 32 bytes that never leave the device.
        task_sha256: 32 bytes, the task's id.
        round: round number, 0 .. 2^32 - 1.

    Raises:
        ConfigurationError: the secret or the hash is not 32 bytes, or the round is out of range.

    Source: ``Contribution.contribution_id`` of aggregator.proto.
    """
    message = CONTRIBUTION_ID + _hash(task_sha256=task_sha256) + _round(round)
    return hmac.digest(_secret(secret), message, "sha256")


def pseudonym(secret: bytes, task_sha256: bytes) -> bytes:
    """Identifier (32 bytes) of one device in one task, by which the enclave counts the population.

    Raises:
        ConfigurationError: the secret or the hash is not 32 bytes.

    Source: ``Contribution.pseudonym`` of aggregator.proto.
    """
    return hmac.digest(_secret(secret), PSEUDONYM + _hash(task_sha256=task_sha256), "sha256")


def secagg_identity(secret: bytes, task_sha256: bytes) -> bytes:
    """Ed25519 private key (32 bytes) of one device as a client of SecAgg+: of one task, unlinkable to that of another.

    The key that stands in rosters is that of the task of 32 zero bytes.

    Raises:
        ConfigurationError: the secret or the hash is not 32 bytes.
    """
    return hmac.digest(_secret(secret), SECAGG_IDENTITY + _hash(task_sha256=task_sha256), "sha256")


def contribution_token(contribution_id: bytes) -> bytes:
    """The message of a contribution's token (32 bytes): one token admits one id.

    Raises:
        ConfigurationError: the id is not 32 bytes.

    Source: ``Contribution.token`` of aggregator.proto.
    """
    return hashlib.sha256(CONTRIBUTION_TOKEN + _hash(contribution_id=contribution_id)).digest()


def session_token(identity: bytes) -> bytes:
    """The message of a SecAgg+ client's token (32 bytes): one token admits one identity in all attempts of a round.

    Raises:
        ConfigurationError: the identity, an Ed25519 public key, is not 32 bytes.
    """
    return hashlib.sha256(SESSION_TOKEN + _hash(identity=identity)).digest()


def enrolment_nonce(
    *, issuer_key: bytes, challenge: bytes, task_sha256: bytes, round: int, blinded_message: bytes
) -> bytes:
    """The nonce of a device's statement (32 bytes): it is useless for any other issuer, round or token.

    Args:
        issuer_key: 32 bytes, whom the device asks.
        challenge: 56 bytes, of that issuer.
        task_sha256: 32 bytes.
        round: 0 .. 2^32 - 1.
        blinded_message: what is to be signed.

    Raises:
        ConfigurationError: a value has another length, or the round is out of range.

    Source: ``IssueTokenRequest.statement`` of enrolment.proto.
    """
    if len(challenge) != CHALLENGE_BYTES:
        raise ConfigurationError(f"Expected a challenge of {CHALLENGE_BYTES} bytes, got {len(challenge)}")
    named = _hash(issuer_key=issuer_key) + challenge + _hash(task_sha256=task_sha256) + _round(round)
    return hashlib.sha256(ENROLMENT_NONCE + named + hashlib.sha256(blinded_message).digest()).digest()


def _hash(**values: bytes) -> bytes:
    ((name, value),) = values.items()
    if len(value) != _SHA256_BYTES:
        raise ConfigurationError(f"Expected {name} to be {_SHA256_BYTES} bytes, got {len(value)}")
    return value


def _round(round: int) -> bytes:
    _validate.integer(low=0, high=_LARGEST_ROUND, round=round)
    return round.to_bytes(4, "big")


def _secret(secret: bytes) -> bytes:
    if len(secret) != _SECRET_BYTES:
        raise ConfigurationError(f"Expected the device secret to be {_SECRET_BYTES} bytes, got {len(secret)}")
    return secret
