"""The issuer: whom it gives tokens, how many, and what it keeps of it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from trust.enrolment.world import NOW, Clock, Developer, World

from odp.crypto import domains
from odp.crypto.signing import SignatureError
from odp.errors import ConfigurationError, EnrolmentError
from odp.transport.service import NotFound
from odp.trust.enrolment.attesters.emulated import EmulatedVerifier
from odp.trust.enrolment.issuer import VALID_SECONDS, Issuer, TokenLimits
from odp.trust.enrolment.storage import DAY
from odp.trust.enrolment.token_key import TOKEN_BYTES


def test_a_device_gets_a_token_that_everybody_can_verify(world: World) -> None:
    key = world.token_key(world.developer.task(), 0)
    device = world.device(1)
    token = world.token(device, key)
    assert len(token) == 256
    assert key.admits(domains.contribution_token(device.contribution_id(key)), token)
    assert not key.admits(domains.contribution_token(world.device(2).contribution_id(key)), token)
    assert not key.admits(domains.session_token(device.contribution_id(key)), token)


def test_a_device_that_lost_the_answer_gets_the_same_one_again(world: World) -> None:
    key = world.token_key(world.developer.task(), 0)
    first = world.token(world.device(1), key)
    assert world.token(world.device(1), key) == first
    world.restart()
    assert world.token_key(world.developer.task(), 0) == key
    assert world.token(world.device(1), key) == first


def test_a_device_gets_one_token_of_a_round_and_one_of_the_next(world: World) -> None:
    task, device = world.developer.task(), world.device(1)
    first = world.token_key(task, 0)
    world.token(device, first)
    for restarted in (False, True):
        if restarted:
            world.restart()
        with pytest.raises(EnrolmentError, match="one device, one token"):
            world.token(device, first, message=bytes(32))
    second = world.token_key(task, 1)
    assert second.modulus != first.modulus
    world.token(device, second)


def test_the_key_of_a_round_is_made_once_and_ends_with_the_next_round(world: World) -> None:
    task = world.developer.task()
    signed = world.signed_key(task, 0)
    assert world.signed_key(task, 0) == signed
    key = world.token_key(task, 0)
    token = world.token(world.device(1), key)
    world.token_key(task, 1)
    with pytest.raises(EnrolmentError, match="the round is over"):
        world.signed_key(task, 0)
    with pytest.raises(EnrolmentError, match="the round is over"):
        world.token(world.device(2), key)
    assert key.admits(domains.contribution_token(world.device(1).contribution_id(key)), token)
    # Nor can a round that was skipped get one afterwards.
    world.token_key(task, 7)
    with pytest.raises(EnrolmentError, match="round 7 of the task has a token key"):
        world.signed_key(task, 5)


def test_a_key_expires_and_nothing_is_signed_under_it_any_more(world: World) -> None:
    task = world.developer.task()
    key = world.token_key(task, 0)
    assert key.not_after == NOW + 30 * DAY
    request = world.device(1).request(key, world.key.public)
    world.clock.now = key.not_after + 1
    with pytest.raises(EnrolmentError, match="has ended"):
        world.issue(request.answer(world.challenge(), world.device(1).attester))
    with pytest.raises(EnrolmentError, match="has ended"):
        world.signed_key(task, 0)
    with pytest.raises(EnrolmentError, match="has expired"):
        world.device(1).request(key, world.key.public, now=world.clock())


def test_a_stranger_gets_no_token_key(world: World) -> None:
    task, stranger = world.developer.task(), Developer()
    with pytest.raises(EnrolmentError, match="does not serve"):
        world.issuer.token_key(stranger.task(), *stranger.order(stranger.task(), 0))
    # Somebody else's order for the developer's task, an order for another task, and one that orders something else.
    with pytest.raises(SignatureError):
        world.issuer.token_key(task, *stranger.order(task, 0))
    with pytest.raises(ConfigurationError, match="another task"):
        world.issuer.token_key(task, *world.developer.order(world.developer.task("other"), 0))
    with pytest.raises(SignatureError):
        world.issuer.token_key(task, *world.developer.order(task, 0, domains.OPEN))
    changed = type(task)(definition=task.definition + b" ", signature=task.signature)
    with pytest.raises((SignatureError, ConfigurationError)):
        world.issuer.token_key(changed, *world.developer.order(task, 0))


def test_there_is_no_token_of_a_round_without_a_key(world: World, tmp_path: Path) -> None:
    elsewhere = World(tmp_path / "elsewhere", clock=world.clock)
    key = elsewhere.token_key(elsewhere.developer.task(), 0)
    with pytest.raises(NotFound):
        world.token(world.device(1), key)
    elsewhere.close()


def test_a_device_gets_so_many_tokens_a_day_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path, limits=TokenLimits(tokens_per_device=3))
    keys = [world.token_key(world.developer.task(f"task-{number}"), 0) for number in range(4)]
    for key in keys[:3]:
        world.token(world.device(1), key)
    with pytest.raises(EnrolmentError, match="3 tokens of the last 24 hours"):
        world.token(world.device(1), keys[3])
    # What it had already is no further token, and another device is another one.
    world.token(world.device(1), keys[0])
    world.token(world.device(2), keys[3])
    world.clock.now += DAY + 1
    world.token(world.device(1), keys[3])


def test_a_round_has_so_many_tokens_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path, limits=TokenLimits(tokens_per_round=2))
    key = world.token_key(world.developer.task(), 0)
    for number in range(2):
        world.token(world.device(number), key)
    with pytest.raises(EnrolmentError, match="2 devices have a token of round 0"):
        world.token(world.device(2), key)
    world.token(world.device(0), key)


def test_a_developer_has_so_many_keys_at_a_time_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path, limits=TokenLimits(keys_per_developer=2, key_days=1))
    tasks = [world.developer.task(f"task-{number}") for number in range(3)]
    for task in tasks[:2]:
        world.token_key(task, 0)
    with pytest.raises(EnrolmentError, match="2 rounds with a token key"):
        world.token_key(tasks[2], 0)
    # A further round of a task that has one takes the place of the round before.
    world.token_key(tasks[0], 1)
    world.clock.now += DAY + 3601
    world.token_key(tasks[2], 0)


def test_what_is_not_needed_any_more_is_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, limits=TokenLimits(key_days=2))
    task = world.developer.task()
    for round in range(3):
        key = world.token_key(task, round)
        for number in range(4):
            world.token(world.device(number), key)
    assert world.storage.sizes() == (3, 12)
    world.clock.now += DAY + 1
    world.token_key(task, 2)
    # The tokens of the open round show who has one; those of the rounds before are beyond every limit.
    assert world.storage.sizes() == (3, 4)
    world.clock.now += 2 * DAY + 1
    world.token_key(world.developer.task("next"), 0)
    assert world.storage.sizes() == (1, 0)


def test_r289_a_clock_that_is_wrong_for_a_moment_ends_no_key(world: World) -> None:
    """A key that is ended gives no token again, and the round that was opened with it no further contribution."""
    world.monotonic = Clock(0.0)
    world.restart()
    key = world.token_key(world.developer.task(), 0)
    world.clock.now += 365 * DAY
    world.monotonic.now += 60.0
    world.token_key(world.developer.task("another"), 0)
    world.clock.now = NOW + 120.0
    assert len(world.token(world.device(1), key)) == TOKEN_BYTES


def test_r378_tokens_of_a_clock_that_was_ahead_do_not_count_for_a_year(world: World) -> None:
    world.limits = TokenLimits(tokens_per_device=1)
    world.restart()
    world.clock.now += 400 * DAY
    key = world.token_key(world.developer.task(), 0)
    world.token(world.device(1), key)
    world.clock.now = NOW
    assert len(world.token(world.device(1), world.token_key(world.developer.task("another"), 0))) == TOKEN_BYTES
    with pytest.raises(EnrolmentError, match="the limit of one device"):
        world.token(world.device(1), world.token_key(world.developer.task("third"), 0))


def test_malformed_requests_are_refused_before_anything_is_counted(world: World) -> None:
    key = world.token_key(world.developer.task(), 0)
    device = world.device(1)
    good = device.request(key, world.key.public).answer(world.challenge(), device.attester)
    wrong = {
        "task_sha256": [b"", bytes(31)],
        "round": [1],
        "blinded_message": [b"", bytes(255), b"\xff" * 256, bytes(257)],
        "challenge": [b"", bytes(56), good.challenge[:-1] + bytes([good.challenge[-1] ^ 1])],
        "attester": ["", "roster", "x" * 1000],
        "statement": [b"", b"x", bytes(20_000), good.statement[:-1], good.statement + b"A", b"\xff" * 100],
    }
    for name, values in wrong.items():
        for value in values:
            bad = type(good)()
            bad.CopyFrom(good)
            setattr(bad, name, value)
            with pytest.raises((ConfigurationError, EnrolmentError, NotFound)) as refused:
                world.issue(bad)
            assert "\n" not in str(refused.value)
            assert len(str(refused.value)) < 300
    assert world.storage.sizes() == (1, 0)
    world.issue(good)


def test_a_challenge_is_answered_once_in_time_and_here(world: World) -> None:
    key = world.token_key(world.developer.task(), 0)
    device = world.device(1)
    request = device.request(key, world.key.public)
    answered = request.answer(world.challenge(), device.attester)
    world.issue(answered)
    with pytest.raises(EnrolmentError, match="answered before"):
        world.issue(answered)
    late = request.answer(world.challenge(), device.attester)
    world.clock.now += VALID_SECONDS + 2
    with pytest.raises(EnrolmentError, match="older than"):
        world.issue(late)
    before_restart = request.answer(world.challenge(), device.attester)
    world.restart()
    with pytest.raises(EnrolmentError, match="not from this run of the issuer"):
        world.issue(before_restart)


def test_a_kill_at_any_step_gives_no_second_token_and_costs_no_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is written before the signature exists; a device that got none asks the same again."""

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    key = world.token_key(world.developer.task(), 0)
    for number, step in enumerate(("check", "spend", "grant", "sign")):
        device = world.device(number)
        target = {
            "check": world.issuer._challenges,
            "spend": world.issuer._challenges,
            "grant": world.storage,
            "sign": world.issuer._signer(key.task_sha256, 0).__class__,
        }[step]
        with monkeypatch.context() as patched:
            patched.setattr(target, step, die)
            with pytest.raises(Killed):
                world.token(device, key)
        world.restart()
        token = world.token(device, key)
        assert key.admits(domains.contribution_token(device.contribution_id(key)), token)
        with pytest.raises(EnrolmentError, match="one device, one token"):
            world.token(device, key, message=bytes(32))


