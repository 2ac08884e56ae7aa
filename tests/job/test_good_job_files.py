"""How valid job files are read."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autotune.errors import AutotuneError, InputError
from autotune.job.command import VARIABLE, placeholders, redirected_output, shell_operator, split
from autotune.job.load import load_job
from autotune.job.schema import JobFile, json_schema
from autotune.job.spec import Budget, Constraints, Convergence, JobSpec, SideEffects, Tracking
from autotune.job.template import job_yaml, suggest_name
from autotune.job.yaml_lines import YamlMistake, parse_yaml

ROOT = Path(__file__).parents[2]
AUTOTUNE = str(Path(sys.executable).parent / "autotune")

FULL = """\
name: digits-cnn
command: python train.py --epochs 5 --out {trial_dir} --seed {seed}
workdir: src
env: {OMP_NUM_THREADS: 2, RATE: 1.10, MODE: on, PORT: 010, EMPTY: ""}
search_space:
  preset: quick
  num_workers: [0, 2]
  amp_dtype: [off, bfloat16]
  width: {via: "--width {}", values: [32, 64], default: 32}
objective: time_to_train
planned_steps: 20_000
constraints: {device_memory_fraction: 0.8, host_memory_gib: 16}
convergence: {tolerance: 2%, steps: 300}
budget: {minutes: 5, trials: 12}
executor: local
tracking: {uri: sqlite:///mlflow.db, experiment: digits}
traces: all
hang_timeout_s: 30
startup_timeout_s: 1e2
"""


def load(folder: Path, text: str) -> JobSpec:
    (folder / "job.yaml").write_text(text)
    return load_job(folder / "job.yaml", check=False)


def test_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    job = load(tmp_path, FULL)
    assert job.name == "digits-cnn"
    assert job.command == (
        "python",
        "train.py",
        "--epochs",
        "5",
        "--out",
        "{trial_dir}",
        "--seed",
        "{seed}",
    )
    assert job.workdir == tmp_path / "src"
    assert job.env == {
        "OMP_NUM_THREADS": "2",
        "RATE": "1.10",
        "MODE": "on",
        "PORT": "010",
        "EMPTY": "",
    }
    assert job.search_space.preset == "quick"
    assert job.search_space["num_workers"].values == (0, 2)
    assert job.search_space["amp_dtype"].values == ("off", "bfloat16")
    assert job.search_space["width"].values == (32, 64)
    assert (job.objective, job.planned_steps, job.traces) == ("time_to_train", 20_000, "all")
    assert job.constraints == Constraints(0.8, 16)
    assert job.convergence == Convergence(0.02, 300)
    assert job.budget == Budget(5, 12)
    assert job.executor.kind == "local"
    assert job.tracking == Tracking(f"sqlite:///{tmp_path}/mlflow.db", "digits")
    assert (job.hang_timeout_s, job.startup_timeout_s) == (30, 100)
    assert job.source == tmp_path / "job.yaml"


def test_everything_but_the_command_has_a_default(tmp_path: Path) -> None:
    folder = tmp_path / "my digits"
    folder.mkdir()
    job = load(folder, "command: python train.py\n")
    bare = JobSpec(
        "my-digits",
        ("python", "train.py"),
        folder,
        {},
        job.search_space,
        source=folder / "job.yaml",
    )
    assert job == bare
    assert job.search_space.preset == "auto"


def test_the_models_defaults_are_those_of_the_spec() -> None:
    parsed = JobFile(command="x")
    spec_defaults = {f.name: f.default for f in dataclasses.fields(JobSpec)}
    assert parsed.objective == (spec_defaults["objective"],)
    for name in ("price", "planned_steps", "traces", "hang_timeout_s", "startup_timeout_s"):
        assert getattr(parsed, name) == spec_defaults[name]
    for name in ("constraints", "convergence", "budget", "tracking"):
        assert getattr(parsed, name).model_dump() == dataclasses.asdict(spec_defaults[name])


@pytest.mark.parametrize(
    ("words", "objectives", "energy", "remembered"),
    [
        ("throughput", ("throughput", ""), False, True),
        ("[cost]\nprice: 2.5", ("cost", ""), False, True),
        ("energy", ("energy", ""), True, False),
        ("[throughput, energy]", ("throughput", "energy"), True, False),
    ],
)
def test_objectives(
    tmp_path: Path, words: str, objectives: tuple[str, str], energy: bool, remembered: bool
) -> None:
    job = load(tmp_path, f"command: python train.py\nobjective: {words}\n")
    assert (job.objective, job.second_objective) == objectives
    assert (job.reads_energy, job.remembered) == (energy, remembered)


def test_a_list_is_taken_word_by_word(tmp_path: Path) -> None:
    """As it is spelled."""
    job = load(tmp_path, "command: [python, t.py, 1.10, 007, 1e-5, 0x1F, 'a | b $HOME', ~/x]\n")
    assert job.command == ("python", "t.py", "1.10", "007", "1e-5", "0x1F", "a | b $HOME", "~/x")


def test_braces_that_are_no_placeholder_are_the_programs_own(tmp_path: Path) -> None:
    job = load(tmp_path, "command: python t.py --name '{epoch}-{val_loss}'\n")
    assert job.command[-1] == "{epoch}-{val_loss}"


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --workers $(( $(nproc) > 8 ? 8 : 4 ))",
        'nvidia-smi > gpu.txt; python train.py > "/dev/null"',
        "[[ a > b ]] && python train.py  # loss -> 0",
        "python train.py | tee -a /dev/null",
        "python - <<EOF\nprint(3 > 2)\nEOF",
    ],
)
def test_a_line_that_sends_no_output_of_the_job_to_a_file_is_taken(line: str) -> None:
    assert redirected_output(line) == ""


def test_a_shell_is_used_only_when_asked_for(tmp_path: Path) -> None:
    line = "cd sub && python train.py 2>&1 --a '> b' > {trial_dir}/log | tee /dev/null"
    job = load(tmp_path, f"command: {line}\nshell: true\n")
    assert job.command == ("/bin/sh", "-c", line)


def test_json_is_read_as_json_is_written() -> None:
    """JSON writes a character beyond 0xFFFF as two surrogates, and an undecodable byte of a file
    name as one.
    """
    data = {"name": "größe-训练-🚂", "🚂": ["\U0001f4a9", "a\udc80"]}
    assert parse_yaml(json.dumps(data)).data == data


@pytest.mark.parametrize("uri", ["none", "~"])
def test_tracking_can_be_left_out(uri: str, tmp_path: Path) -> None:
    assert (
        load(tmp_path, f"command: python train.py\ntracking: {{uri: {uri}}}\n").tracking.uri is None
    )


def test_paths_do_not_depend_on_where_autotune_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(tmp_path, "command: python train.py\ntracking: {uri: 'sqlite:///runs/m.db'}\n")
    monkeypatch.chdir("/")
    again = load_job(tmp_path / "job.yaml", check=False)
    assert dataclasses.replace(again, search_space=first.search_space) == first
    assert again.tracking.uri == f"sqlite:///{tmp_path}/runs/m.db"


def test_no_python_object_is_ever_built(tmp_path: Path) -> None:
    with pytest.raises(AutotuneError, match="plain data"):
        load(tmp_path, f"command: !!python/object/apply:os.mkdir ['{tmp_path}/made']\n")
    assert not (tmp_path / "made").exists()


def test_the_digest_follows_what_is_tuned_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    job = load(tmp_path, FULL)
    assert len(job.digest()) == 64
    same = {
        "name: digits-cnn": "name: other",
        "minutes: 5": "minutes: 50",
        "traces: all": "traces: none",
        "hang_timeout_s: 30": "hang_timeout_s: 31",
    }
    other = {
        "--epochs 5": "--epochs 6",
        "OMP_NUM_THREADS: 2": "OMP_NUM_THREADS: 1",
        "[0, 2]": "[0, 4]",
        "preset: quick": "preset: cpu",
        "[32, 64]": "[32, 128]",
        "--width {}": "--hidden {}",
        "time_to_train": "throughput",
        "2%": "3%",
        "0.8": "0.7",
        "20_000": "20_001",
    }
    for before, after in same.items():
        assert load(tmp_path, FULL.replace(before, after)).digest() == job.digest(), before
    for before, after in other.items():
        assert load(tmp_path, FULL.replace(before, after)).digest() != job.digest(), before


def test_the_digest_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    job = load(tmp_path, FULL)
    code = (
        f"from autotune.job.load import load_job; print(load_job({str(job.source)!r},"
        " check=False).digest())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    assert (
        subprocess.check_output(
            [sys.executable, "-c", code], text=True, env=env, timeout=60
        ).strip()
        == job.digest()
    )


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python train.py", ("python", "train.py")),
        (
            "python train.py --cfg '{\"a\": [1, 2]}'",
            ("python", "train.py", "--cfg", '{"a": [1, 2]}'),
        ),
        (
            "python train.py 'a && b' \"c | d\" e\\;f",
            ("python", "train.py", "a && b", "c | d", "e;f"),
        ),
        ("python -c 'import torch; print(1 > 0)'", ("python", "-c", "import torch; print(1 > 0)")),
        ("python train.py run.dir='${now:%Y}'", ("python", "train.py", "run.dir=${now:%Y}")),
        (
            "python train.py *.yaml '~/x' ~key a=~ #5",
            ("python", "train.py", "*.yaml", "~/x", "~key", "a=~", "#5"),
        ),
        (
            "python t.py \\\n --a \\\r\n 'b\\\nc' \"it's\\\n d\" \\\\ \\\n",
            ("python", "t.py", "--a", "b\\\nc", "it's d", "\\"),
        ),
    ],
)
def test_quoted_things_are_just_text(line: str, words: tuple[str, ...]) -> None:
    assert split(line) == words


def test_patterns_are_text_unless_a_shell_would_find_files(tmp_path: Path) -> None:
    for name in ("a.txt", "data/b.bin", "my file", "x", "layers=[1,2]", "[y]"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = ["*.txt", "data/*.bin", "?.txt", "[ab].txt", "my\\ f*", "'my 'f*", "?", f"{tmp_path}/*"]
    for word in found:
        with pytest.raises(ValueError, match="no shell reads it, so") as caught:
            split(f"python train.py {word} --x", tmp_path)
        assert f"'{word}' in the command" in str(caught.value)
        assert split(f"python train.py {word} --x") == split(f"python train.py {word} --x", None)
    text = (
        "'*.txt' \"*.txt\" \\*.txt *.csv --re=^a.*$ --data=*.txt layers=[1,2] '['y] {seed} **/*.c"
    )
    assert split(text, tmp_path) == split(text)


def test_whole_numbers_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    job = load(tmp_path, "command: python train.py\nplanned_steps: 1e4\nbudget: {trials: 20.0}\n")
    assert (job.planned_steps, job.budget.trials) == (10_000, 20)
    assert type(job.planned_steps) is type(job.budget.trials) is int


def test_only_names_in_braces_are_placeholders() -> None:
    command = ("x", "{seed}", "a{seed}b{trial_dir}", '{"seed": 1}', "${seed}", "{}", "{1}")
    assert placeholders(command) == ["seed", "trial_dir"]


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_words_survive_quoting(words: list[str]) -> None:
    import shlex

    assume(not VARIABLE.match(words[0]))  # refused, with a hint to use env
    line = shlex.join(words)
    assert shell_operator(line) == ""
    assert split(line) == tuple(words)


# --- anything at all ------------------------------------------------------------------------------

KEYS = st.sampled_from(
    [*JobFile.model_fields, "minutes", "uri", "num_workers", "preset", "tolerance", "", "x"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 10**20)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["auto", "off", "python t.py", "1%"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_mapping_gives_a_job_or_an_error_with_a_line(
    tmp_path: Path, data: dict[str, object]
) -> None:
    """No other exception, whatever the file contains."""
    try:
        load(tmp_path, yaml.safe_dump(data, allow_unicode=True))
    except AutotuneError as error:
        assert error.exit_code == 2
        assert "job.yaml" in str(error)


@given(st.text(st.sampled_from("command: -[]{}&*!|>%@`'\"#,?\n\t ab01.~<"), max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_yaml_or_a_mistake_with_a_line(text: str) -> None:
    try:
        parse_yaml(text)
    except YamlMistake as mistake:
        assert 1 <= mistake.line <= text.count("\n") + 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("1e-3", 0.001),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("3", 3),
        ("-7", -7),
        ("0x10", 16),
        ("20_000", 20000),
        ("010", 10),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("~", None),
        ("", None),
        ("'3'", "3"),
        ("1%", "1%"),
        ("_", "_"),
        ("1e5", 1e5),
        ("e5", "e5"),
        ("=", "="),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    read = parse_yaml(f"a: {text}\n").data["a"]
    assert (read, type(read)) == (value, type(value))


# --- schema and init ------------------------------------------------------------------------------


def test_the_page_on_job_files_is_current() -> None:
    from autotune.job.docs import main

    assert main(["--check", str(ROOT / "docs" / "job.md")]) == 0, "run `make docs`"


def test_the_schema_accepts_and_refuses_as_the_loader_does(tmp_path: Path) -> None:
    import jsonschema

    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(parse_yaml(FULL).data)
    for text in (
        "name: x",
        "command: 3",
        "command: x\nbuget: {}",
        "command: x\nbudget: {minutes: 0}",
        "command: x\ntraces: some",
    ):
        assert not validator.is_valid(parse_yaml(text).data), text


def test_every_key_is_described() -> None:
    schema = json_schema()
    for owner in (schema, *schema["$defs"].values()):
        for key, entry in owner["properties"].items():
            target = schema["$defs"][entry["$ref"].rpartition("/")[2]] if "$ref" in entry else entry
            assert target.get("description"), key


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [AUTOTUNE, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def test_init_writes_a_file_that_check_accepts(tmp_path: Path) -> None:
    (tmp_path / "train_resnet.py").touch()
    done = run(
        "init", "--", "python", "train_resnet.py", "--note", "it's {seed} & more", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "next: autotune check job.yaml" in done.stdout
    checked = run("check", "job.yaml", "--json", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    summary = json.loads(checked.stdout)
    assert summary["name"] == "train_resnet"
    assert summary["command"] == ["python", "train_resnet.py", "--note", "it's {seed} & more"]
    assert "num_workers" in [k["name"] for k in summary["knobs"]]
    assert "num_workers" in run("check", "job.yaml", cwd=tmp_path).stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job.yaml", "train_resnet.py"]


@pytest.mark.parametrize("name", ["08", "1e-4", "1_0"])
def test_a_name_that_yaml_takes_for_a_number_is_quoted(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "job.yaml").write_text(job_yaml(["echo", "hi"], name, name))
    read = load_job(tmp_path / "job.yaml")
    assert (read.name, read.workdir) == (name, tmp_path / name)


@pytest.mark.parametrize(
    "command",
    [
        "command: >\n  python train.py\n    --epochs 3\n    --lr 0.1\n",
        "command: |\n  python train.py\n    --epochs 3\n    --lr 0.1\n",
        "command: >\n  python train.py\n\n  --epochs 3\n  --lr 0.1\n",
        "command: |\n  python train.py \\\n  --epochs 3 \\\n  --lr 0.1\n",
    ],
)
def test_one_command_may_take_several_lines(command: str, tmp_path: Path) -> None:
    assert load(tmp_path, command).command == (
        *("python", "train.py", "--epochs", "3", "--lr", "0.1"),
    )


def test_templates_in_env_are_the_programs_own(tmp_path: Path) -> None:
    env = "env: {LOG: '{log_dir}/{speed}.txt', FORMAT: '{time} {level} {message}'}\n"
    job = load(tmp_path, "command: python train.py\n" + env)
    assert job.env == {"LOG": "{log_dir}/{speed}.txt", "FORMAT": "{time} {level} {message}"}


def test_init_wants_the_commands_words(tmp_path: Path) -> None:
    for command in ("python train.py --epochs 3", "FOO=1 python train.py"):
        refused = run("init", "--", command, cwd=tmp_path)
        assert refused.returncode == 2 and "leave out the quotes" in refused.stderr
    program = tmp_path / "my train"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert run("init", "--", str(program), cwd=tmp_path).returncode == 0


def test_init_replaces_a_file_only_when_told(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    refused = run("init", "--", "python", "train.py", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert run("init", "--force", "--", "python", "train.py", cwd=tmp_path).returncode == 0
    assert "train.py" in (tmp_path / "job.yaml").read_text()


def test_init_elsewhere_keeps_the_directory_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "train.py").touch()
    assert (
        run("init", "-o", "conf/tune.yaml", "--", "python", "train.py", cwd=tmp_path).returncode
        == 0
    )
    assert load_job(tmp_path / "conf" / "tune.yaml").workdir == tmp_path
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    assert (
        run("init", "-o", "link/job.yaml", "--", "python", "train.py", cwd=tmp_path).returncode == 0
    )
    assert load_job(tmp_path / "link" / "job.yaml").workdir == tmp_path


def test_init_puts_variables_before_the_command_where_they_belong(tmp_path: Path) -> None:
    """As typed in a shell: EPOCHS=3 python train_resnet.py."""
    (tmp_path / "train_resnet.py").touch()
    done = run(
        "init", "--", "EPOCHS=3", "NOTE=a: b", "python", "train_resnet.py", "x=1", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "next: autotune check job.yaml" in done.stdout
    job = load_job(tmp_path / "job.yaml")
    assert job.env == {"EPOCHS": "3", "NOTE": "a: b"}
    assert job.command == ("python", "train_resnet.py", "x=1")
    assert job.name == "train_resnet"
    assert run("init", "-o", "none.yaml", "--", "EPOCHS=3", cwd=tmp_path).returncode == 2


def test_init_says_at_once_what_would_not_run(tmp_path: Path) -> None:
    done = run("init", "--", "python", "trian.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "the script 'trian.py' does not exist" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--",),
        ("--", ""),
        ("--name", "a/b", "--", "python", "x.py"),
        ("-o", "no/where.yaml", "--", "python", "x.py"),
    ],
)
def test_init_refuses_what_makes_no_job(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert run("init", *arguments, cwd=tmp_path).returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_every_key_of_the_file_is_in_the_first_one(tmp_path: Path) -> None:
    """Uncommented, it is a complete and valid job file."""
    text = job_yaml(["python", "train.py"], "x")
    settings_only = [
        line
        for line in text.splitlines()
        if not line.startswith("# ") or line[2:].partition(":")[0] in JobFile.model_fields
    ]
    full = "\n".join(line.removeprefix("# ") for line in settings_only)
    shown = set(parse_yaml(full).data)
    assert set(JobFile.model_fields) - shown <= {"shell", "executor"}
    load(tmp_path, full.replace("env:", "env: {}"))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "digits"),
        (["python", "train_gpt.py"], "train_gpt"),
        (["torchrun", "-m", "pkg.train"], "digits"),
        (["python", "src/main.py"], "digits"),
    ],
)
def test_a_name_is_taken_from_what_tells_jobs_apart(
    command: list[str], name: str, tmp_path: Path
) -> None:
    (tmp_path / "digits").mkdir()
    assert suggest_name(command, tmp_path / "digits") == name


# --- side effects ---------------------------------------------------------------------------------


def test_side_effects_are_put_back_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: python train.py\n")
    assert load_job(tmp_path / "job.yaml", check=False).side_effects == SideEffects(
        put_back=True, keep=()
    )
    (tmp_path / "job.yaml").write_text(
        "command: python train.py\nside_effects: {put_back: false, keep: [data, '*.npy']}\n"
    )
    changed = load_job(tmp_path / "job.yaml", check=False)
    assert changed.side_effects == SideEffects(put_back=False, keep=("data", "*.npy"))
    (tmp_path / "job.yaml").write_text("command: python train.py\nside_effects: {keep: data}\n")
    with pytest.raises(InputError, match="side_effects.keep"):
        load_job(tmp_path / "job.yaml", check=False)
