"""tuned.yaml: it reads back as written, contains no secrets, and errors name their line."""

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from autotune.errors import InputError
from autotune.export.fingerprint import other_variables
from autotune.export.formats import FORMATS
from autotune.export.load import load_tuned
from autotune.export.tuned import (
    SPEED_VARIABLES,
    Provenance,
    TunedConfig,
    TunedKnob,
    build_tuned,
    to_yaml,
    write_tuned,
)
from autotune.job.package import JOB_CONFIG
from autotune.job.spec import ExecutorSpec, JobSpec
from autotune.results import (
    Confirmation,
    Interval,
    KnobGain,
    LossState,
    LossVerdict,
    Observation,
    Result,
    RunVerdict,
)
from autotune_spaces.base import SearchSpace
from autotune_spaces.facts import JobFacts, LoaderFacts, Machine
from autotune_spaces.knobs import create
from autotune_spaces.sites import ForwardSite, JobSites, SourceCall

MACHINE = Machine(2, 8.0, 1.0, "cpu", "Xeon", "2.13.0+cpu", "3.11.9", cpu_model="Xeon")
LOADER = LoaderFacts(
    "Digits", "train.py:9", "train.py:9#0", 32, 0, None, False, False, False, False, 10, 320, False
)
JOB = JobFacts(1, "cpu", LOADER, (), ())


def spec(
    tmp_path: Path,
    command: tuple[str, ...] = ("python", "train.py"),
    env: dict[str, str] | None = None,
) -> JobSpec:
    knobs = (
        create("num_workers"),
        create("batch_size", {"lr_scaling": "sqrt"}),
        create(
            "dtype", {"via": "--dtype {}", "default": "off", "numerics": "rounding"}, ("off", "on")
        ),
        create("width", {"via": "", "default": 8, "numerics": "statistical"}, (8, 16)),
    )
    return JobSpec("digits", command, tmp_path, env or {}, SearchSpace("custom", knobs))


def result(knobs: dict[str, object], verdict: RunVerdict = RunVerdict.TUNED) -> Result:
    from autotune.results import Anatomy

    anatomy = Anatomy({}, 0.1, 0.1, 0.1, 0.1, 320.0, 0.01, 0.1, 0.1, 60, 10)
    observation = Observation(
        MACHINE, JOB, anatomy, 0.01, None, "loader", "", {}, {"num_workers": 0}, {}
    )
    baseline = {"num_workers": 0, "batch_size": 32, "dtype": "off", "width": 8}
    gains = (
        KnobGain("num_workers", 2, Interval(1.4, 1.3, 1.5), True),
        KnobGain("pin_memory", True, Interval(1.0, 0.9, 1.1), False),
    )
    loss = LossVerdict(LossState.UNCHANGED, "inside the margin in all bins", 4, 240)
    return Result(
        "digits",
        verdict,
        "faster",
        Interval(1.5, 1.4, 1.6),
        loss,
        knobs,
        baseline,
        observation,
        None,
        gains,
        (),
        (),
        60.0,
        {},
    )  # type: ignore[arg-type]


AWKWARD = [
    "a b",
    "",
    "off",
    "Yes",
    "null",
    "1e-3",
    "1.10",
    "0x1F",
    "1_000",
    "12:30",
    "~",
    "- x",
    "#",
    "a: b",
    "é",
    "\n",
    '"',
    "'",
    "\\",
    "$HOME",
    "{a}",
    "*",
    "&x",
    "!x",
    "%",
    "@",
    "`",
    "\x7f",
    "\t",
    "\u2028",
    "😀",
    "\udc80",
    "=",
    "<<",
    ".",
    "-",
    "2026-01-02",
    "nan",
    ".inf",
    "\ufeff",
    "\x85",
]


