"""Record and replay (tier 1 of the audit): neighbours under frozen noise; and bugs that it has to find.

The audit runs the enclave's own code and compares it with numbers that are written down here a second time: the bounds
of the documentation, a Frobenius norm, HMAC coins, a closed form. Each test of ``PLANTED`` puts one bug into that code,
of the kinds that were found in released software, and the audit has to name it. Without a bug it names nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import math
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from odp.algorithms.dpam import codec
from odp.algorithms.dpam.query import DpamQuery
from odp.algorithms.dpam.terms import Terms
from odp.algorithms.factorization.codec import WEIGHT_UNITS
from odp.errors import OdpError, Refusal
from odp.evaluation.noise import NoNoise
from odp.privacy import composition
from odp.privacy.accounting import epsilon_of_mu
from odp.privacy.events import SampledRound, Sampling, releases_of
from odp.privacy.ledger_state import LedgerState
from odp.signed.task import open_task
from odp.v1 import aggregator_pb2, common_pb2
from trusted_aggregator.enclave.opened_task import OpenedTask
from trusted_aggregator.modes.enclave import enclave_half as rounds, sampling
from trusted_aggregator.modes.enclave.enclave_half import EnclaveRound as Round
from trusted_aggregator.state import population
from trusted_aggregator.state.sealed_state import RoundRecord

HALF = Sampling(0.5, 100, 98)
SEED = bytes(range(32))
VICTIM = 99


class Tape:
    """Noise that is written down: small whole numbers, other ones at every call."""

    def __init__(self) -> None:
        self.draws: list[tuple[float, int]] = []

    def sample(self, ratio: float, count: int) -> np.ndarray:
        self.draws.append((ratio, count))
        return np.random.default_rng([len(self.draws), count]).integers(-1000, 1000, count)


class Named(Exception):
    """The audit named what it was to find."""


class Audit:
    """Findings about the enclave's code as it is now, in words.

    With ``wanted``, a regular expression, it ends with ``Named`` at the first finding that matches.
    """

    def __init__(self, make_world: Callable, draw: Sampling | None, *, wanted: str | None = None) -> None:
        def edit(definition: common_pb2.TaskDefinition) -> None:
            if draw is not None:
                terms = definition.cohort.enclave_poisson
                terms.probability, terms.most_contributions, terms.cap = draw.probability, 100, draw.cap

        self.world = make_world(minimum=3, edit=edit)
        self.draw = draw
        self.terms = Terms.of(open_task(self.world.task))
        self.findings: list[str] = []
        self._wanted = wanted
        self._contributions: dict[int, list] = {}

    def _report(self, finding: str) -> None:
        self.findings.append(finding)
        if self._wanted is not None and re.search(self._wanted, finding):
            raise Named

    def run(self) -> list[str]:
        self._platform()
        if len(self.world.broadcasts) < 4:
            return self.findings
        for round in range(3):
            self._declared(round)
            self._noise(round)
            self._neighbours(round)
            self._duplicates(round)
        self._another_set()
        return self.findings

    def finds_it(self) -> bool:
        """Whether a finding matches ``wanted``."""
        try:
            self.run()
        except Named:
            return True
        except OdpError as error:  # the enclave's own checks stopped it: found as well, if it is about this bug
            self.findings.append(f"refused: {error}")
            return re.search(self._wanted or "", self.findings[-1]) is not None
        return False

    # What the documentation says, a second time

    def _bounds(self, round: int) -> dict[str, tuple[float, float]]:
        """(sensitivity, noise std) of each release."""
        dpam, root = open_task(self.world.task).dpam, math.sqrt(4)
        if round == 0:
            return {"counts": (root, dpam.count_noise_std)}
        if round == 1:
            clip = dpam.bias_vector_clip
            return {"mass": (root, dpam.bias_mass_noise), "sums": (root * clip, dpam.bias_sum_noise * clip)}
        square = 1 + dpam.row_clip**2
        reach = math.sqrt(square) * dpam.factor_vector_clip
        return {"gram": (root * square, dpam.gram_noise * square), "targets": (root * reach, dpam.target_noise * reach)}

    def _norm(self, name: str, change: np.ndarray) -> float:
        if name == "gram":  # the packed triangle holds each off-diagonal once, Frobenius' norm counts it twice
            first, second = np.triu_indices(1 + self.terms.rank)
            return float(np.sqrt((change**2 * np.where(first == second, 1.0, 2.0)).sum()))
        return float(np.sqrt((change**2).sum()))

    def _drawn(self, contribution_id: bytes) -> bool:
        coin = int.from_bytes(hmac.new(SEED, contribution_id, hashlib.sha256).digest(), "big")
        return self.draw is None or coin < int(self.draw.probability * 2**256)

    # One round of the enclave's code

    def _release(
        self, round: int, contributions: Sequence, noise, *, again: Sequence = ()
    ) -> tuple[dict[str, np.ndarray], list[Refusal | None]]:
        query = self.world.algorithm.query(round)
        drawn = rounds.draw_round_noise(query, noise)
        order, _ = self.world.order(round, b"odp/v1/open")
        held = Round(
            task_sha256=self.world.task_sha256, order=_parsed(order), query=query,
            record=RoundRecord(order, drawn.noise_id, SEED, self.world.identity.hpke.to_bytes()),
            policy=self.world.policy, sampling=self.draw,
            most=10**6,
        )  # fmt: skip
        sealed = [
            self.world.seal(one.SerializeToString(), round, key=held.public_key) for one in (*contributions, *again)
        ]
        refusals = held.submit(sealed)
        held.freeze()
        return held.noisy_sums(drawn), refusals

    def _honest(self, round: int) -> list:
        """Those of twelve devices, made once, and copied: what judges one may change it."""
        if round not in self._contributions:
            self._contributions[round] = [self.world.contribution(device, round) for device in range(12)]
        return [type(one).FromString(one.SerializeToString()) for one in self._contributions[round]]

    def _canaries(self, round: int) -> Iterator[tuple[str, bytes]]:
        """Payloads at the bounds, and beyond each of them."""
        limit, square = codec.row_limit(self.terms), {"row": [0, 0]}
        square["row"] = [int(math.sqrt(limit)), 0]
        yield "largest", self._payload(round, **square)
        yield "an item twice", self._payload(round, items=[3, 3, 5, 6], **square)
        if round:
            yield "one weight above the bound", self._payload(round, weights=[1024, 60, 60, 60], **square)
            yield "a target beyond its clip", self._payload(round, targets=[30_000, 0, 0, 0], **square)
            yield "targets together beyond their norm", self._payload(round, targets=[300] * 4, **square)
        if round == 2:
            yield "a row beyond its clip", self._payload(round, row=[2 * square["row"][0], 0])
            yield "a row just beyond its clip", self._payload(round, row=[square["row"][0] + 1, 60])

    def _payload(self, round: int, *, row, items=(8, 9, 10, 11), weights=(512,) * 4, targets=None) -> bytes:
        record = np.zeros(1, dtype=codec.layout(self.terms, round))
        if targets is None and round:  # as large as equal targets may be together
            share = self.terms.vector_clip(round) / self.terms.target_clip(round)
            targets = [int(codec.TARGET_UNITS * share)] * 4
        record["items"] = items
        if round:
            record["weights"], record["targets"] = weights, targets
        if round == 2:
            record["row"] = row
        return record.tobytes()

    # Checks

    def _declared(self, round: int) -> None:
        releases = self.world.algorithm.query(round).releases
        for release in releases:
            expected = self._bounds(round).get(release.name)
            if expected is None or not np.allclose((release.sensitivity, release.noise_std), expected, rtol=1e-9):
                self._report(f"{release.name}: sensitivity or noise is not that of the documentation")
        if [release.name for release in releases] != list(self._bounds(round)):
            self._report(f"round {round}: other releases than documented")

    def _noise(self, round: int) -> None:
        query, tape = self.world.algorithm.query(round), Tape()
        honest = self._honest(round)
        noisy, refusals = self._release(round, honest, tape)
        if set(refusals) != {None}:
            self._report(f"round {round}: an honest contribution was refused")
        plain, _ = self._release(round, honest, NoNoise())
        replayed = rounds.draw_round_noise(query, Tape()).arrays
        again = rounds.draw_round_noise(query, moved := Tape()).arrays
        for name, (_, std) in self._bounds(round).items():
            release = next(one for one in query.releases if one.name == name)
            if not np.array_equal(noisy[name] - plain[name], replayed[name]):
                self._report(f"{name}: the release is not the sum plus the drawn noise")
            if release.column_std.min() < std / math.sqrt(2) * (1 - 1e-9) or (
                name != "gram" and release.column_std.min() < std * (1 - 1e-9)
            ):
                self._report(f"{name}: less noise than is charged")
        wanted = sorted((r.column_std[c] / r.step, r.coordinates // r.shape[-1]) for r in query.releases
                        for c in range(r.shape[-1]))  # fmt: skip
        if sum(count for _, count in tape.draws) != sum(count for _, count in wanted):
            self._report(f"round {round}: numbers without a noise draw of their own")
        drawn = np.repeat([ratio for ratio, _ in tape.draws], [count for _, count in tape.draws])
        expected = np.repeat([ratio for ratio, _ in wanted], [count for _, count in wanted])
        if len(drawn) == len(expected) and not np.allclose(np.sort(drawn), np.sort(expected), rtol=1e-9):
            self._report(f"round {round}: drawn with another standard deviation than declared")
        if not moved.draws or len({array.tobytes() for array in again.values()}) < len(again):
            self._report(f"round {round}: the same noise twice")

    def _neighbours(self, round: int) -> None:
        honest = self._honest(round)
        without, _ = self._release(round, honest, NoNoise())
        alone = [self._release(round, [one], NoNoise())[0] for one in honest]
        for name, total in without.items():
            if not np.array_equal(total, sum(one[name] for one in alone)):
                self._report(f"{name}: not the sum of what each contribution adds")
            if self.draw is not None:
                counted = [one[name].any() for one in alone]
                if counted != [self._drawn(one.contribution_id) for one in honest]:
                    self._report(f"{name}: others are drawn than by the charged coins")
        for what, payload in self._canaries(round):
            victim = self.world.contribution(VICTIM, round, payload=payload)
            changed, refusals = self._release(round, [*honest, victim], NoNoise())
            if {key: value.shape for key, value in changed.items()} != {k: v.shape for k, v in without.items()}:
                self._report(f"round {round}: releases of other shapes with {what}")
                continue
            if what == "largest" and refusals[-1] is not None:
                self._report(f"round {round}: the largest honest contribution was refused")
            for release in self.world.algorithm.query(round).releases:
                change = (changed[release.name] - without[release.name]) * release.step
                bound = min(release.sensitivity, self._bounds(round)[release.name][0])
                if self._norm(release.name, change) > bound * (1 + 1e-9):
                    self._report(f"{release.name}: moved beyond its sensitivity by {what}")

    def _duplicates(self, round: int) -> None:
        honest = self._honest(round)
        once, _ = self._release(round, honest, NoNoise())
        other_id = self.world.contribution(0, round, contribution_id=bytes(32))
        other_payload = self.world.contribution(1, round, payload=self._payload(round, row=[100, 0]))
        twice, _ = self._release(round, honest, NoNoise(), again=[*honest[:3], other_id, other_payload])
        if any(not np.array_equal(once[name], twice[name]) for name in once):
            self._report(f"round {round}: one device counted twice")

    def _platform(self) -> None:
        """All rounds through the enclave: a charge per release (or draw), of what is documented, and their epsilon."""
        squares = 0.0
        for round in range(3):
            self.world.open(round)
            refusals = [self.world.submit(self.world.sealed(device, round), round) for device in range(12)]
            if any(refusals):
                self._report(f"round {round}: an honest contribution was refused")
                return
            release = self.world.learn(self.world.close(round))
            ledger = self.world.ledger()
            entry = next(one for one in ledger.entries if one.round == round)
            sampled = [event for event in entry.events if isinstance(event, SampledRound)]
            if bool(sampled) != (self.draw is not None) or len(sampled) > 1:
                self._report(f"round {round}: releases over one draw are not one event")
            charged = [one for event in entry.events for one in releases_of(event)]
            found = {one.name: (one.sensitivity, one.noise_std) for one in charged}
            if len(charged) != len(release.tensors) or found.keys() != self._bounds(round).keys():
                self._report(f"round {round}: not every release is charged")
            elif not all(np.allclose(found[name], bound) for name, bound in self._bounds(round).items()):
                self._report(f"round {round}: charged for other bounds")
            if (entry.contributions, entry.population_size) != (12, 12) or release.contributions != 12:
                self._report(f"round {round}: cohort or population is not what was measured")
            squares += sum((bound / std) ** 2 for bound, std in self._bounds(round).values())
            coordinates = sum(
                one.coordinates for number in range(round + 1) for one in self.world.algorithm.query(number).releases
            )
            expected = epsilon_of_mu(math.sqrt(squares), delta=1e-6, coordinates=coordinates)
            if self.draw is None and not math.isclose(release.epsilon_spent, expected, rel_tol=1e-9):
                self._report(f"round {round}: epsilon is not that of all rounds done")

    def _another_set(self) -> None:
        """The noise of a charged round under another set would show the difference of the two."""
        world = self.world
        fresh = world.sign(world.definition(minimum=3, epsilon=1.0, name="again"))
        world.task, world.task_sha256 = fresh, hashlib.sha256(fresh.definition).digest()
        world.broadcasts = {0: world.broadcasts[0]}
        world.open()
        world.fill(range(5))
        world.settle(world.charge().writes)
        world.restart(rows={(world.task_sha256, 0): world.rows[world.task_sha256, 0][1:]})
        try:
            world.finish()
        except OdpError:
            return
        self._report("the same noise was released under another set of contributions")


def _parsed(order: bytes) -> aggregator_pb2.RoundOrder:
    return aggregator_pb2.RoundOrder.FromString(order)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coarse grid for sampled rounds: which events are charged is what is looked at here."""
    monkeypatch.setattr(composition, "INTERVAL", composition.COARSE_INTERVAL)