def test_the_database_holds_nothing_of_a_token(world: World) -> None:
    key = world.token_key(world.developer.task(), 0)
    planted = []
    for number in range(3):
        device = world.device(number)
        request = device.request(key, world.key.public)
        token = world.token(device, key)
        planted += [token, token[:16], device.secret, device.contribution_id(key), request.blinding.message]
        planted += [request.blinding.blinded_message, request.blinding.inverse.to_bytes(256, "big")]
    world.storage.close()
    stored = b"".join(path.read_bytes() for path in world.folder.glob("issuer.sqlite*"))
    assert key.modulus in stored, "the search would find something"
    assert not [value for value in planted if value in stored]


def test_an_issuer_needs_an_attester_and_a_developer(world: World) -> None:
    verifier = EmulatedVerifier(world.vendor.root_pem)
    for verifiers, developers in itertools.product(([], [verifier, verifier], [verifier]), ([], [b"short"])):
        with pytest.raises(ConfigurationError):
            Issuer(world.storage, world.key, verifiers=verifiers, developers=developers)


@pytest.mark.parametrize(
    "values",
    [{"tokens_per_device": 0}, {"tokens_per_round": 0}, {"keys_per_developer": 0}, {"key_days": 0}, {"key_days": 366}],
)
def test_a_limit_out_of_range_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        TokenLimits(**values)
