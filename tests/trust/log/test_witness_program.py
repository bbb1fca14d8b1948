"""A witness as a program: a server's log is cosigned over TLS, and a restart forgets nothing."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from trust.log.world import NOW, Clock, LogWorld, filler

from odp.crypto.note import Kind, NoteKey, VerifierKey
from odp.errors import ConfigurationError, ServiceError, StateError
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.trust.log import witness
from odp.trust.log.checkpoint import verify_checkpoint
from odp.trust.log.endorsements import EndorsementFile
from server.clients import WitnessClient
from server.transparency import KnownWitness, LogKeeper


def _start(world: LogWorld, folder: Path, *, listen: str = "127.0.0.1:0") -> witness.RunningWitness:
    config = witness.Config(
        state=folder / "witness",
        log_keys=(world.key.public(Kind.NOTE).text,),
        listen=listen,
        ca_folder=folder / "ca",
    )
    return witness.start(config, log=Log("witness", stream=io.StringIO()), clock=world.clock)


def test_a_server_has_its_log_cosigned_and_goes_on_after_both_were_restarted(world: LogWorld, tmp_path: Path) -> None:
    lines = io.StringIO()

    def keeper(key: str, address: str, ca: bytes, stack: contextlib.ExitStack) -> LogKeeper:
        caller = WitnessClient(stack.enter_context(connect(address, ca)), address)
        return LogKeeper(
            world.log,
            endorsements=EndorsementFile(),
            events=Log("server", stream=lines),
            clock=world.clock,
            witnesses=[KnownWitness(VerifierKey.from_text(key), caller)],
        )

    listen, key = "127.0.0.1:0", ""
    for number in range(3):
        with contextlib.ExitStack() as stack:
            running = _start(world, tmp_path, listen=listen)
            stack.callback(running.stop)
            assert key in ("", running.verifier_key), "the same witness"
            key, listen = running.verifier_key, running.address
            kept = keeper(key, running.address, running.ca_pem, stack)
            kept.keep_fresh()
            policy = world.policy(witness_keys=(key,), quorum=1)
            assert verify_checkpoint(world.log.note, policy).checkpoint.size == world.log.size
            kept._append(filler(2, first=10 * number))
            assert verify_checkpoint(world.log.note, policy).checkpoint == world.log.checkpoint
            world.clock.now += 100
            assert kept.keep_fresh()
            assert verify_checkpoint(world.log.note, policy).time == world.clock.now
    # Without the witness the log goes on, and says so.
    with contextlib.ExitStack() as stack:
        kept = keeper(key, listen, running.ca_pem, stack)
        kept._append(filler(1, first=90))
        assert "witness_did_not_cosign" in lines.getvalue()
    assert verify_checkpoint(world.log.note, world.policy()).checkpoint == world.log.checkpoint


def test_a_forked_log_is_refused_over_the_wire(world: LogWorld, tmp_path: Path) -> None:
    fork = LogWorld(tmp_path / "fork", key=world.key, clock=Clock(NOW))
    running = _start(world, tmp_path)
    with connect(running.address, running.ca_pem) as channel:
        client = WitnessClient(channel, running.address)
        reply = client.add_checkpoint(world.log.note, old_size=0, hashes=b"")
        assert reply.cosignature.startswith("— odp.local/witness/")
        assert client.add_checkpoint(world.log.note, old_size=1, hashes=b"").cosignature == ""
        with pytest.raises(ServiceError, match="split_view"):
            client.add_checkpoint(fork.log.note, old_size=reply.size, hashes=b"")
        for note, hashes in ((b"junk", b""), (world.log.note, b"x")):
            with pytest.raises(ServiceError, match="malformed"):
                client.add_checkpoint(note, old_size=reply.size, hashes=hashes)
    running.stop()
    fork.close()


def test_a_witness_needs_a_log_and_a_folder_of_its_own(world: LogWorld, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="at least one log"):
        witness.start(witness.Config(state=tmp_path / "w", log_keys=(), listen="127.0.0.1:0"))
    (tmp_path / "witness").mkdir(mode=0o700)
    (tmp_path / "witness" / witness.KEY_FILE).write_text("junk")
    with pytest.raises(StateError, match="not a key of its kind"):
        _start(world, tmp_path)
    (tmp_path / "witness" / witness.KEY_FILE).write_text(NoteKey.generate("example.com/w").to_text())
    running = _start(world, tmp_path)
    with pytest.raises(StateError, match="in use"):
        _start(world, tmp_path)
    running.stop()
