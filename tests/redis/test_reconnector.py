"""A Reconnector closes every socket that it has opened."""

from __future__ import annotations

import socket

from slotwise.redis._net.reconnector import Reconnector


def test_a_socket_that_a_closed_loop_never_took_over_is_closed() -> None:
    reconnector = Reconnector.__new__(Reconnector)
    reconnector.connection = None
    reconnector._handshake_sock = opened = socket.socket()
    reconnector.close_socket()
    assert opened.fileno() == -1