@pytest.mark.parametrize("draw", [None, HALF])
@pytest.mark.slow
def test_the_audit_finds_nothing_in_the_code_as_it_is(make_world, draw):
    assert Audit(make_world, draw).run() == []


# The bugs


class _Quieter:
    """Noise of a part of the standard deviation that is asked for."""

    def __init__(self, noise, factor: float) -> None:
        self.noise, self.factor = noise, factor

    def sample(self, ratio: float, count: int) -> np.ndarray:
        return self.noise.sample(self.factor * ratio, count)


def _less_noise(factor: float) -> Callable:
    def plant(patch: pytest.MonkeyPatch) -> None:
        draw = rounds.draw_noise
        patch.setattr(rounds, "draw_noise", lambda release, noise: draw(release, _Quieter(noise, factor)))

    return plant


def _root_of_two_on_a_plain_release(patch):
    """What off-diagonals of a packed triangle may have, and no other number."""
    import odp.algorithms.dpam.query as query

    plain = query.plain_release

    def quieter(*terms):
        release = plain(*terms)
        vars(release)["column_std"] = release.column_std / math.sqrt(2)
        return release

    patch.setattr(query, "plain_release", quieter)


def _packed_that_is_plain(patch):
    """A query that calls a plain release packed, to get away with less noise on most of its columns."""
    import odp.algorithms.dpam.query as query

    patch.setattr(query, "plain_release", query.packed_release)


