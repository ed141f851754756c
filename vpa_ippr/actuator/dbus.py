"""The two calls that the actuator makes to systemd over the system bus, each session within one deadline.

The message format and the authentication are jeepney's. Its own blocking connection is not used: it waits without end for the bus's first
answer, and the agent must never be blind for long.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from jeepney import DBusAddress, HeaderFields, Message, MessageType, Parser, new_method_call
from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.low_level import SizeLimitError

from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.errors import ActuatorError

SOCKET = Path("/run/dbus/system_bus_socket")
TIMEOUT_SECONDS = 1.0

_SYSTEMD = "org.freedesktop.systemd1"
_MANAGER = DBusAddress("/org/freedesktop/systemd1", _SYSTEMD, f"{_SYSTEMD}.Manager")
_BUS = DBusAddress("/org/freedesktop/DBus", "org.freedesktop.DBus", "org.freedesktop.DBus")
_UNITS = "/org/freedesktop/systemd1/unit/"
_READ_BYTES = 16 * 1024


class Session(Protocol):
    """What can be asked of systemd while connected. Every method raises ActuatorError (``BusUnavailable``, ``BusRefused``)."""

    def unit_property(self, unit: str, name: str) -> Any:
        """One property of the unit's own interface (Scope, Slice, Service)."""
        ...

    def set_unit_properties(self, unit: str, values: Mapping[str, int]) -> None:
        """Set unsigned 64-bit properties until the next boot; the kernel has them when this returns."""
        ...


class SystemBus:
    """Opens sessions.

    Args:
        path: the bus's socket.
        timeout_seconds: for a whole session, from connecting to the last answer.
        monotonic: a clock for that.
    """

    def __init__(
        self, path: Path = SOCKET, timeout_seconds: float = TIMEOUT_SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Connected and authenticated.

        Raises:
            ActuatorError: the bus is not there, refuses us, or does not answer in time (``BusUnavailable``).
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with contextlib.closing(sock):
            session = _Session(sock, self._path, self._monotonic() + self._timeout_seconds, self._monotonic)
            session.open()
            yield session


class _Session:
    def __init__(self, sock: socket.socket, path: Path, until: float, monotonic: Callable[[], float]) -> None:
        self._sock = sock
        self._path = path
        self._until = until
        self._monotonic = monotonic
        self._parser = Parser()
        self._serial = 0

    def open(self) -> None:
        with self._failures():
            self._arm()
            self._sock.connect(str(self._path))
            self._authenticate()
        self._call(new_method_call(_BUS, "Hello"))

    def unit_property(self, unit: str, name: str) -> Any:
        address = DBusAddress(_UNITS + escape(unit), _SYSTEMD, "org.freedesktop.DBus.Properties")
        interface = f"{_SYSTEMD}.{unit.rpartition('.')[2].capitalize()}"
        body = self._call(new_method_call(address, "Get", "ss", (interface, name)))
        try:
            _, value = body[0]
        except (IndexError, TypeError, ValueError):
            raise ActuatorError(f"bus {self._path}: {name} of {unit} was answered with {body!r}", reason=Reason.BUS_REFUSED) from None
        return value

    def set_unit_properties(self, unit: str, values: Mapping[str, int]) -> None:
        properties = [(name, ("t", value)) for name, value in values.items()]
        self._call(new_method_call(_MANAGER, "SetUnitProperties", "sba(sv)", (unit, True, properties)))

    def _authenticate(self) -> None:
        conversation = Authenticator()
        for line in conversation:
            self._send(line)
            conversation.feed(self._receive())
        self._send(BEGIN)

    def _call(self, message: Message) -> tuple[Any, ...]:
        self._serial += 1
        with self._failures():
            self._send(message.serialise(serial=self._serial))
            reply = self._reply()
        if reply.header.message_type is MessageType.error:
            name = reply.header.fields.get(HeaderFields.error_name, "error")
            detail = reply.body[0] if reply.body else ""
            raise ActuatorError(
                f"bus {self._path}: {message.header.fields[HeaderFields.member]}: {name}: {detail}", reason=Reason.BUS_REFUSED
            )
        return tuple(reply.body)

    def _reply(self) -> Message:
        """The answer to the last call; signals and what else the bus tells everybody are passed over."""
        while True:
            message = self._parser.get_next_message()
            if message is None:
                self._parser.add_data(self._receive())
            elif message.header.fields.get(HeaderFields.reply_serial) == self._serial:
                return message

    def _send(self, data: bytes) -> None:
        self._arm()
        self._sock.sendall(data)

    def _receive(self) -> bytes:
        self._arm()
        data = self._sock.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("closed by the bus")
        return data

    def _arm(self) -> None:
        left = self._until - self._monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise self._unavailable("no answer in time") from error
        except OSError as error:
            raise self._unavailable(error.strerror or str(error)) from error
        except AuthenticationError as error:
            raise self._unavailable(f"it refuses user {os.geteuid()}: {error}") from error
        except (SizeLimitError, ValueError, LookupError, TypeError) as error:
            raise self._unavailable(f"its answer cannot be understood: {error}") from error

    def _unavailable(self, what: str) -> ActuatorError:
        return ActuatorError(f"bus {self._path}: {what}", reason=Reason.BUS_UNAVAILABLE)


def escape(unit: str) -> str:
    """A unit's name as a component of an object path (systemd's bus_label_escape)."""
    if not unit:
        return "_"
    return "".join(c if c.isascii() and (c.isalpha() or (c.isdigit() and at > 0)) else _hex(c) for at, c in enumerate(unit))


def _hex(character: str) -> str:
    return "".join(f"_{byte:02x}" for byte in character.encode())
