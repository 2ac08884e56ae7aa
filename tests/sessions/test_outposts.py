"""A session whose ranks run on two machines: both are simulated by this one, with function calls
instead of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from session_waits import gone_within

from autotune.executors.cluster.multinode.relay import Relay
from autotune_trials.protocol.failures import SessionFailed
from autotune_trials.protocol.messages import ELSEWHERE, Block
from autotune_trials.session.remote_session import RemoteSession
from autotune_trials.session.session import Session

pytestmark = pytest.mark.usefixtures("nothing_is_left")

RANK = """
    import os, sys
    from fake_agent import Agent
    agent = Agent(int(os.environ["RANK"]), world_size=2)
"""
SERVES = RANK + "    agent.serve()\n"
DIES = RANK + "    agent.plan(); sys.exit('planted')\n"

Two = Callable[..., tuple[Session, RemoteSession, Relay]]


@pytest.fixture
def two(make_session) -> Iterator[Two]:
    """A session with rank 0, the outpost with rank 1, and the relay between them."""
    made: list[tuple[RemoteSession, Relay]] = []

    def make(second: str = SERVES) -> tuple[Session, RemoteSession, Relay]:
        session = make_session(SERVES, env={"RANK": "0"})
        outpost = make_session(second, env={"RANK": "1"}, kind=RemoteSession)
        relay = Relay(outpost.take, outpost.give, session.config.socket)
        made.append((outpost, relay))
        return session, outpost, relay

    yield make
    for outpost, relay in made:
        outpost.close()
        relay.close()
        assert not relay._thread.is_alive()


def test_one_plan_for_the_ranks_of_both(two: Two) -> None:
    session, _, relay = two()
    session.wait_hello()
    assert session._ranks[1].hello.pid == ELSEWHERE != session._ranks[0].hello.pid
    for number in range(3):
        first, second = session.run_plan([Block(f"a{number}", (), 3), Block(f"b{number}", (), 5)])
        assert first.window.samples == (8.0,) * 3 and second.window.samples == (8.0,) * 5
    assert not relay.lost and relay.ended is None


@pytest.mark.slow
def test_a_rank_there_that_dies_ends_the_plan(two: Two) -> None:
    session, outpost, relay = two(DIES)
    session.wait_hello()
    with pytest.raises(SessionFailed) as failed:
        session.run_plan([Block("a", (), 3)])
    assert failed.value.kind == "ended" and "rank 1" in failed.value.detail
    assert not gone_within(15.0, outpost.mark)
    assert (
        relay.ended is not None
        and relay.ended.kind == "crash"
        and "planted" in relay.ended.log_tail + relay.ended.detail
    )


def test_the_session_s_end_is_heard_there(two: Two) -> None:
    session, outpost, _ = two()
    session.wait_hello()
    session.close()
    assert not gone_within(15.0, outpost.mark), (
        "the rank's agent has nobody to ask any more, and this one ends with it"
    )


def test_an_outpost_that_is_lost_is_said(two: Two, make_session) -> None:
    session = make_session(SERVES, env={"RANK": "0"})

    def gone(_: float) -> None:
        raise ConnectionError("the node is gone\nand more")

    relay = Relay(gone, lambda *_: None, session.config.socket)
    relay.close()
    assert relay.lost == "the node is gone"
