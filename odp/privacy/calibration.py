"""From a budget to noise for sampled rounds: the inverse of ``composition.py``, found by search.

A run is described by how it divides mu^2 among its rounds, and by its draw. Searching is done at the coarse
discretisation, whose epsilon is never below that of the ledger, so that what is found here is never refused there.

Plans for a task: the noise, cohort and rounds within a budget, and the error of the result.

The query is a sum of vectors of norm at most ``clip``, released with Gaussian noise ``sigma * clip`` per number, once
per round, divided by the expected cohort. The answer's scale is the clip: a mean of clipped vectors has norm 1 at most,
and the noise on it has ``sigma / cohort`` per number and ``sigma * sqrt(dimension) / cohort`` as a vector.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from odp import _validate
from odp.errors import ConfigurationError, PrivacyError
from odp.privacy import accounting, composition
from odp.privacy.budget_check import rounds_possible
from odp.privacy.events import Event, GaussianRelease, SampledRound, Sampling

_STEP_BACK = 1e-4
_MOST_STEPS = 100
_LARGEST_MU = 10.0 * (1.0 - 1e-9)  # per round: the least noise that an event may have


def total_mu_for(
    shares: Sequence[float],
    *,
    epsilon: float,
    delta: float,
    coordinates: int,
    sampling: Sampling | Sequence[Sampling] | None = None,
) -> float:
    """The largest ``t`` for which rounds of joint mu ``sqrt(share) * t`` together stay within the budget.

    Without ``sampling`` this is ``accounting.mu_for``, whatever the shares. With it, ``t`` is what the noise is made
    from, before amplification; the search stops up to a part in 1e3 below the largest.

    Args:
        shares: of the rounds, positive, 1 together.
        epsilon, delta: the budget.
        coordinates: noised numbers of all rounds.
        sampling: the draw of every round, or one per round; without any, every contribution counts.

    Raises:
        ConfigurationError: a number is out of range.
        PrivacyError: sampling the noise, or caps that are reached, use up delta.
    """
    _validate.positive(**{f"share_{number}": share for number, share in enumerate(shares)})
    _validate.within(low=1.0 - 1e-9, high=1.0 + 1e-9, sum_of_shares=math.fsum(shares))
    if not sampling:
        return accounting.mu_for(epsilon=epsilon, delta=delta, coordinates=coordinates)
    draws = (sampling,) * len(shares) if isinstance(sampling, Sampling) else tuple(sampling)
    _validate.integer(low=len(shares), high=len(shares), draws=len(draws))
    return _sampled(tuple(shares), epsilon, delta, coordinates, draws)


@functools.lru_cache(maxsize=64)
def _sampled(
    shares: tuple[float, ...], epsilon: float, delta: float, coordinates: int, draws: tuple[Sampling, ...]
) -> float:
    least = accounting.mu_for(epsilon=epsilon, delta=delta, coordinates=coordinates)  # sampling never costs epsilon
    # Far quicker, and close.
    uncapped = tuple(dataclasses.replace(draw, cap=draw.population_bound) for draw in draws)

    def spent(total: float, draws: tuple[Sampling, ...]) -> float:
        rounds = [
            SampledRound((GaussianRelease("round", math.sqrt(share) * total, 1.0, numbers),), draw)
            for share, numbers, draw in zip(shares, _split(coordinates, len(shares)), draws, strict=True)
        ]
        return accounting.epsilon(rounds, delta=delta, interval=composition.COARSE_INTERVAL)

    most = _LARGEST_MU / math.sqrt(max(shares))
    total = least if least >= most else largest_within(
        lambda total: spent(total, uncapped), epsilon, start=least, most=most
    )  # fmt: skip
    for _ in range(_MOST_STEPS):
        if spent(total, draws) <= epsilon:
            return total * (1.0 - 1e-9)
        total *= 1.0 - _STEP_BACK
    raise PrivacyError(
        f"cap={min(draw.cap for draw in draws)} of the draw is too tight for delta={delta:g}: use that of "
        "truncation_cap, or a larger one"
    )


def largest_within(cost: Callable[[float], float], budget: float, *, start: float, most: float) -> float:
    """The largest x up to ``most`` with ``cost(x) <= budget``, to a part in 1e6 and below; ``cost`` rises with x.

    ``start`` is a guess on the safe side: ``cost(start) <= budget``. Where it is not, ``start`` is returned.
    """
    low, high = start, start
    while cost(min(1.5 * high, most)) <= budget:
        low = high = min(1.5 * high, most)
        if high >= most:
            return most
    high = min(1.5 * high, most)
    # Illinois' variant of regula falsi on logarithms: the cost is close to a power of x.
    at_low, at_high = _gap(cost(low), budget), _gap(cost(high), budget)
    if at_low > 0.0:
        return start
    side = 0
    while math.log(high / low) > 1e-6:
        weight = at_low / (at_low - at_high)
        middle = low * (high / low) ** min(max(weight, 1e-3), 1.0 - 1e-3)
        if (gap := _gap(cost(middle), budget)) <= 0.0:
            low, at_low = middle, gap
            at_high *= 0.5 if side < 0 else 1.0
            side = -1
        else:
            high, at_high = middle, gap
            at_low *= 0.5 if side > 0 else 1.0
            side = 1
        if -1e-6 < gap <= 0.0:
            break
    return low


def _gap(cost: float, budget: float) -> float:
    return math.log(max(cost, 1e-12) / budget)


def _split(coordinates: int, rounds: int) -> list[int]:
    """Numbers per round that add up to ``coordinates`` or just above."""
    return [max(1, coordinates - rounds + 1), *[1] * (rounds - 1)]


_DROWNED = 1.0  # the noise is as long as the longest possible mean
_CAP_ROUNDS = 10_000
_MOST_SIGMA = 1e5
_LEAST_SIGMA = 0.1
_MOST_TRIES = 30
_MOST_DEVICES = 10**9
_MEANINGLESS = 20.0  # an epsilon above protects nobody


@dataclass(frozen=True, kw_only=True)
class Question:
    """The known values; None is wanted, or follows from the others. Fields as the options of `odp privacy plan`.

    Raises:
        ConfigurationError: a number is out of range, or two of them contradict each other.
    """

    epsilon: float | None = None
    delta: float | None = None
    population: int | None = None
    cohort: float | None = None
    probability: float | None = None
    rounds: int | None = None
    sigma: float | None = None
    clip: float = 1.0
    dimension: int = 1
    error: float | None = None

    def __post_init__(self) -> None:
        _validate.positive(clip=self.clip)
        _validate.integer(low=1, high=2**40, dimension=self.dimension)
        for name, high in (("population", 10**9), ("rounds", 10**7)):
            if getattr(self, name) is not None:
                _validate.integer(low=1, high=high, **{name: getattr(self, name)})
        for name, low, top in (("epsilon", 1e-3, 100.0), ("sigma", _LEAST_SIGMA, _MOST_SIGMA), ("error", 1e-9, 1e9)):
            if getattr(self, name) is not None:
                _validate.within(low=low, high=top, **{name: getattr(self, name)})
        if self.probability is not None:
            _validate.within(low=1e-9, high=1.0, probability=self.probability)
        if self.cohort is not None:
            _validate.within(low=1e-3, high=float(self.population or 10**9), cohort=self.cohort)
        if self.cohort is not None and self.probability is not None:
            raise ConfigurationError("Expected cohort or probability, not both: cohort = probability * population")
        sampled = self.cohort is not None or (self.probability or 1.0) < 1.0
        if sampled and self.population is None and self.error is None:
            raise ConfigurationError("Expected a population with cohort or probability: sampling is of a population")

    @property
    def sampling_rate(self) -> float:
        """Probability of a contribution to count; 1 without sampling."""
        if self.probability is not None:
            return self.probability
        if self.cohort is not None and self.population is not None:
            return self.cohort / self.population
        return 1.0


def answer(question: Question) -> dict[str, Any]:
    """The question with its gap filled, and the consequences; JSON-able. ``possible`` is False if nothing fits.

    Raises:
        ConfigurationError: too little is given; the message says what is missing.
        PrivacyError: delta times population is 1 or more.
    """
    if question.population is None and question.error is not None:
        return _for_population(question)
    if (delta := question.delta) is None:
        if question.population is None:
            raise ConfigurationError("Expected delta or population: the default delta is a tenth of 1 / population")
        delta = accounting.default_delta(question.population)
    if question.population is not None:
        accounting.check_delta(delta, question.population)
    query = _Query(question.clip, question.dimension, question.population, delta)
    sampling_rate, epsilon, sigma, rounds = question.sampling_rate, question.epsilon, question.sigma, question.rounds
    if rounds is not None and sigma is not None:
        if epsilon is None:
            return _described(query, "epsilon", sampling_rate, sigma, rounds, question)
        if question.population is None or question.cohort is not None or question.probability is not None:
            if query.epsilon(sigma, sampling_rate, rounds) <= epsilon:
                return _described(query, "nothing", sampling_rate, sigma, rounds, question)
            return _impossible(query, "nothing", sampling_rate, question)
        if (share := query.largest_probability(epsilon, sigma, rounds)) is None:
            return _impossible(query, "probability", sampling_rate, question)
        return _described(query, "probability", share, sigma, rounds, question)
    if epsilon is not None and rounds is not None:
        if (least := query.least_sigma(epsilon, sampling_rate, rounds)) is None:
            return _impossible(query, "sigma", sampling_rate, question)
        return _described(query, "sigma", sampling_rate, least, rounds, question)
    if epsilon is not None and sigma is not None:
        if not (most := query.most_rounds(epsilon, sigma, sampling_rate)):
            return _impossible(query, "rounds", sampling_rate, question)
        return _described(query, "rounds", sampling_rate, sigma, most, question)
    missing = [name for name in ("epsilon", "sigma", "rounds") if getattr(question, name) is None]
    raise ConfigurationError(f"Expected two of epsilon, sigma and rounds (missing: {', '.join(missing)})")


@dataclass(frozen=True)
class _Query:
    """The released sum, and its population."""

    clip: float
    dimension: int
    population: int | None
    delta: float

    def event(self, sigma: float, sampling_rate: float, *, capped: bool = True) -> Event:
        release = GaussianRelease("mean", self.clip, sigma * self.clip, self.dimension)
        if sampling_rate >= 1.0:
            return release
        if self.population is None:
            raise ConfigurationError("Expected a population with cohort or probability: sampling is of a population")
        cap = self.population
        if capped:
            cap = composition.truncation_cap(
                probability=sampling_rate, population_bound=self.population, rounds=_CAP_ROUNDS, delta=self.delta
            )
        return SampledRound((release,), Sampling(sampling_rate, self.population, cap))

    def epsilon(self, sigma: float, sampling_rate: float, rounds: int) -> float:
        return accounting.epsilon({self.event(sigma, sampling_rate): rounds}, delta=self.delta)

    def least_sigma(self, budget: float, sampling_rate: float, rounds: int) -> float | None:
        """The smallest sigma, rounded up; None above the sampler's range."""
        full = accounting.noise_multiplier_for(
            epsilon=budget, delta=self.delta, releases=rounds, coordinates=self.dimension * rounds
        )
        if full > _MOST_SIGMA:
            return None
        if sampling_rate >= 1.0:
            return full
        most = (1.0 - 1e-9) / _LEAST_SIGMA
        mu = largest_within(
            lambda mu: self.quick_epsilon(1.0 / mu, sampling_rate, rounds), budget, start=1.0 / full, most=most
        )
        return (1.0 + 1e-6) / mu

    def most_rounds(self, budget: float, sigma: float, sampling_rate: float) -> int:
        return rounds_possible({}, (self.event(sigma, sampling_rate),), budget=budget, delta=self.delta)

    def largest_probability(self, budget: float, sigma: float, rounds: int) -> float | None:
        """The largest share of the population that may count; 1 where all may."""
        if self.quick_epsilon(sigma, 1.0, rounds) <= budget:
            return 1.0
        least = 1.0 / (self.population or 1)
        if least >= 1.0 or self.quick_epsilon(sigma, least, rounds) > budget:
            return None
        share = largest_within(lambda q: self.quick_epsilon(sigma, q, rounds), budget, start=least, most=1.0 - 1e-6)
        while self.epsilon(sigma, share, rounds) > budget:  # the cap, which the search left out
            share *= 1.0 - 1e-4
        return share

    def quick_epsilon(self, sigma: float, sampling_rate: float, rounds: int) -> float:
        """An upper bound of epsilon, quickly: a coarse grid, and no cap, which is hardly ever reached."""
        event = self.event(sigma, sampling_rate, capped=False)
        return accounting.epsilon({event: rounds}, delta=self.delta, interval=composition.COARSE_INTERVAL)