def test_any_command_and_environment_survives(tmp_path: Path) -> None:
    tuned = TunedConfig(
        "x", ("python", *AWKWARD), tmp_path, {f"V{i}": word for i, word in enumerate(AWKWARD)}
    )
    text = to_yaml(tuned)
    path = tmp_path / "tuned.yaml"
    path.write_bytes(text.encode())
    assert load_tuned(path) == tuned
    # readers of YAML 1.1 read the same value
    assert yaml.safe_load(text)["command"] == list(tuned.command)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"schema_version: [{'x' * 30_000}]\n", "schema_version is ['xxx"),
        (
            f"schema_version: 2\nname: x\ncommand: [python]\nknobs: {{}}\n? {'y' * 30_000}\n: 1\n",
            "unknown key 'yyy",
        ),
    ],
)
def test_a_value_as_long_as_the_file_is_quoted_in_part(
    text: str, found: str, tmp_path: Path
) -> None:
    path = tmp_path / "tuned.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_tuned(path)
    assert found in str(caught.value) and len(str(caught.value)) < 2000


def test_any_number_survives(tmp_path: Path) -> None:
    """A learning rate of 3e-5 must not be rounded to four decimals, which would be 0: the launched
    job would train nothing.
    """
    for number in (
        3e-5,
        1e-8,
        0.123456789,
        1e22,
        1.5e300,
        5e-324,
        -2.5e-7,
        0.1,
        1.0,
        float("inf"),
        10**17,
    ):
        options = {"via": "--lr {}", "default": number, "numerics": "statistical"}
        tuned = TunedConfig(
            "x", ("python",), tmp_path, knobs={"lr": TunedKnob(number, number, None, options)}
        )
        text = to_yaml(tuned)
        (tmp_path / "tuned.yaml").write_text(text)
        assert load_tuned(tmp_path / "tuned.yaml") == tuned
        assert yaml.safe_load(text)["knobs"]["lr"]["value"] == number


def test_a_result_becomes_a_file_and_comes_back(tmp_path: Path) -> None:
    job = spec(tmp_path, ("python", "train.py", "--width", "{width}"), {"OMP_NUM_THREADS": "2"})
    tuned = build_tuned(
        result({"num_workers": 2, "batch_size": 64, "dtype": "on"}), job, tmp_path / "run"
    )
    assert tuned.knobs["num_workers"] == TunedKnob(2, 0, Interval(1.4, 1.3, 1.5), {})
    assert tuned.knobs["batch_size"].options["lr_scaling"] == "sqrt"
    assert tuned.knobs["dtype"].options["via"] == "--dtype {}"
    # an unchanged placeholder gets its own value
    assert tuned.command == ("python", "train.py", "--width", "8")
    assert tuned.provenance.machine == {
        "device": "cpu",
        "device_name": "Xeon",
        "cores": 2,
        "memory_gib": 8.0,
        "cpu_model": "Xeon",
        "torch_version": "2.13.0+cpu",
        "python_version": "3.11.9",
    }
    assert (tuned.provenance.loader_key, tuned.provenance.loss) == ("train.py:9#0", "unchanged")
    path = tmp_path / "tuned.yaml"
    write_tuned(tuned, path)
    assert load_tuned(path) == tuned == load_tuned(tmp_path)
    assert "1.50x faster (1.40 to 1.60)" in path.read_text()
    # includes the learning rate that the batch size was proven with
    assert 'group["lr"] *= (64 / 32) ** 0.5' in FORMATS["python"].write(load_tuned(path))


