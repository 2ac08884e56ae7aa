"""How a session fails: each failure has one kind, a cause and the end of the log."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from session_waits import wait_for

from autotune_trials.diagnosis import classify, oom_kills, unhooked
from autotune_trials.paths import SessionPaths
from autotune_trials.protocol.messages import Block, SessionConfig
from autotune_trials.session.session import SessionFailed

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def failure_of(session, blocks=None):
    def work():
        session.wait_hello()
        session.run_plan(blocks or [Block("b", (), 1)])

    with pytest.raises(SessionFailed) as caught:
        work()
    assert caught.value.directory == str(session.paths.root)
    return caught.value


def test_a_crash_shows_the_users_line_and_traceback(make_session):
    failure = failure_of(
        make_session("""
            import json
            def train():
                json.loads("{broken")
            train()
            """)
    )
    assert (
        failure.kind == "crash"
        and "JSONDecodeError" in failure.detail
        and "exit code 1" in failure.detail
    )
    assert failure.where == "job0.py:4"
    assert failure.log_tail.startswith("Traceback")


def test_reports_that_came_before_a_crash_are_kept(make_session):
    failure = failure_of(
        make_session("""
            from fake_agent import Agent
            agent = Agent()
            blocks = agent.plan().blocks
            agent.report(blocks[0])
            raise RuntimeError("in the second block")
            """),
        [Block("b1", (), 2), Block("b2", (), 2)],
    )
    assert failure.kind == "crash" and "in the second block" in failure.detail
    assert [r.id for r in failure.partial] == ["b1"]


@pytest.mark.parametrize(
    "line",
    [
        "raise MemoryError",
        "raise RuntimeError('CUDA out of memory. Tried to allocate 20.00 GiB')",
        (
            "raise RuntimeError(\"[enforce fail] DefaultCPUAllocator: can't allocate memory: you"
            ' tried")'
        ),
        (
            "raise RuntimeError('unable to write to file </torch_12_34_0>: No space left on device"
            " (28)')"
        ),
        "agent.marker('oom'); sys.exit(1)",
    ],
)
def test_out_of_memory(make_session, line):
    failure = failure_of(
        make_session(
            f"import sys\nfrom fake_agent import Agent\nagent = Agent()\nagent.plan()\n{line}\n"
        )
    )
    assert failure.kind == "oom", failure


@pytest.mark.parametrize("survived", ["print(lost, file=sys.stderr)", "agent.marker('oom')"])
def test_a_crash_after_running_out_of_memory_was_survived(make_session, survived):
    lost = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
    failure = failure_of(
        make_session(
            "import sys\nfrom fake_agent import Agent\nagent = Agent()\nagent.plan()\n"
            f"lost = {lost!r}\n{survived}\n{{}}['accuracy']\n"
        )
    )
    assert failure.kind == "crash" and "KeyError: 'accuracy'" in failure.detail, failure


@pytest.mark.parametrize(("kills", "kind"), [(0, "killed"), (1, "oom"), (None, "oom")])
@pytest.mark.parametrize(
    "line",
    [
        "raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed. ')",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "sys.stderr.write('  exitcode: -9 (pid: 12)\\n'); sys.exit(1)",
    ],
)
def test_killed_by_the_kernel_for_want_of_memory_or_by_somebody_else(
    make_session, monkeypatch, line, kills, kind
):
    """Only the kernel's count distinguishes them. Without it, memory is the more likely cause."""
    monkeypatch.setattr(oom_kills.OomKills, "since", lambda self: kills)
    failure = failure_of(
        make_session(
            f"import sys\nfrom fake_agent import Agent\nagent = Agent()\nagent.plan()\n{line}\n"
        )
    )
    assert failure.kind == kind, failure


def test_the_kernels_count_is_read(tmp_path):
    counters = tmp_path / "vmstat"
    assert oom_kills.on_machine(counters) is None
    counters.write_text("pgfault 12\n")
    assert oom_kills.on_machine(counters) is None
    counters.write_text("drop_pagecache 0\noom_kill 9\nnuma_pte_updates 4\n")
    assert oom_kills.on_machine(counters) == 9


def test_words_about_memory_in_a_job_that_ends_well_mean_nothing(make_session):
    failure = failure_of(
        make_session("from fake_agent import Agent\nAgent().plan()\nprint('out of memory? no')")
    )
    assert failure.kind == "ended" and "finished by itself" in failure.detail


def test_a_segmentation_fault_is_named(make_session):
    failure = failure_of(make_session("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"))
    assert failure.kind == "crash" and "SIGSEGV" in failure.detail


