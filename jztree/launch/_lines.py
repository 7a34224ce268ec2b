"""Connections that break when a process disappears: killed, out of memory, crashed, or left by ``os._exit``.

JAX detects this only when the process's heartbeats stop, after 100 s, but the system closes its connections at once. So
the processes form a ring: each is connected to the one before it and the one after it. A process that exits properly
says goodbye first. If a connection ends without a goodbye, and nothing listens at the process's address any more, the
process is gone. All other cases, such as a network that drops connections, are left to the heartbeats. A suspended
process keeps its connections. The connections carry no other data, so they have no cost for any number of processes.
"""

import contextlib
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

_ADDRESS_KEY = "jztree/launch/lines/"
_GREETING = 40  # characters: a secret of the called process, and the number of the caller
_WELCOME, _GOODBYE = b"w", b"g"
_SECONDS = 5.0  # for each step of making a connection
_LOOKS, _LOOK_SECONDS = 3, 0.3  # checks whether anything listens at a process's address


class _Address(NamedTuple):
    """The address of a process, the secret that a caller must send, and the name of its host."""

    host: str
    port: int
    secret: str
    name: str


class Lines:
    """The connections of one process.

    Attributes:
        gone: Called in a thread with the number and the host of a lost process.
    """

    def __init__(self, state: Any, gone: Callable[[int, str], None]) -> None:
        self.client, self.me, self.count = state.client, int(state.process_id), int(state.num_processes)
        self.coordinator = str(state.coordinator_address)
        self.gone, self.pid = gone, os.getpid()
        self.connections: list[socket.socket] = []
        self.addresses: dict[int, _Address] = {}
        self.selector = selectors.DefaultSelector()

    def open(self) -> None:
        """Make and watch the connections. Do without them if they cannot be made."""
        with contextlib.suppress(Exception):
            host, family = self.own_host()
            listener = socket.create_server(("", 0), family=family, backlog=16)
            self.own = _Address(host, listener.getsockname()[1], secrets.token_hex(16), socket.gethostname())
            self.client.key_value_set(f"{_ADDRESS_KEY}{self.me}", " ".join(map(str, self.own)))
            self.selector.register(listener, selectors.EVENT_READ)
            called = threading.Event()
            threading.Thread(target=self.watch, args=(listener, called), name="jztree lines", daemon=True).start()
            self.call((self.me - 1) % self.count)
            # From here on, two processes watch each process, if possible.
            called.wait(_SECONDS)

    def own_host(self) -> tuple[str, socket.AddressFamily]:
        """Return the local address for connections to process 0, which others can also reach."""
        host, port = self.coordinator.rsplit(":", 1)
        family, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return probe.getsockname()[0], family

    def call(self, process: int) -> None:
        """Connect to another process."""
        self.fetch_address(process)
        address = self.addresses[process]
        connection = socket.create_connection((address.host, address.port), _SECONDS)
        connection.sendall(f"{address.secret}{self.me:8d}".encode())
        if connection.recv(1) == _WELCOME:
            self.keep(connection, process)

    def fetch_address(self, process: int) -> None:
        text = str(self.client.blocking_key_value_get(f"{_ADDRESS_KEY}{process}", round(1000 * _SECONDS)))
        host, port, secret, name = text.split(" ")
        self.addresses[process] = _Address(host, int(port), secret, name)

    def keep(self, connection: socket.socket, process: int) -> None:
        self.connections.append(connection)
        self.selector.register(connection, selectors.EVENT_READ, process)

    def watch(self, listener: socket.socket, called: threading.Event) -> None:
        """Accept the connection of the next process in the ring, and wait for connections to end."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is listener:
                    self.accept(listener.accept()[0], called)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                self.selector.unregister(key.fileobj)
                if not _received_goodbye(key.fileobj):
                    threading.Thread(target=self.check_process, args=(key.data,), daemon=True).start()

    def accept(self, connection: socket.socket, called: threading.Event) -> None:
        next_process = (self.me + 1) % self.count
        with contextlib.suppress(Exception):
            connection.settimeout(_SECONDS)
            greeting = b""
            while len(greeting) < _GREETING and (more := connection.recv(_GREETING - len(greeting))):
                greeting += more
            if secrets.compare_digest(greeting, f"{self.own.secret}{next_process:8d}".encode()):
                self.fetch_address(next_process)
                connection.sendall(_WELCOME)
                self.keep(connection, next_process)
                called.set()
                return
        connection.close()

    def check_process(self, process: int) -> None:
        """Report that a process is gone if its address is known and nothing listens there."""
        address = self.addresses[process]
        for _ in range(_LOOKS):
            # The system may close the resources of a process in any order.
            time.sleep(_LOOK_SECONDS)
            with contextlib.suppress(OSError):  # a network fault; the heartbeats decide
                try:
                    socket.create_connection((address.host, address.port), _SECONDS).close()
                except ConnectionRefusedError:
                    self.gone(process, address.name)
                    return

    def say_goodbye(self) -> None:
        """Announce that this process exits properly, or has reported the reason for its end otherwise."""
        if os.getpid() == self.pid:
            for connection in self.connections:
                with contextlib.suppress(OSError):
                    connection.send(_GOODBYE)


def _received_goodbye(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == _GOODBYE
    except OSError:
        return False
