"""Reads objects from the workers that hold them: by mapping the file on the same host, else over TCP."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from fdb_schema import boot_id
from futures_worker.errors import AuthenticationError, ObjectLostError, WireError
from futures_worker.objects.arena import RECYCLED_FROM, ArenaWriter, Buffer, map_shared
from futures_worker.objects.object_files import check_granted, check_offered, write_file
from futures_worker.ports import wire
from futures_worker.ports.handshake import MisdirectedError, Secrets, as_secrets

SPREAD_FROM = 1 << 20
"""Bytes from which readers on other hosts spread over all copies of a result."""
MAX_IDLE_CONNECTIONS = 4
"""Authenticated connections kept per worker for the next request."""
MAX_IDLE_WORKERS = 64
"""Workers to which connections are kept: in a long life any number comes and goes."""


Address = tuple[str, int] | tuple[str, int, bytes]
"""IP address, port, and the incarnation of the worker where it is known."""


class ObjectAbsentError(ObjectLostError):
    """The worker answered, and does not hold the object."""


class ObjectBusyError(ObjectLostError):
    """The worker holds the object and sends to others just now; whoever can waits or asks another holder."""


class ObjectFetcher:
    """Fetches objects by (address, name). Connections are kept and reused; safe for use by several threads.

    An address may have an incarnation as its third part: another start of a worker at that address then doesn't count.
    """

    def __init__(
        self, secret: bytes | Secrets, *, timeout: float = 30.0, max_object: int = wire.MAX_BODY, own: bool = False
    ) -> None:
        """`timeout` limits connecting and each read, in seconds; `max_object` the size of an object, in bytes.

        `own`: what `fetch` returns can be written to, as this process's own.
        """
        self._own = own
        self._secret = as_secrets(secret)
        self._timeout = timeout
        self._max_object = max_object
        self._boot = boot_id()
        self._idle: dict[Address, list[wire.Connection]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._arena = ArenaWriter()

    def fetch(self, address: Address, name: str, *, by_file: bool = True, timeout: float | None = None) -> memoryview:
        """The object's bytes: a shared mapping on the same host (zero-copy), else a copy from the network.

        `timeout`: seconds, where they are less than this fetcher's.

        Raises `ObjectLostError` if the worker can't be reached, `ObjectAbsentError` if it answers that it does not hold the
        object, `AuthenticationError` if it does not know the secret.
        """
        if by_file and self._boot:
            answer, body = self._request(address, {"op": "get", "name": name, "boot": self._boot}, timeout=timeout)
            if not answer.get("ok"):
                raise ObjectAbsentError(f"worker {address[0]}:{address[1]} no longer holds object {name}")
            path = answer.get("path")
            if not isinstance(path, str):
                return body
            try:
                check_offered(path, name)
                return map_shared(path, int(answer["size"]), own=self._own)
            except OSError:
                pass  # moved to disk in between, or another file system namespace: ask for the bytes
        answer, body = self._request(address, {"op": "get", "name": name}, timeout=timeout)
        if not answer.get("ok"):
            raise ObjectAbsentError(f"worker {address[0]}:{address[1]} no longer holds object {name}")
        return body

    def fetch_file(self, address: Address, name: str, target: Path | str, *, yielding: bool = False) -> int:
        """Makes the object the file `target` (a link where holder and reader share a file system); returns its bytes.

        `yielding`: a holder that is busy with others may say so. Raises as `fetch` does, and `ObjectBusyError` then.
        """
        header: dict[str, Any] = {"op": "get", "name": name, "yielding": yielding}
        if self._boot:
            answer, body = self._request(address, {**header, "boot": self._boot})
            self._check_answer(address, name, answer)
            path = answer.get("path")
            if not isinstance(path, str):
                return write_file(target, [body])
            try:
                check_offered(path, name)
                os.link(path, target)
                return int(answer["size"])
            except OSError:
                pass  # another file system, or moved in between
            with contextlib.suppress(OSError):
                check_offered(path, name)
                return write_file(target, [map_shared(path, int(answer["size"]))])
        answer, body = self._request(address, header)
        self._check_answer(address, name, answer)
        return write_file(target, [body])

    @staticmethod
    def _check_answer(address: Address, name: str, answer: wire.Header) -> None:
        if answer.get("ok"):
            return
        if answer.get("reason") == "busy":
            raise ObjectBusyError(f"worker {address[0]}:{address[1]} sends object {name} to others now")
        raise ObjectAbsentError(f"worker {address[0]}:{address[1]} no longer holds object {name}")

    def put(self, address: Address, name: str, data: Buffer) -> int:
        """Stores an object on a worker; returns its size in bytes. Raises as `put_parts`."""
        return self.put_parts(address, name, lambda: [data], memoryview(data).nbytes)

    def put_parts(self, address: Address, name: str, parts: Callable[[], Iterable[Buffer]], size: int) -> int:
        """Stores an object of `size` bytes, which `parts` gives piece by piece; returns the size.

        On the same host it is copied once, into memory of the worker's; to other hosts it is streamed. Raises
        `ObjectLostError` if the worker can't be reached or refuses it.
        """
        if self._boot and size >= RECYCLED_FROM and self._put_by_file(address, name, parts, size):
            return size
        data = b"".join(parts())
        answer, _ = self._request(address, {"op": "put", "name": name}, data)
        if not answer.get("ok"):
            raise ObjectLostError(f"worker {address[0]}:{address[1]} refused object {name}: {answer.get('reason')}")
        return int(answer["size"])

    def _put_by_file(self, address: Address, name: str, parts: Callable[[], Iterable[Buffer]], size: int) -> bool:
        """Writes the object into a file that the worker grants; False if it grants none, or none that can be written here."""
        with self._connected(address, name) as connection:
            connection.send({"op": "grant", "name": name, "size": size, "boot": self._boot})
            answer, _ = connection.receive()
            path = answer.get("path")
            if not answer.get("ok") or not isinstance(path, str):
                return False
            try:
                check_granted(path, name)
                self._arena.write(path, parts(), size)
            except OSError:
                return False  # another file system namespace: the worker takes the file back with the connection
            connection.send({"op": "adopt", "name": name, "size": size})
            answer, _ = connection.receive()
            return bool(answer.get("ok"))

    @contextlib.contextmanager
    def _connected(self, address: Address, name: str) -> Iterator[wire.Connection]:
        """A connection of its own for an exchange of several requests. Raises `ObjectLostError`, `AuthenticationError`."""
        try:
            with self._connect(address, self._timeout) as connection:
                yield connection
        except (AuthenticationError, ObjectLostError):
            raise
        except (EOFError, WireError, OSError) as exc:
            raise ObjectLostError(
                f"worker {address[0]}:{address[1]} can't be reached for object {name}: {exc}"
            ) from exc

    def delete(self, address: Address, name: str) -> bool:
        """Removes an object from a worker; whether it was there."""
        answer, _ = self._request(address, {"op": "delete", "name": name})
        return bool(answer.get("ok"))

    def hello(self, address: Address) -> dict[str, Any]:
        """What the worker at an address says of itself: incarnation, pid, objects held."""
        return self._request(address, {"op": "hello"})[0]

    def runs(self, address: Address, future_id: bytes) -> bool:
        """Whether the worker runs the task of a future now. Raises `ObjectLostError`, `AuthenticationError`."""
        return bool(self._request(address, {"op": "runs", "id": future_id})[0].get("runs"))

    def stack(self, address: Address, future_id: bytes) -> str | None:
        """Where the task of a future is just now; None where the worker doesn't run it. Raises as `runs`."""
        answer, body = self._request(address, {"op": "stack", "id": future_id})
        return bytes(body).decode(errors="replace") if answer.get("ok") else None

    def open_line(self, address: Address) -> wire.Connection:
        """A connection for lone requests. Raises `WireError` if the worker has none to give, OSError, `AuthenticationError`."""
        connection = self._connect(address, min(self._timeout, wire.HANDSHAKE_TIMEOUT))
        try:
            connection.send({"op": "push"})
            answer, _ = connection.receive()
            if not answer.get("ok"):
                raise WireError(f"worker {address[0]}:{address[1]} takes no requests by line")
        except BaseException as exc:
            connection.close()
            if isinstance(exc, EOFError):
                raise WireError(f"worker {address[0]}:{address[1]} takes no requests by line") from exc
            raise
        return connection

    def close(self) -> None:
        """Closes idle connections."""
        with self._lock:
            self._closed = True
            self._arena.close()
            connections = [c for idle in self._idle.values() for c in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def _connect(self, address: Address, timeout: float) -> wire.Connection:
        """Raises `ObjectAbsentError` where another worker answers than the one that is meant: its objects went with it."""
        incarnation = address[2] if len(address) == 3 else b""
        try:
            return wire.connect(
                address[:2], self._secret, incarnation=incarnation, timeout=timeout, max_body=self._max_object
            )
        except MisdirectedError as error:
            raise ObjectAbsentError(f"worker {address[0]}:{address[1]} is another one by now: {error}") from error

    def _request(
        self, address: Address, header: dict[str, Any], body: Buffer = b"", timeout: float | None = None
    ) -> tuple[wire.Header, memoryview]:
        limit = self._timeout if timeout is None else max(0.001, min(timeout, self._timeout))
        with self._lock:
            idle = self._idle.get(address)
            connection = idle.pop() if idle else None
        if connection is not None:
            try:
                connection.sock.settimeout(limit)
                return self._exchange(address, connection, header, body)
            except TimeoutError as exc:  # it is there and doesn't answer: nor would it on another connection
                raise ObjectLostError(
                    f"worker {address[0]}:{address[1]} doesn't answer for object {header.get('name')}: {exc}"
                ) from exc
            except (EOFError, WireError, OSError):
                pass  # the worker restarted since: a fresh connection decides
        try:
            connection = self._connect(address, limit)
            return self._exchange(address, connection, header, body)
        except (AuthenticationError, ObjectLostError):
            raise
        except (EOFError, WireError, OSError) as exc:
            raise ObjectLostError(
                f"worker {address[0]}:{address[1]} can't be reached for object {header.get('name')}: {exc}"
            ) from exc

    def _exchange(
        self, address: Address, connection: wire.Connection, header: dict[str, Any], body: Buffer
    ) -> tuple[wire.Header, memoryview]:
        try:
            connection.send(header, body)
            answer, received = connection.receive()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            idle = self._idle.pop(address, [])
            self._idle[address] = idle  # the last one used is last
            surplus = [connection]
            if not self._closed and len(idle) < MAX_IDLE_CONNECTIONS:
                idle.append(connection)
                surplus = self._idle.pop(next(iter(self._idle))) if len(self._idle) > MAX_IDLE_WORKERS else []
        for one in surplus:
            one.close()
        return answer, memoryview(received)