def test_a_command_that_does_not_exist(make_session):
    with pytest.raises(SessionFailed, match="cannot be started.*no-such-program"):
        make_session(["no-such-program", "--x"])


def test_a_launcher_that_goes_on_without_its_training_process(make_session, monkeypatch):
    monkeypatch.setattr("autotune_trials.session.waiting.LAST_WORDS_S", 0.3)
    failure = failure_of(
        make_session("""
            import os, time
            from fake_agent import Agent
            if os.fork() == 0:
                agent = Agent()
                agent.plan()
                os._exit(0)
            time.sleep(60)
            """)
    )
    assert failure.kind == "ended" and "while the command keeps running" in failure.detail


def test_an_agent_that_hangs_up_while_its_job_goes_on(make_session, monkeypatch):
    monkeypatch.setattr("autotune_trials.session.waiting.LAST_WORDS_S", 0.3)
    failure = failure_of(
        make_session(
            "from fake_agent import Agent, forever\nagent ="
            " Agent()\nagent.plan()\nagent.socket.shutdown(2)\nforever()"
        )
    )
    assert failure.kind == "agent" and "closed its connection before" in failure.detail


def test_the_agents_own_fault(make_session):
    failure = failure_of(
        make_session("""
            from fake_agent import Agent
            from autotune_trials.protocol.messages import Fault
            agent = Agent()
            agent.send(Fault(0, "loader", "Traceback\\n  ...\\nKeyError: 'x'"))
            agent.pause()
            """)
    )
    assert failure.kind == "agent" and "loader" in failure.detail and "KeyError" in failure.detail


def test_a_killed_worker_that_is_noticed_in_the_agents_code_is_no_fault_of_it(make_session):
    """torch's handler of SIGCHLD raises wherever the process happens to be."""
    failure = failure_of(
        make_session("""
            from fake_agent import Agent
            from autotune_trials.protocol.messages import Fault
            agent = Agent()
            last = "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed. "
            agent.send(Fault(0, "step_ended", f"Traceback\\n  ...\\n{last}"))
            agent.pause()
            """)
    )
    assert failure.kind in ("killed", "oom") and "killed by signal" in failure.detail


def test_a_job_that_leaves_the_agents_sight_is_no_failure_of_the_agents(make_session):
    failure = failure_of(
        make_session("""
            from fake_agent import Agent
            from autotune_trials.protocol.messages import Fault
            agent = Agent()
            agent.send(Fault(0, "a CUDA graph of the job's", "the job captures its own graph", unhooked=True))
            agent.pause()
            """)
    )
    assert failure.kind == "unhooked" and failure.detail == "the job captures its own graph"


def test_a_hang_saves_the_stacks_of_all_threads(make_session):
    session = make_session(
        """
        import threading, time
        from fake_agent import Agent
        from autotune_trials.agent.bootstrap.stack_dump import install_stack_dump
        agent = Agent()
        agent.marker("python")
        install_stack_dump(agent.paths)
        def side_thread():
            time.sleep(60)
        threading.Thread(target=side_thread, daemon=True).start()
        agent.plan()
        def stuck_here():
            time.sleep(60)
        stuck_here()
        """,
        hang_timeout_s=0.5,
    )
    begin = time.monotonic()
    failure = failure_of(session, [Block("b", (), 1, max_seconds=0.5)])
    assert failure.kind == "hang" and time.monotonic() - begin < 40
    assert failure.where == "job0.py:13"
    text = session.paths.stacks(session.command.pid).read_text("utf-8")
    assert "stuck_here" in text and "side_thread" in text


def test_a_silent_idle_job_is_a_hang_even_if_nobody_knows_how_long_the_work_takes(make_session):
    session = make_session(
        "from fake_agent import Agent, forever\nagent = Agent()\nforever()",
        mode="fixed",
        hang_timeout_s=0.5,
    )
    session.wait_hello()
    with pytest.raises(SessionFailed) as caught:
        session.wait_record()
    assert caught.value.kind == "hang"


def test_ranks_that_never_come(make_session):
    session = make_session(
        "from fake_agent import Agent\nAgent(0, world_size=2).serve()",
        startup_timeout_s=0.5,
        hang_timeout_s=0.5,
    )
    failure = failure_of(session)
    assert failure.kind == "hang" and "1 of 2 ranks" in failure.detail


