"""A system bus with a systemd behind it, on a Unix socket, in a thread."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from jeepney import DBusAddress, HeaderFields, Message, MessageType, Parser, new_error, new_method_return, new_signal

INFINITY = 2**64 - 1
SYSTEMD = "org.freedesktop.systemd1"


class FakeBus:
    """Units are by object path; ``apply`` is what systemd does to the kernel when properties were set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.units: dict[str, dict[str, object]] = {}
        self.apply: Callable[[dict[str, object]], None] = lambda _unit: None
        self.sets: list[tuple[str, bool, dict[str, int]]] = []
        self.asked: list[str] = []
        self.sessions = 0
        self.auth = b"OK 1234deadbeef\r\n"
        self.silent_on: str | None = None
        self.hang_up_on: str | None = None
        self.garbage_on: str | None = None
        self.refuse: dict[str, str] = {}
        self.rejected_value: str | None = None
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def add(self, unit_path: str, unit: str, control_group: str, **properties: int) -> dict[str, object]:
        """A unit with systemd's defaults."""
        values = {"MemoryHigh": INFINITY, "MemoryMax": INFINITY, "ControlGroup": control_group, "name": unit} | properties
        self.units[f"/org/freedesktop/systemd1/unit/{unit_path}"] = values
        return values

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self.sessions += 1
            self._open.append(sock)
            with contextlib.suppress(OSError), sock:
                self._talk(sock)

    def _talk(self, sock: socket.socket) -> None:
        received = b""
        while not received.endswith(b"\r\n"):
            data = sock.recv(1024)
            if not data:
                return
            received += data
        assert received.startswith(b"\0AUTH EXTERNAL ")
        sock.sendall(self.auth)
        if not self.auth.startswith(b"OK "):
            return
        received = sock.recv(7)
        assert received in (b"BEGIN\r\n", b"")
        parser, serial = Parser(), 0
        while data := sock.recv(4096):
            parser.add_data(data)
            while (message := parser.get_next_message()) is not None:
                serial += 1
                if not self._answer(sock, message, serial):
                    return

    def _answer(self, sock: socket.socket, message: Message, serial: int) -> bool:
        member = message.header.fields[HeaderFields.member]
        assert message.header.message_type is MessageType.method_call
        self.asked.append(member)
        if member == self.hang_up_on:
            return False
        if member == self.silent_on:
            return True
        if member == self.garbage_on:
            sock.sendall(b"\xff" * 64)
            return True
        if member in self.refuse:
            reply = new_error(message, self.refuse[member], "s", ("no",))
        elif member == "Hello":
            signal = new_signal(DBusAddress("/org/freedesktop/DBus", interface="org.freedesktop.DBus"), "NameAcquired", "s", (":1.7",))
            sock.sendall(signal.serialise(serial=1000 + serial))
            reply = new_method_return(message, "s", (":1.7",))
        else:
            reply = self._get(message) if member == "Get" else self._set(message)
        sock.sendall(reply.serialise(serial=serial))
        return True

    def _get(self, message: Message) -> Message:
        interface, name = message.body
        unit = self.units.get(message.header.fields[HeaderFields.path])
        if unit is None:
            # As systemd: a unit that is not loaded has the defaults.
            unit = {"ControlGroup": "", "MemoryHigh": INFINITY, "MemoryMax": INFINITY, "name": interface.rpartition(".")[2].lower()}
        assert interface == f"{SYSTEMD}.{str(unit['name']).rpartition('.')[2].capitalize()}"
        value = unit[name]
        return new_method_return(message, "v", (("s" if isinstance(value, str) else "t", value),))

    def _set(self, message: Message) -> Message:
        name, runtime, properties = message.body
        unit = next((u for u in self.units.values() if u["name"] == name), None)
        if unit is None:
            return new_error(message, f"{SYSTEMD}.NoSuchUnit", "s", (f"Unit {name} not loaded.",))
        values = {key: value for key, (_, value) in properties}
        self.sets.append((name, runtime, values))
        unit.update(values)
        self.apply(unit)
        return new_method_return(message)
