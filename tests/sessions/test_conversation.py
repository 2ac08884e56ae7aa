"""Messages between session and agent: plans, reports, records, ranks."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from autotune_spaces.codec import decode
from autotune_trials.protocol.messages import Block, SessionConfig
from autotune_trials.session.session import MOST_EXTENTS, SessionFailed

SERVE = """
    from fake_agent import Agent
    Agent().serve()
"""


def test_blocks_are_reported_in_order_and_the_session_goes_on(make_session):
    session = make_session(SERVE)
    hello = session.wait_hello()
    assert (hello.rank, hello.machine.cores) == (0, 2)
    first = session.run_plan([Block("b1", (), 3), Block("c1", (), 5)])
    second = session.run_plan([Block("b2", (), 2)])
    assert [(r.id, len(r.window.times_s)) for r in first + second] == [
        ("b1", 3),
        ("c1", 5),
        ("b2", 2),
    ]


def test_an_agent_of_another_version_is_told_apart_at_once(make_session):
    """Its later messages may look the same and mean something different."""
    session = make_session(
        """
        import os
        from fake_agent import MACHINE, Agent
        from autotune_spaces.facts import JobFacts
        from autotune_trials.protocol.messages import Hello
        agent = Agent(hello=False)
        job = JobFacts(os.getpid(), "cpu", None, (), ())
        agent.send(Hello(os.getpid(), 0, MACHINE, job, 0.1, {}, schema_version=99))
        agent.pause()
        """
    )
    with pytest.raises(
        SessionFailed, match="protocol version 99, this tuner has 1.*install the same version"
    ):
        session.wait_hello()


def test_starting_and_ending_cost_little(make_session, tmp_path):
    """0.15 s and 0.3 s on a quiet machine; on a loaded one, slowed down as much as a bare interpreter."""
    quiet_interpreter_s, times = 0.02, []
    for _ in range(7):
        moments = [time.perf_counter()]
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        moments.append(time.perf_counter())
        session = make_session(["sleep", "60"])
        moments.append(time.perf_counter())
        session.close()
        moments.append(time.perf_counter())
        times.append([end - begin for begin, end in pairwise(moments)])
    bare_s, starting_s, ending_s = (
        statistics.median(column) for column in zip(*times, strict=True)
    )
    noise = max(1.0, bare_s / quiet_interpreter_s)
    assert starting_s < 0.15 * noise
    assert ending_s < 0.3 * noise


def test_ranks_are_merged_times_of_one_samples_of_all(make_session):
    session = make_session(
        """
        import os
        from fake_agent import Agent
        rank = 1 if os.fork() == 0 else 0
        Agent(rank, world_size=2).serve()
        """
    )
    session.wait_hello()
    (report,) = session.run_plan([Block("b", (), 3)])
    assert (
        report.rank == 0
        and report.window.samples == (8.0,) * 3
        and report.window.times_s == (0.01,) * 3
    )
    assert report.window.peak_memory_gib == 1.0  # two resident sets


def test_a_record_of_all_ranks(make_session):
    session = make_session(
        """
        import os
        from fake_agent import Agent
        rank = 1 if os.fork() == 0 else 0
        agent = Agent(rank, world_size=2)
        agent.record()
        agent.pause()
        """,
        mode="fixed",
    )
    session.wait_hello()
    record = session.wait_record()
    assert (
        record.rank == 0
        and record.window.samples == (8.0,) * 5
        and record.samples_before[2] == 16.0
    )


def test_all_ranks_go_on_to_the_same_step_where_a_window_is_too_short(make_session):
    session = make_session(
        """
        import os
        from fake_agent import Agent
        rank = 1 if os.fork() == 0 else 0
        agent = Agent(rank, world_size=2)
        agent.record()
        while extent := agent.plan():
            agent.record(extent.steps)
        """,
        mode="fixed",
    )
    session.wait_hello()
    asked = []

    def more(record):
        asked.append(len(record.losses))
        return {5: 9, 9: 12, 12: 12}[len(record.losses)]

    record = session.wait_record(more)
    assert asked == [5, 9, 12] and len(record.losses) == 12 and record.window.samples == (8.0,) * 12


def test_a_window_that_is_never_long_enough_ends_all_the_same(make_session):
    session = make_session(
        """
        from fake_agent import Agent
        agent = Agent()
        agent.record()
        while extent := agent.plan():
            agent.record(extent.steps)
        """,
        mode="fixed",
    )
    session.wait_hello()
    assert (
        len(session.wait_record(lambda record: len(record.losses) + 1).losses) == 5 + MOST_EXTENTS
    )


@pytest.mark.parametrize(("wanted", "ended_early"), [(0, False), (5, False), (12, True)])
def test_a_window_that_is_long_enough_or_cannot_go_on_is_left_as_it_is(
    make_session, wanted, ended_early
):
    session = make_session(
        f"""
        from fake_agent import Agent
        agent = Agent()
        agent.record(ended_early={ended_early})
        assert agent.plan() is None
        """,
        mode="fixed",
    )
    session.wait_hello()
    assert len(session.wait_record(lambda record: wanted).losses) == 5


KILLED = """
import os, sys, time
from fake_agent import Agent
worker = os.fork()
if worker == 0:
    Agent().record(steps=2, ended_early=True, so_far=True)
    os._exit(1)
