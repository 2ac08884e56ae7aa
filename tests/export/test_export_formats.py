"""Every format of `autotune export` works where it is used: scripts run, code compiles, launchers
get their flags.
"""

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.errors import InputError
from autotune.export.formats import FORMATS, accelerate
from autotune.export.formats.launchers import take_apart
from autotune.export.load import load_tuned
from autotune.export.tuned import (
    Footprint,
    Provenance,
    TunedConfig,
    TunedKnob,
    to_yaml,
    write_tuned,
)
from autotune.results import Interval
from autotune_spaces.knobs import create, get, names
from autotune_spaces.sites import JobSites, SettingSite, SourceCall

SHOW = (
    "import json, os, sys; print(json.dumps({'argv': sys.argv[1:], 'env': dict(os.environ), 'cwd':"
    " os.getcwd(), 'stdin': sys.stdin.read()}))"
)
VIA = {
    "dtype": TunedKnob(
        "it's on", "off", None, {"via": "--dtype {}", "default": "off", "numerics": "exact"}
    ),
    "sched": TunedKnob(
        "a b", "x", None, {"via": "env OMP_SCHEDULE", "default": "x", "numerics": "exact"}
    ),
}
LIVE = {
    "num_workers": TunedKnob(2, 0, Interval(1.6, 1.5, 1.7)),
    "amp_dtype": TunedKnob("bfloat16", "off"),
    "compile_mode": TunedKnob("reduce-overhead", "off"),
    "intra_op_threads": TunedKnob(1, 2),
    "batch_size": TunedKnob(64, 32, None, {"lr_scaling": "sqrt"}),
}
EVERY = {name: get(name).example for name in names()}
# see test_patch_diff.py and test_framework_formats.py
OF_SOME_JOBS = ("diff", "training-arguments", "lightning")
ANYWHERE = [name for name in FORMATS if name not in OF_SOME_JOBS]
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my job"
    path.mkdir()
    (path / "train me.py").write_text(SHOW)
    return path


def tuned(
    folder: Path,
    knobs: dict[str, TunedKnob],
    *words: str,
    command: tuple[str, ...] = (),
    **fields: object,
) -> TunedConfig:
    head = command or (sys.executable, "train me.py")
    return TunedConfig("digits\n; rm -rf x", (*head, *words), folder, knobs=knobs, **fields)  # type: ignore[arg-type]


