"""Using a kept connection again, and what it means when the server had closed it.

A server may close a kept connection at any time, some without a word right after an answer. The next request
then meets a closed socket. The kernel tells whether the server's program can have seen that request: when it
was read before the close, only a FIN comes; when it was not, the server's kernel answers with a RST, or never
acknowledged the bytes. Only in the second case, only on a connection that has carried an answer, and only
once, is a request sent again, on a new connection; `n_resent` counts it in the row. (A server that resets
connections on purpose after it read a request looks the same; the row then shows the second attempt.)
"""

from __future__ import annotations

import socket
import struct

IDLE_LIMIT_NS = 2_000_000_000
"""A kept connection idle for longer is replaced: servers close theirs after about five seconds."""
_INFO = struct.Struct("B23xI")  # of struct tcp_info: tcpi_state, tcpi_unacked
_TCP_CLOSE = 7


def was_never_read(sock: socket.socket) -> bool:
    """After an end of file: did the server's kernel refuse, or never take, what was sent last?"""
    try:
        state, n_unacknowledged = _INFO.unpack(
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        )
    except (OSError, struct.error):
        return False  # nothing is known: not to be sent again
    return bool(state == _TCP_CLOSE or n_unacknowledged > 0)
