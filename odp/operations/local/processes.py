"""Child processes of `odp up` and `odp demo`: started together, stopped together, never left running.

A child is given ``--with-parent`` and the read end of a pipe as its stdin: when this process dies, however it dies, the
kernel closes the pipe and the child stops.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odp import _validate
from odp._system.files.private_files import make_folders, open_private
from odp._system.files.state_folder import StateFolder, keep_out_of_git, state_errors
from odp.errors import ConfigurationError, ServiceError, StateError
from odp.operations.local.log_setup import (
    ENDORSEMENTS,
    ENDORSER_KEY,
    LOG_KEY,
    UPGRADE,
    pin_log,
    reference_values,
    upgrade_policy,
)
from odp.operations.local.successor import adopt_successor
from odp.transport import channel
from odp.transport.tls import TlsIdentity, development_identity
from odp.trust.enclave.policy import EnclavePolicy, Selection

HELPER, ISSUER = "helper", "issuer"
_OPEN, _TOKEN, _ROSTER = ADMISSIONS = ("open", "token", "roster")
_VENDOR = "vendor"
# Files of a program's state folder: where it serves, and where its control listener does, which comes first.
_ADDRESSES = ("address", "control-address")

_STOP_SECONDS = 10.0
# Longer than an enclave may take to start and recover, which ends by itself where it takes longer.
_START_SECONDS = 300.0
#: How `odp` is run as a child: by the interpreter and the code of this process, and by no folder of where it runs.
ODP = (sys.executable, "-P", "-m", "odp.cli.main")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmissionRule:
    """The rule for the admission of devices.

    Attributes:
      how: "open": anybody. "token": with tokens, devices of an emulated vendor. "roster": with tokens, those of a file.
      roster: that file.

    Raises:
      ConfigurationError: ``how`` is another word, or "roster" and the file do not come together.
    """

    how: str = _TOKEN
    roster: Path | None = None

    def __post_init__(self) -> None:
        _validate.one_of(ADMISSIONS, admission=self.how)
        if (self.how == _ROSTER) != (self.roster is not None):
            raise ConfigurationError("Expected admission='roster' and a roster together; one of them is missing")


#: Admits any number of devices of anybody.
OPEN = AdmissionRule(how=_OPEN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListenAddresses:
    """The listen addresses of the services, for devices and developers; port 0 selects any free port.

    Of ``distributors``, the first one listens at its port, and each further one at any. Raises ConfigurationError.
    """

    host: str = "127.0.0.1"
    server: int = 0
    distributor: int = 0
    aggregator: int = 0
    distributors: int = 1

    def __post_init__(self) -> None:
        _validate.integer(low=1, high=channel.MOST_ADDRESSES, distributors=self.distributors)


class Child:
    """A started program; ``command`` runs `odp`.

    ``address`` is where it serves, once ``wait_serving`` returned, and ``control_address`` its control listener's.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], *, state: Path, log: Path, command: Sequence[str] = ODP
    ) -> None:
        self.name = name
        self.state = state
        self.log = log
        self.address = self.control_address = ""
        with state_errors(state):
            # An address of an earlier run would be asked before the new one is written.
            for name in _ADDRESSES:
                (state / name).unlink(missing_ok=True)
            make_folders(log.parent)
            output = os.fdopen(open_private(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")
        with output:
            self.process = subprocess.Popen(
                [*command, *arguments, "--state", str(state), "--with-parent"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                # A Ctrl-C in the terminal goes to this process alone, which then stops its children in order.
                start_new_session=True,
            )

    def wait_serving(
        self,
        ca: Path,
        *,
        identity: TlsIdentity | None = None,
        deadline: float = _START_SECONDS,
        stop: threading.Event | None = None,
    ) -> None:
        """Returns when the program reports that it serves; calls it as ``identity`` if it answers only programs.

        Raises ServiceError with its last line otherwise, KeyboardInterrupt where ``stop`` is set.
        """
        until = time.monotonic() + deadline
        pause = threading.Event() if stop is None else stop
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise ServiceError(f"{self.name} did not start: {self.last_line()}")
            address, control_address = map(self._read, _ADDRESSES)
            if address and _serving(address, ca, identity):
                # A program that ends before it serves starts again on the ports that others know.
                self.address, self.control_address = address, control_address
                return
            if pause.wait(0.05):
                raise KeyboardInterrupt
        raise ServiceError(f"{self.name} did not serve within {deadline:.0f} s; see {self.log}")

    def _read(self, name: str) -> str:
        try:
            return (self.state / name).read_text().strip()
        except OSError:
            return ""

    def last_line(self) -> str:
        """The last line of the program's log: the reason of a failed start."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1].removeprefix("odp: ") if lines else f"no output; exit code {self.process.returncode}"

    def stop(self, *, deadline: float = _STOP_SECONDS) -> None:
        """Stops the program, and kills it after ``deadline`` seconds. Idempotent."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(deadline)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def _serving(address: str, ca: Path, identity: TlsIdentity | None) -> bool:
    try:
        with channel.connect(address, ca, identity=identity) as opened:
            reply = health_pb2_grpc.HealthStub(opened).Check(health_pb2.HealthCheckRequest(), timeout=2.0)
    except grpc.RpcError:
        return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


class Services:
    """Distributor, aggregator, issuer and server under one state folder, and an optional helper.

    A context manager that stops what it started.

    The server's key is made first: the aggregator's policy lists it as a founder, and the distributor serves no other
    developer. Between themselves they use control listeners on any free ports.

    The issuer of tokens has an emulated vendor, which vouches for every device that can read the folder: it shows the
    protocol, and protects nobody. It is a program of its own because server and issuer may have different operators.

    Layout of the folder: ``ca/`` and ``platform/`` are shared; ``distributor/``, ``aggregator/``, ``issuer/`` and
    ``server/`` are states of programs; ``vendor/`` is the emulated vendor of devices; ``logs/`` holds a log each;
    ``reference_values.json`` is what devices pin. ``log.key``, ``endorser.key`` and ``endorsements.json`` belong to the
    transparency log, which is ``server/log/``.
    """

    def __init__(
        self,
        root: Path,
        *,
        listen: ListenAddresses = ListenAddresses(),
        policy: EnclavePolicy | None = None,
        select: Selection = "oblivious",
        witnesses: Sequence[str] = (),
        helper: bool = False,
        admission: AdmissionRule = AdmissionRule(),
        aggregator_options: Sequence[str] = (),
    ) -> None:
        """``policy`` is the aggregator's, ``select`` of the distributor's; ``aggregator_options`` are further ones of
        `odp aggregator run`.

        With ``helper`` a helper is started as well, and its key is pinned: under one operator it protects nobody, but
        shows how two would work together.

        ``witnesses`` are ``host:port=verifier key`` of those that have to cosign the log.
        """
        self.root = root
        self._witnesses = tuple(witnesses)
        self._listen = listen
        self._helper = helper
        self._admission = admission
        self._aggregator_options = tuple(aggregator_options)
        self._policy = policy if policy is not None else EnclavePolicy(role="aggregator")
        self._founder: str | None = None
        self._upgrade = self._policy.upgrade
        self.distributor_policy = EnclavePolicy(role="distributor", select=select)
        self.children: dict[str, Child] = {}
        self._folder: StateFolder | None = None

    @property
    def developer_key(self) -> str:
        """The public key of the server, 64 hex digits; created on first use, before the server runs."""
        if self._founder is None:
            from server.program import developer_key

            self._founder = developer_key(self.root / "server")
        return self._founder

    @property
    def policy(self) -> EnclavePolicy:
        """The aggregator's policy; the server's key founds populations, this folder's endorser approves upgrades."""
        if self._upgrade is None:
            self._upgrade = upgrade_policy(self.root)
        founders = {*self._policy.founders, self.developer_key}
        return dataclasses.replace(self._policy, founders=tuple(sorted(founders)), upgrade=self._upgrade)

    @property
    def ca(self) -> Path:
        """The CA that all three certificates descend from."""
        return self.root / "ca" / "ca.pem"

    @property
    def reference_values(self) -> Path:
        """The reference values for devices."""
        return self.root / "reference_values.json"

    @property
    def server_address(self) -> str:
        """The address for devices and developers."""
        return self.children["server"].address

    @property
    def helper_key(self) -> str:
        """The helper's public key, 64 hex digits, after its start."""
        from distributor.helper_program import helper_key

        return helper_key(self.root / HELPER)

    def _port(self, place: int) -> int:
        """The port ``place`` after the server's, or any: the services and the log's witness have those before it."""
        return self._listen.server + place if self._listen.server else 0

    @property
    def _leaf_names(self) -> list[str]:
        return [f"leaf-{number}" for number in range(self._policy.leaves)]

    @property
    def _distributor_names(self) -> list[str]:
        return ["distributor", *(f"distributor-{number}" for number in range(2, self._listen.distributors + 1))]

    @property
    def _leaf_addresses(self) -> tuple[str, ...]:
        return tuple(self.children[name].address for name in self._leaf_names)

    @property
    def emulated_vendor(self) -> Path | None:
        """The folder of the emulated vendor of devices; None without one."""
        return self.root / _VENDOR if self._admission.how == _TOKEN else None

    @property
    def issuer_key(self) -> str:
        """The issuer's public key, 64 hex digits; created on first use."""
        from odp.trust.enrolment.issuer_program import issuer_key

        return issuer_key(self.root / ISSUER)

    def start(
        self, stop: threading.Event | None = None, *, on_serving: Callable[[Child], None] | None = None
    ) -> Services:
        """Starts all services and returns when they serve. After a failure, or once ``stop`` is set, stops them.

        ``on_serving`` is called with each service as soon as it serves.
        """

        def wait(child: Child, identity: TlsIdentity | None = None) -> None:
            child.wait_serving(self.ca, identity=identity, stop=stop)
            if on_serving is not None:
                on_serving(child)

        from odp.trust.enclave.host import require_chip

        # Locked, so that two `odp up` never share a folder, nor a device host mixes its files in.
        self._folder = StateFolder.open(self.root, "services")
        keep_out_of_git(self.root)
        try:
            adopt_successor(self.root / "aggregator")
            # Services share a chip: the first one to start would make another.
            require_chip(self.root / "aggregator", self.root / "platform")
            self._require_keys()
            if self._helper:
                helper = self.start_child(HELPER, self._port(4))
                # It answers the distributor alone, also when it is asked for its health.
                with StateFolder.open(self.root / "distributor", "distributor") as state:
                    identity = development_identity(state, self.root / "ca")
                wait(helper, identity)
            issuer = self.start_child(ISSUER, self._port(5)) if self._admission != OPEN else None
            distributors = [
                self.start_child(name, self._listen.distributor if name == "distributor" else 0)
                for name in self._distributor_names
            ]
            for leaf in [self.start_child(name, 0) for name in self._leaf_names]:
                wait(leaf)
            aggregator = self.start_child("aggregator", self._listen.aggregator)
            for child in (*distributors, aggregator, *([issuer] if issuer is not None else [])):
                wait(child)
            self.write_reference_values()
            self.pin_log()
            wait(self.start_child("server", self._listen.server))
        except BaseException:
            self.stop()
            raise
        return self

    def _require_keys(self) -> None:
        """Raises StateError where a key is gone that the policy of the sealed ledgers names: a new one opens none."""
        from odp.trust.enclave.host import has_sealed
        from server.program import KEY_FILE

        aggregator = self.root / "aggregator"
        if not has_sealed(aggregator):
            return
        for path in (self.root / "server" / KEY_FILE, self.root / LOG_KEY, self.root / ENDORSER_KEY):
            if not path.exists():
                raise StateError(
                    f"{path} is gone, and what {aggregator} sealed opens under this key alone: restore the file from a "
                    f"backup of {self.root}. Without one, these ledgers are lost, and their budgets count as spent: "
                    f"move {aggregator} aside, and found populations under new names"
                )

    def write_reference_values(self) -> None:
        """Pins the enclaves of this installation on the platform of these services, and their addresses."""
        reference_values(
            self.root / "platform",
            self.policy,
            select=self.distributor_policy.select,
            helper_keys=(self.helper_key,) if self._helper else (),
            addresses={
                role: tuple(self.children[name].address for name in names)
                for role, names in (
                    ("distributor", self._distributor_names),
                    ("aggregator", ["aggregator"]),
                    (ISSUER, [ISSUER]),
                )
                if names[0] in self.children
            }
            | ({"leaf": self._leaf_addresses} if self._leaf_names else {}),
            emulated_vendor=self.emulated_vendor,
        ).save(self.reference_values)

    def pin_log(self) -> None:
        """Pins the transparency log, and renews endorsements with at most half of their time left."""
        from server.transparency import read_witness

        pin_log(
            self.root,
            self.reference_values,
            (self.policy, self.distributor_policy),
            witness_keys=[read_witness(text)[1] for text in self._witnesses],
        )

    def start_child(self, name: str, port: int, *, command: Sequence[str] = ODP) -> Child:
        """Starts one service (after a restart: pass its earlier port)."""
        leaf = name in self._leaf_names
        distributor = name in self._distributor_names
        program = ["distributor", HELPER] if name == HELPER else [name]
        if leaf or distributor:
            program = ["aggregator" if leaf else "distributor"]
        arguments = [*program, "run", "--listen", f"{self._listen.host}:{port}", "--ca-folder", str(self.root / "ca")]
        if leaf or distributor or name in ("aggregator", ISSUER):
            # Again on the port that it had, where it is started again: the server keeps its address.
            before = self.children.get(name)
            control_address = "" if before is None else before.control_address
            arguments += ["--control-listen", control_address or f"{self._listen.host}:0"]
        if name == "server":
            for other, names in (("distributor", self._distributor_names), ("aggregator", ["aggregator"])):
                children = [self.children[name_of_child] for name_of_child in names]
                arguments += [f"--{other}", ",".join(child.address for child in children)]
                arguments += [f"--{other}-control", ",".join(child.control_address for child in children)]
            arguments += ["--reference-values", str(self.reference_values)]
            arguments += ["--log-key", str(self.root / LOG_KEY), "--endorsements", str(self.root / ENDORSEMENTS)]
            for witness in self._witnesses:
                arguments += ["--witness", witness]
            if self._leaf_names:
                arguments += ["--leaves", ",".join(self._leaf_addresses)]
            if ISSUER in self.children:
                issuer = self.children[ISSUER]
                arguments += ["--issuer", issuer.address, "--issuer-control", issuer.control_address]
                arguments += ["--issuer-key", self.issuer_key]
        elif name == ISSUER:
            arguments += ["--developer", self.developer_key, *self._attesters()]
        elif name != HELPER:
            arguments += ["--platform", str(self.root / "platform")]
        if distributor:
            arguments += ["--select", self.distributor_policy.select, "--developer", self.developer_key]
            if self._helper:
                arguments += ["--helper", self.children[HELPER].address]
        if leaf:
            arguments += ["--as-leaf-of", str(len(self._leaf_names))]
        elif name == "aggregator" and self._leaf_names:
            controls = [self.children[name_of_leaf].control_address for name_of_leaf in self._leaf_names]
            arguments += ["--leaves", ",".join(controls)]
        if leaf or name == "aggregator":
            arguments += ["--minimum-cohort", str(self.policy.minimum_cohort)]
            arguments += ["--population-epsilon", repr(self.policy.population_epsilon)]
            arguments += ["--population-delta", repr(self.policy.population_delta)]
            arguments += ["--accumulation", self.policy.accumulation]
            for founder in self.policy.founders:
                arguments += ["--founder", founder]
            if self.policy.upgrade is not None:
                self.policy.upgrade.save(self.root / UPGRADE)
                arguments += ["--upgrade", str(self.root / UPGRADE)]
            arguments += self._aggregator_options
            if self.policy.test_noise_seed is not None:
                arguments += ["--test-noise-seed", str(self.policy.test_noise_seed)]
        child = Child(name, arguments, state=self.root / name, log=self.root / "logs" / f"{name}.log", command=command)
        self.children[name] = child
        return child

    def restart_child(self, name: str) -> Child:
        """Restarts a service at its earlier address; returns before it serves."""
        before = self.children[name]
        before.stop()
        _host, port = channel.parse_address(before.address)
        child = self.start_child(name, port)
        child.address, child.control_address = before.address, before.control_address
        return child

    def _attesters(self) -> list[str]:
        """The attesters of devices, as options of the issuer; an emulated vendor is created on first use."""
        if self._admission.roster is not None:
            return ["--roster", str(self._admission.roster)]
        from odp.trust.enrolment.attesters.emulated import ROOT_FILE, EmulatedVendor

        folder = self.root / _VENDOR
        with state_errors(folder):
            make_folders(folder)
        EmulatedVendor.open(folder)
        return ["--emulated-vendor", str(folder / ROOT_FILE)]

    def dead(self) -> Child | None:
        """A service that ended by itself, if any."""
        return next((child for child in self.children.values() if child.process.poll() is not None), None)

    def stop(self) -> None:
        """Stops all services in the reverse order of their start. Idempotent."""
        for child in reversed(self.children.values()):
            child.stop()
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> Services:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