def run(
    script: str, tmp_path: Path, *arguments: str, stdin: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.sh"
    path.write_text(script)
    path.chmod(0o755)
    return subprocess.run(
        [str(path), *arguments],
        cwd=tmp_path,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        env={**ENV, "XDG_CACHE_HOME": str(tmp_path / "cache"), **more},
    )


def test_every_format_is_described() -> None:
    page = (Path(__file__).parents[2] / "docs" / "exporting.md").read_text()
    for form in FORMATS.values():
        assert f"| `{form.name}` | " in page, f"{form.name} is missing in docs/exporting.md"


AWKWARD = ("a b", "it's", '"', "$HOME", "`id`", "*", "", "--x", "{y}", "${z}", "TUNED_YAML")


def test_a_plain_shell_script_runs_the_job(folder: Path, tmp_path: Path) -> None:
    config = tuned(folder, VIA, *AWKWARD, "{seed}", env={"GREETING": "a 'b' $c"})
    script = FORMATS["shell"].write(config)
    assert "autotune launch" not in script  # no agent, so autotune is not needed
    done = run(script, tmp_path, "x y", stdin="in", SEED="7")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["argv"] == [*AWKWARD, "7", "--dtype", "it's on", "x y"]
    assert (seen["env"]["OMP_SCHEDULE"], seen["env"]["GREETING"]) == ("a b", "a 'b' $c")
    assert (seen["cwd"], seen["stdin"]) == (str(folder), "in")


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_script_with_live_knobs_runs_the_job(
    folder: Path, tmp_path: Path, shell: str
) -> None:
    config = tuned(folder, {**VIA, "intra_op_threads": TunedKnob(1, 2)}, *AWKWARD)
    script = FORMATS["shell"].write(config).replace("#!/bin/sh", f"#!/usr/bin/env {shell}")
    done = run(script, tmp_path, "x y", stdin="in")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["argv"] == [*AWKWARD, "--dtype", "it's on", "x y"]
    assert (seen["cwd"], seen["stdin"]) == (str(folder), "in")
    session = json.loads(Path(seen["env"]["AUTOTUNE_SESSION"]).read_text())
    assert [(k["name"], k["value"]) for k in session["knobs"]] == [("intra_op_threads", 1)]
    assert session["mode"] == "launch"


@pytest.mark.parametrize(
    "knobs", [{}, {"intra_op_threads": TunedKnob(1, 2)}], ids=["plain", "launched"]
)
def test_seed_and_directory_are_the_callers(
    folder: Path, tmp_path: Path, knobs: dict[str, TunedKnob]
) -> None:
    script = FORMATS["shell"].write(tuned(folder, knobs, "{seed}", "--out={trial_dir}"))
    for given, seed, out in (({}, "0", folder / "out"), ({"SEED": "7"}, "7", tmp_path / "a b")):
        more = {**given, "TRIAL_DIR": str(out)} if given else {}
        done = run(script, tmp_path, **more)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["argv"] == [seed, f"--out={out}"]


def test_a_directory_with_a_blank_in_a_line_for_a_shell(folder: Path, tmp_path: Path) -> None:
    places = """a={trial_dir}/x "b={trial_dir}" 'c={trial_dir}' '${trial_dir}'"""
    line = f"{shlex.quote(sys.executable)} 'train me.py' {places}"
    done = run(FORMATS["shell"].write(tuned(folder, {}, command=("/bin/sh", "-c", line))), tmp_path)
    assert done.returncode == 0, done.stderr
    out = folder / "out"
    assert json.loads(done.stdout)["argv"] == [f"a={out}/x", f"b={out}", f"c={out}", "${trial_dir}"]


HOSTILE = """a'b"; touch pwned; $(touch pwned) `touch pwned` $HOME"""


@pytest.mark.parametrize(
    "knobs", [{}, {"intra_op_threads": TunedKnob(1, 2)}], ids=["plain", "launched"]
)
def test_a_line_for_a_shell_reads_no_value_as_code(
    folder: Path, tmp_path: Path, knobs: dict[str, TunedKnob]
) -> None:
    line = f'{shlex.quote(sys.executable)} \'train me.py\' "$API_KEY" "${{API_KEY}}" {{trial_dir}}'
    command = ("/bin/sh", "-c", line)
    script = FORMATS["shell"].write(
        tuned(folder, knobs, command=command, env_from_launch=("API_KEY",))
    )
    out = str(tmp_path / HOSTILE)
    done = run(script, tmp_path, API_KEY=HOSTILE, TRIAL_DIR=out)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["argv"] == [HOSTILE, HOSTILE, out]
    assert not (folder / "pwned").exists()


def test_the_jobs_own_variables_are_not_ours(folder: Path, tmp_path: Path) -> None:
    """SEED and TRIAL_DIR stand for placeholders, where there are any."""
    knobs = {"own": TunedKnob("${TRIAL_DIR}", "x", None, {"via": "env OWN", "default": "x"})}
    script = FORMATS["shell"].write(tuned(folder, knobs, "${SEED}", env={"X": "${TRIAL_DIR}"}))
    seen = json.loads(run(script, tmp_path, SEED="7", TRIAL_DIR="/x").stdout)
    assert seen["argv"] == ["${SEED}"]
    assert seen["env"]["OWN"] == seen["env"]["X"] == "${TRIAL_DIR}"


@pytest.mark.parametrize("value", ["default", "jemalloc", "tcmalloc"])
def test_an_allocator_is_looked_up_where_the_job_starts(folder: Path, value: str) -> None:
    """The dynamic loader may not find it by name alone, and then silently does without it."""
    config = tuned(folder, {"malloc": TunedKnob(value, "retain")}, command=("python", "t.py"))
    for name in ("shell", "sbatch", "k8s", "kubeflow", "skypilot"):
        text = FORMATS[name].write(config)
        assert "value: " + value in text and "export LD_PRELOAD" not in text, name
    for name in ("torchrun", "accelerate"):
        text = FORMATS[name].write(config)
        assert "export LD_PRELOAD" not in text and "has no option for the following" in text, name


def test_a_line_for_a_shell_takes_no_words(folder: Path, tmp_path: Path) -> None:
    text = FORMATS["shell"].write(
        TunedConfig("digits", ("bash", "-euc", "echo trained; true"), folder)
    )
    (tmp_path / "run.sh").write_text(text)
    runs = [
        subprocess.run(["sh", str(tmp_path / "run.sh"), *words], capture_output=True, text=True)
        for words in ([], ["--epochs", "20"])
    ]
    assert runs[0].stdout == "trained\n"
    assert (runs[1].returncode, runs[1].stdout) == (
        2,
        "",
    ) and "arguments cannot be appended" in runs[1].stderr


def test_shell_scripts_pass_exit_codes(folder: Path, tmp_path: Path) -> None:
    (folder / "train me.py").write_text("raise SystemExit(7)")
    for knobs in (VIA, {"intra_op_threads": TunedKnob(1, 2)}):
        assert run(FORMATS["shell"].write(tuned(folder, knobs)), tmp_path).returncode == 7


def test_secrets_are_asked_for(folder: Path, tmp_path: Path) -> None:
    for knobs in (VIA, {"intra_op_threads": TunedKnob(1, 2)}):
        script = FORMATS["shell"].write(
            tuned(folder, knobs, "--api-key=${API_KEY}", env_from_launch=("API_KEY",))
        )
        missing = run(script, tmp_path)
        assert missing.returncode != 0 and "API_KEY" in missing.stderr and missing.stdout == ""
        there = run(script, tmp_path, API_KEY="q1 w2'$x")
        assert json.loads(there.stdout)["argv"][0] == "--api-key=q1 w2'$x"


@pytest.mark.parametrize("name", ANYWHERE)
def test_every_format_takes_every_knob(folder: Path, name: str) -> None:
    knobs = {n: TunedKnob(v, None, Interval(1.1, 1.0, 1.2)) for n, v in EVERY.items()}
    text = FORMATS[name].write(
        tuned(
            folder,
            {**knobs, **VIA},
            provenance=Provenance(job_device="cuda", loader_key="train.py:9#0"),
        )
    )
    for knob in {**knobs, **VIA}:
        assert knob in text, f"{knob} is neither set nor mentioned"
    if name == "python":
        compile(text, "tuned", "exec")
    elif FORMATS[name].executable:
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("name", ANYWHERE)
def test_nothing_to_change_works_too(folder: Path, tmp_path: Path, name: str) -> None:
    text = FORMATS[name].write(tuned(folder, {}))
    if name == "shell":
        assert json.loads(run(text, tmp_path).stdout)["argv"] == []
    if name == "python":
        compile(text, "tuned", "exec")


def test_where_nothing_changes_the_title_does_not_speak_of_the_loss(folder: Path) -> None:
    said = FORMATS["shell"].write(tuned(folder, {}, provenance=Provenance(loss="not-needed")))
    assert "nothing to change: this is the job as it is" in said
    assert "loss" not in said.partition("set -eu")[0]


@pytest.mark.parametrize("name", ["shell", "torchrun", "accelerate", "sbatch", "k8s", "python"])
def test_a_name_with_a_line_break_is_no_command(folder: Path, name: str) -> None:
    text = FORMATS[name].write(tuned(folder, VIA))
    assert not any(line.startswith("; rm") for line in text.splitlines())


def test_yaml_is_the_file_itself(folder: Path) -> None:
    config = tuned(folder, LIVE)
    assert FORMATS["yaml"].write(config) == to_yaml(config)


def last_words(script: str) -> list[str]:
    return shlex.split(script.strip().splitlines()[-1])


def test_torchrun(folder: Path) -> None:
    script = FORMATS["torchrun"].write(tuned(folder, {**LIVE, **VIA}, "--epochs", "5"))
    assert last_words(script) == [
        "exec",
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=1",
        "train me.py",
        "--epochs",
        "5",
        "--dtype",
        "it's on",
        "$@",
    ]
    assert "\nexport OMP_NUM_THREADS=1\n" in script
    said, _, unsaid = script.partition("has no option for the following")
    assert "set below: intra_op_threads" in said
    for name in ("num_workers", "amp_dtype", "compile_mode", "batch_size"):
        assert name in unsaid and f"set below: {name}" not in said
    assert "#       DataLoader(..., num_workers=2)" in unsaid


@pytest.mark.parametrize(
    ("form", "first", "started"),
    [
        ("torchrun", "/job/bin/python", ["/job/bin/python", "-m", "torch.distributed.run"]),
        ("torchrun", "/job/bin/torchrun", ["/job/bin/torchrun"]),
        ("torchrun", "python", ["torchrun"]),
        ("accelerate", "/job/bin/python", ["/job/bin/python", "-m", "accelerate.commands.launch"]),
    ],
)
def test_the_launcher_is_of_the_jobs_environment(
    form: str, first: str, started: list[str], folder: Path
) -> None:
    words = last_words(FORMATS[form].write(tuned(folder, {}, command=(first, "t.py"))))
    assert words[1 : 1 + len(started)] == started


def test_accelerate_is_given_no_mode_that_it_refuses(folder: Path) -> None:
    from accelerate.commands.launch import launch_command_parser

    assert accelerate.flags("compile_mode", "max-autotune-no-cudagraphs") == []
    actions = launch_command_parser()._actions
    known = next(a.choices for a in actions if "--dynamo_mode" in a.option_strings)
    assert set(accelerate.MODES) == set(known)


def test_accelerate_says_that_it_compiles_for_every_shape(folder: Path) -> None:
    compiled = {"compile_mode": TunedKnob("default", "off")}
    assert "for every new shape" in FORMATS["accelerate"].write(tuned(folder, compiled))


def test_what_is_done_once_is_written_once_and_not_in_the_training_loop(folder: Path) -> None:
    knobs = {**LIVE, "compile_mode": TunedKnob("regional", "off")}
    code, _, loop = FORMATS["python"].write(tuned(folder, knobs)).partition("# -- In the training")
    assert (code.count("in optimizer.param_groups"), code.count("block.compile()")) == (1, 1)
    assert "param_groups" not in loop and "block.compile" not in loop


@pytest.mark.parametrize("form", ["torchrun", "accelerate"])
def test_threads_that_the_job_sets_itself_are_not_claimed(form: str, folder: Path) -> None:
    """torch.set_num_threads overrides the variable that the launcher sets."""
    call = SourceCall("train me.py", 1, 0, 1, 5, "torch.set_num_threads(2)", "<module>", own=True)
    sites = JobSites(settings=(SettingSite("set_num_threads", call),))
    knobs = {"intra_op_threads": TunedKnob(1, 2)}
    script = FORMATS[form].write(tuned(folder, knobs, provenance=Provenance(sites=sites)))
    assert "#       torch.set_num_threads(1)\n" in script and "set below" not in script


def test_torchrun_keeps_its_own_options(folder: Path) -> None:
    command = ("torchrun", "--nproc-per-node", "2", "--standalone", "-m", "pkg.train")
    assert last_words(FORMATS["torchrun"].write(tuned(folder, {}, "--lr", "1", command=command)))[
        1:-1
    ] == [*command, "--lr", "1"]


@pytest.mark.parametrize(
    ("form", "command", "under"),
    [
        ("torchrun", "accelerate launch --num_processes 4 t.py", "accelerate"),
        ("accelerate", "torchrun --standalone --nproc-per-node 4 t.py", "torchrun"),
        ("torchrun", "python -m torch.distributed.launch t.py", "torch.distributed.launch"),
    ],
)
def test_a_job_under_another_launcher_is_refused(
    form: str, command: str, under: str, folder: Path
) -> None:
    with pytest.raises(InputError, match=f"tuned under {under}(.|\n)*--format shell"):
        FORMATS[form].write(tuned(folder, {}, command=tuple(command.split())))
    assert "srun " in FORMATS["sbatch"].write(tuned(folder, {}, command=tuple(command.split())))


@pytest.mark.parametrize(
    ("more", "given"),
    [
        ({}, ["--num_cpu_threads_per_process=8"]),
        ({"env": {"OMP_NUM_THREADS": "3"}}, []),
        ({"knobs": {"intra_op_threads": TunedKnob(1, 8)}}, ["--num_cpu_threads_per_process=1"]),
        ({"knobs": {"n": TunedKnob(2, 8, None, {"via": "env OMP_NUM_THREADS", "default": 8})}}, []),
        ({"command": ("accelerate", "launch", "t.py")}, []),
    ],
)
def test_accelerate_leaves_the_job_its_threads(
    folder: Path, more: dict[str, Any], given: list[str]
) -> None:
    """accelerate sets OMP_NUM_THREADS=1 if nothing else does."""
    known = Provenance(footprint=Footprint(threads=8))
    words = last_words(
        FORMATS["accelerate"].write(tuned(folder, **{"knobs": {}, "provenance": known, **more}))
    )
    assert [word for word in words if "threads" in word] == given


def test_scripts_name_the_variables_of_the_shell_it_was_tuned_in(folder: Path) -> None:
    known = Provenance(environment={"OMP_NUM_THREADS": "4", "NCCL_DEBUG": "INFO"})
    config = tuned(folder, knobs={}, env={"NCCL_DEBUG": "WARN"}, provenance=known)
    for form in ("shell", "sbatch", "k8s", "torchrun"):
        text = FORMATS[form].write(config)
        assert "# tuned in a shell with OMP_NUM_THREADS=4: set the same here\n" in text
    set_here = tuned(folder, {"intra_op_threads": TunedKnob(1, 4)}, provenance=known)
    said = [
        line for line in FORMATS["shell"].write(set_here).splitlines() if "a shell with" in line
    ]
    assert said == ["# tuned in a shell with NCCL_DEBUG=INFO: set the same here"]


def test_torchrun_runs(folder: Path, tmp_path: Path) -> None:
    script = FORMATS["torchrun"].write(
        tuned(folder, {**VIA, "intra_op_threads": TunedKnob(1, 2)}, "a b")
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(script, tmp_path, "x y", PATH=path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["argv"] == ["a b", "--dtype", "it's on", "x y"]
    assert (
        seen["env"]["OMP_NUM_THREADS"],
        seen["env"]["OMP_SCHEDULE"],
        seen["env"]["WORLD_SIZE"],
    ) == ("1", "a b", "1")


def test_accelerate(folder: Path) -> None:
    script = FORMATS["accelerate"].write(tuned(folder, {**LIVE, **VIA}, "--epochs", "5"))
    assert last_words(script)[1:] == [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--num_processes=1",
        "--cpu",
        "--mixed_precision=bf16",
        "--dynamo_backend=inductor",
        "--dynamo_mode=reduce-overhead",
        "--num_cpu_threads_per_process=1",
        "train me.py",
        "--epochs",
        "5",
        "--dtype",
        "it's on",
        "$@",
    ]
    assert "Accelerator()" in script
    assert "num_workers" in script.partition("has no option for the following")[2]


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("regional", ["--dynamo_use_regional_compilation"]),
        ("dynamic", ["--dynamo_use_dynamic"]),
        ("static", []),
        ("default", ["--dynamo_mode=default"]),
    ],
)
def test_accelerate_has_flags_of_its_own_for_what_is_no_mode(
    folder: Path, mode: str, flags: list[str]
) -> None:
    words = last_words(
        FORMATS["accelerate"].write(tuned(folder, {"compile_mode": TunedKnob(mode, "off")}))
    )
    assert [w for w in words if w.startswith("--dynamo")] == ["--dynamo_backend=inductor", *flags]


def test_accelerate_flags_are_replaced_not_doubled(folder: Path) -> None:
    command = (
        "accelerate",
        "launch",
        "--mixed-precision",
        "no",
        "--num_processes",
        "2",
        "--dynamo_backend=no",
        "train.py",
        "--mixed_precision",
        "x",
    )
    words = last_words(FORMATS["accelerate"].write(tuned(folder, LIVE, command=command)))
    assert words[3:5] == ["--num_processes", "2"]
    # the program's own arguments
    assert words[words.index("train.py") + 1 :] == ["--mixed_precision", "x", "$@"]
    assert [w for w in words[: words.index("train.py")] if "precision" in w] == [
        "--mixed_precision=bf16"
    ]


@pytest.mark.parametrize(
    ("command", "launcher", "program"),
    [
        (("python", "-u", "-W", "ignore", "t.py", "-u"), "python", ("t.py", "-u")),
        (("/usr/bin/python3.11", "-m", "pkg", "--x"), "python", ("-m", "pkg", "--x")),
        (("python", "-X", "dev", "-um", "pkg", "-m"), "python", ("-m", "pkg", "-m")),
        (("python", "-mpkg.train", "--x"), "python", ("-m", "pkg.train", "--x")),
        (
            ("python", "-m", "torch.distributed.run", "--nproc-per-node=2", "t.py"),
            "torchrun",
            ("t.py",),
        ),
        (
            ("torchrun", "--rdzv-backend", "c10d", "--standalone", "t.py", "-a"),
            "torchrun",
            ("t.py", "-a"),
        ),
        (
            ("accelerate", "launch", "--config_file", "c.yaml", "--cpu", "t.py"),
            "accelerate",
            ("t.py",),
        ),
    ],
)
def test_commands_are_taken_apart(
    command: tuple[str, ...], launcher: str, program: tuple[str, ...]
) -> None:
    parts = take_apart(command)
    assert (parts.launcher, parts.program) == (launcher, program)


@pytest.mark.parametrize("form", ["shell", "torchrun"])
def test_a_variable_that_the_settings_drop_is_unset(folder: Path, form: str) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    knobs = {"cuda_alloc_conf": TunedKnob("unset", "max_split_size_mb:64")}
    text = FORMATS[form].write(tuned(folder, knobs, env=env))
    assert text.index("export PYTORCH_CUDA_ALLOC_CONF") < text.index("unset PYTORCH_CUDA_ALLOC")


@pytest.mark.parametrize("own", ["in the job file", "in the shell"])
def test_a_plain_script_changes_variables_as_launch_does(folder: Path, own: str) -> None:
    """malloc takes the other allocator out of LD_PRELOAD, and leaves the rest."""
    preload = {"LD_PRELOAD": "/lib/libjemalloc.so.2:/lib/libmine.so"}
    knobs = {"malloc": TunedKnob("retain", "jemalloc")}
    env = preload if own == "in the job file" else {}
    where = Provenance(environment={} if env else preload)
    text = FORMATS["shell"].write(tuned(folder, knobs, env=env, provenance=where))
    assert "autotune launch" not in text
    assert [line for line in text.splitlines() if "PRELOAD" in line][-1] == (
        "export LD_PRELOAD=/lib/libmine.so"
    )


def test_every_switch_of_the_launchers_is_known() -> None:
    """A switch mistaken for an option with a value would swallow the program's name."""
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    for start, parser in (
        (("torchrun",), get_args_parser()),
        (("accelerate", "launch"), launch_command_parser()),
    ):
        switches = {
            text
            for action in parser._actions
            if action.nargs == 0
            for text in action.option_strings
        } - {"-m", "--module"}
        for switch in switches:
            assert take_apart((*start, switch, "t.py", "-a")).program == ("t.py", "-a"), switch


@pytest.mark.parametrize(
    "command", [("bash", "train.sh"), ("python", "-c", "pass"), ("python",), ("./train",)]
)
def test_what_a_launcher_cannot_start_is_refused(folder: Path, command: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="--format shell"):
        FORMATS["torchrun"].write(tuned(folder, {}, command=command))


def test_python_has_one_loader_line(folder: Path) -> None:
    knobs = {n: TunedKnob(EVERY[n]) for n in ("num_workers", "prefetch_factor", "pin_memory")}
    text = FORMATS["python"].write(
        tuned(folder, knobs, provenance=Provenance(loader_key="train.py:9#0"))
    )
    assert (
        "loader = DataLoader(..., num_workers=4, prefetch_factor=4, pin_memory=True)  #"
        " train.py:9\n" in text
    )
    assert text.index("import torch") < text.index("loader =")
    assert "import os" not in text, "nothing there uses it"


def test_python_imports_only_what_its_lines_use(folder: Path) -> None:
    write = FORMATS["python"].write
    assert "DataLoader" not in write(tuned(folder, {"matmul_precision": TunedKnob("high")}))
    assert "import" not in write(tuned(folder, {}))


def test_python_has_one_line_that_wraps_the_model(folder: Path) -> None:
    knobs = {
        n: TunedKnob(EVERY[n])
        for n in ("gradient_as_bucket_view", "num_workers", "ddp_bucket_cap_mb")
    }
    text = FORMATS["python"].write(tuned(folder, knobs))
    assert text.count("model = DistributedDataParallel(") == 1
    assert (
        "model = DistributedDataParallel(..., gradient_as_bucket_view=True, bucket_cap_mb=50)"
        in text
    )
    compile(text, "snippet", "exec")


def test_snippets_are_valid_python() -> None:
    for name, value in EVERY.items():
        compile(create(name).snippet(value), name, "exec")  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["export", "history", "init"])
