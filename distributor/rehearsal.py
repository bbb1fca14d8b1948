"""One tiny model, installed and selected from, in memory alone: what Python loads on first use is loaded.

An enclave cannot open files once it serves; see ``trusted_aggregator/enclave/rehearsal.py``.
"""

from __future__ import annotations

import math

from distributor.enclave import DistributorCore
from odp.algorithms.dpam.config import DPAM
from odp.algorithms.implicit.config import ImplicitDPAM
from odp.algorithms.registry import algorithm_for
from odp.crypto import HpkeKey, SigningKey, seal
from odp.crypto.domains import select_info
from odp.enclave.identity import EnclaveIdentity
from odp.enclave.policy import SELECTIONS, EnclavePolicy
from odp.enclave.rehearsal import RehearsalGuest
from odp.models.matrix_factorization import MatrixFactorization
from odp.signed.task import model_sha256, open_task, sign_manifest, sign_task, task_sha256
from odp.task import Cohort, ImplicitData, RatingsData, Task, UserLevelDP
from odp.v1 import common_pb2, distributor_pb2, statistics_pb2
from odp.wire.tables import manifest_for, padded_keys, table_bytes


def rehearse() -> None:
    """Runs it for each algorithm; nothing of it is kept."""
    guest = RehearsalGuest(EnclavePolicy(role="distributor"))
    _, sealed = EnclaveIdentity.restore_or_create(guest=guest, sealed=None)
    identity, _ = EnclaveIdentity.restore_or_create(guest=guest, sealed=sealed)
    ratings = _definition(RatingsData(low=1, high=5), DPAM())
    noisy = ratings.dpam
    noisy.bias_mass_noise = noisy.bias_sum_noise = noisy.gram_noise = noisy.target_noise = 1.0
    events = _definition(ImplicitData(), ImplicitDPAM(item_grams=False))
    events.dpam.gramian_noise = events.dpam.target_noise = 1.0
    for definition in (ratings, events):
        _select(identity, definition)
    _install(_statistics())


def _definition(data: RatingsData | ImplicitData, training: DPAM | ImplicitDPAM) -> common_pb2.TaskDefinition:
    task = Task(
        name="rehearsal",
        model=MatrixFactorization(items=6, rank=2),
        data=data,
        privacy=UserLevelDP(epsilon=math.inf, delta=1e-6, max_items_per_user=3),
        training=training,
        cohort=Cohort(minimum=1, goal=1),
    )
    definition = task.definition()
    # Some finite privacy, that nobody computed: what noise costs is the aggregator's business, and this process does
    # without the accountant and its libraries.
    definition.privacy.epsilon = definition.dpam.count_noise_std = 1.0
    return definition


def _statistics() -> common_pb2.TaskDefinition:
    terms = statistics_pb2.DenseTerms(clip=1.0, grid_bits=6, noise_std=1.0, maximum=2)
    histogram = statistics_pb2.HistogramQuery(bins=6, counting=statistics_pb2.HistogramQuery.COUNTING_USERS, clip=1.0)
    query = statistics_pb2.StatisticsQuery(
        name="items",
        table="ratings",
        column=statistics_pb2.StatisticsQuery.COLUMN_ITEM,
        share=1.0,
        histogram=histogram,
    )
    return common_pb2.TaskDefinition(
        name="rehearsal",
        population="rehearsal",
        privacy=common_pb2.PrivacyTerms(epsilon=1.0, delta=1e-6),
        cohort=common_pb2.CohortTerms(minimum=1, goal=1, round_seconds=1),
        statistics=statistics_pb2.Statistics(queries=[query], dense=terms),
    )


def _install(unsigned: common_pb2.TaskDefinition) -> None:
    """A model that has no rows to select."""
    developer = SigningKey.generate()
    signed = sign_task(unsigned, developer)
    server = algorithm_for(open_task(signed)).server()
    broadcast = server.broadcast(server.start())
    manifest = sign_manifest(manifest_for(broadcast, task_sha256(signed)), developer)
    core = DistributorCore(HpkeKey.generate())
    core.install_chunks(signed, manifest, [table_bytes(table) for table in broadcast.tables])


def _select(identity: EnclaveIdentity, unsigned: common_pb2.TaskDefinition) -> None:
    developer = SigningKey.generate()
    signed = sign_task(unsigned, developer)
    definition = open_task(signed)
    server = algorithm_for(definition).server()
    broadcast = server.broadcast(server.start())
    manifest = sign_manifest(manifest_for(broadcast, task_sha256(signed)), developer)
    model = model_sha256(manifest)
    keys = padded_keys([0], definition.dpam.slices_per_device)
    request = distributor_pb2.SelectKeys(table=broadcast.keyed.name, keys=keys, reply_key=bytes(32))
    sealed = seal(identity.hpke.public, request.SerializeToString(), select_info(model))
    for select in SELECTIONS:
        core = DistributorCore(identity.hpke, select=select)
        core.install_chunks(signed, manifest, [table_bytes(table) for table in broadcast.tables])
        core.select(model, sealed)
