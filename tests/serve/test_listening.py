"""The port is bound before anything is loaded, by one server only, and a failure is one sentence."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.serve import listening
from paceline.serve.listening import bound, listen
from paceline.serve.settings import SettingsError
from serve.harness import running

HOST = "127.0.0.1"
TAKEN = "Address already in use"


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no ::1")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another socket listens on."""
    with socket.create_server((HOST, 0)) as one:
        yield one.getsockname()[1]


def refusal(host: str, port: int) -> str:
    with pytest.raises(SettingsError) as caught, bound(host, port):
        pass
    return str(caught.value)


def resolved(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Make every host name resolve to these addresses, or to none."""

    def found(host: str, port: int, **_: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(listening.socket, "getaddrinfo", found)


def test_a_port_that_is_taken_is_told_before_the_model_is_looked_for(taken: int) -> None:
    command = [sys.executable, "-m", "paceline", "serve", "/no/such/model", "--port", str(taken)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f"paceline: cannot listen on {HOST} port {taken}: {TAKEN}\n"
    assert ended.stdout == ""


def test_a_host_that_is_unknown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved(monkeypatch)
    assert refusal("nope.invalid", 8000) == "cannot listen on nope.invalid port 8000: Name or service not known"


@pytest.mark.parametrize("host", ["a" * 64 + ".org", "a..org"])
def test_a_host_that_no_name_can_be_is_refused(host: str) -> None:
    assert refusal(host, 8000) == f"cannot listen on {host} port 8000: this is not the name of a host"


def test_an_address_of_another_machine_is_refused() -> None:
    # from the block reserved for documentation
    assert "Cannot assign requested address" in refusal("192.0.2.1", 0)


def test_addresses_that_this_machine_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved(monkeypatch, "192.0.2.1", HOST)
    with bound("here", 0) as sockets:
        assert [one.getsockname()[0] for one in sockets] == [HOST]


def test_an_address_that_is_taken_is_not_left_out(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    resolved(monkeypatch, "127.0.0.2", HOST)
    assert refusal("here", taken) == f"cannot listen on here port {taken}: {TAKEN}"
    # and the other address was released
    monkeypatch.undo()
    with bound("127.0.0.2", taken) as sockets:
        listen(sockets, "127.0.0.2", taken)


def test_nobody_is_let_in_until_it_listens() -> None:
    with bound(HOST, 0) as sockets:
        address = sockets[0].getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 5)
        listen(sockets, HOST, 0)
        socket.create_connection(address, 5).close()


def test_of_two_that_load_at_once_one_listens() -> None:
    with bound(HOST, 0) as first:
        port = first[0].getsockname()[1]
        with bound(HOST, port) as second:
            listen(first, HOST, port)
            with pytest.raises(SettingsError) as caught:
                listen(second, HOST, port)
    assert str(caught.value) == f"cannot listen on {HOST} port {port}: {TAKEN}"


def test_sockets_are_closed_whatever_happens() -> None:
    kept = list[socket.socket]()

    def interrupted() -> None:
        with bound(HOST, 0) as sockets:
            kept.extend(sockets)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [one.fileno() for one in kept] == [-1]


def test_a_port_with_a_connection_in_time_wait_can_be_bound() -> None:
    with bound(HOST, 0) as sockets:
        listen(sockets, HOST, 0)
        port = sockets[0].getsockname()[1]
        with socket.create_connection((HOST, port), 5) as client:
            # the side that closes first stays in TIME_WAIT
            sockets[0].accept()[0].close()
            assert client.recv(1) == b""
    with bound(HOST, port) as sockets:
        listen(sockets, HOST, port)


@needs_ipv6
def test_any_address_of_ipv6_leaves_that_of_ipv4_to_others() -> None:
    with bound("::", 0) as sockets:
        port = sockets[0].getsockname()[1]
        listen(sockets, "::", port)
        with bound("0.0.0.0", port) as others:
            listen(others, "0.0.0.0", port)


@needs_ipv6
def test_a_server_on_ipv6() -> None:
    with running("--host", "::1") as served:
        assert served.url.startswith("http://[::1]:")
        assert served.client.get("/health").status_code == 200
        assert served.stop() == 0