def test_stack_dumps_leave_a_handler_of_the_job_alone(make_session, tmp_path):
    make_session("""
        import pathlib, signal, sys
        from autotune_trials.agent.bootstrap.stack_dump import STACKS_SIGNAL, install_stack_dump
        from autotune_trials.paths import SessionPaths
        signal.signal(STACKS_SIGNAL, lambda *_: None)
        done = install_stack_dump(SessionPaths(pathlib.Path(sys.argv[0]).parent))
        pathlib.Path(sys.argv[0] + ".txt").write_text(str(done))
        """)
    wait_for(lambda: (tmp_path / "job0.py.txt").exists() and (tmp_path / "job0.py.txt").read_text())
    assert (tmp_path / "job0.py.txt").read_text() == "False"


# ----------------------------------------------------------------------------------------- unhooked


@pytest.mark.parametrize(
    ("argv", "cause", "remedy"),
    [
        (["true"], "no Python process", "Give the training command itself"),
        (
            [sys.executable, "-I", "-c", "pass"],
            "-I makes Python ignore",
            "Remove -I from the command",
        ),
        (
            [sys.executable, "-u", "-Es", "-c", "pass"],
            "-Es (E) makes Python ignore",
            "Remove -Es from the command",
        ),
        (
            [sys.executable, "-W", "ignore", "-S", "-c", "pass"],
            "-S makes Python ignore",
            "Remove -S from the command",
        ),
        (["env", "-i", "true"], "or without its environment", "Give the training command itself"),
        ([sys.executable, "-c", "print('-I')"], "never imported torch", "Only PyTorch jobs"),
    ],
)
def test_a_job_that_cannot_be_hooked_is_told_why_and_what_to_do(make_session, argv, cause, remedy):
    session = make_session(argv)
    if "never" in cause:  # what the injected agent does in such a process
        (session.paths.markers / "python-1").touch()
    failure = failure_of(session)
    assert failure.kind == "unhooked" and cause in failure.detail and remedy in failure.detail, (
        failure
    )


@pytest.mark.parametrize(
    ("markers", "cause"),
    [
        (("python", "torch"), "neither backward() nor an optimizer"),
        (("python", "torch", "loader"), "neither backward() nor an optimizer"),
        (("python", "torch", "backward"), "no other parameter update was seen"),
    ],
)
def test_how_far_the_markers_go(tmp_path, markers, cause):
    paths = SessionPaths(tmp_path)
    paths.markers.mkdir()
    for marker in markers:
        (paths.markers / f"{marker}-1").touch()
    found = unhooked.explain(["python", "train.py"], paths, "x")
    assert found.kind == "unhooked" and cause in found.detail and "import autotune" in found.detail


def test_the_first_epoch_of_a_live_session_is_no_start_up(make_session):
    """It is waited for before the job says hello."""
    session = make_session(
        """
        import time
        from fake_agent import Agent, Hello, JobFacts, MACHINE, os
        agent = Agent(hello=False)
        time.sleep(2)
        job = JobFacts(os.getpid(), "cpu", None, (), ())
        agent.send(Hello(os.getpid(), 0, MACHINE, job, 0.1, {}))
        agent.pause()
        """,
        config=SessionConfig("live", "", first_epoch_s=30.0),
        startup_timeout_s=0.5,
    )
    assert session.wait_hello()


def test_a_start_up_that_takes_too_long(make_session):
    failure = failure_of(make_session("import time\ntime.sleep(60)", startup_timeout_s=0.3))
    assert failure.kind == "unhooked" and "since the start" in failure.detail


def test_backward_without_steps_is_not_waited_for_to_the_end(make_session):
    session = make_session("import time\ntime.sleep(60)", hang_timeout_s=0.3)
    for marker in ("backward", "backwards"):
        (session.paths.markers / f"{marker}-{session.command.pid}").touch()
    begin = time.monotonic()
    failure = failure_of(session)
    assert (
        failure.kind == "unhooked"
        and "no other parameter update was seen" in failure.detail
        and time.monotonic() - begin < 40
    )


def test_a_first_iteration_that_compiles_may_take_as_long_as_a_start_up(make_session):
    session = make_session(
        """
        import time
        from fake_agent import Agent, Hello, JobFacts, MACHINE, os
        agent = Agent(hello=False)
        (agent.paths.markers / f"step-{os.getpid()}").unlink()
        agent.marker("backward")
        time.sleep(3)
        job = JobFacts(os.getpid(), "cpu", None, (), ())
        agent.send(Hello(os.getpid(), 0, MACHINE, job, 0.1, {}))
        agent.pause()
        """,
        hang_timeout_s=0.3,
    )
    assert session.wait_hello()


@pytest.mark.slow
def test_a_slow_job_that_has_stepped_may_take_as_long_for_each_further_iteration(make_session):
    session = make_session(
        """
        import time
        from fake_agent import Agent, Hello, JobFacts, MACHINE, os
        time.sleep(1)
        agent = Agent(hello=False)
        time.sleep(2.5)
        job = JobFacts(os.getpid(), "cpu", None, (), ())
        agent.send(Hello(os.getpid(), 0, MACHINE, job, 0.1, {}))
        agent.pause()
        """,
        startup_timeout_s=2.5,
    )
    assert session.wait_hello()


