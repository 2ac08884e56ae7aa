"""Every mistake in a job file gets one clear message with its line and exit code 2, and starts
nothing.

Each case runs through the command line's own ``main``; some, including all that depend on the
environment, run in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli import main

AUTOTUNE = str(Path(sys.executable).parent / "autotune")
GOOD = "command: python train.py\n"

# id: (job.yaml, line of the mistake, words in the message)
BAD: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "empty": ("", 1, ("empty", "command", "autotune init")),
    "a-list": ("- a\n- b\n", 1, ("a list",)),
    "a-word": ("command\n", 1, ("'command'",)),
    "no-command": ("name: x\n", 1, ("'command' is missing",)),
    "wrong-key": (
        GOOD + "\nbuget: {minutes: 3}\n",
        3,
        ("unknown key 'buget'", "did you mean 'budget'?"),
    ),
    "wrong-key-for-command": (
        "name: a\ncomand: python train.py\n",
        2,
        ("unknown key 'comand'", "did you mean 'command'?"),
    ),
    "wrong-inner-key": (
        GOOD + "budget:\n  minutes: 3\n  trails: 4\n",
        4,
        ("'trails'", "minutes, trials", "did you mean 'trials'?"),
    ),
    "number-key": (GOOD + "7: x\n", 2, ("unknown key",)),
    "key-twice": (GOOD + "name: a\nname: b\n", 3, ("'name' occurs again", "first on line 2")),
    "inner-key-twice": (GOOD + "env:\n  A: 1\n  B: 2\n  A: 3\n", 5, ("'A' occurs again",)),
    "tab": (GOOD + "budget:\n\tminutes: 3\n", 3, ("tab",)),
    "not-closed": (GOOD + "budget: {minutes: 3\n", 3, ("not valid YAML",)),
    "python-object": (
        GOOD + "name: !!python/object/apply:os.system ['touch pwned']\n",
        2,
        ("!!python/object/apply:os.system", "plain data"),
    ),
    "python-name": (GOOD + "env:\n  A: !!python/name:os.system\n", 3, ("!!python/name:os.system",)),
    "two-documents": (GOOD + "---\n" + GOOD, 2, ("not valid YAML",)),
    "alias": ("command: python train.py\nenv: &a\n  A: *a\n", 3, ("the alias *a", "written out")),
    "control-character": (GOOD + "name: a\x07b\n", 2, ("character",)),
    "empty-command": ("command: ''\n", 1, ("command is empty",)),
    "command-number": ("command: 3\n", 1, ("command is 3", "a line of text, or a list")),
    "command-list-of-lists": (
        "command: [python, [train.py]]\n",
        1,
        ("a line of text, or a list of words",),
    ),
    "quotes": ("command: python train.py --name \"it's\n", 1, ("quotes do not match",)),
    "shell-and": (
        "command: cd src && python train.py\n",
        1,
        ("'&&'", "no shell reads it", "shell: true"),
    ),
    "shell-pipe": ("command: python train.py | tee log\n", 1, ("'|'", "shell: true")),
    "shell-redirect": ("command: python train.py > log\n", 1, ("'>'",)),
    "shell-log": (
        "command: python train.py >> train.log 2>&1\nshell: true\n",
        1,
        ("sends its output to train.log", "{trial_dir}"),
    ),
    "shell-tee": ("command: python train.py |& tee -a train.log\nshell: true\n", 1, ("train.log",)),
    "shell-substitution": ("command: python train.py $(date)\n", 1, ("'$('",)),
    "shell-variable": ("command: python train.py $DATA\n", 1, ("'$DATA'", "single quotes")),
    "several-lines": (
        "command: |\n  python prepare.py\n  python train.py\n",
        1,
        ("several lines", "indent those after the first", "shell: true"),
    ),
    "placeholder-in-env": (
        GOOD + 'env: {OUT: "{trial_dri}/x"}\n',
        2,
        ("unknown placeholder {trial_dri} in 'env'", "did you mean '{trial_dir}'"),
    ),
    "shell-home": ("command: python train.py --data ~/data\n", 1, ("'~/data'", "shell: true")),
    "shell-pattern": (
        "command: python train.py --data *.py\n",
        1,
        ("'*.py' in the command matches files", "shell: true"),
    ),
    "env-variable": (
        GOOD + "env:\n  A: /opt/x:$PATH\n  B: '${A}$NOT_SET_ANYWHERE'\n",
        3,
        ("'$PATH' in env.A", "'${A}' in env.B", "shell: true"),
    ),
    "shell-variable-quoted": ('command: python train.py "/x/${DATA}"\n', 1, ("'${DATA}'",)),
    "shell-backticks-quoted": ('command: python train.py "`date`"\n', 1, ("'`'",)),
    "variable-before": (
        "command: OMP_NUM_THREADS=2 python train.py\n",
        1,
        ("'OMP_NUM_THREADS=2'", "under 'env'"),
    ),
    "shell-and-list": (
        "command: [python, train.py]\nshell: true\n",
        1,
        ("'shell: true'", "one line"),
    ),
    "placeholder": (
        "command: python train.py --out {trial_dri}\n",
        1,
        ("unknown placeholder {trial_dri}", "{seed}", "did you mean '{trial_dir}'?"),
    ),
    "no-program": (
        "command: pyhton train.py\n",
        1,
        ("'pyhton' was not found", "did you mean 'python'?"),
    ),
    "script-as-program": (
        "command: train.py\n",
        1,
        ("'train.py' was not found", "python train.py"),
    ),
    "program-path": (
        "command: ./trian.py\n",
        1,
        ("'./trian.py' does not exist", "did you mean 'train.py'?"),
    ),
    "not-executable": ("command: ./train.py\n", 1, ("not executable", "python ./train.py")),
    "no-script": (
        "command: python -u trian.py\n",
        1,
        ("the script 'trian.py' does not exist", "did you mean 'train.py'?"),
    ),
    "no-script-without-suffix": (
        "command: python train\n",
        1,
        ("the script 'train' does not exist", "did you mean 'train.py'?"),
    ),
    "no-script-named-like-the-job-file": (
        "command: python job.py\n",
        1,
        ("the script 'job.py' does not exist", "check 'workdir'"),
    ),
    "workdir": (GOOD + "workdir: src\n", 2, ("workdir is 'src'", "no directory")),
    "workdir-file": (GOOD + "workdir: train.py\n", 2, ("no directory",)),
    "name": (GOOD + "name: ../up\n", 2, ("name is '../up'", "letters, digits")),
    "command-truth": (
        "command: [python, train.py, --shuffle, true]\n",
        1,
        ("a word of the command is true", "put it in quotes"),
    ),
    "keep-text": (GOOD + "side_effects: {keep: data}\n", 2, ("keep is 'data'", "a list")),
    "exclude-mapping": (
        GOOD + "search_space:\n  preset: auto\n  exclude:\n    - compile_mode: off\n",
        5,
        ("there is no knob {'compile_mode'", "one of"),
    ),
    "name-number": (GOOD + "name: 3\n", 2, ("name is 3", "text")),
    "env-list": (GOOD + "env: [A=1]\n", 2, ("env is a list", "mapping")),
    "env-truth": (
        GOOD + "env:\n  A: x\n  DEBUG: true\n",
        4,
        ("env.DEBUG", "true", "text or a number"),
    ),
    "env-nested": (GOOD + "env:\n  A: {B: 1}\n", 3, ("env.A", "a mapping")),
    "env-name": (GOOD + "env:\n  A=B: 1\n", 3, ("'A=B'",)),
    "env-name-no-shell-has": (GOOD + "env:\n  MY-VAR: 1\n", 3, ("'MY-VAR'", "letters, digits")),
    "steps-text": (
        GOOD + "planned_steps: many\n",
        2,
        ("planned_steps is 'many'", "a whole number"),
    ),
    "steps-negative": (GOOD + "planned_steps: -1\n", 2, ("planned_steps is -1", "at least 1")),
    "steps-fraction": (GOOD + "planned_steps: 1.5\n", 2, ("whole number",)),
    "steps-truth": (GOOD + "planned_steps: true\n", 2, ("planned_steps is true",)),
    "steps-half": (GOOD + "planned_steps: 1.05e1\n", 2, ("10.5", "a whole number")),
    "minutes-unit": (
        GOOD + "budget: {minutes: 20m}\n",
        2,
        ("budget.minutes is '20m'", "a number (the unit is in the key's name)"),
    ),
    "minutes-zero": (GOOD + "budget:\n  minutes: 0\n", 3, ("above 0",)),
    "minutes-infinite": (GOOD + "budget: {minutes: .inf}\n", 2, ("budget.minutes is inf",)),
    "budget-number": (GOOD + "budget: 20\n", 2, ("budget is 20", "key: value")),
    "memory-unit": (
        GOOD + "constraints: {host_memory_gib: 16GB}\n",
        2,
        ("host_memory_gib is '16GB'", "a number (the unit is in the key's name)"),
    ),
    "memory-percent": (
        GOOD + "constraints: {device_memory_fraction: 90%}\n",
        2,
        ("device_memory_fraction is '90%'", "expected: a number\n"),
    ),
    "memory-share": (
        GOOD + "constraints: {device_memory_fraction: 90}\n",
        2,
        ("device_memory_fraction is 90", "at most 1"),
    ),
    "tolerance-unit": (
        GOOD + "convergence:\n  tolerance: 1 percent\n",
        3,
        ("'1 percent'", '"1%" or 0.01'),
    ),
    "tolerance-large": (GOOD + "convergence: {tolerance: 150%}\n", 2, ("'150%'", "at most 20%")),
    "objective": (
        GOOD + "objective: troughput\n",
        2,
        ("'troughput'", "throughput, time_to_train, cost or energy", "did you mean 'throughput'?"),
    ),
    "objective-three": (
        GOOD + "objective: [throughput, energy, time_to_train]\n",
        2,
        ("lists 3", "one objective, or two different ones"),
    ),
    "objective-twice": (GOOD + "objective: [energy, energy]\n", 2, ("two different ones",)),
    "objective-alike": (
        GOOD + "objective: [cost, time_to_train]\n",
        2,
        ("cost and time_to_train", "cost is price times time"),
    ),
    "objective-in-list": (GOOD + "objective: [througput]\n", 2, ("did you mean 'throughput'?",)),
    "objective-cost": (GOOD + "objective: cost\n", 2, ("there is no price", "costs per hour")),
    "price": (GOOD + "price: 0\n", 2, ("price is 0",)),
    "price-unit": (GOOD + "price: 3 EUR\n", 2, ("price is '3 EUR'", "expected: a number\n")),
    "executor-ray": (
        GOOD + "executor:\n  ray: {adress: auto}\n",
        3,
        ("adress", "did you mean 'address'?"),
    ),
    "executor-ray-port": (
        GOOD + "executor:\n  ray:\n    address: ray://head:99999\n",
        4,
        ("ray://head:99999", "65535"),
    ),
    "executor-ray-address": (
        GOOD + "executor:\n  ray:\n    address: nowhere\n",
        4,
        ("address", "ray://HOST:PORT"),
    ),
    "executor-ray-slots": (GOOD + "executor:\n  ray:\n    slots: 0\n", 4, ("slots", "at least 1")),
    "executor-ray-shared": (
        GOOD + "executor:\n  ray: {workdir: shared}\n",
        2,
        ("would undo what the others write", "slots: 1"),
    ),
    "executor-ray-gpus-by-env": (
        GOOD + "env: {CUDA_VISIBLE_DEVICES: '0'}\nexecutor:\n  ray: {gpus_per_slot: 1}\n",
        2,
        ("together with gpus_per_slot", "leave out CUDA_VISIBLE_DEVICES"),
    ),
    "executor-ray-nodes": (
        GOOD + "executor:\n  ray: {nodes_per_slot: 2}\n",
        1,
        ("does not start torchrun", "torchrun --nproc-per-node"),
    ),
    "executor-ray-nodes-said-twice": (
        "command: torchrun --nnodes=2 train.py\nexecutor:\n  ray: {nodes_per_slot: 2}\n",
        1,
        ("sets --nnodes itself", "leave out --nnodes"),
    ),
    "executor-ray-nodes-and-shares": (
        "command: torchrun train.py\nexecutor:\n  ray: {nodes_per_slot: 2, gpus_per_slot: 1}\n",
        2,
        ("together with gpus_per_slot",),
    ),
    "executor-ray-nodes-shared": (
        (
            "command: torchrun train.py\nexecutor:\n  ray: {nodes_per_slot: 2, workdir: shared,"
            " slots: 1}\n"
        ),
        2,
        ("would undo what the others write",),
    ),
    "executor-local": (GOOD + "executor: {local: 3}\n", 2, ("no settings",)),
    "executor": (GOOD + "executor: lokal\n", 2, ("did you mean 'local'?",)),
    "traces": (
        GOOD + "traces: finalist\n",
        2,
        ("none, finalists or all", "did you mean 'finalists'?"),
    ),
    "tracking-folder": (
        GOOD + "tracking:\n  uri: ./mlruns\n",
        3,
        ("'./mlruns'", "use sqlite:///mlruns/mlflow.db"),
    ),
    "tracking-scheme": (
        GOOD + "tracking: {uri: 'htp://host:5000'}\n",
        2,
        ("did you mean 'http'?",),
    ),
    "tracking-port": (
        GOOD + "tracking: {uri: 'http://host:port'}\n",
        2,
        ("'http://host:port' is not a tracking URI",),
    ),
    "hang": (
        GOOD + "hang_timeout_s: 2 min\n",
        2,
        ("hang_timeout_s is '2 min'", "unit is in the key's name"),
    ),
    "preset": (GOOD + "search_space: qick\n", 2, ("qick", "did you mean 'quick'?")),
    "preset-inner": (
        GOOD + "search_space:\n  preset: qick\n",
        3,
        ("qick", "did you mean 'quick'?"),
    ),
    "knob": (
        GOOD + "search_space:\n  preset: auto\n  num_wokers: [0, 2]\n",
        4,
        ("num_wokers", "did you mean 'num_workers'?"),
    ),
    "knob-value": (GOOD + "search_space:\n  num_workers: [0, two]\n", 3, ("two",)),
    "knob-word": (
        GOOD + "search_space:\n  amp_dtype:\n    - off\n    - bfloat61\n",
        5,
        ("bfloat61", "bfloat16"),
    ),
    "knob-empty": (GOOD + "search_space:\n  num_workers: []\n", 3, ("num_workers", "empty")),
    "knob-option": (
        GOOD + "search_space:\n  batch_size: {values: [32], lr_scalling: sqrt}\n",
        3,
        ("did you mean 'lr_scaling'?",),
    ),
    "space-list": (GOOD + "search_space: [num_workers]\n", 2, ("search_space is a list", "preset")),
    "space-empty": (GOOD + "search_space: {}\n", 2, ("search_space",)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("open('started', 'w')\n")
    return tmp_path


def autotune(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [AUTOTUNE, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )


def check_refused(done: subprocess.CompletedProcess[str], words: tuple[str, ...]) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_answered_with_its_line_and_what_to_do(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text, line, words = BAD[case]
    (folder / "job.yaml").write_text(text)
    monkeypatch.chdir(folder)
    code, said = main(["check", "job.yaml"]), capfd.readouterr()
    check_refused(
        subprocess.CompletedProcess([], code, said.out, said.err),
        (f"job.yaml:{line}: ", "expected: ", *words),
    )
    assert sorted(p.name for p in folder.iterdir()) == ["job.yaml", "train.py"]


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--seed", "-1"),
        ("run", "--minutes", "inf"),
        ("judge", "job.yaml", "--margin", "nan"),
    ],
)
def test_a_number_out_of_range_is_refused_before_the_run(
    words: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (folder / "job.yaml").write_text(GOOD)
    monkeypatch.chdir(folder)
    assert main([words[0], "job.yaml", *words[1:]]) == 2
    assert words[-2] in capfd.readouterr().err
    assert not (folder / "autotune-runs").exists()


@pytest.mark.parametrize("case", ["wrong-key", "no-program", "preset"])
def test_run_refuses_the_same_and_writes_nothing(case: str, folder: Path) -> None:
    text, line, words = BAD[case]
    (folder / "job.yaml").write_text(text)
    check_refused(autotune("run", "job.yaml", cwd=folder), (f"job.yaml:{line}: ", *words))
    assert sorted(p.name for p in folder.iterdir()) == ["job.yaml", "train.py"]


def test_all_mistakes_are_listed_in_the_order_of_the_file(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "name: a b\ncommand: python train.py\nbuget: {}\nworkdir: nowhere\nsearch_space:"
        " atuo\nplanned_steps: x\n"
    )
    said = autotune("check", "job.yaml", cwd=folder).stderr
    places = [said.index(f"job.yaml:{line}: ") for line in (1, 3, 4, 5, 6)]
    assert places == sorted(places)
    assert "5 mistakes; nothing was started" in said


def test_a_missing_file_suggests_the_one_that_is_there(folder: Path) -> None:
    (folder / "job.yaml").write_text(GOOD)
    check_refused(autotune("check", "jb.yaml", cwd=folder), ("jb.yaml: no such file", "job.yaml'?"))
    check_refused(autotune("check", ".", cwd=folder), ("it is a directory", "job.yaml'?"))


def test_a_file_that_is_not_text_is_refused(folder: Path) -> None:
    (folder / "job.yaml").write_bytes(b"command: a\nname: \xff\xfe\n")
    check_refused(autotune("check", "job.yaml", cwd=folder), ("job.yaml:2: not UTF-8",))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"\\udc80":', "job.yaml:1: a key is"),
        ('{"command": "a", "name": "x\\udc80"}', "job.yaml:1: name is"),
    ],
)
def test_a_byte_that_is_no_text_is_named_and_refused(text: str, found: str, folder: Path) -> None:
    (folder / "job.yaml").write_text(text)
    check_refused(
        autotune("check", "job.yaml", cwd=folder),
        (found, "\\udc80", "text without invalid characters"),
    )


def test_a_file_too_large_is_refused(folder: Path) -> None:
    (folder / "job.yaml").write_text("# " + "x" * (1 << 20))
    check_refused(autotune("check", "job.yaml", cwd=folder), ("bytes", "at most"))


def test_a_python_without_torch_is_named(folder: Path) -> None:
    """A common mistake: the job's environment is not activated."""
    (folder / "bin").mkdir()
    fake = folder / "bin" / "python"
    fake.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n')
    fake.chmod(0o755)
    (folder / "job.yaml").write_text(GOOD)
    done = autotune("check", "job.yaml", cwd=folder, PATH=f"{folder / 'bin'}:{os.environ['PATH']}")
    check_refused(done, ("job.yaml:1: ", f"{fake} has no torch", "activate"))


