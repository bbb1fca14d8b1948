"""What developers choose for every federated training, and how it becomes the numbers of a task definition.

What a training costs that fixes its own noise: refused before its first round where that is above the budget.

Schedules that a developer writes, and the blocks of equal rounds that they make together.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from odp import _validate
from odp.algorithms.choices import TrainingData
from odp.algorithms.cohorts import MOST_BLOCKS
from odp.algorithms.dense.optimizers import OptimizerKind, ServerOptimizer
from odp.algorithms.dense.rotated import LARGEST_WIDTH, LEAST_WIDTH, RotatedGrid, require_unmasked
from odp.algorithms.federated.query import update_query
from odp.algorithms.federated.terms import MOST_ROUNDS, OPTIMIZERS, Terms, joint_clip
from odp.algorithms.release import round_charges, sampling_of
from odp.errors import BudgetExceeded, ConfigurationError
from odp.models.examples import Examples
from odp.models.local_training import LocalTraining, Reconstruction
from odp.models.trained import model_of, trained_models
from odp.privacy import accounting, composition
from odp.privacy.budget_check import first_rounds_within, plan_interval
from odp.privacy.composition import truncation_cap
from odp.privacy.events import Event, Sampling
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.v1 import federated_pb2

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
        spent = accounting.epsilon(events, delta=privacy.delta, interval=plan_interval(events))
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


#: The most rounds of a training: the cap of a draw is loose enough for all of them (rule P14).
_CAP_ROUNDS = MOST_ROUNDS


@dataclass(frozen=True)
class PlannedRounds:
    """Equal rounds; ``noise`` is relative to that of other blocks, ``goal`` None without a schedule of cohorts."""

    rounds: int
    noise: float
    goal: int | None


def checked_schedule(
    schedule: Sequence[Sequence[float]], *, name: str, second: str, rounds: int
) -> tuple[tuple[int, float], ...]:
    """The pairs of a schedule, whose numbers of rounds sum to ``rounds``; ``second`` says what the others are.

    Raises:
      ConfigurationError: other than pairs, too many or none of them, or another sum.
    """
    _validate.integer(low=1, high=MOST_BLOCKS, **{name: len(schedule)})
    pairs = []
    for pair in schedule:
        if len(pair) != 2:
            raise ConfigurationError(f"Expected {name}={pair!r} to be pairs (rounds, {second})")
        _validate.integer(low=1, high=MOST_ROUNDS, rounds=pair[0])  # type: ignore[arg-type]
        pairs.append((int(pair[0]), pair[1]))
    if (total := sum(length for length, _ in pairs)) != rounds:
        raise ConfigurationError(f"Expected the {total} rounds of {name} to be rounds={rounds}")
    return tuple(pairs)


def planned_blocks(
    noises: Sequence[tuple[int, float]], goals: Sequence[tuple[int, int | None]]
) -> tuple[PlannedRounds, ...]:
    """The fewest blocks of rounds that are equal in both schedules, which have as many rounds.

    >>> planned_blocks([(2, 2.0), (3, 1.0)], [(4, 10), (1, 20)])[1]
    PlannedRounds(rounds=2, noise=1.0, goal=10)
    """
    blocks, left, right = [], list(noises), list(goals)
    while left and right:
        (of_noise, noise), (of_goal, goal) = left.pop(0), right.pop(0)
        rounds = min(of_noise, of_goal)
        blocks.append(PlannedRounds(rounds, noise, goal))
        if of_noise > rounds:
            left.insert(0, (of_noise - rounds, noise))
        if of_goal > rounds:
            right.insert(0, (of_goal - rounds, goal))
    return tuple(blocks)


def write_cohorts(definition: common_pb2.TaskDefinition, schedule: Sequence[tuple[int, int]]) -> None:
    """Writes the cohort of each round. With sampling, ``goal`` contributions count, of those of the cohort's goal.

    Raises:
      ConfigurationError: a goal is below the cohort's minimum or above its goal; with sampling, not below it, or the
        cohort has a probability of its own.
    """
    cohort = definition.cohort
    if (sampled := cohort.HasField("enclave_poisson")) and cohort.enclave_poisson.probability:
        raise ConfigurationError(
            f"Expected no sampling_probability={cohort.enclave_poisson.probability:g} with cohort_schedule: that of a "
            "round is its goal over the cohort's goal"
        )
    del cohort.schedule[:]
    for rounds, goal in schedule:
        if not cohort.minimum <= goal <= cohort.goal:
            raise ConfigurationError(
                f"Expected every goal of cohort_schedule (got {goal}) to be from minimum={cohort.minimum} to "
                f"goal={cohort.goal} of the cohort"
            )
        if sampled and goal == cohort.goal:
            raise ConfigurationError(
                f"Expected every goal of cohort_schedule (got {goal}) to be below goal={cohort.goal} of the cohort "
                "with sampling: that many devices contribute, and a part of them counts"
            )
        if not sampled:
            cohort.schedule.add(rounds=rounds, goal=goal)
            continue
        probability = goal / cohort.goal
        cap = truncation_cap(
            probability=probability, population_bound=cohort.enclave_poisson.most_contributions, rounds=_CAP_ROUNDS,
            delta=definition.privacy.delta,
        )  # fmt: skip
        Sampling(probability, cohort.enclave_poisson.most_contributions, cap)
        cohort.schedule.add(rounds=rounds, goal=cohort.goal, probability=probability, cap=cap)
    if sampled:
        # Whoever reads of one draw, such as a policy, reads of the largest.
        largest = max(cohort.schedule, key=lambda block: block.probability)
        cohort.enclave_poisson.probability = largest.probability
        cohort.enclave_poisson.cap = largest.cap


# Contributions that a round takes, over its goal: those that arrive before it closes are not refused.
_ROOM = 2
# The noise on the count of users within the clip norm is the cohort over this: so it costs little, and is seen through.
_BIT_SHARE = 20.0
# Of the number that says how long an update is: a larger one shows the variance between users with less noise, and adds
# half its square to the noise on everything.
_SPREAD_WEIGHT = 0.1


@_validate.strict_keywords
@dataclass(frozen=True)
class FederatedTraining(abc.ABC):
    """A bound on each user's update, Gaussian noise on their sum, and a step of the server's optimizer.

    Attributes:
      rounds: how many.
      clip: L2 bound of a user's update, in units of the parameters. A smaller one has less noise and less signal.
      clip_quantile: share of the users whose update should be within the clip norm, which then follows it from
        ``clip`` on; None for a clip norm that stays.
      clip_rate: how fast the logarithm of the clip norm moves.
      server: "sgd", "adam" or "yogi".
      server_rate: step size of the server.
      server_momentum: weight of past means, below 1.
      second_moment, adaptivity: of "adam" and "yogi".
      noise_schedule: blocks (rounds, noise relative to the other blocks) in place of equal noise; their rounds sum to
        ``rounds``. Much noise early and little late helps where late updates are small.
      cohort_schedule: blocks (rounds, goal) in place of one cohort for all rounds; their rounds sum to ``rounds``. A
        round closes at its goal, which is the divisor of its sum; with sampling, the goal is the expected number of
        contributions that count, among those of the cohort's goal.
      noise_multiplier: standard deviation of the noise on a sum over the bound of a contribution, to be multiplied by
        the noise of a ``noise_schedule``. None is the least that keeps all rounds within the budget.
      diagnostics: whether each round also releases the update scale and the variance between users, for .5 % of noise.
      divisor: of a sum; None is the expected number of contributions that count. Public and fixed.
      upload_bits: per number of a contribution, 8 to 16: it is rotated and rounded at random, and the noise is a little
        more. None for 32 bits.

    Raises:
      ConfigurationError: a number is out of range, or a schedule has another number of rounds.
    """

    #: The field of a task definition that ``write`` fills.
    field: ClassVar[str]
    models: ClassVar[tuple[type, ...]] = trained_models()
    data: ClassVar[tuple[type[TrainingData], ...]] = (Examples,)

    rounds: int = 50
    clip: float = 0.5
    clip_quantile: float | None = None
    clip_rate: float = 0.2
    server: str = "sgd"
    server_rate: float = 1.0
    server_momentum: float = 0.0
    second_moment: float = 0.99
    adaptivity: float = 1e-3
    noise_schedule: Sequence[Sequence[float]] | None = None
    cohort_schedule: Sequence[Sequence[int]] | None = None
    noise_multiplier: float | None = None
    diagnostics: bool = False
    divisor: float | None = None
    upload_bits: int | None = None

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=MOST_ROUNDS, rounds=self.rounds)
        _validate.positive(clip=self.clip)
        if self.clip_quantile is not None:
            _validate.within(low=0.0, high=1.0, clip_quantile=self.clip_quantile)
        _validate.within(low=1e-6, high=10.0, clip_rate=self.clip_rate)
        self.local()
        self.optimizer()
        if self.divisor is not None:
            _validate.within(low=1.0, high=1e9, divisor=self.divisor)
        if self.upload_bits is not None:
            _validate.integer(low=LEAST_WIDTH, high=LARGEST_WIDTH, upload_bits=self.upload_bits)
        if self.noise_schedule is not None:
            object.__setattr__(self, "noise_schedule", tuple(map(tuple, self.noise_schedule)))
        if self.cohort_schedule is not None:
            object.__setattr__(self, "cohort_schedule", tuple(map(tuple, self.cohort_schedule)))
            if self.divisor is not None:
                raise ConfigurationError(
                    f"Expected no divisor={self.divisor:g} with cohort_schedule: the divisor of a round is its goal"
                )
        if self.noise_multiplier is not None:
            _validate.within(low=LEAST_NOISE, high=MOST_NOISE, noise_multiplier=self.noise_multiplier)
        if not isinstance(self.diagnostics, bool):
            raise ConfigurationError(f"Expected diagnostics={self.diagnostics!r} to be True or False")
        self._blocks()

    @abc.abstractmethod
    def local(self) -> LocalTraining:
        """The work of a device."""

    def optimizer(self) -> ServerOptimizer:
        """The server's."""
        plain = self.server == OptimizerKind.SGD.value
        return ServerOptimizer(
            kind=self.server, rate=self.server_rate, momentum=self.server_momentum,
            second_moment=0.0 if plain else self.second_moment, adaptivity=0.0 if plain else self.adaptivity,
        )  # fmt: skip

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Every number, with the noise that makes all rounds together (epsilon, delta)-DP.

        Raises:
          ConfigurationError: a number is out of range, no grid fits, or epsilon is infinite.
          PrivacyError: the noise for the budget cannot be found.
        """
        from odp.v1 import federated_pb2

        cohort, goals = definition.cohort, self._goals()
        if goals is not None:
            write_cohorts(definition, goals)
        sampling = sampling_of(definition, 0)
        probability = 1.0 if sampling is None else sampling.probability
        local, optimizer = self.local(), self.optimizer()
        write_label_range(definition)
        written: federated_pb2.FederatedTraining = getattr(definition, self.field)
        written.local.CopyFrom(local.to_proto())
        written.server.CopyFrom(
            federated_pb2.ServerOptimizerTerms(
                kind=OPTIMIZERS[OptimizerKind(optimizer.kind)],
                rate=optimizer.rate,
                momentum=optimizer.momentum,
                second_moment=optimizer.second_moment,
                adaptivity=optimizer.adaptivity,
            )
        )
        written.clip = self.clip
        if goals is not None:
            written.cohort = max(goal for _, goal in goals)
        else:
            written.cohort = max(1.0, probability * cohort.goal) if self.divisor is None else self.divisor
        written.ClearField("blocks")
        written.blocks.extend(self._resolved(definition, written))
        if self.noise_multiplier is not None:
            require_planned(definition, noise_multiplier=self.noise_multiplier)

    def _goals(self) -> tuple[tuple[int, int], ...] | None:
        """(rounds, goal) of each block of a schedule of cohorts."""
        if self.cohort_schedule is None:
            return None
        pairs = checked_schedule(self.cohort_schedule, name="cohort_schedule", second="goal", rounds=self.rounds)
        for _, goal in pairs:
            _validate.integer(low=1, high=2**31, goal=goal)  # type: ignore[arg-type]
        return tuple((rounds, int(goal)) for rounds, goal in pairs)

    def _blocks(self) -> tuple[PlannedRounds, ...]:
        """The blocks of equal rounds."""
        noises: tuple[tuple[int, float], ...] = ((self.rounds, 1.0),)
        if self.noise_schedule is not None:
            noises = checked_schedule(
                self.noise_schedule, name="noise_schedule", second="relative noise", rounds=self.rounds
            )
        for _, noise in noises:
            _validate.within(low=1e-3, high=1e3, noise=noise)
            if self.noise_multiplier is not None:
                relative = self.noise_multiplier * noise
                _validate.within(low=LEAST_NOISE, high=MOST_NOISE, noise_multiplier_of_schedule=relative)
        blocks = planned_blocks(noises, self._goals() or ((self.rounds, None),))
        _validate.integer(low=1, high=MOST_BLOCKS, blocks_of_schedules=len(blocks))
        return blocks

    def _multipliers(self, definition: common_pb2.TaskDefinition, *, size: int, sharers: int) -> list[float]:
        """The noise on a sum of each block, over the bound of a contribution: given, or the least within the budget."""
        from odp.crypto.secure_aggregation.parameters import graph_delta
        from odp.privacy.accounting import mu_for_shares
        from odp.privacy.calibration import total_mu_for

        privacy, blocks = definition.privacy, self._blocks()
        if self.noise_multiplier is not None:
            return [self.noise_multiplier * block.noise for block in blocks]
        weights = [block.noise**-2.0 for block in blocks for _ in range(block.rounds)]
        total = math.fsum(weights)
        coordinates = size * self.rounds
        if sharers:
            mu = mu_for_shares(
                epsilon=privacy.epsilon, delta=privacy.delta, coordinates=coordinates,
                graph_delta=graph_delta() * self.rounds,
            )  # fmt: skip
        else:
            draws = [sampling_of(definition, round) for round in range(self.rounds)]
            mu = total_mu_for(
                [weight / total for weight in weights], epsilon=privacy.epsilon, delta=privacy.delta,
                coordinates=coordinates, sampling=[draw for draw in draws if draw is not None],
            )  # fmt: skip
        return [block.noise * math.sqrt(total) / mu for block in blocks]

    def _resolved(
        self, definition: common_pb2.TaskDefinition, written: federated_pb2.FederatedTraining
    ) -> list[federated_pb2.DenseRounds]:
        from odp.algorithms.dense.grid import MAX_CONTRIBUTIONS, Grid
        from odp.protocol.aggregation import noise_sharers
        from odp.v1 import federated_pb2

        privacy, cohort = definition.privacy, definition.cohort
        if privacy.epsilon == math.inf:
            raise ConfigurationError(
                "Expected epsilon to be finite; odp.simulate(.., noise=False) shows a training without noise"
            )
        if self.upload_bits is not None:
            require_unmasked(cohort, upload_bits=self.upload_bits)
        size = model_of(definition).size + (self.clip_quantile is not None) + self.diagnostics
        sharers, blocks = noise_sharers(cohort), self._blocks()
        multipliers = self._multipliers(definition, size=size, sharers=sharers)
        divisors = [written.cohort if block.goal is None else float(block.goal) for block in blocks]
        bit = spread = 0.0
        written.ClearField("adaptive_clip")
        written.ClearField("spread")
        if self.clip_quantile is not None:
            quietest = min(noise / divisor for noise, divisor in zip(multipliers, divisors, strict=True))
            bit = min(1.0, max(1e-6, _BIT_SHARE * quietest))
            written.adaptive_clip.CopyFrom(
                federated_pb2.AdaptiveClip(quantile=self.clip_quantile, rate=self.clip_rate, weight=bit)
            )
        if self.diagnostics:
            spread = _SPREAD_WEIGHT
            written.spread.CopyFrom(federated_pb2.UpdateSpread(weight=spread))
        bound = joint_clip(bit=bit, spread=spread)
        resolved = []
        for block, multiplier in zip(blocks, multipliers, strict=True):
            made = federated_pb2.DenseRounds(rounds=block.rounds, cohort=float(block.goal or 0))
            goal = cohort.goal if block.goal is None else block.goal
            most = goal if sharers else _ROOM * goal
            if cohort.HasField("enclave_poisson"):
                most = cohort.enclave_poisson.most_contributions
            most = min(most, MAX_CONTRIBUTIONS)
            if self.upload_bits is None:
                grid = Grid.chosen(
                    size=size, clip=bound, noise_std=bound * multiplier, maximum=most, sharers=sharers
                )  # fmt: skip
                made.dense.CopyFrom(grid.to_proto())
            else:
                few = RotatedGrid(
                    size=size, clip=bound, width=self.upload_bits, noise_multiplier=multiplier, maximum=most
                )  # fmt: skip
                made.rotated.CopyFrom(few.to_proto())
            resolved.append(made)
        return resolved


@dataclass(frozen=True)
class EpochTraining(FederatedTraining, abc.ABC):
    """Federated training whose devices train for some epochs; ``odp.DPFedAvg`` says what its fields are."""

    rate: float = 0.1
    epochs: int = 1
    batch: int = 10
    most_examples: int = 1000
    proximal: float = 0.0
    reconstruction: Reconstruction | None = None

    def local(self) -> LocalTraining:
        """The work of a device."""
        return LocalTraining(
            rate=self.rate, epochs=self.epochs, batch=self.batch, most_examples=self.most_examples,
            proximal=self.proximal, reconstruction=self.reconstruction,
        )  # fmt: skip


def write_label_range(definition: common_pb2.TaskDefinition) -> None:
    """Writes the range of labels that are classes, which follows from the model.

    Raises:
      ConfigurationError: it is given, or that of a label that is a number is not.
    """
    written, classes = definition.examples, model_of(definition).classes_range
    if (written.label_low < written.label_high) is (classes is not None):
        raise ConfigurationError(
            f"Expected label_low={written.label_low!r} and label_high={written.label_high!r} to be given where the "
            "label is a number, and only there"
        )
    if classes is not None:
        written.label_low, written.label_high = classes
