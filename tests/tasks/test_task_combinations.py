"""A combination of algorithm, aggregation, sampling and broadcast is a task, or refused where the task is made."""

from __future__ import annotations

import functools

import pytest
from task_combinations import COMBINATIONS, Combination

from odp.crypto import HpkeKey, SigningKey
from odp.errors import ConfigurationError
from odp.protocol.aggregation import MASKED, SECAGG
from odp.protocol.terms import ENCLAVE_POISSON
from odp.signed.task import sign_task
from odp.v1 import broadcast_pb2, common_pb2

HELPER = HpkeKey.generate().public.hex()
DEVELOPER = SigningKey.generate()
OFFERED = [combination for combination in COMBINATIONS if combination.is_offered]
REFUSED = [combination for combination in COMBINATIONS if not combination.is_offered]


def named(combination: Combination) -> str:
    return combination.name


@functools.cache
def definition_of(combination: Combination) -> common_pb2.TaskDefinition:
    """Of a combination that is offered, made once: finding the noise of some takes a second."""
    return combination.task(HELPER).definition()


@pytest.mark.parametrize("combination", OFFERED, ids=named)
def test_a_combination_that_is_offered_is_a_task_that_can_be_signed(combination: Combination) -> None:
    assert sign_task(definition_of(combination), DEVELOPER).signature


@pytest.mark.parametrize("combination", REFUSED, ids=named)
def test_any_other_combination_is_refused_with_one_line_when_the_task_is_made(combination: Combination) -> None:
    with pytest.raises(ConfigurationError) as refused:
        combination.task(HELPER)
    assert "\n" not in str(refused.value)


def handmade(combination: Combination) -> common_pb2.TaskDefinition:
    """A definition that says what no task says: what an API of another version, or a hand, would submit."""
    plain = next(one for one in OFFERED if one.algorithm == combination.algorithm)
    definition = common_pb2.TaskDefinition()
    definition.CopyFrom(definition_of(plain))
    if combination.aggregation in (MASKED, SECAGG):
        alike = [one for one in OFFERED if one.aggregation == combination.aggregation]
        definition.cohort.CopyFrom(definition_of(alike[-1]).cohort)
    if combination.sampling == ENCLAVE_POISSON:
        definition.cohort.enclave_poisson.CopyFrom(
            common_pb2.EnclavePoisson(probability=0.5, most_contributions=8, cap=8)
        )
    if combination.broadcast:
        definition.broadcast.CopyFrom(broadcast_pb2.BroadcastTerms(method=broadcast_pb2.BroadcastTerms.METHOD_ALL))
    return definition


@pytest.mark.parametrize("combination", REFUSED, ids=named)
def test_a_definition_made_by_hand_is_refused_by_whoever_checks_it(combination: Combination) -> None:
    """By the server when it is submitted, and by the enclave and the devices, which trust no server."""
    with pytest.raises(ConfigurationError):
        sign_task(handmade(combination), DEVELOPER)
