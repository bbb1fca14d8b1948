"""Which addresses a device connects to, and by what a name becomes one."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from device_runtime.network.addresses import Peers, PinnedAddresses
from device_runtime.network.services import Services, Traffic
from odp.errors import AddressRefused, AttestationError, ConfigurationError, ServiceUnavailable

HERE = PinnedAddresses.at(distributor="d.example:7201", aggregator="10.1.2.3:7202")
PUBLIC = "93.184.216.34"


class Names:
    """A resolver that answers what a test likes, and counts."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, *, type: int) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not found:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, type, 6, "", (one, port)) for one in found]


def targets(host: str, *found: str, allow_private: bool = False) -> tuple[str, ...]:
    pinned = PinnedAddresses(allow_private=allow_private, resolve=Names(list(found)))
    return pinned.targets(f"{host}:7200")


@pytest.mark.parametrize(
    ("role", "address"),
    [
        ("distributor", "d.example:7202"), ("distributor", "D.example:7201"), ("distributor", "d.example.:7201"),
        ("distributor", "10.1.2.3:7202"), ("aggregator", "d.example:7201"), ("aggregator", "10.1.2.3:07202"),
        ("helper", "d.example:7201"),
    ],
)  # fmt: skip
def test_an_address_is_compared_with_those_of_its_role_as_it_is_written(role: str, address: str) -> None:
    HERE.require("distributor", "d.example:7201")
    with pytest.raises(AddressRefused, match=rf"the server names {address} as the {role}, which is not pinned") as told:
        HERE.require(role, address)
    assert isinstance(told.value, AttestationError)
    assert "\n" not in str(told.value)
    assert f"`odp enclave pin-address {role} {address}`" in str(told.value)


def test_where_nothing_is_pinned_the_error_says_what_to_do() -> None:
    with pytest.raises(
        AddressRefused, match=r"the reference values pin no address.*`odp enclave pin-address aggregator x:1`"
    ):
        PinnedAddresses().require("aggregator", "x:1")


def test_an_address_is_connected_to_as_it_is_and_a_name_by_its_addresses() -> None:
    for literal in ("127.0.0.1:7200", "10.0.0.1:7200", "[::1]:7200"):
        assert PinnedAddresses(resolve=Names([])).targets(literal) == ()
    assert targets("d.example", PUBLIC, "1.1.1.1", PUBLIC) == (f"{PUBLIC}:7200", "1.1.1.1:7200")
    assert targets("d.example", "2606:4700::1111", PUBLIC) == ("[2606:4700::1111]:7200",)


@pytest.mark.parametrize(
    "private",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:192.168.1.1", "64:ff9b::7f00:1", "2002:7f00:1::",
    ],
)  # fmt: skip
def test_a_name_that_leads_to_an_address_that_is_not_public_needs_the_persons_word(private: str) -> None:
    """Also where it has a public address too, and where an IPv4 address hides in one of IPv6."""
    for found in ([private], [PUBLIC, private], [private, PUBLIC]):
        with pytest.raises(AddressRefused, match="--allow-private-addresses"):
            targets("d.example", *found)
        assert targets("d.example", *found, allow_private=True)


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", "2130706433", "017700000001"])
def test_another_spelling_of_an_address_is_resolved_and_checked_like_a_name(host: str) -> None:
    with contextlib.suppress(ServiceUnavailable), pytest.raises(AddressRefused, match="not a public address"):
        PinnedAddresses().targets(f"{host}:7200")


def test_localhost_says_by_itself_where_it_leads() -> None:
    assert targets("localhost", "127.0.0.1") == ("127.0.0.1:7200",)
    with pytest.raises(AddressRefused):
        targets("localhost", "10.0.0.1")


def test_a_name_without_an_address_is_nobody_who_answers() -> None:
    for nothing in ([], ["nonsense"]):
        with pytest.raises(ServiceUnavailable, match=r"could not find an address of d\.example"):
            targets("d.example", *nothing)


def test_a_name_is_resolved_once_and_the_channel_gets_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: what the name leads to a moment later is nothing that a connection sees."""
    made: list[tuple[str, tuple[str, ...]]] = []

    closed = []

    class Channel:
        def close(self) -> None:
            closed.append(self)

        def __getattr__(self, name: str) -> Any:
            return lambda *given, **options: None

    def connect(address: str, ca: bytes, *, targets: tuple[str, ...]) -> Any:
        made.append((address, targets))
        return Channel()

    monkeypatch.setattr("device_runtime.network.addresses.connect", connect)
    now = [0.0]
    names = Names([PUBLIC], ["127.0.0.1"])
    pinned = PinnedAddresses(by_role={"aggregator": ("a.example:7202",)}, resolve=names)
    peers = Peers(b"", pinned, monotonic=lambda: now[0])
    first = peers.at("aggregator", "a.example:7202")
    now[0] = 299.0
    assert peers.at("aggregator", "a.example:7202") is first
    assert made == [("a.example:7202", (f"{PUBLIC}:7202",))]
    assert names.asked == ["a.example"]
    now[0] = 301.0
    with pytest.raises(AddressRefused, match=r"leads to 127\.0\.0\.1"):
        peers.at("aggregator", "a.example:7202")
    assert len(made) == 1
    names.answers = [["1.1.1.1"]]
    assert peers.at("aggregator", "a.example:7202").channel is not first.channel
    assert made[-1] == ("a.example:7202", ("1.1.1.1:7202",))
    assert not closed, "calls may be under way on the first"
    now[0] = 4000.0
    peers.at("aggregator", "a.example:7202")
    assert closed == [first.channel]
    peers.close()


def test_a_connection_to_a_names_addresses_still_wants_the_names_certificate(world: Any) -> None:
    port = world.address.rpartition(":")[2]
    for name, right in (("localhost", True), ("other.localhost", False)):
        pinned = PinnedAddresses(resolve=Names(["127.0.0.1"]))
        services = Services(f"{name}:{port}", world.identity.ca_pem, pinned=pinned)
        try:
            if right:
                assert services.check_in("people", Traffic()).WhichOneof("answer") == "assignment"
            else:
                with pytest.raises(ServiceUnavailable):
                    services.check_in("people", Traffic())
        finally:
            services.close()


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        Services("nowhere", b"", pinned=PinnedAddresses())