def _for_population(question: Question) -> dict[str, Any]:
    """The smallest population whose mean has the wanted error: the noise depends on it through delta alone."""
    if question.cohort is not None:
        raise ConfigurationError("Expected probability instead of cohort where the population is asked for")
    if question.error is None:
        raise ConfigurationError("Expected error: the wanted noise on the mean, over the clip")
    population, result = 1000, {}
    for _ in range(_MOST_TRIES):
        result = answer(replace(question, population=population))
        if result.get("error") is None:
            return result
        needed = max(1, math.ceil(population * result["error"] / question.error))
        if needed <= population <= math.ceil(1.01 * needed):
            break
        if needed > _MOST_DEVICES:
            verdict = f"cannot be done: an error of {question.error:g} takes more than {_MOST_DEVICES:,} devices"
            return result | {"possible": False, "verdict": verdict, "ways_out": []}
        population = needed
    return result | {"solved_for": "population"}


def _described(
    query: _Query, solved: str, sampling_rate: float, sigma: float, rounds: int, question: Question
) -> dict[str, Any]:
    cohort = None if query.population is None else sampling_rate * query.population
    event, epsilon = query.event(sigma, sampling_rate), query.epsilon(sigma, sampling_rate, rounds)
    result: dict[str, Any] = {
        "solved_for": solved,
        "possible": True,
        "epsilon": epsilon,
        "budget": question.epsilon,
        "delta": query.delta,
        "population": query.population,
        "delta_times_population": None if query.population is None else query.delta * query.population,
        "probability": sampling_rate,
        "cohort": cohort,
        "cap": event.sampling.cap if isinstance(event, SampledRound) else None,
        "rounds": rounds,
        "sigma": sigma,
        "clip": query.clip,
        "dimension": query.dimension,
        "noise_std_of_sum": sigma * query.clip,
        "std_of_mean": None,
        "error": None,
        "verdict": "population not given: the noise on the mean is unknown",
        "ways_out": [],
    }
    if sampling_rate < 1.0:
        result["epsilon_without_amplification"] = query.epsilon(sigma, 1.0, rounds)
    if cohort is None or query.population is None:
        return result
    length = math.sqrt(query.dimension)
    result["std_of_mean"], result["error"] = sigma / cohort, sigma * length / cohort
    if sampling_rate < 1.0 and (least := query.least_sigma(epsilon, 1.0, rounds)) is not None:
        result["error_with_full_participation"] = least * length / query.population
    wanted = _DROWNED if question.error is None else question.error
    result["verdict"] = f"the noise on a mean is {result['error']:.3g} of the clip"
    if result["error"] > wanted * (1.0 + 1e-9):
        what = "drowns the signal" if wanted == _DROWNED else f"misses the wanted {wanted:g}"
        result["verdict"] = f"cannot be done: {result['verdict']}, which {what}"
        result["possible"] = False
        result["ways_out"] = _ways_out(query, result, result["error"] / wanted)
    elif question.error is not None:
        result["verdict"] += f", within the wanted {wanted:g}"
    return result


