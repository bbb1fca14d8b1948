"""`odp up`, and `run` of server, distributor and aggregator."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from odp._system.posix import require_linux
from odp.cli import helper
from odp.cli.console import console, print_result
from odp.cli.enclave_image import Images
from odp.cli.listening import LimitSettings, State, serving
from odp.errors import ConfigurationError, OdpError
from odp.operations.local.foreground import parent_watch
from odp.transport.running import Running

if TYPE_CHECKING:
    from odp.trust.enclave.policy import Accumulation, Selection, UpgradePolicy

# How often `odp up` looks whether an endorsement is to be made again; the server looks into the file every hour.
_ENDORSE_SECONDS = 86_400.0
#: Where a server listens, and where its clients look for one.
_SERVER_ADDRESS = "127.0.0.1:7200"

server_app = typer.Typer(help="Run the developer's server, which devices do not trust.", no_args_is_help=True)
distributor_app = typer.Typer(help="Run the distributor, which gives devices the rows they need.", no_args_is_help=True)
distributor_app.add_typer(helper.app, name="helper")
aggregator_app = typer.Typer(
    help="Run the aggregator, which sums, charges, adds noise and signs.", no_args_is_help=True
)

Platform = Annotated[Path | None, typer.Option(help="Folder of the emulated hardware \\[default: <state>/platform].")]
Accumulating = Annotated[
    str, typer.Option(help="oblivious; or direct, which is faster, but its memory accesses reveal all items.")
]
Selecting = Annotated[
    str, typer.Option(help="oblivious; or direct, which is faster, but its memory accesses reveal all keys.")
]
WithHelper = Annotated[
    bool, typer.Option("--helper", help="Also start a helper, for tasks of method 'pir' (docs/partial-broadcast.md).")
]
TestNoise = Annotated[
    int | None,
    typer.Option(help="TESTS ONLY, PROTECTS NOBODY: draw the noise from this seed. Devices refuse that by default."),
]
Witnesses = Annotated[list[str], typer.Option(help="host:port=KEY of a witness that cosigns the log; repeat for more.")]
ControlListen = Annotated[
    str, typer.Option(help="host:port for other programs, which need a certificate; port 0 takes any free one.")
]
Founders = Annotated[
    list[str],
    typer.Option(
        help="Public key (`odp server key`) that may found populations; repeat for more. Without one, no task can run."
    ),
]
Upgrade = Annotated[
    Path | None,
    typer.Option(help="JSON file of the log and the endorsers that may approve an upgrade of the aggregator."),
]

Database = Annotated[
    str | None,
    typer.Option(
        envvar="ODP_DATABASE",
        show_envvar=True,
        help="postgresql://user:password@host:5432/name, which all programs may share \\[default: files].",
    ),
]


_KEY = re.compile(r"[0-9a-fA-F]{64}")


def founder_keys(texts: Sequence[str]) -> tuple[str, ...]:
    """The keys of `--founder`: each of them 64 hex digits, or a file with one such key per line.

    Raises ConfigurationError where one is neither; the policy checks the keys of files.
    """
    keys: list[str] = []
    for text in texts:
        if Path(text).is_file():
            keys += Path(text).read_text(encoding="utf-8", errors="replace").split()
        elif _KEY.fullmatch(text) is None:
            raise ConfigurationError(
                f"Expected --founder={text!r} to be a public key of 64 hex digits (`odp server key`), or a file with "
                "one per line; there is no such file"
            )
        else:
            keys.append(text)
    return tuple(dict.fromkeys(keys))


def upgrade_policy(path: Path | None) -> UpgradePolicy | None:
    """The policy in the file of `--upgrade`. Raises ConfigurationError."""
    from odp.trust.enclave.policy import UpgradePolicy

    return None if path is None else UpgradePolicy.load(path)


@server_app.command("run")
@serving
def run_server(
    state: State = Path("odp-state/server"),
    listen: Annotated[str, typer.Option(help="host:port to serve on; port 0 takes any free one.")] = "127.0.0.1:7200",
    distributor: Annotated[
        str, typer.Option(help="host:port of the distributor; of several copies, with commas between.")
    ] = "127.0.0.1:7201",
    aggregator: Annotated[str, typer.Option(help="host:port of the aggregator.")] = "127.0.0.1:7202",
    distributor_control: Annotated[
        str, typer.Option(help="host:port of the distributor's control listener; of copies, in the same order.")
    ] = "127.0.0.1:7211",
    aggregator_control: Annotated[
        str, typer.Option(help="host:port of the aggregator's control listener.")
    ] = "127.0.0.1:7212",
    issuer: Annotated[
        str | None, typer.Option(help="host:port at which devices reach an issuer of tokens (`odp issuer run`).")
    ] = None,
    issuer_control: Annotated[str | None, typer.Option(help="host:port of the issuer's control listener.")] = None,
    issuer_key: Annotated[
        str, typer.Option(help="Key of the issuer (`odp issuer key`) for populations that this server founds.")
    ] = "",
    issuer_ca: Annotated[
        Path | None, typer.Option(help="PEM certificate of the issuer's CA \\[default: the CA of the other services].")
    ] = None,
    reference_values: Annotated[
        Path | None,
        typer.Option(help="JSON file of accepted enclaves; the server then applies only their releases."),
    ] = None,
    log_key: Annotated[
        Path | None, typer.Option(help="Private key of the transparency log \\[default: <state>/log.key].")
    ] = None,
    endorsements: Annotated[
        Path | None, typer.Option(help="JSON file of endorsements (`odp enclave endorse`), for the log.")
    ] = None,
    witness: Witnesses = [],  # noqa: B006  # typer copies it
    database: Database = None,
    leaves: Annotated[
        str, typer.Option(help="host:port,.. of the leaves of the aggregator, as devices reach them, in their order.")
    ] = "",
    **listening: Any,
) -> Running:
    """Run the developer's server in the foreground."""
    from odp.transport.channel import addresses_in
    from server.program import Config, start

    return start(
        Config(
            state=state,
            listen=listen,
            distributor=distributor,
            aggregator=aggregator,
            distributor_control=distributor_control,
            aggregator_control=aggregator_control,
            issuer=issuer,
            issuer_control=issuer_control,
            issuer_key=issuer_key,
            issuer_ca=issuer_ca,
            reference_values=reference_values,
            log_key=log_key,
            endorsements=endorsements,
            witnesses=tuple(witness),
            database=database,
            leaves=addresses_in(leaves),
            **listening,
        )
    )


