"""What a training costs that fixes its own noise: refused before its first round where that is above the budget."""

from __future__ import annotations

from odp.algorithms.federated.query import update_query
from odp.algorithms.federated.terms import Terms
from odp.algorithms.release import round_charges, sampling_of
from odp.errors import BudgetExceeded
from odp.privacy import accounting, composition
from odp.privacy.budget_check import first_rounds_within
from odp.privacy.events import Event
from odp.v1 import common_pb2

#: Of the noise on a sum over the bound of a contribution: those that an accountant takes.
LEAST_NOISE, MOST_NOISE = 0.1, 1e5


def charged_blocks(definition: common_pb2.TaskDefinition) -> list[tuple[int, tuple[Event, ...]]]:
    """(rounds, what each of them is charged) of every block, in order."""
    terms, blocks, first = Terms.of(definition), [], 0
    for block in terms.blocks:
        blocks.append((block.rounds, round_charges(update_query(terms.upload(first)), sampling_of(definition, first))))
        first += block.rounds
    return blocks


def require_planned(definition: common_pb2.TaskDefinition, *, noise_multiplier: float) -> None:
    """Returns if all rounds of a definition are within its budget.

    Raises:
      BudgetExceeded: they are not; the message has the most rounds from the first one on that are.
      PrivacyError: what is added to delta uses it up.
    """
    privacy, blocks = definition.privacy, charged_blocks(definition)
    events = {event: 0 for _, of_round in blocks for event in of_round}
    for rounds, of_round in blocks:
        for event in of_round:
            events[event] += rounds
    spent = accounting.epsilon(events, delta=privacy.delta, interval=composition.COARSE_INTERVAL)
    if spent > privacy.epsilon:
        spent = accounting.epsilon(events, delta=privacy.delta)
    if spent <= privacy.epsilon:
        return
    fits = first_rounds_within(blocks, budget=privacy.epsilon, delta=privacy.delta)
    rounds = sum(length for length, _ in blocks)
    way = f"take rounds={fits}, " if fits else ""
    raise BudgetExceeded(
        f"{rounds} rounds with noise_multiplier={noise_multiplier:g} cost epsilon={spent:.6g} at "
        f"delta={privacy.delta:g}, above the budget of {privacy.epsilon:g}: the first {fits} rounds are within it; "
        f"{way}raise noise_multiplier, or leave it out for the least noise that fits"
    )
