"""Slots come and go during trials: every trial finishes exactly once, and nothing is left behind on
any machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray_runs import bench_on, guarded, left_behind, make_job, meanwhile, pids_in, wait_until
from simulated_nodes import Nodes

from autotune.executors.cluster import executor
from autotune.job.configs import key_of
from autotune.results import Trial
from autotune.stages.context import RunContext
from autotune.stages.measuring.pair_figures import node_of
from autotune.stages.measuring.pairs import Pairs
from autotune.stages.observe import observe
from autotune.stages.search import Searched, search
from autotune.stages.searching.block_record import JOURNAL_KIND

pytestmark = [pytest.mark.ray, pytest.mark.faults]
TRIALS = 8
RUN = Path("autotune-runs") / "played"


def in_flight(context: RunContext, done: int = 1) -> bool:
    """A trial is being measured, and the blocks of at least ``done`` are in the journal."""
    slots = context.executor.lanes() or ()
    series = list(context.journal.all(JOURNAL_KIND))
    return len(series) >= done and any(slot._busy for slot in slots)


def all_there(searched: Searched) -> tuple[Trial, ...]:
    trials = searched.trials
    assert len(trials) == TRIALS
    assert {t.state for t in trials} <= {"complete", "pruned"}, [
        (t.state, t.reason) for t in trials
    ]
    assert len({key_of(t.config) for t in trials}) == TRIALS
    assert sorted(t.number for t in trials) == list(range(TRIALS))
    return trials


def job(folder: Path, nodes, words: str = "--block-s 0.1", more: str = "") -> Path:
    return job_at(folder, nodes.address, words, more)


def job_at(folder: Path, address: str, words: str, more: str = "") -> Path:
    """A job with TRIALS trials, which its sampler proposes one by one."""
    ray = f"address: '{address}'{more}"
    return make_job(folder / "job", ray, words=words, trials=TRIALS, extra="search: tpe\n")


def test_two_nodes_share_the_search_and_the_pairs(nodes, tmp_path: Path) -> None:
    nodes.only(2)
    with bench_on(job(tmp_path, nodes)) as context:
        trials = all_there(search(context, observe(context)))
        assert len({t.node for t in trials}) == 2
        pairs = Pairs(context, {"num_workers": 2}, {}, "confirm1")
        pairs.ensure(4)
        of_pairs = [(node_of(pairs.reference[s]), node_of(pairs.candidate[s])) for s in range(4)]
        assert all(one == other for one, other in of_pairs) and len(set(of_pairs)) == 2


def test_an_actor_is_killed_in_mid_trial(nodes, tmp_path: Path) -> None:
    nodes.only(1)
    with bench_on(job(tmp_path, nodes, "--block-s 0.1 --leave-behind")) as context:
        observation = observe(context)
        (slot,) = context.executor.lanes()
        searched = meanwhile(
            lambda: search(context, observation),
            lambda: in_flight(context),
            lambda: os.kill(slot.facts.pid, signal.SIGKILL),
        )
        all_there(searched)
        assert any("is lost" in text for text in context.progress.notes)
        assert slot.gone and context.executor.lanes()[0].facts.pid != slot.facts.pid


def test_ray_ends_an_actor_in_mid_trial(nodes, tmp_path: Path) -> None:
    """Ray kills the actor's children first, including the supervisors."""
    import ray

    nodes.only(1)
    with bench_on(job(tmp_path, nodes, "--block-s 0.1 --leave-behind")) as context:
        observation = observe(context)
        (slot,) = context.executor.lanes()
        searched = meanwhile(
            lambda: search(context, observation),
            lambda: in_flight(context),
            lambda: ray.kill(slot._actor),
        )
        all_there(searched)
        assert slot.gone


def test_a_node_is_gone_in_mid_trial(nodes, tmp_path: Path) -> None:
    nodes.only(2)
    with bench_on(job(tmp_path, nodes, "--block-s 0.1 --leave-behind")) as context:
        observation = observe(context)
        searched = meanwhile(
            lambda: search(context, observation), lambda: in_flight(context, 2), nodes.remove
        )
        all_there(searched)
        assert any("is lost" in text for text in context.progress.notes)


def test_a_node_that_comes_later_is_used(nodes, tmp_path: Path) -> None:
    nodes.only(1)
    with bench_on(job(tmp_path, nodes, "--block-s 0.3")) as context:
        observation = observe(context)
        searched = meanwhile(
            lambda: search(context, observation), lambda: in_flight(context), nodes.add
        )
        assert len({t.node for t in all_there(searched)}) == 2


def test_the_node_is_gone_in_mid_observation_and_the_next_one_comes(nodes, tmp_path: Path) -> None:
    nodes.only(1)

    def replaced() -> None:
        nodes.remove()
        nodes.add()

    with bench_on(job(tmp_path, nodes, "--block-s 0.5")) as context:
        observation = meanwhile(
            lambda: observe(context),
            lambda: any(slot._busy for slot in context.executor.lanes() or ()),
            replaced,
        )
        assert observation.domains and any("is lost" in text for text in context.progress.notes)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_tuner_is_ended_and_the_same_command_carries_on(
    number: int, nodes, tmp_path: Path
) -> None:
    nodes.only(2)
    folder = job(tmp_path, nodes, "--block-s 0.2 --leave-behind").parent
    first = subprocess.Popen(
        ["autotune", "run", "job.yaml", "--quiet"], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: len(trials_in(folder)) >= 2 or first.poll() is not None)
        before, slots = trials_in(folder), guarded()
        assert len(slots) == 2
        first.send_signal(number)
        _, said = first.communicate(timeout=60)
    finally:
        first.kill()
    assert first.returncode == (-number if number == signal.SIGKILL else 130), said
    slots |= carried_on(folder, before)
    assert left_behind(slots) == []