def _ways_out(query: _Query, result: dict[str, Any], factor: float) -> list[str]:
    """The single changes that would each give ``factor`` times less noise on the mean."""
    sampling_rate, rounds = result["probability"], result["rounds"]
    ways = [f"a population of {math.ceil(result['population'] * factor):,} at the same probability and delta"]
    quieter = result["sigma"] / factor
    if quieter >= _LEAST_SIGMA:
        epsilon = query.quick_epsilon(quieter, sampling_rate, rounds)
        ways.append(f"epsilon = {epsilon:.3g}" + (", which protects nobody" if epsilon > _MEANINGLESS else ""))
    if (dimension := math.floor(query.dimension / factor**2)) >= 1:
        ways.append(f"a dimension of {dimension:,}")
    fewer = (
        query.most_rounds(result["epsilon"], quieter, sampling_rate) if rounds > 1 and quieter >= _LEAST_SIGMA else 0
    )
    if fewer:
        ways.append(f"{fewer:,} rounds")
    better = result.get("error_with_full_participation")
    if better is not None and better < result["error"]:
        ways.append(f"full participation: the noise on the mean is then {better:.3g} of the clip")
    return ways


def _impossible(query: _Query, solved: str, sampling_rate: float, question: Question) -> dict[str, Any]:
    """The answer if no value fits the budget."""
    rounds, budget, ways = question.rounds or 1, question.epsilon or 0.0, []
    if question.sigma is not None:
        ways.append(
            f"epsilon = {query.epsilon(question.sigma, sampling_rate, rounds):.4g} for {rounds} round(s) of this noise"
        )
    if (least := query.least_sigma(budget, sampling_rate, rounds)) is not None:
        ways.append(f"sigma = {least:.6g} for {rounds} round(s)")
    if solved == "probability":
        ways.append("a larger population, so that one device is a smaller part of it")
    return {
        "solved_for": solved,
        "possible": False,
        "budget": budget,
        "delta": query.delta,
        "population": query.population,
        "rounds": question.rounds,
        "sigma": question.sigma,
        "verdict": f"cannot be done within epsilon={budget:g} at delta={query.delta:g}",
        "ways_out": ways,
    }


