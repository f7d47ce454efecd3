"""Listening: the port is bound before the model is loaded, and released however the server ends."""

from __future__ import annotations

import errno
import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from paceline.serve.settings import SettingsError

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of binding an address that this machine does not have."""


@contextmanager
def bound(host: str, port: int) -> Generator[list[socket.socket], None, None]:
    """Sockets bound to every address of a host that this machine has, closed at the end. port: 0 for any free one.

    They do not listen yet: until the model is loaded, clients and health checks are refused instead of waiting.
    Raises SettingsError if the host is unknown or not this machine, or the port cannot be bound.
    """
    with ExitStack() as stack:
        try:
            sockets = _bound(host, port, stack)
        # a name that cannot be encoded as a DNS name raises ValueError
        except (OSError, ValueError) as error:
            raise _refused(host, port, error) from None
        yield sockets


def listen(sockets: Sequence[socket.socket], host: str, port: int) -> None:
    """Take the port: of several servers that bound it while loading, the first to listen gets it.

    host, port: what the sockets were bound to. Raises SettingsError in all other servers.
    """
    try:
        for one in sockets:
            one.listen()
    except OSError as error:
        raise _refused(host, port, error) from None


def _bound(host: str, port: int, stack: ExitStack) -> list[socket.socket]:
    """Binds as asyncio does for a host and a port; uvicorn's own code exits on errors. Raises OSError, ValueError."""
    found, missing = list[socket.socket](), OSError(errno.EADDRNOTAVAIL, "no address")
    for family, kind, protocol, _, address in dict.fromkeys(
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    ):
        try:
            one = stack.enter_context(socket.socket(family, kind, protocol))
            # a port that another server has just released can be bound at once
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # otherwise "::" would bind the port for IPv4 too
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
        except OSError as error:
            # "localhost" resolves to an IPv6 address even on machines without IPv6
            if error.errno not in _NOT_HERE:
                raise
            missing = error
        else:
            found.append(one)
    if not found:
        raise missing
    return found


def _refused(host: str, port: int, error: OSError | ValueError) -> SettingsError:
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else "this is not the name of a host"
    return SettingsError(f"cannot listen on {host} port {port}: {reason}")