def trials_in(folder: Path) -> list[list[dict]]:
    """The blocks of each trial in the journal; every line must be complete."""
    journal = folder / RUN / "journal.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [entry["data"] for entry in map(json.loads, lines) if entry["kind"] == JOURNAL_KIND]


def carried_on(folder: Path, before: list[list[dict]]) -> set[int]:
    """Resume: the run ends with a verdict and has every trial once, including those ``before``.

    Returns its slots' processes.
    """
    again = subprocess.run(
        ["autotune", "run", "job.yaml", "--quiet"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    after = trials_in(folder)
    assert (
        after[: len(before)] == before
        and len({key_of(blocks[0]["config"]) for blocks in after}) == len(after) == TRIALS
    )
    result = json.loads((folder / RUN / "result.json").read_text())
    assert result["verdict"] == "tuned" and len(result["trials"]) == TRIALS
    return pids_in(result["environment"])


@pytest.mark.timeout(480)
@pytest.mark.parametrize("through_client", [False, True])
def test_the_head_is_gone_and_the_same_command_carries_on_with_the_next_one(
    through_client: bool, nodes, tmp_path: Path
) -> None:
    """Ray itself would end the tuner after a minute, with its own exit code and message."""
    nodes.only(0)
    mortal = Nodes()
    try:
        mortal.only(2)
        address = f"ray://127.0.0.1:{mortal.client_port}" if through_client else mortal.address
        # a shorter run could finish without noticing that the head is gone
        words = "--block-s 0.4 --run-s 3 --leave-behind"
        folder = job_at(tmp_path, address, words).parent
        before, slots = run_until_its_head_is_gone(folder, mortal)
        assert left_behind(slots, 90.0) == []
    finally:
        mortal.cluster.shutdown()
    heir = Nodes(int(mortal.address.rpartition(":")[2]), mortal.client_port)
    try:
        assert heir.address == mortal.address
        heir.only(2)
        slots = carried_on(folder, before)
    finally:
        heir.cluster.shutdown()
    assert left_behind(slots) == []


def run_until_its_head_is_gone(folder: Path, cluster) -> tuple[list[list[dict]], set[int]]:
    """Check the run's message and exit code; returns its finished trials and slots' processes."""
    run = subprocess.Popen(
        ["autotune", "run", "job.yaml", "--quiet"], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: len(trials_in(folder)) >= 2 or run.poll() is not None)
        early, slots, began = trials_in(folder), guarded(), time.monotonic()
        cluster.behead()
        _, said = run.communicate(timeout=90)
    finally:
        run.kill()
    assert run.returncode == 5, said
    assert (
        "the head of the Ray cluster is gone" in said
        and "is saved" in said
        and "same command again" in said
    )
    assert "Traceback" not in said and time.monotonic() - began < 60
    trials = trials_in(folder)
    assert len(slots) == 2 and trials[: len(early)] == early
    assert not (folder / RUN / "result.json").exists()
    return trials, slots


def test_through_a_client_of_the_cluster(nodes, tmp_path: Path) -> None:
    nodes.only(1)
    address = f"ray://127.0.0.1:{nodes.client_port}"
    with bench_on(job_at(tmp_path, address, "--block-s 0.05")) as context:
        all_there(search(context, observe(context)))


def test_shares_of_a_node_and_a_resource_that_marks_nodes(nodes, tmp_path: Path) -> None:
    nodes.only(1)
    nodes.add(num_cpus=2, resources={"tuning": 2})
    with bench_on(job(tmp_path, nodes, more=", resource: tuning")) as context:
        wait_until(lambda: len(context.executor.lanes()) == 2)
        slots = context.executor.lanes()
        assert [slot.place.of for slot in slots] == [2, 2]
        assert not set(slots[0].facts.cores) & set(slots[1].facts.cores)
        trials = all_there(search(context, observe(context)))
        assert {t.node for t in trials} == {slot.node for slot in slots}


HOLDER = """
import sys, time, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(address=sys.argv[1], log_to_driver=False)
first = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU"))
hold = ray.remote(num_cpus=1)(lambda: time.sleep(300))
hold.options(scheduling_strategy=On(first, soft=False)).remote()
while ray.available_resources().get("CPU", 0.0) != 1.0:
    time.sleep(0.1)
print(first, flush=True)
time.sleep(300)
"""


def test_a_node_that_somebody_else_uses_is_passed_over(
    nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "BUSY_S", 3.0)
    nodes.only(0)  # other tests leave nodes of other sizes
    nodes.only(2)
    command = [sys.executable, "-c", HOLDER, nodes.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            held = holder.stdout.readline().strip()
            with bench_on(job(tmp_path, nodes, more=", slots: 1")) as context:
                (slot,) = context.executor.lanes()
                assert held and slot.place.node_id != held
                wait_until(lambda: context.executor.lanes() and not context.executor._starting)
        finally:
            holder.kill()


def test_a_directory_on_a_shared_file_system(nodes, tmp_path: Path) -> None:
    nodes.only(1)
    path = job(tmp_path, nodes, more=", workdir: shared, slots: 1")
    with bench_on(path) as context:
        observe(context)
        sessions = sorted((context.run_dir / "sessions").iterdir())
        assert sessions and all((s / "session.json").exists() for s in sessions)
        assert json.loads((sessions[0] / "noticed.json").read_text()) == [], (
            "what the tuner writes meanwhile is none of the job's doing"
        )
