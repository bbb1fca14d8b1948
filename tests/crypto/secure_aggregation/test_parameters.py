"""Neighbours and thresholds of SecAgg+: published values, exact probabilities, refusals."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from odp.crypto.secure_aggregation import graph
from odp.crypto.secure_aggregation.parameters import Adversary, Parameters, Threat, find, holds, is_withstood
from odp.errors import ConfigurationError, PrivacyError

COHORTS = (100, 1_000, 3_000, 10_000, 1_000_000)
HONEST, LYING = Adversary.SEMI_HONEST, Adversary.LYING
# (neighbours, threshold) for the cohorts above; against a server that does not lie, and for 100 clients, as in the unit
# tests of an independent implementation, but for 52 neighbours of 3,000 clients, where that one has 50: it draws the
# neighbours from all clients, the client itself among them. Above 100, that one has fewer neighbours against a lying
# server: it does not count one that sees the order before it says who dropped out.
PUBLISHED = {
    (HONEST, 0.05, 0.05): [(12, 6), (30, 17), (32, 19), (34, 20), (38, 22)],
    (HONEST, 0.10, 0.10): [(22, 11), (48, 27), (52, 29), (54, 31), (64, 36)],
    (HONEST, 0.10, 0.33): [(36, 11), (98, 38), (110, 43), (120, 47), (144, 55)],
    (HONEST, 0.33, 0.33): [(68, 34), (286, 150), (368, 193), (422, 221), (518, 270)],
    (LYING, 0.05, 0.05): [(16, 11), (54, 39), (64, 46), (68, 49), (84, 60)],
    (LYING, 0.10, 0.10): [(32, 22), (106, 75), (122, 86), (132, 93), (162, 114)],
    (LYING, 0.05, 0.33): [(72, 39), (398, 223), (640, 363), (788, 446), (1038, 587)],
}


@pytest.mark.parametrize(("adversary", "corrupt", "dropout"), PUBLISHED)
@pytest.mark.slow
def test_parameters_are_the_published_ones(adversary: Adversary, corrupt: float, dropout: float) -> None:
    threat = Threat(adversary=adversary, corrupt=corrupt, dropout=dropout)
    found = [find(clients=clients, threat=threat) for clients in COHORTS]
    assert [(each.neighbours, each.threshold) for each in found] == PUBLISHED[adversary, corrupt, dropout]


def _tail(total: int, marked: int, draws: int, at_least: int) -> Fraction:
    """P[at least so many marked among the draws], exactly."""
    ways = sum(
        math.comb(marked, count) * math.comb(total - marked, draws - count)
        for count in range(max(at_least, draws - (total - marked), 0), draws + 1)
    )
    return Fraction(ways, math.comb(total, draws))


def _corrupt_that_break(found: Parameters, adversary: Adversary) -> int:
    """Neighbours of a client that, all corrupt, learn both of its secrets."""
    return found.threshold if adversary is HONEST else max(2 * found.threshold - found.neighbours, 0)


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize(("clients", "roster"), [(20, 0), (60, 0), (75, 250), (200, 0), (200, 250), (500, 0)])
def test_both_probabilities_are_within_the_promise_and_one_neighbour_pair_less_breaks_it(
    adversary: Adversary, clients: int, roster: int
) -> None:
    threat = Threat(adversary=adversary, corrupt=0.1, dropout=0.1, roster=roster)
    found = find(clients=clients, threat=threat)
    bad, gone = (roster or clients) // 10, clients // 10
    k, t = found.neighbours, found.threshold
    assert clients * _tail(clients - 1, bad, k, _corrupt_that_break(found, adversary)) <= Fraction(1, 2**41)
    assert clients * _tail(clients - 1, gone, k, k - t + 1) <= Fraction(1, 2**20)
    assert holds(found, clients=clients, threat=threat)
    assert not holds(Parameters(k, t - 1), clients=clients, threat=threat)
    fewer = range(2, k, 2)
    assert not any(
        holds(Parameters(less, threshold), clients=clients, threat=threat)
        for less in fewer
        for threshold in range(1, less + 1)
    )


#: Where drawing the neighbours from all clients, the client itself among them, takes more than the share.
EXCEEDED = [(HONEST, 0.3, 0.2, 300), (LYING, 0.05, 0.33, 200), (LYING, 0.05, 0.33, 500), (HONEST, 0.1, 0.1, 3000)]
GRID = [
    (adversary, corrupt, dropout, clients)
    for adversary in Adversary
    for corrupt, dropout in ((0.02, 0.05), (0.1, 0.1), (0.2, 0.1), (0.1, 0.3), (0.3, 0.2))
    for clients in (20, 30, 50, 75, 100, 150, 300)
]


@pytest.mark.parametrize(("adversary", "corrupt", "dropout", "clients"), [*EXCEEDED, *GRID])
def test_no_client_takes_more_than_its_share_of_either_probability(
    adversary: Adversary, corrupt: float, dropout: float, clients: int
) -> None:
    """In whole numbers: neighbours of an honest client are drawn from the others; the committee is as one client."""
    threat = Threat(adversary=adversary, corrupt=corrupt, dropout=dropout)
    try:
        found = find(clients=clients, threat=threat)
    except PrivacyError:
        assert clients < 30, "only few clients withstand so little"
        return
    bad, gone = (math.floor(fraction * clients + 1e-6) for fraction in (corrupt, dropout))
    breaking = _corrupt_that_break(found, adversary)
    share = _tail(clients - 1, bad, found.neighbours, breaking)
    committee = _tail(clients, bad, found.neighbours, breaking)
    assert clients * share <= Fraction(1, 2**41)
    assert (clients - bad) * share + committee <= Fraction(1, 2**41)
    assert clients * _tail(clients - 1, gone, found.neighbours, found.neighbours - found.threshold + 1) <= Fraction(
        1, 2**20
    )


@pytest.mark.parametrize(("clients", "corrupt", "neighbours"), [(8, 3, 4), (8, 4, 2), (7, 2, 6)])
def test_the_neighbours_of_an_honest_client_are_drawn_from_the_others(
    clients: int, corrupt: int, neighbours: int
) -> None:
    """Every order of the ring once, client 0 honest: how many of its neighbours are corrupt."""
    seen: Counter[int] = Counter()
    for order in itertools.permutations(range(clients)):
        beside = graph.neighbours_of(0, order=np.array(order), neighbours=neighbours)
        seen[sum(0 < one <= corrupt for one in beside)] += 1
    for least in range(corrupt + 1):
        often = sum(times for count, times in seen.items() if count >= least)
        assert Fraction(often, math.factorial(clients)) == _tail(clients - 1, corrupt, neighbours, least)


@pytest.mark.parametrize("clients", [20, 60, 200, 500, 1000])
@pytest.mark.parametrize(("corrupt", "dropout"), [(0.05, 0.05), (0.1, 0.1), (0.02, 0.05)])
def test_a_lying_server_that_drops_whom_it_likes_cannot_cut_the_ring(
    clients: int, corrupt: float, dropout: float
) -> None:
    """Two gaps without an honest survivor, and beside each a client whose seed is rebuilt by its other half's shares
    and those of the corrupt ones in the gap; or it has too few clients to leave out."""
    found = find(clients=clients, threat=Threat(adversary=LYING, corrupt=corrupt, dropout=dropout))
    bad, gone = math.floor(corrupt * clients + 1e-9), math.floor(dropout * clients + 1e-9)
    k, t = found.neighbours, found.threshold
    one = _tail(clients - 2, bad, k // 2, t - k // 2)
    assert k > bad + gone or clients**2 * one**2 / 2 <= Fraction(1, 2**41)


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize("roster", [0, 40, 300])
@pytest.mark.slow
def test_some_graph_serves_where_the_complete_one_does_and_nowhere_else(adversary: Adversary, roster: int) -> None:
    """What a session asks while it gathers clients, and what a refusal names as feasible."""
    for corrupt, dropout in itertools.product((0.0, 0.1, 0.33), (0.0, 0.1, 0.28)):
        threat = Threat(adversary=adversary, corrupt=corrupt, dropout=dropout, roster=roster)
        for clients in range(3, 30):
            graphs = [
                (neighbours, threshold)
                for neighbours in [*range(2, clients - 1, 2), clients - 1]
                for threshold in range(2, neighbours + 1)
                if holds(Parameters(neighbours, threshold), clients=clients, threat=threat)
            ]
            assert bool(graphs) == is_withstood(clients=clients, threat=threat)


def test_a_cohort_that_no_sparse_graph_protects_gets_the_complete_one() -> None:
    assert find(clients=8, threat=Threat(corrupt=0.25, dropout=0.25)) == Parameters(7, 5)


@pytest.mark.parametrize(
    ("adversary", "corrupt", "dropout"), [(HONEST, 0.5, 0.45), (LYING, 0.1, 0.45), (LYING, 0.95, 0.0)]
)
def test_what_no_graph_withstands_is_refused_and_not_clamped(
    adversary: Adversary, corrupt: float, dropout: float
) -> None:
    with pytest.raises(PrivacyError, match=r"0\.9"):
        Threat(adversary=adversary, corrupt=corrupt, dropout=dropout)


def test_a_definition_that_needs_thousands_of_neighbours_is_found_out_in_a_second_or_so() -> None:
    """Every device recomputes what a developer signed: the dearest definitions must not cost it minutes."""
    assert find(clients=10_000, threat=Threat(corrupt=0.3, dropout=0.3)) == Parameters(5542, 3735)


def test_too_few_clients_are_refused() -> None:
    with pytest.raises(PrivacyError, match="clients=4 are too few"):
        find(clients=4, threat=Threat(corrupt=0.3, dropout=0.3))


@pytest.mark.parametrize("clients", [0, 2, 1_000_001])
def test_a_cohort_out_of_range_is_refused(clients: int) -> None:
    with pytest.raises(ConfigurationError, match="clients"):
        find(clients=clients, threat=Threat())


@pytest.mark.parametrize(("neighbours", "threshold"), [(0, 2), (3, 2), (100, 60), (98, 0), (32, 33)])
def test_parameters_of_no_graph_hold_nothing(neighbours: int, threshold: int) -> None:
    assert not holds(Parameters(neighbours, threshold), clients=100, threat=Threat())
