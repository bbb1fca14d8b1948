"""Seats of devices at a host that lies: what they refuse, and what their ledgers hold then."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from crypto.secure_aggregation.test_erasure import kept_secrets
from fixed_times import impatient_times

import odp
from device_runtime.network.services import Traffic
from device_runtime.person.limits import Limits
from device_runtime.round import secagg
from device_runtime.round.gate import Gate
from device_runtime.round.participation import Participant
from device_runtime.round.secagg import Seat, announced, begin_attempt, require_new_attempt
from device_runtime.round.secagg_sessions import Sessions
from device_runtime.store.schema import Participation, State
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work, open_model
from odp.algorithms.dense.shares import secagg_config
from odp.algorithms.registry import algorithm_for
from odp.crypto import SigningKey
from odp.crypto.roster import hash_of
from odp.crypto.secure_aggregation.client import State as ClientState
from odp.crypto.secure_aggregation.parameters import MOST_ATTEMPTS
from odp.crypto.secure_aggregation.session import Configuration
from odp.errors import (
    DiskFull,
    EnrolmentError,
    NotNow,
    OdpError,
    PrivacyError,
    ServiceError,
    ServiceUnavailable,
    StaleModel,
    StateError,
    TransparencyError,
)
from odp.privacy.mechanisms import OperatingSystemNoise
from odp.protocol.wire.model import Slices
from odp.protocol.wire.tables import manifest_for
from odp.signed.task import open_task, sign_manifest, sign_task, task_sha256
from odp.v1 import secagg_service_pb2 as wire, secure_aggregation_pb2 as messages
from odp.v1.secagg_terms_pb2 import SecAggTerms
from trusted_aggregator.modes.secagg.limits import Pace
from trusted_aggregator.modes.secagg.session import LiveSession

DEVICES = 8
KINDS = ("advert", "reveal", "shares", "masked", "agreement", "unmask")


class Table:
    """Eight devices with stores, one task, and a host that answers as a test likes."""

    def __init__(self, root: Path, *, bins: int = 5) -> None:
        developer = SigningKey.generate()
        definition = odp.Statistics(
            name="films",
            queries={"films": odp.Histogram(bins=bins)},
            privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
            cohort=odp.Cohort(minimum=6, goal=DEVICES, aggregation="secagg+"),
        ).definition()
        signed = sign_task(definition, developer)
        algorithm = algorithm_for(open_task(signed))
        self.grid = algorithm.query(0).grid
        broadcast = algorithm.server().broadcast(algorithm.server().start())
        model = open_model(signed, sign_manifest(manifest_for(broadcast, task_sha256(signed)), developer))
        self.work = Work(model, 0, "127.0.0.1:1", "127.0.0.1:1")
        self.config = secagg_config(
            model.definition, query=algorithm.query(0), task_sha256=model.task_sha256, round=0,
            model_sha256=model.model_sha256, attempt=0,
        )  # fmt: skip
        enclave = SimpleNamespace(policy=SimpleNamespace(sha256=bytes(32)), image_digest="sha384:00")
        services: Any = SimpleNamespace(
            join_session=lambda *_: wire.JoinResponse(config=self.config), require_pinned=lambda **addresses: None,
            catalogue_steps=None,
        )  # fmt: skip
        real = Participant(
            services=services, enclaves=cast("Any", None), clock=lambda: 0.0, fixed_times=impatient_times()
        )
        self.participant: Any = SimpleNamespace(
            services=services,
            gate=Gate(limits=Limits(min_cohort=6)), clock=lambda: 0.0, admitted=lambda store, work: (),
            roster_for=lambda terms: None, tokens=real.tokens,
            verified_aggregator=lambda work, logged: SimpleNamespace(enclave=enclave), recorded=lambda *_: b"",
            verified_distributor=lambda work, logged: None, model_for=real.model_for, fixed_times=real.fixed_times,
            pipeline=SimpleNamespace(
                before_data=lambda store, work: None, contributing=real.pipeline.contributing,
                alone=real.pipeline.alone,
            ),
        )  # fmt: skip
        self.paths = [root / f"{number}.sqlite" for number in range(DEVICES)]
        for path in self.paths:
            with Store.open_or_create(path) as store:
                store.fill(np.arange(3), np.ones(3), filled_from=b"data")
        self.host = LiveSession(
            Configuration.open(self.config), goal=DEVICES, patience=1.0, pace=Pace(), clock=lambda: 0.0
        )

    def seats(self) -> list[Seat]:
        session = announced(self.participant, self.work, Traffic())
        assert session is not None
        return [
            Seat(session, self.participant, lambda path=path: Store.open(path), population="films", noise=NOISE)
            for path in self.paths
        ]

    def tell(self, request: wire.StepRequest) -> wire.StepResponse | None:
        kind = request.WhichOneof("message")
        message = None if kind is None else getattr(request, kind)
        return self.host.step(request.client.identity, request.client.token, message)

    def up_to(self, last: str) -> tuple[list[Seat], list[wire.StepResponse]]:
        """Every seat after its message ``last``, and what an honest host answers it."""
        seats = self.seats()
        requests = [seat.sit_down(Traffic()) for seat in seats]
        for kind in KINDS[: KINDS.index(last) + 1]:
            for request in requests:
                assert request is not None
                assert request.WhichOneof("message") == kind
                self.tell(request)
            if kind == "agreement":
                self.host.allow_unmasking()
            answers = [self.tell(wire.StepRequest(client=request.client)) for request in requests if request]
            if kind != last:
                requests = [seat.next(answer) for seat, answer in zip(seats, answers, strict=True) if answer]
        return seats, [answer for answer in answers if answer]


NOISE = OperatingSystemNoise()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def announce(table: Table, attempt: int) -> None:
    """The host announces another attempt, whichever it says."""
    config = messages.SecAggConfig.FromString(table.config)
    config.attempt = attempt
    table.config = config.SerializeToString(deterministic=True)
    table.host = LiveSession(
        Configuration.open(table.config), goal=DEVICES, patience=1.0, pace=Pace(), clock=lambda: 0.0
    )


def ledger(table: Table, device: int) -> list[tuple[State, object]]:
    with Store.open(table.paths[device]) as store:
        return [(one.state, one.sealed) for one in store.ledger()]


@pytest.mark.parametrize(
    "change", [{"minimum": 3}, {"model_sha256": b"x" * 32}, {"dropout": 0.4}, {"maximum": 9}, {"round": 1}]
)
def test_a_session_that_is_not_the_tasks_is_not_joined(table: Table, change: dict[str, Any]) -> None:
    """Another model for some devices among them: what they were given is in the session's name."""
    config = messages.SecAggConfig.FromString(table.config)
    for name, value in change.items():
        setattr(config, name, value)
    table.config = config.SerializeToString(deterministic=True)
    with pytest.raises(PrivacyError, match="another session than the one of the signed task"):
        announced(table.participant, table.work, Traffic())