def test_where_a_submitted_job_ran_is_seen_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray deletes the directory there; the file comes back, with MLflow."""
    shipped = {"runtime_env": {"working_dir": "gcs://package.zip"}}
    monkeypatch.setenv(JOB_CONFIG, json.dumps(shipped))
    package = tmp_path / "_ray_pkg_0123"
    job = dataclasses.replace(
        spec(package / "code"), workdir=package / "code", source=package / "job.yaml"
    )
    home = tmp_path / "home"
    home.mkdir()
    write_tuned(build_tuned(result({"num_workers": 2}), job), home / "tuned.yaml")
    assert load_tuned(home).workdir == home / "code"


def test_variables_that_decide_how_fast_it_is_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch from another shell reports which of them differ."""
    found = {"OMP_NUM_THREADS": "4", "NCCL_DEBUG": "INFO", "NCCL_AUTH_TOKEN": "abcdef"}
    for name in [name for name in os.environ if SPEED_VARIABLES.fullmatch(name)]:
        monkeypatch.delenv(name)
    for name, value in {**found, "HOME": "/x"}.items():
        monkeypatch.setenv(name, value)
    tuned = build_tuned(result({"num_workers": 2}), spec(tmp_path))
    assert tuned.provenance.environment == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    write_tuned(tuned, tmp_path / "tuned.yaml")
    assert load_tuned(tmp_path) == tuned
    assert other_variables(tuned, found) == []
    assert other_variables(tuned, {"OMP_NUM_THREADS": "4", "LD_PRELOAD": "/x.so"}) == [
        "LD_PRELOAD: not set when tuned, /x.so here",
        "NCCL_DEBUG: INFO when tuned, not set here",
    ]
    own = dataclasses.replace(tuned, env={"NCCL_DEBUG": "WARN"})
    assert other_variables(own, {**found, **own.env}) == [], "the job file sets it"


def test_memory_is_that_of_the_tuned_job_where_it_takes_more(tmp_path: Path) -> None:
    """A Kubernetes Job is killed when it exceeds its memory, and additional workers need some."""
    found = result({"num_workers": 8})
    lean, full = (
        dataclasses.replace(found.observation.anatomy, peak_memory_gib=gib) for gib in (1.5, 6.0)
    )
    found = dataclasses.replace(
        found, observation=dataclasses.replace(found.observation, anatomy=lean)
    )
    assert build_tuned(found, spec(tmp_path)).provenance.footprint.host_memory_gib == 1.5
    confirmed = Confirmation({"num_workers": 8}, Interval(1.5, 1.4, 1.6), 5, True, "", lean, full)
    tuned = build_tuned(dataclasses.replace(found, confirmation=confirmed), spec(tmp_path))
    assert tuned.provenance.footprint.host_memory_gib == 6.0
    kept = dataclasses.replace(found, verdict="keep-baseline", knobs={}, confirmation=confirmed)
    assert build_tuned(kept, spec(tmp_path)).provenance.footprint.host_memory_gib == 1.5


def test_the_nodes_of_one_job_are_kept(tmp_path: Path) -> None:
    job = spec(tmp_path)
    assert build_tuned(result({"num_workers": 2}), job).provenance.footprint.nodes == 1
    spread = dataclasses.replace(job, executor=ExecutorSpec("ray", {"nodes_per_slot": 2}))
    assert build_tuned(result({"num_workers": 2}), spread).provenance.footprint.nodes == 2


def test_keep_what_you_have_is_a_file_too(tmp_path: Path) -> None:
    tuned = build_tuned(result({}, "keep-baseline"), spec(tmp_path))
    assert tuned.provenance.speedup is None
    text = to_yaml(tuned)
    assert "\nknobs: {}\n" in text and "keep your settings" in text
    write_tuned(tuned, tmp_path / "tuned.yaml")
    assert load_tuned(tmp_path / "tuned.yaml").knobs == {}


def test_secrets_stay_out(tmp_path: Path) -> None:
    env = {"HF_TOKEN": "hf_abcdef0123", "DATABASE": "postgresql://me:hunter2@host/x", "EPOCHS": "5"}
    job = spec(
        tmp_path,
        ("python", "train.py", "--api-key", "q1w2e3", "--url=https://x/?t=hf_abcdef0123"),
        env,
    )
    tuned = build_tuned(result({"num_workers": 2}), job)
    text = to_yaml(tuned)
    for secret in ("hf_abcdef0123", "hunter2", "q1w2e3"):
        assert secret not in text
    assert tuned.env == {"EPOCHS": "5"}
    assert tuned.env_from_launch == ("API_KEY", "DATABASE", "HF_TOKEN")
    assert tuned.command[2:] == ("--api-key", "${API_KEY}", "--url=https://x/?t=${HF_TOKEN}")