def test_what_a_user_names_may_be_a_link_or_a_pipe(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    write_tuned(tuned(folder, VIA), tmp_path / "tuned.yaml")
    store = str(tmp_path / "store.sqlite")
    monkeypatch.chdir(folder)

    def write(path: Path) -> str:
        words = {
            "export": ["export", str(tmp_path), "-f", "shell", "-o", str(path)],
            "history": ["history", "export", str(path), "--store", store],
            "init": ["init", "--force", "-o", str(path), "--", "python", "train me.py"],
        }
        assert main(words[command]) == 0
        return capsys.readouterr().out

    real, link, pipe = folder / "real", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(real)
    for _ in range(2):  # a link to nothing, and to a file
        assert str(link) in write(link)
        assert link.is_symlink()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert write(pipe) == "", "nothing but the file goes into what may be standard output"
    if command != "init":  # where the directory of the command is part of the file
        assert os.read(reader, 1 << 16) == real.read_bytes()
    os.close(reader)
    assert pipe.is_fifo() and not pipe.stat().st_mode & stat.S_IXUSR


def test_the_command(folder: Path, tmp_path: Path) -> None:
    write_tuned(tuned(folder, VIA), tmp_path / "tuned.yaml")
    run_command = [sys.executable, "-m", "autotune", "export"]
    out = tmp_path / "run it.sh"
    done = subprocess.run(
        [*run_command, str(tmp_path), "--format", "shell", "-o", str(out)],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert out.stat().st_mode & stat.S_IXUSR
    printed = subprocess.run(
        [*run_command, str(tmp_path / "tuned.yaml")],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=60,
    )
    (tmp_path / "again.yaml").write_text(printed.stdout)
    assert load_tuned(tmp_path / "again.yaml") == load_tuned(tmp_path)
    wrong = subprocess.run(
        [*run_command, str(tmp_path), "--format", "shel"],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert wrong.returncode == 2 and "did you mean 'shell'" in wrong.stderr