def _no_noise(patch):
    patch.setattr(rounds, "_add", lambda release, total, noise: total)


def _noise_over_root_of_cohort(patch):
    patch.setattr(rounds, "_add", lambda release, total, noise: total + noise // 3)


def _same_noise_every_time(patch):
    draw, kept = rounds.draw_noise, {}
    patch.setattr(rounds, "draw_noise", lambda one, noise: kept.setdefault(one.shape, draw(one, noise)))


def _mean_by_realised_count(patch):
    sums = Round.noisy_sums
    mean = lambda self, *given: {name: total // self.contributions for name, total in sums(self, *given).items()}  # noqa: E731
    patch.setattr(Round, "noisy_sums", mean)


def _noise_under_another_set(patch):
    patch.setattr(Round, "freeze", lambda self: (setattr(self, "_frozen", True), (5, bytes(32)))[1])


def _beyond(terms: Terms, round: int, given) -> bool:
    moved = [int(weight) * int(target) for weight, target in zip(given.weights[0], given.targets[0], strict=True)]
    return sum(one * one for one in moved) > codec.vector_limit(terms, round)


def _check_without(**names) -> Callable:
    """The enclave's check with one of its conditions left out."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        def check(self, payload):
            given = codec.decode(self._terms, self._round, (payload,))
            items = np.sort(given.items[0][given.weights[0] > 0])
            weight, row = int(given.weights[0] @ given.weights[0]), int(given.rows[0] @ given.rows[0])
            wrong = {
                "range": bool(len(items)) and int(items[-1]) >= self._terms.items,
                "distinct": bool((items[1:] == items[:-1]).any()),
                "weights": self._round != 0 and weight > WEIGHT_UNITS**2,
                "targets": bool((np.abs(given.targets[0]) > codec.TARGET_UNITS).any()),
                # Without a bound of single targets, the bound of all together still holds: both are left out.
                "norm": self._round != 0
                and names.get("missing") != "targets"
                and _beyond(self._terms, self._round, given),
                "row": row > self._row_limit + names.get("slack", 0),
            }
            refused = any(value for name, value in wrong.items() if name != names.get("missing"))
            return Refusal.OUT_OF_BOUNDS if refused else None

        patch.setattr(DpamQuery, "refusals", lambda self, payloads: [check(self, one) for one in payloads])

    return plant


def _inverted_clip(patch):
    """The device's rows get the norm max(norm, bound) instead of the smaller of the two: the enclave refuses them."""
    encode = codec.encode

    def longer(terms, round, contributions):
        if round == 2:
            rows = contributions.rows.copy()
            rows[:, 0] += 2 * int(math.sqrt(codec.row_limit(terms)))
            contributions = dataclasses.replace(contributions, rows=rows)
        return encode(terms, round, contributions)

    patch.setattr(codec, "encode", longer)


def _duplicate_ids_count(patch):
    keep = Round._keep

    def kept(self, judged):
        judged.contribution.contribution_id = hashlib.sha256(bytes([self.contributions])).digest()
        judged.contribution.pseudonym = judged.contribution.contribution_id
        return keep(self, judged)

    patch.setattr(Round, "_keep", kept)


def _charges(change: Callable) -> Callable:
    def plant(patch: pytest.MonkeyPatch) -> None:
        charges = OpenedTask.charges
        patch.setattr(OpenedTask, "charges", lambda task, round: change(charges(task, round)))

    return plant


def _sensitivity_over_root_two(patch):
    import odp.algorithms.dpam.query as query

    declared = query.declared_releases

    def smaller(terms, round):
        return tuple(
            dataclasses.replace(one, sensitivity=one.sensitivity / math.sqrt(2)) if one.name == "gram" else one
            for one in declared(terms, round)
        )

    patch.setattr(query, "declared_releases", smaller)


def _default_population(patch):
    patch.setattr(population.Population, "_users", lambda self, now: 5_000)


def _forgets_rounds(patch):
    patch.setattr(LedgerState, "task_events", lambda self, task_id: {})


def _each_query_its_own_draw(patch):
    _charges(lambda events: tuple(SampledRound((one,), HALF) for event in events for one in releases_of(event)))(patch)


def _full_participation_uncharged(patch):
    _charges(lambda events: tuple(one for event in events for one in releases_of(event)))(patch)


def _fixed_size(patch):
    """At most two, however many there are: the third one that is drawn lets an earlier one out."""

    def counted(self, contribution_id, payload):
        self.held = [*getattr(self, "held", ()), contribution_id]
        return payload if len(self.held) <= 2 else self._empty.tobytes()

    patch.setattr(sampling.Draw, "counted", counted)


def _more_than_charged(patch):
    init = sampling.Draw.__init__

    def luckier(self, seed, draw, **terms):
        init(self, seed, draw, **terms)
        self._threshold = int(0.8 * 2**256)

    patch.setattr(sampling.Draw, "__init__", luckier)


def _order_decides(patch):
    """Every other one that arrives is drawn: whoever orders the arrivals chooses."""

    def counted(self, contribution_id, payload):
        self.offered = getattr(self, "offered", 0) + 1
        return payload if self.offered % 2 else self._empty.tobytes()

    patch.setattr(sampling.Draw, "counted", counted)


PLANTED: dict[str, tuple[Callable, Sampling | None, str]] = {
    "half of the noise": (_less_noise(0.5), None, "another standard deviation"),
    "90 % of the noise": (_less_noise(0.9), None, "another standard deviation"),
    "off-diagonal noise on a plain release": (_root_of_two_on_a_plain_release, None, "less noise than is charged"),
    "a plain release declared as packed": (_packed_that_is_plain, None, "upper triangle|less noise than is charged"),
    "no noise": (_no_noise, None, "not the sum plus the drawn noise"),
    "noise over the root of the cohort": (_noise_over_root_of_cohort, None, "not the sum plus the drawn noise"),
    "the same noise every round": (_same_noise_every_time, None, "the same noise twice|noise draw of their own"),
    "noise reused for two sets": (_noise_under_another_set, None, "another set of contributions"),
    "inverted clip": (_inverted_clip, None, "honest contribution was refused"),
    "row clip not enforced": (_check_without(missing="row"), None, "moved beyond .* a row beyond"),
    "clip with float tolerance": (_check_without(slack=50_000), None, "moved beyond .* a row just beyond"),
    "missing target clip": (_check_without(missing="targets"), None, "moved beyond .* a target beyond"),
    "missing vector clip": (_check_without(missing="norm"), None, "moved beyond .* targets together"),
    "weights not enforced": (_check_without(missing="weights"), None, "moved beyond .* weight above"),
    "duplicate items": (_check_without(missing="distinct"), None, "moved beyond .* an item twice"),
    "duplicate ids": (_duplicate_ids_count, None, "counted twice"),
    "mean by realised count": (_mean_by_realised_count, None, "not the sum"),
    "second release uncharged": (_charges(lambda events: events[:1]), None, "not every release is charged"),
    "two releases charged as one": (
        _charges(lambda events: (max(events, key=lambda one: one.mu),)), None, "not every release is charged",
    ),
    "packed triangle without its root of two": (_sensitivity_over_root_two, None, "moved beyond|not that of the doc"),
    "default population": (_default_population, None, "not what was measured"),
    "rounds dropped from the charge": (_forgets_rounds, None, "epsilon is not that of all rounds"),
    "two queries over one draw as two events": (_each_query_its_own_draw, HALF, "not one event"),
    "sampling that is not charged as such": (_full_participation_uncharged, HALF, "not one event"),
    "fixed-size cohort charged as Poisson": (_fixed_size, HALF, "moved beyond|not the sum of what each"),
    "coins luckier than charged": (_more_than_charged, HALF, "others are drawn"),
    "arrival decides who is drawn": (_order_decides, HALF, "others are drawn|not the sum of what each"),
}  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED)
@pytest.mark.slow
def test_the_audit_finds_the_planted_bug(bug, make_world, monkeypatch):
    plant, draw, expected = PLANTED[bug]
    plant(monkeypatch)
    audit = Audit(make_world, draw, wanted=expected)
    assert audit.finds_it(), audit.findings
