"""The agent's end of the socket to the tuner."""

from __future__ import annotations

import socket
import tempfile
import threading

from autotune_trials.agent.bootstrap.channel import Channel
from autotune_trials.protocol.messages import Fault, load


def test_messages_of_several_threads_arrive_whole() -> None:
    """Also those too long for the socket's buffer, which are sent in parts."""
    with (
        tempfile.TemporaryDirectory(prefix="at-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        listener.bind(f"{folder}/s")
        listener.listen()
        channel = Channel(f"{folder}/s")

        def send(rank: int) -> None:
            for _ in range(3):
                assert channel.send(Fault(rank, "here", str(rank) * 1_000_000))

        threads = [threading.Thread(target=send, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        connection, _ = listener.accept()  # a single one, whoever sends first
        with connection, connection.makefile("rb") as lines:
            arrived = [load(lines.readline()) for _ in range(12)]
        for thread in threads:
            thread.join()
        channel.close()
    assert sorted(message.rank for message in arrived) == sorted(list(range(4)) * 3)
    assert all(message.text == str(message.rank) * 1_000_000 for message in arrived)
