"""Rehearsal of a tree of one leaf, in memory: it loads all lazy imports of root and leaf."""

from __future__ import annotations

import os
import time
from pathlib import Path

from odp.algorithms.registry import algorithm_for
from odp.crypto import SigningKey, domains, seal
from odp.enclave import chain
from odp.enclave.identity import EnclaveIdentity
from odp.enclave.platform import EmulatedPlatform
from odp.enclave.policy import EnclavePolicy
from odp.errors import StateError
from odp.signed.charter import approve, found
from odp.signed.task import model_sha256, open_task, sign_manifest, sign_order, sign_task, task_sha256
from odp.v1 import aggregator_pb2, attestation_pb2, enclave_pb2, leaf_pb2
from odp.wire.tables import manifest_for
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.hand_over_rehearsal import RehearsedGuest
from trusted_aggregator.enclave.leaf_core import LeafCore
from trusted_aggregator.enclave.rehearsal import payload_of, unsampled
from trusted_aggregator.enclave.state import EnclaveState
from trusted_aggregator.modes.enclave.enclave_half import EnclaveRound
from trusted_aggregator.modes.table import round_class

_IMAGE = "sha384:" + "0" * 96


def rehearse_tree() -> None:
    """Opens round 0 of a small task, delegates it, takes a contribution, and hands its sum in; keeps nothing of it.

    Raises StateError where a step fails.
    """
    definition = next(one for one in unsampled() if round_class(one) is EnclaveRound)
    developer = SigningKey.generate()
    policy = EnclavePolicy(role="aggregator", minimum_cohort=1, leaves=1, founders=(developer.public.hex(),))
    platform = EmulatedPlatform(Path(), chain.issue(now=time.time()), bytes(32))
    root, leaf = (
        EnclaveIdentity.restore_or_create(guest=RehearsedGuest(platform, one, _IMAGE, {}), sealed=None)[0]
        for one in (policy, policy.as_role("leaf"))
    )
    core, taker = AggregatorCore(EnclaveState(root)), LeafCore(leaf)
    tree = core.tree
    if tree is None:
        raise StateError("the rehearsal's policy has no leaves")
    core.owners.set_charter(approve(found(definition.population, owners=[developer.public]), developer))
    core.state.commit(enclave_pb2.CommitWrites())
    task = sign_task(definition, developer)
    sha256, algorithm = task_sha256(task), algorithm_for(open_task(task))
    broadcast = algorithm.server().broadcast(algorithm.server().start())
    model = model_sha256(sign_manifest(manifest_for(broadcast, sha256), developer))
    order = aggregator_pb2.RoundOrder(task_sha256=sha256, round=0, model_sha256=model)
    core.rounds.check_task(aggregator_pb2.CheckTaskRequest(task=task))
    opening, signature = sign_order(order, developer, domains.OPEN)
    core.rounds.open_round(aggregator_pb2.OpenRoundRequest(task=task, order=opening, signature=signature))
    core.state.commit(enclave_pb2.CommitWrites())

    evidence = leaf.evidence(tree.leaf_nonce(leaf_pb2.AskLeafNonce(leaf=0)).nonce)
    greeting = leaf_pb2.GreetResponse(
        nonce=taker.ask_nonce(enclave_pb2.AskNonce()).nonce,
        evidence=attestation_pb2.GetEvidenceResponse(
            token=evidence.token, policy=evidence.policy, event_log=evidence.event_log
        ),
    )
    taker.open_part(tree.delegate(leaf_pb2.DelegateRound(task_sha256=sha256, round=0, leaf=0, greeting=greeting)))
    contribution = aggregator_pb2.Contribution(
        task_sha256=sha256, round=0, model_sha256=model, contribution_id=os.urandom(32), pseudonym=os.urandom(32),
        payload=payload_of(algorithm, broadcast, 0),
    )  # fmt: skip
    which = aggregator_pb2.GetRoundRequest(task_sha256=sha256, round=0)
    key = core.rounds.round_key(which)
    if not key.hpke_key:
        raise StateError("the rehearsal's round has no key")
    info = domains.contribution_info(sha256, 0, model, policy.sha256)
    sealed = seal(key.hpke_key, contribution.SerializeToString(), info)
    request = aggregator_pb2.SubmitRequest(task_sha256=sha256, round=0, sealed_contribution=sealed)
    if taker.submissions.submit_batch([request]) != [None]:
        raise StateError("the rehearsal's contribution was refused")
    taker.submissions.sign_refusal(request)
    close, signature = sign_order(order, developer, domains.CLOSE)
    tree.check_close(leaf_pb2.CheckClose(order=close, signature=signature, contributions=1))
    for number in range(taker.close_part(which).pieces):
        part = taker.take_part(leaf_pb2.TakePart(task_sha256=sha256, round=0, number=number))
        tree.give_part(leaf_pb2.GivePart(task_sha256=sha256, round=0, piece=part.data))
    core.rounds.charge(aggregator_pb2.CloseRoundRequest(order=close, signature=signature))
    core.state.commit(enclave_pb2.CommitWrites())
    taker.erase_part(which)