os.waitpid(worker, 0)
"""


def test_the_record_so_far_counts_where_a_launcher_kills_what_has_trained(make_session):
    session = make_session(KILLED + "time.sleep(0.5)", mode="fixed")
    session.wait_hello()
    record = session.wait_record()
    assert record.ended_early and len(record.losses) == 2


def test_the_record_so_far_counts_for_nothing_where_the_launcher_fails(make_session):
    session = make_session(KILLED + 'sys.exit("the worker failed")', mode="fixed")
    session.wait_hello()
    with pytest.raises(SessionFailed, match="the worker failed|exit code 1") as failed:
        session.wait_record()
    assert failed.value.kind == "crash"


def test_a_record_of_the_whole_comes_after_one_so_far(make_session):
    session = make_session(
        """
        from fake_agent import Agent
        agent = Agent()
        agent.record(steps=2, ended_early=True, so_far=True)
        agent.record(steps=5)
        agent.pause()
        """,
        mode="fixed",
    )
    session.wait_hello()
    assert len(session.wait_record().losses) == 5


def test_a_job_that_ends_early_still_hands_in_its_record(make_session):
    session = make_session(
        """
        from fake_agent import Agent
        Agent().record(steps=2, ended_early=True)
        """,
        mode="fixed",
    )
    session.wait_hello()
    assert session.wait_record().ended_early


def test_a_job_that_catches_its_error_and_exits_with_it_has_failed(make_session):
    """No excepthook hears of it, and its record says only that it ended early."""
    session = make_session(
        """
        import sys
        from fake_agent import Agent
        agent = Agent()
        agent.record(steps=2, ended_early=True)
        sys.exit("it failed")
        """,
        mode="fixed",
    )
    session.wait_hello()
    with pytest.raises(SessionFailed, match="it failed") as failed:
        session.wait_record()
    assert failed.value.kind == "crash"


def test_a_rank_that_has_handed_in_its_record_may_end_before_the_others(make_session, monkeypatch):
    monkeypatch.setattr("autotune_trials.session.waiting.LAST_WORDS_S", 0.3)
    session = make_session(
        """
        import os, time
        from fake_agent import Agent
        if os.fork() == 0:
            Agent(rank=1, world_size=2).record(steps=2, ended_early=True)
            os._exit(0)
        agent = Agent(rank=0, world_size=2)
        time.sleep(1.5)
        agent.record(steps=2, ended_early=True)
        """,
        mode="fixed",
    )
    session.wait_hello()
    assert session.wait_record().notes["ranks"] == 2


def test_a_second_training_process_of_the_same_rank_is_sent_away(make_session, tmp_path):
    session = make_session(
        """
        import os, sys, time
        from fake_agent import Agent
        agent = Agent()
        if os.fork() == 0:
            time.sleep(0.3)
            second = Agent()
            open(sys.argv[0] + ".sent-away", "w").write(str(second.plan()))
            os._exit(0)
        agent.serve()
        """
    )
    session.wait_hello()
    deadline = time.monotonic() + 30
    answers = []
    # the second one is heard whenever it connects, during the first one's plans
    while not answers and time.monotonic() < deadline:
        assert session.run_plan([Block("b", (), 1)])[0].window is not None
        time.sleep(0.05)
        answers = [text for path in tmp_path.glob("*.sent-away") if (text := path.read_text())]
    assert answers == ["None"]


def test_a_block_without_report_is_a_failed_block(make_session):
    session = make_session(
        """
        from fake_agent import Agent, PlanDone
        agent = Agent()
        agent.send(PlanDone(agent.plan().id, 0))
        agent.pause()
        """
    )
    session.wait_hello()
    (report,) = session.run_plan([Block("b", (), 1)])
    assert report.window is None and report.error.startswith("agent")


def test_a_slow_job_that_says_so_is_not_hung(make_session):
    session = make_session(
        """
        import time
        from fake_agent import Agent
        from autotune_trials.protocol.messages import Progress
        agent = Agent()
        for i in range(8):
            time.sleep(0.25)
            agent.send(Progress(0, i))
        agent.record()
        agent.pause()
        """,
        mode="fixed",
        hang_timeout_s=1.0,
    )
    session.wait_hello()
    assert len(session.wait_record().losses) == 5


def test_a_silent_job_is_given_time_as_long_as_it_computes(make_session):
    session = make_session(
        """
        import time
        from fake_agent import Agent
        agent = Agent()
        end = time.process_time() + 1.5
        while time.process_time() < end:
            pass
        agent.record()
        agent.pause()
        """,
        mode="fixed",
        hang_timeout_s=0.5,
    )
    session.wait_hello()
    assert session.wait_record().rank == 0


def test_what_is_not_of_the_protocol_ends_the_session_as_our_fault(make_session):
    session = make_session(
        """
        from fake_agent import Agent
        agent = Agent()
        agent.socket.sendall(b'{"type": "Nonsense"}\\n')
        agent.pause()
        """
    )
    session.wait_hello()
    with pytest.raises(SessionFailed) as failure:
        session.run_plan([Block("b", (), 1)])
    assert failure.value.kind == "agent"


def test_session_json_is_what_the_agent_reads(make_session):
    session = make_session(
        SERVE, config=SessionConfig("live", "", loader_key="train.py:3#0", warmup_steps=7)
    )
    written = decode(SessionConfig, json.loads(session.paths.config.read_text("utf-8")))
    assert (
        written == session.config
        and written.warmup_steps == 7
        and written.directory == str(session.paths.root)
    )
