"""A Reconnector closes every socket that it has opened."""

from __future__ import annotations

import socket

import pytest

from slotwise.redis._endpoint import Endpoint
from slotwise.redis._net.handshake import Handshake


@pytest.mark.parametrize("taken", [True, False])
def test_a_handshake_closes_its_socket_unless_somebody_took_it_over(*, taken: bool) -> None:
    """A loop that is closed drops the handshake that was sent to it."""
    address = ("localhost", 6379)
    with socket.socket() as opened:
        handshake = Handshake(opened, 0.0, Endpoint((address,)), address, is_secret=False)
        if taken:
            assert handshake.take_socket() is opened
        del handshake
        assert (opened.fileno() != -1) is taken
