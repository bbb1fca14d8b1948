"""The terms of SecAgg+ in a task: resolved by the finder, recomputed by every device, and refused where lower."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import odp
from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.parameters import (
    Adversary,
    Threat,
    fewest_honest,
    fewest_survivors,
    find,
)
from odp.crypto.secure_aggregation.session import Configuration, pack, unpack
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, PrivacyError
from odp.signed.task import check_definition, open_task, sign_task
from odp.tasks.file import parse_task, render_task
from odp.v1 import common_pb2, secure_aggregation_pb2 as messages


def statistics(**cohort: Any) -> odp.Statistics:
    return odp.Statistics(
        name="hours",
        queries={"hours": odp.Histogram(bins=24)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(**{"minimum": 100, "goal": 300, "aggregation": "secagg+", **cohort}),
    )


def signed_definition(**cohort: Any) -> common_pb2.TaskDefinition:
    return open_task(sign_task(statistics(**cohort).definition(), SigningKey.from_bytes(bytes(32))))


def test_a_task_names_what_the_finder_gives_for_its_goal() -> None:
    terms = signed_definition(corrupt_fraction=0.05, dropout_fraction=0.2).cohort.secagg
    found = find(clients=300, threat=Threat(adversary=Adversary.LYING, corrupt=0.05, dropout=0.2))
    assert (terms.neighbours, terms.threshold) == (found.neighbours, found.threshold)
    assert terms.lying_server
    assert not signed_definition(threat="semi-honest").cohort.secagg.lying_server
    named = signed_definition(roster_sha256="ab" * 32, roster_size=500).cohort.secagg
    assert (named.roster_sha256, named.roster_size) == (b"\xab" * 32, 500)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: setattr(d.cohort.secagg, "threshold", d.cohort.secagg.threshold - 1), "threshold="),
        (lambda d: setattr(d.cohort.secagg, "neighbours", d.cohort.secagg.neighbours - 2), "neighbours="),
        (lambda d: setattr(d.cohort.secagg, "sharers", d.cohort.secagg.sharers + 1), "sharers="),
        (lambda d: setattr(d.cohort.secagg, "sharers", 0), "sharers="),
        (lambda d: setattr(d.cohort.secagg, "corrupt", 0.0), "neighbours=|threshold=|sharers="),
        (lambda d: setattr(d.cohort.secagg, "corrupt", math.nan), "corrupt=nan"),
        (lambda d: setattr(d.cohort.secagg, "lying_server", False), "threshold=|neighbours="),
        (lambda d: setattr(d.cohort.secagg, "roster_sha256", b"short"), "roster_sha256"),
        (lambda d: setattr(d.cohort, "minimum", 90), "sharers="),
        (lambda d: setattr(d.cohort, "minimum", 2), "cohort_minimum=2"),
        (lambda d: setattr(d.cohort, "goal", 3000), "neighbours="),
        (lambda d: setattr(d.cohort.secagg, "roster_size", 500), "roster_size=500 with roster_sha256"),
        (lambda d: setattr(d.cohort.secagg, "roster_sha256", b"r" * 32), "roster_size=0 with roster_sha256"),
        (lambda d: d.cohort.ClearField("secagg"), "terms of secure aggregation"),
        (lambda d: setattr(d.cohort, "aggregation", 1), "terms of secure aggregation"),
    ],
)
def test_a_definition_with_other_numbers_is_refused_by_whoever_reads_it(
    change: Callable[[common_pb2.TaskDefinition], object], message: str
) -> None:
    definition = signed_definition()
    change(definition)
    with pytest.raises(ConfigurationError, match=message):
        check_definition(definition)


def test_noise_for_fewer_sharers_than_declared_is_refused_by_the_grid() -> None:
    """A finer or coarser grid, more contributions than fit, or too little noise: each has its own check."""
    for name, value in (("maximum", 10**7), ("grid_bits", 20), ("noise_std", 1e-3)):
        definition = signed_definition()
        setattr(definition.statistics.dense, name, value)
        with pytest.raises(ConfigurationError):
            check_definition(definition)


def test_a_definition_with_sessions_larger_than_its_goal_is_refused() -> None:
    """The sharers are counted for sessions up to the goal; a little above, there may be fewer honest ones in a sum."""
    threat = Threat(adversary=Adversary.LYING, corrupt=0.1, dropout=0.3)
    definition = signed_definition(goal=100, corrupt_fraction=0.1, dropout_fraction=0.3)
    assert definition.statistics.dense.maximum == 100
    assert definition.cohort.secagg.sharers == 90 > fewest_honest(minimum=100, maximum=142, threat=threat)
    check_definition(definition)
    definition.statistics.dense.maximum = 142
    with pytest.raises(ConfigurationError, match=r"maximum=142 .* goal=100"):
        check_definition(definition)


def test_settings_that_no_graph_withstands_are_refused_with_one_message() -> None:
    with pytest.raises(PrivacyError, match=r"corrupt=0\.33 and dropout=0\.33 cannot be withstood") as refused:
        odp.Cohort(aggregation="secagg+", corrupt_fraction=0.33, dropout_fraction=0.33)
    assert "\n" not in str(refused.value)
    with pytest.raises(PrivacyError, match="clients=4 are too few"):
        odp.Cohort(minimum=4, goal=100, aggregation="secagg+", corrupt_fraction=0.3, dropout_fraction=0.25)


@pytest.mark.parametrize(
    "given",
    [
        {"threat": "lying"},
        {"corrupt_fraction": 0.1},
        {"dropout_fraction": 0.0},
        {"roster_sha256": "ab" * 32},
        {"roster_size": 500},
    ],
)
def test_options_of_the_mode_are_refused_with_another(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ConfigurationError, match=f"{name}=.* with aggregation='secagg\\+' alone"):
        odp.Cohort(**given)


def test_words_that_are_no_threat_and_digits_that_are_no_hash_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="threat='malicious'"):
        odp.Cohort(aggregation="secagg+", threat="malicious")
    with pytest.raises(ConfigurationError, match="roster_sha256"):
        odp.Cohort(aggregation="secagg+", roster_sha256="AB" * 32)
    with pytest.raises(ConfigurationError, match="sampling"):
        odp.Cohort(
            aggregation="secagg+", sampling="enclave_poisson", sampling_probability=0.5, most_contributions=200
        )  # fmt: skip


def test_a_task_file_says_the_same() -> None:
    task = statistics(threat="semi-honest", corrupt_fraction=0.2, roster_sha256="cd" * 32, roster_size=310)
    assert parse_task(render_task(task)) == task
    line = re.sub(r"corrupt_fraction = .*", "corrupt_fraction = 0.95", render_task(task))
    with pytest.raises(PrivacyError, match=r"task\.toml:\d+: .*corrupt=0\.95"):
        parse_task(line)


@given(
    minimum=st.integers(3, 200), more=st.integers(0, 300), corrupt=st.sampled_from([0.0, 0.05, 0.1, 0.3]),
    dropout=st.sampled_from([0.0, 0.05, 0.1, 0.3]), roster=st.sampled_from([0, 500, 700, 5000]),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_no_session_unmasks_a_sum_with_fewer_honest_clients_than_the_noise_is_made_for(
    minimum: int, more: int, corrupt: float, dropout: float, roster: int
) -> None:
    """Whatever its size: all corrupt clients stay, and the server drops honest ones, as many as clients let it."""
    threat = Threat(adversary=Adversary.SEMI_HONEST, corrupt=corrupt, dropout=dropout, roster=roster)
    try:
        stated = fewest_honest(minimum=minimum, maximum=minimum + more, threat=threat)
    except PrivacyError:
        stated = 0
    least = min(
        fewest_survivors(clients=clients, minimum=minimum, threat=threat)
        - min(clients, math.floor((corrupt + 1e-9) * (roster or clients)))
        for clients in range(minimum, minimum + more + 1)
    )
    assert least == stated or (stated == 0 and least < 1)


def test_a_roster_comes_with_its_size_and_holds_every_session() -> None:
    for cohort in ({"roster_size": 500}, {"roster_sha256": "ab" * 32}):
        with pytest.raises(ConfigurationError, match=r"roster_size=\d+ with roster_sha256, and neither without"):
            statistics(**cohort)
    with pytest.raises(ConfigurationError, match="goal=300 to be at most roster_size=299"):
        statistics(roster_sha256="ab" * 32, roster_size=299)
    for size in (0, -1, 10**7):
        with pytest.raises(ConfigurationError, match="roster_size"):
            statistics(roster_sha256="ab" * 32, roster_size=size)


def test_terms_count_the_corrupt_devices_of_the_whole_roster() -> None:
    """They are 100 of 1,000: a sum of 126 has 26 honest ones at least. Neighbours and threshold follow from that."""
    terms = signed_definition(minimum=126, roster_sha256="ab" * 32, roster_size=1000).cohort.secagg
    assert terms.sharers == 26
    threat = Threat(corrupt=0.1, dropout=0.1, roster=1000)
    assert [threat.most_corrupt(clients) for clients in (50, 126, 300, 1000)] == [50, 100, 100, 100]
    found = find(clients=300, threat=threat)
    assert (terms.neighbours, terms.threshold) == (found.neighbours, found.threshold)
    assert found == find(clients=300, threat=Threat(corrupt=1 / 3, dropout=0.1))


@pytest.mark.parametrize(
    ("cohort", "feasible"),
    [
        ({"minimum": 100, "roster_size": 1000}, {"minimum": 126}),
        ({"minimum": 100, "roster_size": 1000}, {"corrupt_fraction": 0.078}),
        ({"minimum": 100, "roster_size": 1000, "dropout_fraction": 0.3}, {"minimum": 252}),
        ({"minimum": 20, "goal": 40, "roster_size": 60, "corrupt_fraction": 0.5}, {"minimum": 38}),
        ({"minimum": 100, "roster_size": 1000, "threat": "semi-honest"}, {"minimum": 113}),
    ],
)
def test_what_a_roster_makes_impossible_is_refused_with_what_would_be_feasible(
    cohort: dict[str, Any], feasible: dict[str, Any]
) -> None:
    with pytest.raises(PrivacyError, match=r"corrupt clients of a roster of \d+ and \d+ dropouts") as refused:
        statistics(**cohort, roster_sha256="ab" * 32)
    (value,) = feasible.values()
    assert f"gather at least {value}" in str(refused.value) or f"expect at most corrupt={value}" in str(refused.value)
    assert "\n" not in str(refused.value)
    statistics(**{**cohort, **feasible}, roster_sha256="ab" * 32)


def test_a_client_without_the_roster_makes_no_keys_for_a_session_that_counts_on_one(make_config: Any) -> None:
    configuration = Configuration.open(make_config(roster_size=300))
    with pytest.raises(PrivacyError, match="a roster that is not pinned here"):
        Client(configuration, SigningKey.from_bytes(bytes(32)))


def test_a_session_that_counts_on_another_number_of_devices_than_the_roster_has_is_refused(make_round: Any) -> None:
    run = make_round(10, roster_size=10, corrupt=0.1, dropout=0.1).until("reveal")
    client = run.clients[0]
    client._roster = frozenset([*client._roster, bytes([1]) * 32])
    with pytest.raises(PrivacyError, match="Expected a roster of 10 clients, got 11"):
        client.reveal(run.adverts)


def test_a_client_refuses_more_dropouts_than_were_declared(make_round: Any) -> None:
    """Else the server could drop honest clients, until the shares of the rest are too little noise."""
    clients, allowed = 20, 4
    run = make_round(clients, corrupt=0.0, dropout=allowed / clients, gone={"masked": set(range(1, 1 + allowed))})
    run.until("unmask")
    wider = make_round(clients, corrupt=0.0, dropout=allowed / clients)
    wider.until("agree")
    alive = unpack(wider.survivors.survivors, clients=clients, name="survivors").copy()
    beside = set(wider.clients[0]._neighbours)
    far = [number for number in range(1, clients) if number not in beside]
    alive[[*far, *sorted(beside)][: allowed + 1]] = False
    told = messages.SecAggSurvivors(
        session=wider.survivors.session, shared=wider.survivors.shared, survivors=pack(alive)
    )
    with pytest.raises(PrivacyError, match="15 survivors of 20 clients are fewer than 16"):
        wider.clients[0].agree(told)
