"""Whom the steps of a task involve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.clients import Aggregator, Distributor
from server.fetched_values import FetchedValues
from server.leading import Leads
from server.local.steps import LocalSteps
from server.populations import Populations
from server.token_keys import TokenKeys
from server.transparency import LogKeeper


@dataclass(frozen=True, kw_only=True)
class Parties:
    """Whom the steps of a task involve.

    Attributes:
      distributor, aggregator: the control listeners of the two enclaves' hosts.
      signing_key: gives the attested key of the aggregator's enclave; None: releases are not verified here.
      keeper: logs what a task does before anything follows from it; None logs nothing.
      populations: those of the tasks; None founds and checks nothing.
      tokens: gives the token keys of rounds; None gives none.
      values: those of releases that are too long for one message; None knows none.
      local: takes the steps of tasks of local trust; None has none of them.
      leads: says which tasks this server leads; None: all, as it is alone.
      lagging: whether one of several distributors lacks a model, and should get it now.
    """

    distributor: Distributor
    aggregator: Aggregator
    signing_key: Callable[[], bytes] | None = None
    keeper: LogKeeper | None = None
    populations: Populations | None = None
    tokens: TokenKeys | None = None
    values: FetchedValues | None = None
    local: LocalSteps | None = None
    leads: Leads | None = None
    lagging: Callable[[], bool] = lambda: False
