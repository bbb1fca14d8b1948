"""Services with two servers on one PostgreSQL database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from odp._system.files.private_files import make_folders
from odp.operations.local.processes import ISSUER, ODP, Child, Services
from odp.trust.enclave.policy import EnclavePolicy

SERVERS = ("server", "server-2")


class Replicated(Services):
    """Services with a second server; both keep their tasks in one database."""

    def __init__(self, root: Path, url: str, *, policy: EnclavePolicy, aggregator_options: Sequence[str] = ()) -> None:
        super().__init__(root, policy=policy, aggregator_options=aggregator_options)
        self.url = url

    def start_child(self, name: str, port: int, *, command: Sequence[str] = ODP) -> Child:
        if name not in SERVERS:
            return super().start_child(name, port, command=command)
        command = ["env", f"ODP_DATABASE={self.url}", *command]
        if name == "server":
            return super().start_child(name, port, command=command)
        return self._second(port, command)

    def _second(self, port: int, command: Sequence[str]) -> Child:
        """The same program on a folder of its own, with the keys of the first one."""
        state = self.root / SERVERS[1]
        if not state.exists():
            make_folders(state)
            for key in ("developer.key", "operator.token"):
                (state / key).write_bytes((self.root / "server" / key).read_bytes())
                (state / key).chmod(0o600)
        arguments = ["server", "run", "--listen", f"127.0.0.1:{port}", "--ca-folder", str(self.root / "ca")]
        for other in ("distributor", "aggregator"):
            arguments += [f"--{other}", self.children[other].address]
            arguments += [f"--{other}-control", self.children[other].control_address]
        arguments += ["--reference-values", str(self.reference_values)]
        arguments += ["--log-key", str(self.root / "log.key"), "--endorsements", str(self.root / "endorsements.json")]
        if ISSUER in self.children:
            issuer = self.children[ISSUER]
            arguments += ["--issuer", issuer.address, "--issuer-control", issuer.control_address]
            arguments += ["--issuer-key", self.issuer_key]
        log = self.root / "logs" / f"{SERVERS[1]}.log"
        child = self.children[SERVERS[1]] = Child(SERVERS[1], arguments, state=state, log=log, command=command)
        return child

    def start(self, *arguments: object, **named: object) -> Services:
        super().start(*arguments, **named)
        try:
            self.start_child(SERVERS[1], 0).wait_serving(self.ca)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def server_address(self) -> str:
        return ",".join(self.children[name].address for name in SERVERS)