def test_secrets_in_urls_of_the_command_stay_out(tmp_path: Path) -> None:
    words = ("--uri", "https://me:hunter22@mlflow.corp", "--data=https://b.net/c?sv=1&sig=AbC")
    tuned = build_tuned(result({}), spec(tmp_path, ("python", "train.py", *words), {}))
    assert tuned.command[2:] == (
        "--uri",
        "https://me:${URL_SECRET}@mlflow.corp",
        "--data=https://b.net/c?sv=1&sig=${URL_SECRET_}",
    )
    assert tuned.env_from_launch == ("URL_SECRET", "URL_SECRET_")
    line = ("/bin/sh", "-c", "python train.py --uri 'https://me:hunter22@mlflow.corp'")
    text = to_yaml(build_tuned(result({}), spec(tmp_path, line, {})))
    assert "hunter22" not in text and "$URL_SECRET" in text


def test_what_surrounds_a_secret_in_a_url_stays(tmp_path: Path) -> None:
    line = "curl -so d https://h/d?token=abcdefgh; python t.py $(curl https://h/e?sig=ijklmnop)"
    tuned = build_tuned(result({}), spec(tmp_path, ("/bin/sh", "-c", line), {}))
    hidden = line.replace("abcdefgh", '"$URL_SECRET"').replace("ijklmnop", '"$URL_SECRET_"')
    assert tuned.command[2] == hidden
    words = ("python", "t.py", "docker://python:3.11@sha256:ab", "https://h/?token={trial_dir}")
    assert build_tuned(result({}), spec(tmp_path, words, {})).command == words


def test_a_variable_that_contains_a_secret_stays_out(tmp_path: Path) -> None:
    env = {
        "HF_TOKEN": "hf_abcdef0123",
        "GIT_CONFIG_VALUE_0": "Authorization: Bearer hf_abcdef0123",
        "TRAIN_FLAGS": "--hub-token=hf_9876543210 --epochs 3",
        "EPOCHS": "5",
    }
    tuned = build_tuned(result({}), spec(tmp_path, ("python", "train.py"), env))
    assert tuned.env == {"EPOCHS": "5"}
    assert tuned.env_from_launch == ("GIT_CONFIG_VALUE_0", "HF_TOKEN", "TRAIN_FLAGS")
    assert "hf_" not in to_yaml(tuned)


def test_the_same_settings_give_the_same_text(tmp_path: Path) -> None:
    one = build_tuned(result({"num_workers": 2}), spec(tmp_path))
    two = dataclasses.replace(
        one, knobs={"num_workers": TunedKnob(4, 0, one.knobs["num_workers"].gain, {})}
    )
    changed = [
        (a, b)
        for a, b in zip(to_yaml(one).splitlines(), to_yaml(two).splitlines(), strict=True)
        if a != b
    ]
    assert changed == [("    value: 2", "    value: 4")]


GOOD = to_yaml(
    TunedConfig(
        "x",
        ("python", "train.py"),
        Path("/tmp"),
        {},
        (),
        {"num_workers": TunedKnob(2, 0)},
        Provenance(),
    )
)


