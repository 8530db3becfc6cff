"""One HTTP/1.1 connection on its own non-blocking socket: kernel receive stamps, TLS, keep-alive.

The socket is read with ``recvmsg``, so that each read comes with the kernel's stamp of the last segment in
it; ``httptools`` frames the response. A connection never retries: what breaks is reported to its owner.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from enum import IntEnum
from typing import Any, Protocol

import httptools

from assay.load.clock import ANCILLARY_BYTES, SO_TIMESTAMPNS, StampClock, unpack_timespec
from assay.load.exchange import Exchange
from assay.load.stale import was_never_read, was_refused_at_once
from assay.vocab import ErrorClass

READ_BYTES = 64 << 10
HEADER_LIMIT_BYTES = 64 << 10
HEADERS_TOO_LONG = f"the response headers are longer than {HEADER_LIMIT_BYTES} bytes"
REFUSED_BY_HOST = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN}
)
_BUFFER = bytearray(READ_BYTES)  # shared: a read is consumed before the next one
_BUFFERS = [_BUFFER]
_VIEW = memoryview(_BUFFER)
_monotonic_ns = time.monotonic_ns


class State(IntEnum):
    CLOSED = 0
    CONNECTING = 1
    HANDSHAKE = 2
    IDLE = 3
    BUSY = 4


class Owner(Protocol):
    """What a connection tells."""

    def connection_ready(self, connection: Connection) -> None: ...
    def connection_failed(self, connection: Connection, error: OSError) -> None: ...
    def connection_dropped(self, connection: Connection) -> None: ...
    def exchange_stale(self, connection: Connection, exchange: Exchange) -> None: ...
    def exchange_ended(
        self, connection: Connection, exchange: Exchange, t_ns: int, failure: tuple[ErrorClass, str] | None
    ) -> None: ...
    def decode_later(self, exchange: Exchange) -> None: ...
    def watch(self, connection: Connection, writable: bool) -> None: ...
    def unwatch(self, connection: Connection) -> None: ...


class Connection:
    """States go CLOSED -> CONNECTING [-> HANDSHAKE] -> IDLE <-> BUSY -> CLOSED."""

    def __init__(
        self,
        owner: Owner,
        worker: int,
        addresses: list[tuple[int, Any]],
        clock: StampClock,
        tls: ssl.SSLContext | None,
        server_name: str,
    ) -> None:
        self.owner, self.worker, self.clock = owner, worker, clock
        self.addresses, self.tls, self.server_name = addresses, tls, server_name
        self.state = State.CLOSED
        self.fd = -1
        self.exchange: Exchange | None = None
        self.waiting: Exchange | None = None  # to be sent once connected
        self.idle_since_ns = 0
        self.n_reads = 0
        self._sock: socket.socket | None = None
        self._ssl: ssl.SSLObject | None = None
        self._out = b""
        self._address_index = 0

    # ------------------------------------------------------------------ opening and closing

    def open(self) -> None:
        """Start connecting. Raises OSError when the host refuses a socket."""
        self._address_index = 0
        self._open_next()

    def _open_next(self) -> None:
        family, address = self.addresses[self._address_index]
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._sock, self.fd, self._out = sock, sock.fileno(), b""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        except OSError:
            pass  # no kernel stamps on this socket: its reads carry none and are marked `user`
        self.state = State.CONNECTING
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            self._connect_failed(OSError(code, errno.errorcode.get(code, "unknown")))
            return
        self.owner.watch(self, True)

    def _connect_failed(self, error: OSError) -> None:
        self.close()
        self._address_index += 1
        if self._address_index < len(self.addresses) and error.errno not in REFUSED_BY_HOST:
            self._open_next()
        else:
            self.owner.connection_failed(self, error)

    def close(self) -> None:
        """Close the socket; the owner is not told."""
        if self._sock is not None:
            if self.state is not State.CLOSED:
                self.owner.unwatch(self)
            self._sock.close()
        self._sock, self._ssl, self.fd, self.state, self._out = None, None, -1, State.CLOSED, b""

    def _connected(self) -> None:
        assert self._sock is not None
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._connect_failed(OSError(code, errno.errorcode.get(code, "unknown")))
            return
        try:
            self._sock.getpeername()
        except OSError:
            return  # the event was of an earlier socket with this number: still connecting
        self._parser = httptools.HttpResponseParser(self)
        self._n_messages = self._n_received = 0
        self._reset_message()
        if self.tls is None:
            self._ready()
            return
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = self.tls.wrap_bio(self._incoming, self._outgoing, server_hostname=self.server_name)
        self.state = State.HANDSHAKE
        self._handshake()

    def _handshaking(self) -> bool:
        return self.state in (State.HANDSHAKE, State.CLOSED)

    def _handshake(self) -> None:
        assert self._ssl is not None
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._push(self._outgoing.read())
            return
        except ssl.SSLError as error:
            self.close()
            self.owner.connection_failed(self, OSError(0, f"TLS: {error.reason or error}"))
            return
        self._push(self._outgoing.read())
        if self._sock is not None:  # it may have broken while the last message was sent
            self._ready()

    def _ready(self) -> None:
        self.state = State.IDLE
        self.idle_since_ns = _monotonic_ns()
        self.owner.watch(self, bool(self._out))
        self.owner.connection_ready(self)

    # ------------------------------------------------------------------ sending

    def send(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Send a request; ``t_send_ns`` is taken before its first byte is handed to the kernel."""
        self.exchange, self.state = exchange, State.BUSY
        self._n_received = 0
        self._add_chunk, self._add_time = exchange.chunks.append, exchange.times.append
        data = head + body
        if self._ssl is not None:
            try:
                self._ssl.write(data)
            except ssl.SSLError as error:
                exchange.t_send_ns = _monotonic_ns()
                self._lost(f"TLS: {error.reason or error}", _monotonic_ns())
                return
            data = self._outgoing.read()
        exchange.t_send_ns = _monotonic_ns()
        self._push(data)

    def _push(self, data: bytes) -> None:
        """Give bytes to the kernel; what it does not take waits for the socket to be writable."""
        if not data:
            return
        if self._out:
            self._out += data
            return
        assert self._sock is not None
        try:
            n_sent = self._sock.send(data)
        except BlockingIOError:
            n_sent = 0
        except OSError as error:
            self._lost(f"sending: {error.strerror or error}", _monotonic_ns(), unread=True)
            return
        if n_sent < len(data):
            self._out = data[n_sent:]
            self.owner.watch(self, True)

    def writable(self) -> None:
        """The socket takes bytes again, or the connection attempt ended."""
        if self.state is State.CONNECTING:
            self._connected()
        elif self.state is not State.CLOSED:
            data, self._out = self._out, b""
            self._push(data)
            if self._sock is not None and not self._out:
                self.owner.watch(self, False)

    # ------------------------------------------------------------------ receiving

    def readable(self) -> None:
        """Read once. The stamp of the read is taken before any byte is looked at."""
        sock = self._sock
        if sock is None:
            return
        try:
            n, ancillary, _, _ = sock.recvmsg_into(_BUFFERS, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            unread = error.errno in (errno.ECONNRESET, errno.EPIPE)
            self._lost(f"receiving: {error.strerror or error}", _monotonic_ns(), unread=unread)
            return
        if n == 0:
            self._end_of_file(_monotonic_ns())
            return
        self.n_reads += 1
        self._n_received += n
        exchange = self.exchange
        if ancillary:
            seconds, nanoseconds = unpack_timespec(ancillary[0][2])
            t_ns = seconds * 1_000_000_000 + nanoseconds - self.clock.offset_ns
            if exchange is not None and not (exchange.t_send_ns or 0) <= t_ns <= _monotonic_ns():
                if self.clock.is_wrong(t_ns, exchange.t_send_ns or 0):
                    t_ns, exchange.stamped_by_kernel = _monotonic_ns(), False
                elif self._ssl is None:  # of TLS it may be a message of its own
                    self._lost("the answer came before its request", _monotonic_ns(), ErrorClass.PROTOCOL)
                    return
        else:
            t_ns = _monotonic_ns()
            if exchange is not None:
                exchange.stamped_by_kernel = False
        self._t_read_ns = t_ns
        if self._ssl is not None:
            self._incoming.write(_VIEW[:n])
            self._read_tls()
            return
        if exchange is None:
            self.close()  # bytes nobody asked for: this connection is of no use any more
            return
        self._parse(_VIEW[:n])

    def _read_tls(self) -> None:
        assert self._ssl is not None
        if self.state is State.HANDSHAKE:
            self._handshake()
            if self._handshaking():
                return
        while self._ssl is not None:
            try:
                data = self._ssl.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as error:
                self._lost(f"TLS: {error.reason or error}", self._t_read_ns)
                return
            if not data:
                self._end_of_file(self._t_read_ns)
                return
            if self.exchange is None:
                self.close()
                return
            self._parse(data)
        if self._ssl is not None:
            self._push(self._outgoing.read())

    def _parse(self, data: memoryview | bytes) -> None:
        exchange = self.exchange
        assert exchange is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._complete:  # bytes after the response: the response itself stands
                self._keep_alive = False
            else:
                why = HEADERS_TOO_LONG if self._header_bytes > HEADER_LIMIT_BYTES else f"not HTTP: {error}"
                self._lost(why[:200], self._t_read_ns, ErrorClass.PROTOCOL)
                return
        if self._complete:
            self._n_messages += 1
            keep = self._keep_alive
            self._reset_message()
            self._end(exchange, self._t_read_ns, None, keep)
        elif len(exchange.chunks) >= exchange.decode_at:
            self.owner.decode_later(exchange)

    def _end_of_file(self, t_ns: int) -> None:
        exchange = self.exchange
        if exchange is not None and self._headers_done and not self._sized:
            self._end(exchange, t_ns, None, False)  # a body without a length ends with the connection
        else:
            unread = self._sock is not None and self._n_messages > 0 and was_never_read(self._sock)
            self._lost("the server closed the connection", t_ns, unread=unread)

    def _lost(self, why: str, t_ns: int, kind: ErrorClass | None = None, unread: bool = False) -> None:
        """The connection broke. Without a request it is only closed; `unread`: see assay.load.stale."""
        exchange, state = self.exchange, self.state
        if state is State.HANDSHAKE:
            self.close()
            self.owner.connection_failed(self, OSError(0, f"TLS handshake: {why}"))
        elif exchange is None:
            self.close()
            self.owner.connection_dropped(self)
        else:
            before = exchange.t_headers_ns is None
            may_resend = before and unread and self._n_messages and not self._n_received
            if may_resend and not exchange.n_resent and self._refused_at_once(exchange, t_ns):
                self.exchange = None
                self.close()
                self.owner.exchange_stale(self, exchange)
                return
            if before and self._n_messages:
                why += ", which had been kept from an earlier request"
                self.owner.connection_dropped(self)
            self._end(
                exchange, t_ns, (kind or (ErrorClass.CONNECT if before else ErrorClass.TRUNCATED), why), False
            )

    def _refused_at_once(self, exchange: Exchange, t_ns: int) -> bool:
        return self._sock is not None and was_refused_at_once(self._sock, exchange.t_send_ns or 0, t_ns)

    def _end(self, exchange: Exchange, t_ns: int, failure: tuple[ErrorClass, str] | None, keep: bool) -> None:
        self.exchange = None
        if keep and not self._out:
            self.state, self.idle_since_ns = State.IDLE, _monotonic_ns()
        else:
            self.close()
        self.owner.exchange_ended(self, exchange, t_ns, failure)

    def abandon(self) -> None:
        """Drop the request that runs, and the connection with it."""
        self.exchange = None
        self.close()

    # ------------------------------------------------------------------ callbacks of the HTTP parser

    def _reset_message(self) -> None:
        self._headers_done = self._complete = self._sized = False
        self._keep_alive = True
        self._header_bytes = 0
        self._encoding: str | None = None

    def on_message_begin(self) -> None:
        if self._complete:  # bytes after the response: the next one could not be told from them
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_LIMIT_BYTES:
            raise ValueError(HEADERS_TOO_LONG)
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._sized = True
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            self._encoding = value.decode("latin-1")[:100]

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:  # interim: the answer is still to come
            return
        exchange = self.exchange
        if exchange is None or self._complete:
            return
        exchange.status_code = status
        exchange.content_encoding = self._encoding
        exchange.t_headers_ns = self._t_read_ns
        self._headers_done = True
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        if not self._complete:
            self._add_chunk(data)
            self._add_time(self._t_read_ns)

    def on_message_complete(self) -> None:
        if self._headers_done:
            self._complete = True
        else:  # the end of an interim response
            self._header_bytes = 0
            self._sized = False
            self._encoding = None
