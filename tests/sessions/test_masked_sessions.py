"""What the job prints, raises and reports is masked before it reaches a disk: no secret of its
environment is stored.
"""

from __future__ import annotations

import pytest

from autotune_trials.protocol.messages import Block
from autotune_trials.session.session import SessionFailed
from autotune_trials.supervisor.masking import Masks
from autotune_trials.supervisor.output_log import CappedLog, Masked

pytestmark = pytest.mark.usefixtures("nothing_is_left")

SECRET = "hf_CANARY0123456789"
LINES = "-----BEGIN KEY-----\nCANARYcanaryCANARY\n"


def test_what_is_printed_is_masked_also_in_two_halves(make_session):
    session = make_session(
        """
        import os, sys, time
        secret = os.environ["HF_TOKEN"]
        print("before", secret, "after", flush=True)
        os.write(1, secret[:7].encode())
        time.sleep(0.3)  # the first half is read by itself
        os.write(1, secret[7:].encode() + b" whole\\n")
        os.write(1, secret[:7].encode() + b" only begun\\n")
        print(repr(os.environ["LINES"]), file=sys.stderr)
        sys.exit("refused: " + secret)
        """,
        env={"HF_TOKEN": SECRET, "LINES": LINES},
        secrets=[SECRET, LINES, repr(LINES)[1:-1]],
    )
    with pytest.raises(SessionFailed) as caught:
        session.wait_hello()
    session.close()
    assert (
        session.paths.stdout.read_text()
        == f"before *** after\n*** whole\n{SECRET[:7]} only begun\n"
    )
    assert session.paths.stderr.read_text() == "'***'\nrefused: ***\n"
    assert "CANARY" not in str(caught.value) + caught.value.log_tail


@pytest.mark.parametrize(
    "message",
    [
        "JobError(0, 'crash', text, 1.0)",
        "Fault(0, 'a knob', text)",
        "BlockReport('b', 0, None, error='failed: ' + text)",
    ],
)
def test_what_the_agent_says_is_masked(message, make_session):
    session = make_session(
        f"""
        import os
        from autotune_trials.protocol.messages import BlockReport, Fault, JobError, PlanDone
        from fake_agent import Agent
        agent, text = Agent(), "ValueError: token " + os.environ["HF_TOKEN"]
        with open(agent.paths.agent_log, "a") as log:
            log.write(text)
        plan = agent.plan()
        agent.send({message})
        agent.send(PlanDone(plan.id, 0))
        agent.pause()
        """,
        env={"HF_TOKEN": SECRET},
        secrets=[SECRET],
    )
    session.wait_hello()
    try:
        [report] = session.run_plan([Block("b", (), 3)])
        said = report.error
    except SessionFailed as failure:
        said = f"{failure} {failure.log_tail}"
    session.close()
    assert "token ***" in said and "CANARY" not in said
    assert session.paths.agent_log.read_text() == "ValueError: token ***"


def test_a_password_of_digits_leaves_the_figures_alone(make_session):
    session = make_session(
        """
        from fake_agent import Agent
        Agent().serve()
        """,
        secrets=["0.01", "cpu"],
    )
    hello = session.wait_hello()
    [report] = session.run_plan([Block("b", (), 3)])
    assert report.window.times_s == (0.01,) * 3
    assert hello.machine.device == "***", "a text is masked, whatever it is"


@pytest.mark.parametrize("size", range(1, 12))
def test_a_secret_cut_anywhere(size, tmp_path):
    log = Masked(CappedLog(str(tmp_path / "log")), ["abcabd", "bd!"])
    data = b"xabcabcabd-abcab abcabd!abd!"
    for at in range(0, len(data), size):
        log.write(data[at : at + size])
    log.close()
    kept = (tmp_path / "log").read_bytes()
    assert b"abcabd" not in kept and b"bd!" not in kept
    assert kept.startswith(b"xabc***-abcab ***")


def test_json_stays_json():
    masks = Masks(['say "ü"', "100000"])
    assert masks.message(
        b'{"text":"he did say \\"\\u00fc\\" 100000","n":100000,"a":[1.5,"x"]}'
    ) == (b'{"text": "he did *** ***", "n": 100000, "a": [1.5, "x"]}')