def test_a_python_too_old_for_the_agent_is_named(folder: Path) -> None:
    (folder / "bin").mkdir()
    fake = folder / "bin" / "python"
    fake.write_text("#!/bin/sh\necho 3.9.18\nexit 4\n")  # as the probe does there
    fake.chmod(0o755)
    (folder / "job.yaml").write_text(GOOD)
    done = autotune("check", "job.yaml", cwd=folder, PATH=f"{folder / 'bin'}:{os.environ['PATH']}")
    check_refused(done, ("job.yaml:1: ", f"{fake} is Python 3.9.18", "Python 3.11 or newer"))


@pytest.mark.parametrize(
    "command", ["python -I train.py", "python -uE train.py", "python -X dev -S train.py"]
)
def test_a_python_that_keeps_the_agent_out_ends_with_4(command: str, folder: Path) -> None:
    (folder / "job.yaml").write_text(f"name: x\ncommand: {command}\n")
    done = autotune("check", "job.yaml", cwd=folder)
    assert done.returncode == 4
    assert "job.yaml:2: the command runs python with -" in done.stderr
    assert "leave out -" in done.stderr


def test_a_run_directory_that_cannot_be_written_is_refused(folder: Path) -> None:
    from autotune.errors import InputError
    from autotune.run_directory import check_run_dir

    with pytest.raises(InputError, match="cannot write in /proc"):
        check_run_dir(Path("/proc/self/autotune-run"))
    with pytest.raises(InputError, match="it is a file"):
        check_run_dir(folder / "train.py")
    with pytest.raises(InputError, match="is a file"):
        check_run_dir(folder / "train.py" / "deep" / "run")
    check_run_dir(folder / "runs" / "x")
    assert sorted(p.name for p in folder.iterdir()) == ["train.py"]
