"""Using a kept connection again, and what it means when the server had closed it.

A server may close a kept connection at any time, some without a word right after an answer. The next request
then meets a closed socket. The kernel tells whether the server's program can have seen that request: when it
was read before the close, only a FIN comes; when it was not, the server's kernel answers with a RST, or never
acknowledged the bytes. Only in the second case, and only when it shows at once after the send or while bytes
of the request are not acknowledged (a server may also read a request and reset the connection later), only on
a connection that has carried an answer, and only once, is a request sent again, on a new connection;
`n_resent` counts it in the row.
"""

from __future__ import annotations

import socket
import struct
import time

IDLE_LIMIT_NS = 2_000_000_000
"""A kept connection idle for longer is replaced: servers close theirs after about five seconds."""
AT_ONCE_NS = 50_000_000
"""A busy server closes what it has done with some milliseconds late; what comes later may have been read."""
RST_WAIT_NS = 5_000_000
_INFO = struct.Struct("B23xI")  # of struct tcp_info: tcpi_state, tcpi_unacked
_LONG_INFO = struct.Struct("120xQ72xQQ")  # tcpi_bytes_acked, tcpi_bytes_sent, tcpi_bytes_retrans
_TCP_CLOSE = 7


def was_never_read(sock: socket.socket) -> bool:
    """After an end of file: did the server's kernel refuse, or never take, what was sent last?

    A server that shuts a socket down and then closes it sends a FIN first; the RST that tells of bytes it
    left unread comes with the close, some microseconds later, and is waited for. This blocks the loop for at
    most RST_WAIT_NS, and only where a kept connection ends under a request.
    """
    deadline_ns = time.monotonic_ns() + RST_WAIT_NS
    while True:
        try:
            state, n_unacknowledged = _INFO.unpack(
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
            )
        except (OSError, struct.error):
            return False  # nothing is known: not to be sent again
        if state == _TCP_CLOSE or n_unacknowledged > 0:
            return True
        if time.monotonic_ns() > deadline_ns:
            return False
        time.sleep(0.0003)


def was_refused_at_once(sock: socket.socket, t_send_ns: int, now_ns: int) -> bool:
    """After a reset: did it come at once, or before all that was sent had been acknowledged?"""
    if now_ns - t_send_ns <= AT_ONCE_NS:
        return True
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LONG_INFO.size)
        n_acknowledged, n_sent, n_again = _LONG_INFO.unpack(data)
    except (OSError, struct.error):
        return False  # an older kernel: nothing is known
    # The acknowledged bytes count the SYN as one.
    return bool(n_acknowledged and n_sent - n_again > n_acknowledged - 1)