@server_app.command("key")
def show_server_key(
    state: State = Path("odp-state/server"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print a server's public key, which verifies its tasks and names it as an owner; made on first use."""
    from server.program import developer_key

    public_key = developer_key(state)
    print_result({"server_key": public_key}, public_key, json=json)


@server_app.command("log-key")
def show_log_key(
    state: State = Path("odp-state/server"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the verifier key of a server's log, which devices, witnesses and auditors pin; made on first use."""
    from server.program import log_verifier_key

    verifier_key = log_verifier_key(state)
    print_result({"log_key": verifier_key}, verifier_key, json=json)


@distributor_app.command("run")
@serving
def run_distributor(
    state: State = Path("odp-state/distributor"),
    listen: Annotated[str, typer.Option(help="host:port to serve on; port 0 takes any free one.")] = "127.0.0.1:7201",
    control_listen: ControlListen = "127.0.0.1:7211",
    developer: Annotated[
        list[str],
        typer.Option(
            help="Public key of a developer whose models the distributor accepts \\[default: any]; repeat for more."
        ),
    ] = [],  # noqa: B006  # typer copies it
    select: Selecting = "oblivious",
    helper: Annotated[
        str | None,
        typer.Option(help="host:port of a helper (`odp distributor helper run`), for tasks of method 'pir'."),
    ] = None,
    helper_ca: Annotated[
        Path | None, typer.Option(help="PEM certificate of the helper's CA \\[default: this program's].")
    ] = None,
    blobs: Annotated[
        str | None,
        typer.Option(
            help="s3://bucket/prefix for the models, this distributor's own (extra `s3`) \\[default: in --state]."
        ),
    ] = None,
    keep_days: Annotated[
        float, typer.Option(help="Days to keep the model of a finished task after the last request for it.")
    ] = 30.0,
    platform: Platform = None,
    images: Images = None,
    limit: LimitSettings = [],  # noqa: B006  # typer copies it
    **listening: Any,
) -> Running:
    """Run the distributor (host and emulated enclave) in the foreground."""
    from distributor.program import LIMITS, Config, start
    from odp.trust.enclave.host import launching
    from odp.trust.enclave.policy import EnclavePolicy

    return start(
        Config(
            state=state,
            listen=listen,
            control_listen=control_listen,
            developers=tuple(developer),
            platform=platform,
            helper=helper,
            helper_ca=helper_ca,
            policy=EnclavePolicy(role="distributor", select=cast("Selection", select)),
            blobs=blobs,
            keep_days=keep_days,
            limits=LIMITS.changed(limit),
            **listening,
        ),
        launch=launching(images),
    )


@aggregator_app.command("run")
@serving
def run_aggregator(
    state: State = Path("odp-state/aggregator"),
    listen: Annotated[str, typer.Option(help="host:port to serve on; port 0 takes any free one.")] = "127.0.0.1:7202",
    control_listen: ControlListen = "127.0.0.1:7212",
    founder: Founders = [],  # noqa: B006  # typer copies it
    upgrade: Upgrade = None,
    idle_days: Annotated[
        float,
        typer.Option(help="Days to keep a task, with its contributions, after the last request of a server for it."),
    ] = 30.0,
    minimum_cohort: Annotated[int, typer.Option(help="Smallest number of contributions to any release.")] = 100,
    population_epsilon: Annotated[float, typer.Option(help="ε of all tasks of one population together.")] = 20.0,
    population_delta: Annotated[float, typer.Option(help="δ of all tasks of one population together.")] = 1e-5,
    accumulation: Accumulating = "oblivious",
    secagg_step: Annotated[float, typer.Option(help="Seconds that devices have for a step of `secagg+`.")] = 30.0,
    secagg_vector: Annotated[float, typer.Option(help="Seconds for the step of the masked vector.")] = 120.0,
    secagg_silent: Annotated[
        float, typer.Option(help="Seconds of silence after which a session begins without a device.")
    ] = 15.0,
    secagg_memory: Annotated[int, typer.Option(help="MiB of memory for all sessions of `secagg+` together.")] = 2048,
    secagg_seats: Annotated[
        int, typer.Option(help="Devices of one address in a session, at most; this machine may have any number.")
    ] = 256,
    roster: Annotated[
        list[Path],
        typer.Option(help="File of the devices that may be in sessions of tasks that name it; repeat for more."),
    ] = [],  # noqa: B006  # typer copies it
    leaves: Annotated[
        str,
        typer.Option(
            help="host:port,.. of the control listeners of its leaves, in the order of their numbers: it is then the "
            "root of a tree, and the leaves take the contributions."
        ),
    ] = "",
    leaf_grace: Annotated[
        float, typer.Option(help="Seconds that a round which could close waits for a leaf that does not answer.")
    ] = 60.0,
    as_leaf_of: Annotated[
        int, typer.Option(help="Be a leaf of a tree of so many, whose root has the same other limits; 0: be no leaf.")
    ] = 0,
    test_noise_seed: TestNoise = None,
    platform: Platform = None,
    images: Images = None,
    database: Database = None,
    **listening: Any,
) -> Running:
    """Run the aggregator (host and emulated enclave) in the foreground."""
    from odp.transport.channel import addresses_in
    from odp.trust.enclave.host import launching
    from odp.trust.enclave.policy import EnclavePolicy
    from trusted_aggregator.host.config import Config
    from trusted_aggregator.host.program import start
    from trusted_aggregator.modes.hosting import ModeOptions
    from trusted_aggregator.modes.secagg.limits import MEBIBYTE, Pace, SessionLimits

    of_tree = addresses_in(leaves)
    policy = EnclavePolicy(
        role="leaf" if as_leaf_of else "aggregator",
        leaves=as_leaf_of or len(of_tree),
        minimum_cohort=minimum_cohort,
        population_epsilon=population_epsilon,
        population_delta=population_delta,
        accumulation=cast("Accumulation", accumulation),
        founders=founder_keys(founder),
        test_noise_seed=test_noise_seed,
        upgrade=upgrade_policy(upgrade),
    )
    return start(
        Config(
            state=state,
            listen=listen,
            control_listen=control_listen,
            idle_days=idle_days,
            platform=platform,
            policy=policy,
            leaves=of_tree,
            leaf_grace_seconds=leaf_grace,
            database=database,
            modes=ModeOptions(
                pace=Pace(step=secagg_step, vector=secagg_vector, silent=secagg_silent),
                session_limits=SessionLimits(memory=secagg_memory * MEBIBYTE, seats_per_address=secagg_seats),
                rosters=tuple(roster),
            ),
            **listening,
        ),
        launch=launching(images),
    )


def up(
    state: Annotated[Path, typer.Option(help="State folder of all services; made on first start.")] = Path("odp-state"),
    listen: Annotated[
        str, typer.Option(help="host:port to serve on; the port is the first of six consecutive ones.")
    ] = _SERVER_ADDRESS,
    minimum_cohort: Annotated[int, typer.Option(help="Smallest number of contributions to any release.")] = 100,
    population_epsilon: Annotated[float, typer.Option(help="ε of all tasks of one population together.")] = 20.0,
    population_delta: Annotated[float, typer.Option(help="δ of all tasks of one population together.")] = 1e-5,
    accumulation: Accumulating = "oblivious",
    select: Selecting = "oblivious",
    leaves: Annotated[
        int, typer.Option(help="Leaves of a tree of aggregators, which take the contributions; 0: the aggregator does.")
    ] = 0,
    distributors: Annotated[int, typer.Option(help="Copies of the distributor; devices are told one in turn.")] = 1,
    with_helper: WithHelper = False,
    admission: Annotated[
        str,
        typer.Option(
            help="token: one contribution per emulated device and round, for development; "
            "roster: one per device of --roster and round; open: any number from anybody."
        ),
    ] = "token",
    roster: Annotated[Path | None, typer.Option(help="File of the devices that count (`odp device roster`).")] = None,
    witness: Witnesses = [],  # noqa: B006  # typer copies it
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True, help="Stop when stdin ends.")] = False,
) -> None:
    """Start all services on this machine; Ctrl-C stops them."""
    require_linux("odp up")
    from odp.operations.local.processes import AdmissionRule, ListenAddresses, Services
    from odp.operations.local.supervising import Supervisor
    from odp.transport.channel import parse_address
    from odp.transport.sweeping import stop_event
    from odp.trust.enclave.policy import EnclavePolicy

    host, port = parse_address(listen)
    ports = {"server": port, "distributor": port + 1, "aggregator": port + 2} if port else {}
    stop = stop_event()
    if with_parent:
        parent_watch(stop)
    policy = EnclavePolicy(
        role="aggregator",
        minimum_cohort=minimum_cohort,
        population_epsilon=population_epsilon,
        population_delta=population_delta,
        accumulation=cast("Accumulation", accumulation),
        leaves=leaves,
    )
    out = console()
    services = Services(
        state,
        listen=ListenAddresses(host=host, distributors=distributors, **ports),
        policy=policy,
        select=cast("Selection", select),
        witnesses=witness,
        helper=with_helper,
        admission=AdmissionRule(how=admission, roster=roster),
    )
    out.print("starting the services: each makes its keys, and measures the code of its enclave")
    services.start(stop)
    try:
        for name, child in services.children.items():
            out.print(f"{name:<12} {child.address:<22} log {child.log}")
        if with_helper:
            out.print(f"tasks may ask the helper: broadcast.helper_key = {services.helper_key}", soft_wrap=True)
        # Clients take the first address of `odp up` unless they are given another one; on this machine, they reach one
        # that stands for all by the loopback.
        address = services.server_address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")
        where = "" if address == _SERVER_ADDRESS else f"--server {address} "
        out.print(
            f"ready at {services.server_address}: developers connect with {where}--state {state}, devices with "
            f"{where}--services {state}. Ctrl-C stops all."
        )
        supervisor = Supervisor(services, say=lambda line: out.print(line, soft_wrap=True))
        endorsed = time.monotonic()
        while not stop.wait(0.5):
            supervisor.look()
            if time.monotonic() - endorsed >= _ENDORSE_SECONDS:
                endorsed = time.monotonic()
                try:
                    services.pin_log()
                except OdpError as error:
                    out.print(f"endorsements were not renewed: {error}", soft_wrap=True)
    finally:
        services.stop()
    out.print(f"stopped; `odp up --state {shlex.quote(str(state))}` goes on where it was", soft_wrap=True)