@pytest.mark.parametrize(
    ("old", "new", "found", "line_of"),
    [
        ("schema_version: 2", "schema_version: 9", "schema_version is 9", "schema_version"),
        ("schema_version: 2\n", "", "schema_version is missing", ""),
        ("  num_workers:", "  num_worker:", "unknown knob 'num_worker'", "num_worker:"),
        ("value: 2", "value: many", "num_workers: ", "value: many"),
        ("    value: 2\n", "", "has no value", "num_workers:"),
        ("command:\n", "comand:\n", "unknown key 'comand'", "comand:"),
        ("name: x", "name: [x]", "not a single value", "name: [x]"),
        ("name: x", "name: x: y", "not valid YAML", "name: x: y"),
        (
            "name: x",
            "name: !!python/object/apply:os.system [ls]",
            "only plain data is allowed",
            "name: !!",
        ),
        ("workdir: /tmp", "workdir: /tmp\nworkdir: /", "occurs again", "workdir: /\n"),
        ("env: {}", "env: {A: {b: c}}", "'A' is not a single value", "env:"),
        ("env: {}", 'env: {"A=B": 1}', "'A=B' is not a valid variable name", "env:"),
        ("env: {}", "env: {MY-VAR: 1}", "'MY-VAR' is not a valid variable name", "env:"),
        (
            "host_memory_gib: 0.0",
            "host_memory_gib: .nan",
            "'footprint' is malformed",
            "  footprint:",
        ),
        ("  reason: ", "  reason: [1] #", "'reason' is malformed", "  reason:"),
    ],
)
def test_mistakes_are_named_with_their_line(
    tmp_path: Path, old: str, new: str, found: str, line_of: str
) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new)
    path = tmp_path / "tuned.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_tuned(path)
    assert found in str(caught.value)
    if line_of:
        line = text[: text.index(line_of)].count("\n") + 1
        assert f"{path}:{line}" in str(caught.value) or f"tuned.yaml:{line}" in str(caught.value)
    assert caught.value.exit_code == 2 and "expected: " in str(caught.value)


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\ncommand: python train.py\n")
    with pytest.raises(InputError, match="this is a job file(.|\\n)*autotune run job.yaml"):
        load_tuned(tmp_path / "job.yaml")
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "empty.yaml").touch()
    with pytest.raises(InputError, match="empty.yaml:1: the file is empty"):
        load_tuned(tmp_path / "empty.yaml")
    with pytest.raises(InputError, match="record of a run(.|\\n)*give the run's directory"):
        load_tuned(tmp_path / "result.json")


def test_a_directory_of_somebody_unknown_is_no_crash(tmp_path: Path) -> None:
    text = GOOD.replace("workdir: /tmp", "workdir: ~no-such-user/x")
    (tmp_path / "tuned.yaml").write_text(text)
    assert load_tuned(tmp_path).workdir.name == "x"


def test_nearest_word(tmp_path: Path) -> None:
    (tmp_path / "tuned.yaml").write_text(GOOD.replace("  num_workers:", "  num_worker:"))
    with pytest.raises(InputError, match="did you mean 'num_workers'"):
        load_tuned(tmp_path)


def test_a_knob_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "tuned.yaml").write_text(GOOD.replace("  num_workers:", "  loader_magic:"))
    with pytest.raises(InputError, match="remove what another version .* wrote, or tune again"):
        load_tuned(tmp_path)


def test_no_file_and_unfinished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such file(.|\\n)*`autotune run job.yaml` creates one"):
        load_tuned(tmp_path / "none.yaml")
    (tmp_path / "autotune-runs" / "digits").mkdir(parents=True)
    with pytest.raises(InputError, match="autotune-runs/digits: no tuned.yaml in it"):
        load_tuned("digits")
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(InputError, match="has not finished"):
        load_tuned(tmp_path)


def test_a_run_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "autotune-runs" / "digits"
    run.mkdir(parents=True)
    (run / "tuned.yaml").write_text(GOOD)
    (run / "journal.jsonl").touch()
    (tmp_path / "digits").mkdir()  # the job's folder
    monkeypatch.chdir(tmp_path)
    assert load_tuned("digits") == load_tuned(run)
    with pytest.raises(InputError, match="no such file or run(.|\\n)*runs here: digits"):
        load_tuned("digitz")
    (tmp_path / "digits" / "tuned.yaml").write_text(GOOD.replace("name: x", "name: y"))
    assert load_tuned("digits").name == "y"