def render_plan(result: Mapping[str, Any]) -> str:
    """The answer as a table; the wanted number is marked."""
    rows = [
        ("epsilon", "epsilon", ".6g"), ("budget", "budget", ".6g"), ("delta", "delta", "g"),
        ("delta times population", "delta_times_population", ".3g"), ("population", "population", ",d"),
        ("probability to count", "probability", ".6g"), ("cohort, expected", "cohort", ",.1f"),
        ("cap of the draw", "cap", ",d"), ("rounds", "rounds", ",d"),
        ("sigma (noise std of the sum / clip)", "sigma", ".6g"),
        ("noise std of the sum", "noise_std_of_sum", ".6g"), ("dimension", "dimension", ",d"),
        ("noise std of the mean / clip, per number", "std_of_mean", ".3g"),
        ("noise norm of the mean / clip", "error", ".3g"),
        ("the same, full participation at this epsilon", "error_with_full_participation", ".3g"),
        ("epsilon if the draw were not secret", "epsilon_without_amplification", ".6g"),
    ]  # fmt: skip
    lines = [
        f"{'>' if key == result['solved_for'] else ' '} {label:<46}{format(result[key], form):>16}"
        for label, key, form in rows
        if result.get(key) is not None
    ]
    lines += ["", result["verdict"], *(f"  it would take: {way}" for way in result["ways_out"])]
    return "\n".join(lines) + "\n"