# ------------------------------------------------------------------------------------- reading logs


def test_the_telling_traceback_among_those_of_launchers():
    text = """noise
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 7, in main
[rank1]:     step()
[rank1]: ValueError: bad batch
E1120 torch.distributed.elastic failed
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 900, in main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED
"""
    lines = classify.ending(text).traceback
    assert lines[-1] == "ValueError: bad batch"

    assert classify.user_line(lines, Path("/home/u")) == "train.py:7"


BEFORE = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 5, in <module>
    main()
"""
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
KILLED = "RuntimeError: DataLoader worker (pid 3) is killed by signal: Killed. \n"
IGNORED = """\
Traceback (most recent call last):
  File "/usr/lib/python3.11/x.py", line 1, in __del__
AttributeError: no close
"""
STATE_DICT = """\
RuntimeError: Error(s) in loading state_dict for Net:
\tMissing key(s): a
\tsize mismatch for b
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/u/train.py", line 5, in <module>
  |     raise ExceptionGroup("x", errors)
  | ExceptionGroup: x (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/u/train.py", line 7, in <module>
    | ValueError: bad lr
    | not a number
    +------------------------------------
"""


@pytest.fixture
def diagnosed(tmp_path):
    def diagnose(stderr, stdout="", status=1, oom_kills=0):
        paths = SessionPaths(tmp_path)
        paths.stderr.write_text(stderr)
        paths.stdout.write_text(stdout)
        return classify.of_exit(status, Path("/home/u"), paths, "x", oom_kills)

    return diagnose


@pytest.mark.parametrize("status", [1, 2, -signal.SIGSEGV, -signal.SIGTERM, -signal.SIGKILL])
@pytest.mark.parametrize(
    ("stderr", "stdout"),
    [
        ("dataset not found\n", "Tip: lower --batch-size if you run out of memory\n"),
        ("W: a smaller batch avoids CUDA out of memory errors\n", ""),
        (OOM + "trying a smaller batch\n" + "step\n" * classify.TAIL_LINES, ""),
    ],
)
def test_words_about_memory_are_no_error(diagnosed, status, stderr, stdout):
    expected = "killed" if status == -signal.SIGKILL else "crash"
    assert diagnosed(stderr, stdout, status).kind == expected


@pytest.mark.parametrize(
    "line",
    [
        OOM,
        "terminate called after throwing an instance of 'std::bad_alloc'\n",
        "  what():  CUDA error: out of memory\n",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED\n",
        "ERROR: ran out of memory\n",
    ],
)
def test_an_error_at_the_end_of_the_log_is_out_of_memory_without_a_traceback(diagnosed, line):
    found = diagnosed(f"{line}Aborted\n", "step 1\n", -signal.SIGABRT)
    assert (found.kind, found.detail) == ("oom", line.strip())
    assert diagnosed("a warning\n", line).kind == "oom"


def test_nccls_reason_is_in_the_last_line_of_its_message(diagnosed):
    nccl = """\
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'
"""
    found = diagnosed(BEFORE + nccl)
    assert (found.kind, found.detail) == ("oom", "Cuda failure 2 'out of memory'")
    assert (
        diagnosed(BEFORE + nccl.replace("2 'out of memory'", "999 'unknown error'")).kind == "crash"
    )


def test_only_the_exception_is_searched_and_not_the_source(diagnosed):
    found = diagnosed(
        BEFORE.replace("main()", "main()  # a MemoryError if large") + "ValueError: bad lr\n"
    )
    assert (found.kind, found.detail) == ("crash", "exit code 1: ValueError: bad lr")


@pytest.mark.parametrize(
    "said",
    [
        "Exception ignored in: <function A.__del__ at 0x7f>\n" + IGNORED,
        "Exception ignored in atexit callback <function f at 0x7f>:\n" + IGNORED,
        "\nError in atexit._run_exitfuncs:\n" + IGNORED,
        "Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError: [Errno 32]\n",
        "wandb: synced\n",
        "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
    ],
)
def test_what_follows_the_exception_is_not_the_cause(diagnosed, said):
    found = diagnosed(f"{BEFORE}ValueError: bad lr\n{said}")
    assert (found.detail, found.where) == ("exit code 1: ValueError: bad lr", "train.py:5")
    assert found.log_tail == f"{BEFORE}ValueError: bad lr"


def test_the_whole_message_of_an_exception_is_told(diagnosed):
    found = diagnosed(f"{BEFORE}{STATE_DICT}\nSee the documentation.\n")
    assert found.detail.endswith("for Net: Missing key(s): a size mismatch for b")
    assert found.log_tail == f"{BEFORE}{STATE_DICT}".strip()
    many = "".join(f"lr.{n}\n  Field required\n" for n in range(50))
    error = classify.ending(f"{BEFORE}ValidationError: 50 errors\n{many[:-1]}").error
    assert len(error) == 1 + classify.MESSAGE_LINES
    compiler = "BackendCompilerFailed: backend='inductor' raised:\n"
    assert diagnosed(f"{BEFORE}{compiler}OutOfMemoryError: CUDA out of memory\n").kind == "oom"


def test_the_whole_message_of_a_ranks_exception_is_told(make_session):
    failure = failure_of(
        make_session(f"""
            from fake_agent import Agent
            from autotune_trials.protocol.messages import JobError
            agent = Agent()
            agent.send(JobError(0, "crash", {BEFORE + STATE_DICT!r}, 1.0))
            agent.pause()
            """)
    )
    assert failure.detail.startswith("rank 0: RuntimeError: Error(s) in loading")
    assert failure.detail.endswith("size mismatch for b")


def test_what_ends_the_log_counts_and_not_what_the_job_survived(diagnosed):
    survived = f"{BEFORE}MemoryError: toy\n"
    found = diagnosed(f"{survived}validation file missing\n", status=2)
    assert (found.kind, found.detail) == ("crash", "exit code 2: validation file missing")
    found = diagnosed(survived + "step\n" * 120 + "validation file missing\n")
    assert (found.kind, found.detail) == ("crash", "exit code 1: validation file missing")
    assert diagnosed(survived, status=2).kind == "oom"  # printed by a handler, then sys.exit(2)

    survived = f"{BEFORE}{KILLED}retrying without workers\n"
    found = diagnosed(f"{survived}{BEFORE}ValueError: bad lr\n", oom_kills=None)
    assert (found.kind, found.detail) == ("crash", "exit code 1: ValueError: bad lr")
    chained = "\nThe above exception was the direct cause of the following exception:\n\n"
    found = diagnosed(
        f"{BEFORE}{KILLED}{chained}{BEFORE}RuntimeError: a worker exited\n", oom_kills=None
    )
    assert found.kind == "oom" and found.detail.startswith(KILLED.strip())


def test_the_last_error_of_an_exception_group_is_told(diagnosed):
    found = diagnosed(GROUP)
    assert (found.detail, found.where) == ("exit code 1: ValueError: bad lr", "train.py:7")
    assert diagnosed(f"{GROUP}\n{BEFORE}TypeError: later\n").log_tail == f"{BEFORE}TypeError: later"


def test_an_error_in_a_group_that_was_never_raised_itself_is_told(make_session):
    """As errors are that come from other processes: pickling drops their tracebacks."""
    failure = failure_of(
        make_session(
            "from fake_agent import Agent\nAgent().plan()\nimport torch\n"
            "raise ExceptionGroup('all', [ExceptionGroup('two', [ValueError('bad'),"
            " torch.OutOfMemoryError('CUDA out of memory')])])"
        )
    )
    assert failure.kind == "oom" and "CUDA out of memory" in failure.detail


def test_a_job_ended_by_somebody_else_is_a_crash(make_session):
    session = make_session("from fake_agent import Agent\nAgent().serve()")
    session.wait_hello()
    os.kill(session.command.pid, signal.SIGTERM)
    failure = failure_of(session)
    assert failure.kind == "crash" and "SIGTERM" in failure.detail


def test_what_is_printed_after_an_exception_is_no_part_of_its_message() -> None:
    bar = " 10%|#         | 1/10 [00:00<00:01]Traceback (most recent call last):\n"
    frame = '  File "train.py", line 3, in <module>\n    step()\n'
    for after in (
        "step 4 loss 1\n",
        "/usr/lib/python3.11/x.py:2: UserWarning: leaked\n  warnings.warn('x')\n",
        "2026-11-27 10:00:00 worker ended\n",
        "WARNING: 3 objects leaked\n",
    ):
        end = classify.ending(f"{bar}{frame}ValueError: bad\n{after}")
        assert classify.in_one_line(end.error) == "ValueError: bad"
    end = classify.ending(
        f"{bar}{frame}RuntimeError: Error(s) in loading:\n\tMissing key(s): a\nstep 4\n"
    )
    assert classify.in_one_line(end.error) == "RuntimeError: Error(s) in loading: Missing key(s): a"