def test_a_vector_is_in_the_ledger_before_it_leaves_and_no_second_one_is_made(table: Table) -> None:
    seats, _ = table.up_to("shares")
    assert ledger(table, 0) == []
    answer = table.tell(seats[0].poll())
    assert answer is not None
    request = seats[0].next(answer)
    assert request is not None
    assert ledger(table, 0) == [(State.PREPARED, None)]
    assert seats[0].sent
    voided = wire.StepResponse(end=wire.SecAggEnd(reason=wire.SecAggEnd.REASON_VOIDED))
    assert seats[0].next(voided) is None
    assert table.seats()[0].sit_down(Traffic()) is None, "whatever the host says, no further session of the round"


def test_what_other_tasks_spent_since_the_device_sat_down_counts_before_its_vector_is_made(
    table: Table, tmp_path: Path
) -> None:
    """A device may sit in sessions of several tasks: each was within the limits when it sat down, not all together."""
    table.participant.gate = Gate(limits=Limits(min_cohort=6, max_total_epsilon=1.1))
    seats, answers = table.up_to("shares")
    (tmp_path / "other").mkdir()
    other = Table(tmp_path / "other").work.model
    with Store.open(table.paths[0]) as store:
        store.prepare(
            Participation(
                task_sha256=other.task_sha256, round=0, contribution_id=bytes(32), model_sha256=other.model_sha256,
                recipient=b"", epsilon=1.0, delta=1e-6, policy_sha256=bytes(32), image_digest="sha384:00", time=0.0,
                record=b"",
            ),
            local_parameters=b"", task=other.signed_task, terms=other.terms,
        )  # fmt: skip
    with pytest.raises(PrivacyError, match=r"max_total_epsilon=1\.1"):
        seats[0].next(answers[0])
    assert len(ledger(table, 0)) == 1
    assert not seats[0].sent
    assert seats[1].next(answers[1]) is not None