def test_a_line_for_a_shell_keeps_no_secret_either(tmp_path: Path) -> None:
    line = (
        "cd src && TOKEN_SECRET=hunter22 python train.py --api-key 'a b c' --api-key=other"
        " --hub-token $HUB | tee log"
    )
    tuned = build_tuned(
        result({}), spec(tmp_path, ("/bin/sh", "-c", line), {"HF_TOKEN": "hf_0123456789"})
    )
    assert tuned.env_from_launch == ("API_KEY", "API_KEY_", "HF_TOKEN", "TOKEN_SECRET")
    assert (
        tuned.command[2]
        == 'cd src && TOKEN_SECRET="$TOKEN_SECRET" python train.py --api-key "$API_KEY"'
        ' --api-key="$API_KEY_" --hub-token $HUB | tee log'
    )
    assert not {"hunter22", "a b c", "other", "hf_0123456789"} & set(
        to_yaml(tuned).replace('"', " ").split()
    )


def test_a_secret_in_a_line_for_a_shell_is_looked_up_by_the_shell(tmp_path: Path) -> None:
    line = """KEY_SECRET=hunter22; printf '%s\\n' hf_012345 "a hf_012345" 'it hf_012345' "$KEY_SECRET" """
    job = spec(tmp_path, ("env", "bash", "-ec", line), {"HF_TOKEN": "hf_012345"})
    tuned = build_tuned(result({}), job)
    assert tuned.env_from_launch == ("HF_TOKEN", "KEY_SECRET")
    assert not re.search("hf_012345|hunter22", to_yaml(tuned))
    env = {**os.environ, "HF_TOKEN": "$(x) 'y'", "KEY_SECRET": "a b"}
    done = subprocess.run(tuned.command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["$(x) 'y'", "a $(x) 'y'", "it $(x) 'y'", "a b"]


@pytest.mark.parametrize("shell", [False, True])
def test_two_secrets_are_two_variables(tmp_path: Path, shell: bool) -> None:
    words = ("--api-key", "first1", "--api-key=second2", "--pwd=third3", "--password", "fourth4")
    command = ("/bin/sh", "-c", " ".join(("train", *words))) if shell else ("train", *words)
    tuned = build_tuned(
        result({}), spec(tmp_path, command, {"API_KEY": "of the job", "PASSWORD": "fourth4"})
    )
    assert tuned.env_from_launch == ("API_KEY", "API_KEY_", "API_KEY__", "PASSWORD", "PWD_")
    found = re.findall(r"\$\{?(\w+)", " ".join(tuned.command))
    assert found == ["API_KEY_", "API_KEY__", "PWD_", "PASSWORD"]


def test_the_file_and_what_is_exported_from_it_round_alike(tmp_path: Path) -> None:
    speedup = Interval(1.86506, 1.1, 2.8)
    config = TunedConfig(
        "x",
        ("python", "train.py"),
        tmp_path,
        knobs={"num_workers": TunedKnob(2, 0, speedup)},
        provenance=Provenance(verdict="tuned", speedup=speedup),
    )
    write_tuned(config, tmp_path / "tuned.yaml")
    assert "1.87x faster" in (tmp_path / "tuned.yaml").read_text()
    script = FORMATS["shell"].write(load_tuned(tmp_path))
    assert "1.87x faster" in script and "1.87x by itself" in script


def test_a_script_does_not_carry_what_only_a_patch_needs(tmp_path: Path) -> None:
    """It passes the file in one variable of the environment, which has a limit of 128 KiB."""
    call = SourceCall("train.py", 7, 8, 7, 16, "model(x)", "main", True, "model")
    many = JobSites("train.py", forwards=(ForwardSite("Net", (call,) * 2000),))
    config = TunedConfig(
        "x",
        ("python", "train.py"),
        tmp_path,
        knobs={"gc": TunedKnob("freeze")},
        provenance=Provenance(verdict="tuned", sites=many),
    )
    assert len(to_yaml(config)) > 128 * 1024
    script = FORMATS["sbatch"].write(config)
    assert "gc:" in script and len(script) < 8 * 1024
