"""Platform, enclave and host as processes: what is measured, what the guest is told, and how each of the three dies."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from trust.enclave.conftest import IMAGES, POLICY, Hostile

from odp.errors import AttestationError, ConfigurationError, StateError
from odp.trust.enclave.evidence import Reason
from odp.trust.enclave.launcher import launch
from odp.trust.enclave.measurement import measure
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enclave.verifier import VerifiedEnclave, verify_evidence

ENTRY = "hostile_enclave.entry"
NONCE = bytes(range(32))
SECONDS = 60.0


def pinned(folder: Path, digest: str, **changes: object) -> ReferenceValues:
    values: dict[str, object] = {
        "roots": (EmulatedPlatform.open(folder).root_certificate_pem,),
        "image_digests": {"aggregator": (digest,)},
        "policy_sha256": {"aggregator": (EnclavePolicy.from_bytes(POLICY).sha256.hex(),)},
        "allow_emulated": True,
    }
    return ReferenceValues(**{**values, **changes})  # type: ignore[arg-type]


def verified(hostile: Hostile, values: ReferenceValues) -> VerifiedEnclave:
    hostile.ask("bind")
    found = hostile.ask("evidence", nonce=NONCE.hex())
    return verify_evidence(
        token=found["token"], policy=bytes.fromhex(found["policy"]), event_log=found["event_log"].encode(),
        nonce=NONCE, role="aggregator", reference_values=values, now=time.time(),
    )  # fmt: skip


def test_evidence_of_a_launched_process_verifies_with_the_digest_that_anyone_can_compute(hostile: Hostile) -> None:
    measured = measure(ENTRY)
    assert hostile.enclave.image_digest == measured.digest
    assert hostile.enclave.components == measured.components
    values = pinned(hostile.folder, measured.digest, required_restrictions=hostile.enclave.restrictions)
    found = verified(hostile, values)
    assert found.image_digest == measured.digest
    assert found.restrictions == hostile.enclave.restrictions
    assert found.hpke_key == b"h" * 32


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Reason.DEBUG_ENABLED),
        ({"allow_debug": True, "required_restrictions": ("not-dumpable",)}, Reason.UNRESTRICTED),
    ],
)
def test_evidence_of_a_debug_launch_is_refused(debugged: Hostile, changes: dict[str, object], expected: Reason) -> None:
    with pytest.raises(AttestationError) as caught:
        verified(debugged, pinned(debugged.folder, debugged.enclave.image_digest, **changes))
    assert caught.value.reason == expected


def test_an_enclave_does_not_say_what_it_is(hostile: Hostile) -> None:
    assert hostile.ask("image") == hostile.enclave.image_digest
    assert hostile.ask("policy") == POLICY.decode()
    hostile.ask("say it was measured")
    assert hostile.ask("image") == hostile.enclave.image_digest
    assert hostile.ask("ready again") == "StateError"
    for attempt in ("configure", "unknown call", "bad counter"):
        assert hostile.ask(attempt) == "ConfigurationError"
    assert hostile.ask("extend", event="two\nlines") == "ConfigurationError"


@pytest.mark.slow
def test_another_image_on_the_same_chip_has_another_digest_and_sealing_key(
    hostile: Hostile, twin: Hostile, debugged: Hostile, start: Callable[..., Hostile]
) -> None:
    assert twin.enclave.image_digest == hostile.enclave.image_digest
    assert twin.ask("sealing key") == hostile.ask("sealing key")
    other = start(entry="hostile_enclave.other")
    assert other.enclave.image_digest != hostile.enclave.image_digest
    assert other.ask("sealing key") != hostile.ask("sealing key")
    assert debugged.ask("sealing key") != hostile.ask("sealing key")


def test_of_two_enclaves_that_move_one_counter_at_once_exactly_one_succeeds(hostile: Hostile, twin: Hostile) -> None:
    both = [hostile, twin]
    for step in range(20):
        with ThreadPoolExecutor(2) as pool:
            futures = [
                pool.submit(one.ask, "advance", name="shared", expected=step * 10, to=step * 10 + place)
                for place, one in enumerate(both, start=1)
            ]
            came = [future.result() for future in futures]
        assert sorted(came) == ["StateError", "done"]
        value = both[0].ask("counter", name="shared")
        assert value == both[1].ask("counter", name="shared") == step * 10 + 1 + came.index("done")
        assert both[0].ask("advance", name="shared", expected=value, to=step * 10 + 10) == "done"


def test_a_counter_outlives_its_enclave_and_its_platform_process(
    hostile: Hostile, start: Callable[..., Hostile]
) -> None:
    first = start()
    assert first.ask("advance", name="kept", expected=0, to=5) == "done"
    first.enclave.close()
    assert hostile.ask("counter", name="kept") == 5
    assert hostile.ask("advance", name="kept", expected=0, to=4) == "StateError"


# What does not start, in one line.


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"entry": "hostile_enclave.failing"}, StateError, "ValueError: this enclave does not start"),
        ({"entry": "hostile_enclave.silent"}, StateError, "ended while it started"),
        ({"entry": "hostile_enclave.missing"}, ConfigurationError, "No module named 'hostile_enclave.missing'"),
        ({"entry": "hostile_enclave.unbuilt"}, ConfigurationError, "ValueError: this enclave is not built"),
        ({"entry": "no_such_package.entry"}, ConfigurationError, "no_such_package"),
        ({"policy": b"{}"}, ConfigurationError, "Missing key"),
        ({"packages": ("hostile_enclave", "odp", "no_such_package")}, ConfigurationError, "no_such_package"),
    ],
)
@pytest.mark.slow
def test_an_enclave_that_does_not_start_says_why_in_one_line_and_leaves_nothing(
    images: None, tmp_path: Path, changes: dict[str, object], kind: type[Exception], message: str
) -> None:
    before = children()
    given = {"platform_folder": tmp_path / "platform", "entry": ENTRY, "policy": POLICY, **changes}
    with pytest.raises(kind, match=message) as caught:
        launch(**given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert children() == before


def test_a_platform_folder_that_cannot_be_used_is_a_state_error(images: None, tmp_path: Path) -> None:
    (tmp_path / "platform").mkdir()
    (tmp_path / "platform" / "platform.json").write_bytes(b"{")
    (tmp_path / "platform" / "platform.json").chmod(0o600)
    with pytest.raises(StateError, match=r"platform\.json is corrupt"):
        launch(platform_folder=tmp_path / "platform", entry=ENTRY, policy=POLICY)


# How the three die. A pidfd becomes readable when its process has ended, whoever its parent is.


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def watch(processes: Iterable[int]) -> list[int]:
    return [os.pidfd_open(process) for process in processes]


def all_end(watched: list[int]) -> bool:
    """Whether every watched process ends within the deadline."""
    left = set(watched)
    while left:
        ended, _, _ = select.select(left, [], [], SECONDS)
        if not ended:
            return False
        left -= set(ended)
    for descriptor in watched:
        os.close(descriptor)
    return True


def test_closing_ends_both_processes_and_may_be_repeated(start: Callable[..., Hostile]) -> None:
    enclave = start().enclave
    watched = watch(enclave.processes)
    enclave.close()
    enclave.close()
    assert all_end(watched)
    assert str(enclave.platform_pid) not in children()


# The first process of a namespace of processes ignores SIGTERM.
@pytest.mark.parametrize(
    ("victim", "number"), [("platform", signal.SIGKILL), ("platform", signal.SIGTERM), ("enclave", signal.SIGKILL)]
)
def test_when_platform_or_enclave_is_killed_the_other_ends_and_the_host_reads_the_end(
    start: Callable[..., Hostile], victim: str, number: signal.Signals
) -> None:
    enclave = start().enclave
    watched = watch(enclave.processes)
    os.kill(enclave.platform_pid if victim == "platform" else enclave.pid, number)
    assert all_end(watched)
    assert enclave.channel.recv(1) == b""


@pytest.mark.parametrize("way", ["end", "abort"])
def test_an_enclave_that_ends_by_itself_takes_its_platform_along(start: Callable[..., Hostile], way: str) -> None:
    hostile = start()
    watched = watch(hostile.enclave.processes)
    assert hostile.ask(way) is None
    assert all_end(watched)


def test_an_enclave_that_fails_tells_the_host_where_and_not_what(images: None, tmp_path: Path) -> None:
    program = HOST.replace("sys.stdin.read()", "ask('raise')")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "platform")], env=environment(), capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "the enclave ended: ZeroDivisionError < " in done.stderr
    assert "division by zero" not in done.stderr


HOST = """
import json, sys
from pathlib import Path
from trust.enclave.conftest import POLICY, Hostile
from odp.trust.enclave.launcher import launch
enclave = launch(platform_folder=Path(sys.argv[1]), entry="hostile_enclave.entry", policy=POLICY)
ask = Hostile(enclave, Path()).ask
print(*enclave.processes, flush=True); sys.stdin.read()
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(IMAGES), *sys.path])}


def test_when_the_host_is_killed_nothing_stays_behind(images: None, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOST, str(tmp_path / "platform")]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        processes = [int(number) for number in host.stdout.readline().split()]
        assert len(processes) == 2
        watched = watch(processes)
        host.kill()
    assert all_end(watched)


def test_a_ctrl_c_at_the_host_does_not_reach_its_enclave(images: None, tmp_path: Path) -> None:
    program = HOST.replace(TELL, INTERRUPTED.format(body=TELL))
    command = [sys.executable, "-c", program, str(tmp_path / "platform")]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as host:
        assert host.stdout is not None
        host.stdout.readline()
        os.killpg(host.pid, signal.SIGINT)
        assert host.stdout.readline() == "still computes 8000000.0\n"


TELL = "print(*enclave.processes, flush=True); sys.stdin.read()"
# A run in the background may have started with SIGINT ignored, which children inherit.
INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    {body}
except KeyboardInterrupt:
    print("still computes", ask("compute"), flush=True)
    enclave.close()
"""