def fails(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize("what", ["beyond its bound", "fails", "another length"])
def test_a_device_that_cannot_compute_sends_the_empty_contribution_into_its_session(table: Table, what: str) -> None:
    """No enclave sees it: a bound that the noise is made for is the device's own to keep."""
    long = np.full(table.grid.size, table.grid.units, dtype="<i4").tobytes()
    made = {
        "beyond its bound": lambda *_, **__: (long, b""),
        "fails": fails,
        "another length": lambda *_, **__: (b"", b""),
    }
    honest = table.work.model.client
    computing = itertools.chain([made[what]], itertools.repeat(honest.contribute))
    lying = SimpleNamespace(
        contribute=lambda *given, **options: next(computing)(*given, **options), empty=honest.empty,
        check_model=honest.check_model,
    )  # fmt: skip
    object.__setattr__(table.work.model, "client", lying)
    seats, answers = table.up_to("shares")
    found, other = seats[0].next(answers[0]), seats[1].next(answers[1])
    assert found is not None
    assert other is not None
    assert found.ByteSize() == other.ByteSize()
    assert ledger(table, 0) == ledger(table, 1) == [(State.PREPARED, None)]
    with Store.open(table.paths[0]) as store:
        assert store.empty_contributions() == 1
        assert len(store.charged()) == 1


@pytest.mark.slow
def test_seats_of_devices_with_any_data_look_alike(table: Table) -> None:
    """Nothing, one item, tens of thousands, values at the bounds and beyond: message by message, to the byte."""
    held: list[dict[int, float]] = [
        {}, {0: 1.0}, dict.fromkeys(range(20_000), 5.0), {-1: 1e308, 4: -1e308}, {2**62: 0.0}, {3: float("inf")},
        {1: 1.0, 2: 2.0}, {0: 0.0},
    ]  # fmt: skip
    for path, ratings in zip(table.paths, held, strict=True):
        with Store.open(path) as store:
            store.erase()
            with store.transaction():
                store._connection.executemany("INSERT INTO ratings (item, value) VALUES (?, ?)", ratings.items())
    seats = table.seats()
    requests = [seat.sit_down(Traffic()) for seat in seats]
    for kind in KINDS:
        sizes = {(request.WhichOneof("message"), request.ByteSize()) for request in requests if request is not None}
        assert {name for name, _ in sizes} == {kind}
        # Lists of the other clients have their numbers in them, which are a byte longer or shorter.
        assert max(size for _, size in sizes) - min(size for _, size in sizes) <= (0 if kind == "masked" else DEVICES)
        for request in requests:
            assert request is not None
            table.tell(request)
        if kind == "agreement":
            table.host.allow_unmasking()
        answers = [table.tell(seat.poll()) for seat in seats]
        requests = [seat.next(answer) for seat, answer in zip(seats, answers, strict=True) if answer is not None]
    assert [ledger(table, device) for device in range(DEVICES)] == [[(State.PREPARED, None)]] * DEVICES
    table.host.finish()


def test_a_devices_own_code_has_its_time_before_the_session_begins(table: Table) -> None:
    steps: list[str] = []
    table.participant.pipeline.before_data = lambda store, work: steps.append("code")
    honest = table.host.step
    table.host.step = lambda *given: (steps.append("session"), honest(*given))[1]  # type: ignore[method-assign]
    seats, answers = table.up_to("shares")
    assert steps[: DEVICES + 1] == ["code"] * DEVICES + ["session"]
    assert seats[0].next(answers[0]) is not None
    assert steps.count("code") == DEVICES


def test_shares_are_given_once(table: Table) -> None:
    seats, answers = table.up_to("agreement")
    request = seats[3].next(answers[3])
    assert request is not None
    assert request.WhichOneof("message") == "unmask"
    assert seats[3].next(answers[3]) == request, "a host that started again gets the same shares, to the byte"
    others = wire.StepResponse()
    others.CopyFrom(answers[3])
    del others.agreements.signers[-1], others.agreements.signatures[-1]
    with pytest.raises(StateError):
        seats[3].next(others)
    with pytest.raises(StateError):
        seats[3].next(answers[3])


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_same_answer_again_gets_the_same_message_and_the_ledger_has_one_entry(table: Table, kind: str) -> None:
    """A host that died after an answer gives it again; a vector with a second mask would show more than the sum."""
    seats, answers = table.up_to(KINDS[KINDS.index(kind) - 1])
    first = seats[0].next(answers[0])
    assert first is not None
    assert first.WhichOneof("message") == kind
    assert [seats[0].next(answers[0]) for _ in range(3)] == [first] * 3
    assert seats[0].repeat() == first
    assert len(ledger(table, 0)) == (KINDS.index(kind) >= KINDS.index("masked"))


@pytest.mark.parametrize("left", [[0, 1, 2, 3, 4, 5, 6], [3], [1, 2, 3]])
def test_a_host_that_drops_chosen_devices_gets_no_agreement_of_the_others(table: Table, left: list[int]) -> None:
    """Itself listed dead; alone among its own; fewer than the minimum."""
    seats, answers = table.up_to("masked")
    told = messages.SecAggSurvivors()
    told.CopyFrom(answers[7].survivors)
    told.survivors = bytes([sum(1 << number for number in left)])
    asked = 7 if 7 not in left and len(left) > 6 else left[0]
    number = table.host._members[seats[asked]._name.identity].number
    if len(left) > 6:  # everybody but this very client
        told.survivors = bytes([0xFF & ~(1 << number)])
    with pytest.raises(PrivacyError):
        seats[asked].next(wire.StepResponse(survivors=told))
    with pytest.raises(StateError):
        seats[asked].next(answers[asked])


def test_the_error_of_a_sum_is_that_of_everybodys_shares(tmp_path: Path) -> None:
    """2,000 numbers: mean and variance within 6 standard deviations of the law's; false alarm below 1e-8."""
    table = Table(tmp_path, bins=2000)
    table.up_to("unmask")
    model, nothing = table.work.model, np.zeros(0, dtype=np.int64)
    truth = np.zeros(2000, dtype=np.int64)
    for path in table.paths:
        with Store.open(path) as store:
            slices = Slices(0, nothing, np.zeros((0, 0), dtype=np.float32), {})
            own = algorithm_for(model.definition).data_of(store.ratings())
            payload, _ = model.client.contribute(slices, own, round=0, seed=store.identity().seed)
            truth += np.frombuffer(payload, "<i4")
    error = (table.host.finish() - truth) / (table.grid.share_std * np.sqrt(DEVICES))
    assert truth.any()
    assert abs(error.mean()) * np.sqrt(2000) < 6
    assert abs((error**2).mean() - 1) * np.sqrt(2000 / 2) < 6
    assert table.grid.share_std * np.sqrt(DEVICES) * table.grid.step >= table.grid.noise_std


def test_a_device_that_gave_its_shares_has_sent(table: Table) -> None:
    seats, answers = table.up_to("unmask")
    assert [answer.end.reason for answer in answers] == [wire.SecAggEnd.REASON_DONE] * DEVICES
    for seat, answer in zip(seats, answers, strict=True):
        assert seat.outcome(answer) is not None
    assert ledger(table, 5) == [(State.SENT, None)]


def test_a_task_that_counts_other_devices_on_its_roster_than_the_pinned_one_has_is_declined() -> None:
    """The terms of another size count fewer corrupt devices, and are those of the finder all the same."""
    roster = frozenset(SigningKey.generate().public for _ in range(30))
    services: Any = SimpleNamespace()
    participant = Participant(services=services, enclaves=services, roster=roster)
    terms = SecAggTerms(roster_sha256=hash_of(roster), roster_size=30)
    assert participant.roster_for(terms) == roster
    terms.roster_size = 20
    with pytest.raises(PrivacyError, match="roster_size=20 devices, and its roster has 30"):
        participant.roster_for(terms)
    with pytest.raises(PrivacyError, match="another roster of devices than the one pinned here"):
        participant.roster_for(SecAggTerms(roster_sha256=bytes(32), roster_size=30))


def test_a_device_reveals_its_part_of_an_order_once_for_each_attempt_whoever_restarts(table: Table) -> None:
    """A lying host voids sessions and begins them again, under numbers as it likes: it sees four orders at most."""
    revealed = 0
    for attempt in (0, 0, 1, 0, 1, 3, 2, 3, 3):
        announce(table, attempt)
        with contextlib.suppress(PrivacyError):
            table.up_to("reveal")  # new seats each time, as after a restart of all devices
            revealed += 1
    assert revealed == 3, "0, 1 and 3"
    config = messages.SecAggConfig.FromString(table.config)
    config.attempt = MOST_ATTEMPTS
    table.config = config.SerializeToString(deterministic=True)
    with pytest.raises(PrivacyError, match="attempt=4"):
        announced(table.participant, table.work, Traffic())


@pytest.mark.parametrize(
    "passing",
    [
        ServiceUnavailable("the issuer is away"), NotNow("the device is not charging", "charging"),
        StaleModel("not served any more"), ServiceError("the issuer answered with nothing"), DiskFull("no room"),
        EnrolmentError("the device's time is not within 300 s of this issuer's clock"),
    ],
)  # fmt: skip
def test_a_device_whose_token_did_not_come_joins_the_same_attempt_later_and_one_that_declines_does_not(
    table: Table, passing: OdpError
) -> None:
    """The host never heard of it: the session gathers on, and may wait for this very device."""
    answers = [passing, PrivacyError("the person said no")]
    asked: list[OdpError] = []

    def session_token(*_: Any) -> bytes:
        asked.append(answers[len(asked) > 2])
        raise asked[-1]

    table.participant.tokens, table.participant.random_bytes = SimpleNamespace(session_token=session_token), os.urandom
    sessions = Sessions(table.participant, lambda device: Store.open(table.paths[device]), population="films")
    ended: list[object] = []
    with futures.ThreadPoolExecutor(1) as pool:

        def run() -> bool:
            stop = threading.Event()
            return sessions.run(
                table.work, [0], pool=pool, stop=stop, ended=lambda device, result, traffic: ended.append(result)
            )

        assert [run() for _ in range(5)] == [True] * 4 + [False]
    assert ended == asked == [answers[0]] * 3 + [answers[1]]


def test_r386_a_device_whose_host_was_away_for_long_joins_the_same_attempt_again_until_it_revealed(
    table: Table,
) -> None:
    """A host that starts again gathers for the same attempt, and knows nobody of it."""
    now = itertools.count(step=20.0)
    last = "advert"

    def start_step(_: str, request: wire.StepRequest) -> futures.Future[Any]:
        done: futures.Future[Any] = futures.Future()
        done.set_result(request)
        return done

    def step_answer(_: str, request: wire.StepRequest, *__: Any) -> wire.StepResponse:
        if request.WhichOneof("message") == last:
            raise ServiceUnavailable("the host is away")
        table.tell(request)
        return table.tell(wire.StepRequest(client=request.client)) or wire.StepResponse()

    for seat in table.seats()[1:]:
        advert = seat.sit_down(Traffic())
        assert advert is not None
        table.tell(advert)
    table.participant.services.start_step, table.participant.services.step_answer = start_step, step_answer
    table.participant.random_bytes = os.urandom
    sessions = Sessions(
        table.participant, lambda number: Store.open(table.paths[number]), population="films",
        clock=lambda: next(now),
    )  # fmt: skip
    ended: list[object] = []

    def run() -> bool:
        with futures.ThreadPoolExecutor(1) as pool:
            return sessions.run(
                table.work, [0], pool=pool, stop=threading.Event(),
                ended=lambda number, result, traffic: ended.append(result),
            )  # fmt: skip

    assert [run(), run()] == [True, True]
    last = "reveal"
    assert [run(), run()] == [True, False]
    assert [type(result) for result in ended] == [ServiceUnavailable] * 3


def ended_of_two(
    table: Table, tokens: list[bytes | OdpError], step_answer: Callable[..., wire.StepResponse]
) -> list[tuple[int, object]]:
    """How two devices of one host end, each of which gets the next of ``tokens`` when it sits down."""

    def session_token(*_: Any) -> bytes:
        token = tokens.pop(0)
        if isinstance(token, OdpError):
            raise token
        return token

    def start_step(_: str, request: wire.StepRequest) -> futures.Future[Any]:
        done: futures.Future[Any] = futures.Future()
        done.set_result(request)
        return done

    table.participant.services.start_step, table.participant.services.step_answer = start_step, step_answer
    table.participant.tokens, table.participant.random_bytes = SimpleNamespace(session_token=session_token), os.urandom
    sessions = Sessions(
        table.participant, lambda number: Store.open(table.paths[number]), population="films",
        clock=lambda: 20.0 * time.monotonic(),
    )  # fmt: skip
    ended: list[tuple[int, object]] = []
    with futures.ThreadPoolExecutor(1) as pool:
        assert sessions.run(
            table.work, [0, 1], pool=pool, stop=threading.Event(),
            ended=lambda number, result, traffic: ended.append((number, result)),
        )  # fmt: skip
    return ended


@pytest.mark.parametrize(
    "outage",
    [
        TransparencyError("stale", "the clock leapt"), NotNow("the device is not charging", "charging"),
        EnrolmentError("the device's time is not within 300 s of this issuer's clock"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_r386_a_device_that_an_outage_kept_out_joins_while_the_others_of_its_host_gather(
    table: Table, outage: OdpError
) -> None:
    """They may be too few without it: then the session gathers for as long as the round is open."""
    tokens: list[bytes | OdpError] = [b"", outage, outage, b""]
    adverts: set[bytes] = set()

    def step_answer(_: str, request: wire.StepRequest, *__: Any) -> wire.StepResponse:
        if request.WhichOneof("message") == "advert":
            adverts.add(request.client.SerializeToString())
        if len(adverts) < 2:
            return wire.StepResponse(wait=wire.SecAggWait(milliseconds=20))
        return wire.StepResponse(end=wire.SecAggEnd(reason=wire.SecAggEnd.REASON_VOIDED))

    ended = ended_of_two(table, tokens, step_answer)
    assert len(adverts) == 2
    assert tokens == []
    assert sorted(number for number, _ in ended) == [0, 1]
    assert not any(isinstance(result, Exception) for _, result in ended)


def test_an_outage_of_all_devices_ends_their_session(table: Table) -> None:
    outage = TransparencyError("stale", "the clock leapt")

    def session_token(*_: Any) -> bytes:
        raise outage

    table.participant.tokens, table.participant.random_bytes = SimpleNamespace(session_token=session_token), os.urandom
    sessions = Sessions(table.participant, lambda number: Store.open(table.paths[number]), population="films")
    ended: list[tuple[int, object]] = []

    def run() -> bool:
        with futures.ThreadPoolExecutor(1) as pool:
            return sessions.run(
                table.work, [0, 1], pool=pool, stop=threading.Event(),
                ended=lambda number, result, traffic: ended.append((number, result)),
            )  # fmt: skip

    assert [run(), run()] == [True, True], "they may join the same attempt again"
    assert sorted(ended, key=lambda end: end[0]) == [(0, outage), (0, outage), (1, outage), (1, outage)]


def test_a_device_that_an_outage_kept_out_sits_down_in_no_session_that_gathers_no_more(table: Table) -> None:
    """The next attempt gathers for a short time, which a contribution for the last one would waste."""
    outage = TransparencyError("stale", "the clock leapt")
    tokens: list[bytes | OdpError] = [b"", outage]
    first = table.participant.services.join_session()
    announcements = [first, wire.JoinResponse(wait=wire.SecAggWait(milliseconds=20))]
    polls = itertools.count()

    def step_answer(*_: Any) -> wire.StepResponse:
        if not announcements or next(polls) > 1000:
            return wire.StepResponse(end=wire.SecAggEnd(reason=wire.SecAggEnd.REASON_VOIDED))
        return wire.StepResponse(wait=wire.SecAggWait(milliseconds=20))

    table.participant.services.join_session = lambda *_: announcements.pop(0)
    ended = ended_of_two(table, tokens, step_answer)
    assert [announcements, tokens] == [[], []]
    assert ended[1:] == [(1, outage)]


def test_a_round_that_has_no_further_session_is_not_joined(table: Table) -> None:
    for answer in ({"end": wire.SecAggEnd(reason=wire.SecAggEnd.REASON_VOIDED)}, {"wait": wire.SecAggWait()}):
        table.participant.services.join_session = lambda *_, answer=answer: wire.JoinResponse(**answer)
        assert announced(table.participant, table.work, Traffic()) is None


def test_an_attempt_is_on_the_disk_before_the_reveal_leaves(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    seats, answers = table.up_to("advert")

    def full(*_: object) -> None:
        raise DiskFull("no space left")

    client = seats[0]._client
    with monkeypatch.context() as patch:
        patch.setattr(secagg, "begin_attempt", full)
        with pytest.raises(DiskFull):
            seats[0].next(answers[0])
    assert client is not None
    assert client.state is ClientState.ABORTED
    with Store.open(table.paths[0]) as store:
        require_new_attempt(store, table.work.key[0], 0, 0)
    assert seats[1].next(answers[1]) is not None
    with Store.open(table.paths[1]) as store, pytest.raises(PrivacyError):
        require_new_attempt(store, table.work.key[0], 0, 0)


def test_a_kill_between_the_attempt_and_the_reveal_costs_the_attempt_and_no_more(table: Table) -> None:
    """Of two processes on one store, one takes part; and an attempt that was noted and never used is not used again."""
    with Store.open(table.paths[2]) as store:
        begin_attempt(store, table.work.key[0], 0, 0)
    seats = table.seats()
    with pytest.raises(PrivacyError, match="attempt 0 of round 0"):
        seats[2].sit_down(Traffic())
    announce(table, 1)
    assert table.seats()[2].sit_down(Traffic()) is not None


def test_a_device_that_made_its_vector_makes_no_second_one_even_where_its_ledger_was_erased(table: Table) -> None:
    """With fresh noise, a second sum of the round would be a second release of the same data."""
    seats, answers = table.up_to("shares")
    assert seats[0].next(answers[0]) is not None
    with Store.open(table.paths[0]) as store:
        store.erase(ledger_too=True)
        assert store.ledger() == ()
    for attempt in range(1, MOST_ATTEMPTS):
        announce(table, attempt)
        with pytest.raises(PrivacyError, match="after this device took part"):
            table.seats()[0].sit_down(Traffic())


def test_a_round_of_the_past_has_no_further_attempts(table: Table) -> None:
    """A host cannot wipe the attempts of a round by one of the next round: a store has one number for each task."""
    with Store.open(table.paths[0]) as store:
        for round, attempt in ((0, 2), (1, 0), (1, 3), (5, 0)):
            begin_attempt(store, b"t" * 32, round, attempt)
        begin_attempt(store, b"u" * 32, 0, 0)
        for round, attempt in ((0, 3), (1, 3), (4, 0), (5, 0)):
            with pytest.raises(PrivacyError, match=f"attempt {attempt} of round {round}"):
                begin_attempt(store, b"t" * 32, round, attempt)
        assert store.all("SELECT round, attempt FROM secagg_attempts ORDER BY round") == [(0, 0), (5, 0)]


@pytest.mark.parametrize("way", ["refusal", "end", "leave", "done"])
def test_however_a_seat_is_left_its_secrets_are_erased(table: Table, way: str) -> None:
    seats, answers = table.up_to("agreement" if way == "done" else "reveal")
    seat, client = seats[0], seats[0]._client
    assert client is not None
    if way == "refusal":
        with pytest.raises(PrivacyError):
            seat.next(wire.StepResponse(reveals=messages.SecAggReveals()))
    elif way == "end":
        assert seat.next(wire.StepResponse(end=wire.SecAggEnd(reason=wire.SecAggEnd.REASON_VOIDED))) is None
    elif way == "leave":
        assert seat.leave() is not None
    else:
        assert seat.next(answers[0]) is not None
    assert kept_secrets(client, [bytes(range(32))]) == []
    assert seat.repeat().HasField("unmask") == (way == "done"), "what was sent, and nothing else"
    with pytest.raises(StateError):
        seat.next(wire.StepResponse(agreements=messages.SecAggAgreements()))


def test_a_device_that_does_not_get_the_model_joins_no_session(table: Table) -> None:
    def away(*_: Any) -> Any:
        raise ServiceUnavailable("the distributor is away")

    table.participant.model_for = away
    (seat, *_) = table.seats()
    with pytest.raises(ServiceUnavailable):
        seat.sit_down(Traffic())
    assert seat.leave() is None, "the host never heard of it"
    assert ledger(table, 0) == []
