"""`autotune export --format diff`: arguments of the DataLoader and of the optimizer, however the
call is written.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patch_sources import (
    LOADER,
    call,
    changed_lines,
    library,
    loader,
    optimizer,
    patched,
    refusals,
    tuned,
)

from autotune.export.patch.plan import make_patch
from autotune_spaces.sites import BuiltSite, JobSites

HEAD = "import torch\nfrom torch.utils.data import DataLoader\n\n"

CALLS = [
    ("DataLoader(ds)", {"num_workers": 2}, "DataLoader(ds, num_workers=2)"),
    (
        "DataLoader(ds, shuffle=True)",
        {"num_workers": 4, "pin_memory": True},
        "DataLoader(ds, shuffle=True, num_workers=4, pin_memory=True)",
    ),
    ("DataLoader(ds, num_workers=8)", {"num_workers": 2}, "DataLoader(ds, num_workers=2)"),
    (
        "DataLoader(ds, 32, True, None, None, 8)",
        {"num_workers": 2},
        "DataLoader(ds, 32, True, None, None, 2)",
    ),
    (
        "DataLoader(ds, **options)",
        {"num_workers": 2, "prefetch_factor": 4},
        'DataLoader(ds, **{**options, "num_workers": 2, "prefetch_factor": 4})',
    ),
    (
        "DataLoader(ds, **a, shuffle=True, **(b or {}))",
        {"in_order": False},
        'DataLoader(ds, **{**a, **(b or {}), "in_order": False}, shuffle=True)',
    ),
    (
        "DataLoader(ds, **{'pin_memory': p})",
        {"num_workers": 2},
        "DataLoader(ds, **{'pin_memory': p, \"num_workers\": 2})",
    ),
    (
        "DataLoader(ds, num_workers=1, **a)",
        {"num_workers": 2},
        "DataLoader(ds, num_workers=2, **a)",
    ),
    (
        "DataLoader(dataset = ds,num_workers = 1)",
        {"num_workers": 2, "pin_memory": True},
        "DataLoader(dataset = ds,num_workers = 2, pin_memory=True)",
    ),
    # No workers: arguments for workers must go as well, or torch raises
    (
        "DataLoader(ds, num_workers=4, prefetch_factor=2, persistent_workers=True)",
        {"num_workers": 0},
        "DataLoader(ds, num_workers=0)",
    ),
    (
        "DataLoader(ds, prefetch_factor=args.p, num_workers=4, shuffle=True)",
        {"num_workers": 0},
        "DataLoader(ds, num_workers=0, shuffle=True)",
    ),
    (
        "DataLoader(ds, num_workers=4, timeout=60, multiprocessing_context='spawn')",
        {"num_workers": 0},
        "DataLoader(ds, num_workers=0)",
    ),
    (
        "DataLoader(ds, 32, True, None, None, 4, None, False, False, 60, f, ctx)",
        {"num_workers": 0},
        "DataLoader(ds, 32, True, None, None, 0, None, False, False, 0, f, None)",
    ),
    (
        "DataLoader(ds, **a)",
        {"num_workers": 0},
        (
            'DataLoader(ds, **{**a, "num_workers": 0, "prefetch_factor": None,'
            ' "persistent_workers": False, "timeout": 0, "multiprocessing_context": None})'
        ),
    ),
    (
        "DataLoader(\n    ds,\n    batch_size=32,  # of each rank\n    shuffle=True,  # last\n)",
        {"num_workers": 2},
        (
            "DataLoader(\n    ds,\n    batch_size=32,  # of each rank\n    shuffle=True,  # last\n "
            "   num_workers=2,\n)"
        ),
    ),
    (
        "DataLoader(\n    ds,\n    batch_size=32  # no comma\n)",
        {"num_workers": 2},
        "DataLoader(\n    ds,\n    batch_size=32,  # no comma\n    num_workers=2\n)",
    ),
    (
        "DataLoader(ds,\n           batch_size=32)",
        {"num_workers": 2},
        "DataLoader(ds,\n           batch_size=32,\n           num_workers=2)",
    ),
    ("DataLoader(\n    ds\n)", {"num_workers": 2}, "DataLoader(\n    ds,\n    num_workers=2\n)"),
    (
        "DataLoader(Data(\n    1), batch_size=8)",
        {"num_workers": 2},
        "DataLoader(Data(\n    1), batch_size=8, num_workers=2)",
    ),
]


@pytest.mark.parametrize(
    ("before", "knobs", "after"), CALLS, ids=[c[0][:40] + str(i) for i, c in enumerate(CALLS)]
)
def test_every_way_of_writing_the_call(
    tmp_path: Path, before: str, knobs: dict, after: str
) -> None:
    source = f"{HEAD}train = {before}  # the data\nuse(train)\n"
    assert patched(tmp_path, source, loader(source, before), knobs) == source.replace(before, after)


def test_without_workers_torch_takes_the_call(tmp_path: Path) -> None:
    before = (
        "DataLoader([1, 2], num_workers=4, prefetch_factor=4, persistent_workers=True, timeout=60,"
        " multiprocessing_context='spawn')"
    )
    after = patched(
        tmp_path,
        f"{HEAD}train = {before}\n",
        loader(f"{HEAD}train = {before}\n", before),
        {"num_workers": 0},
    )
    names: dict[str, Any] = {}
    exec(after, names)
    assert len(list(names["train"])) == 2


PARTIALS = [
    (
        "partial(DataLoader, batch_size=16)",
        "make(ds)",
        {"num_workers": 2, "batch_size": 32},
        "make(ds, num_workers=2, batch_size=32)",
    ),
    (
        "functools.partial(DataLoader, ds)",
        "make(16, True)",
        {"num_workers": 2, "batch_size": 32},
        "make(32, True, num_workers=2)",
    ),
]


WITHOUT_WORKERS = [
    (
        "make = partial(DataLoader, num_workers=2, prefetch_factor=4, persistent_workers=True)",
        "make(ds, shuffle=True)",
        LOADER,
        "torch.utils.data.DataLoader",
    ),
    (
        "class Fast(DataLoader):\n    def __init__(self, dataset, num_workers=2, prefetch_factor=4):\n"
        "        super().__init__(dataset, num_workers=num_workers, prefetch_factor=prefetch_factor)",
        "Fast(ds, prefetch_factor=8)",
        ("dataset", "num_workers", "prefetch_factor"),
        "__main__.Fast",
    ),
]


@pytest.mark.parametrize(("made", "before", "parameters", "kind"), WITHOUT_WORKERS)
def test_without_workers_no_default_of_the_jobs_own_needs_them(
    tmp_path: Path, made: str, before: str, parameters: tuple[str, ...], kind: str
) -> None:
    source = f"from functools import partial\n{HEAD}ds = [1, 2]\n{made}\ntrain = {before}\n"
    sites = JobSites("train.py", BuiltSite(call(source, before), kind, parameters))
    after = patched(tmp_path, source, sites, {"num_workers": 0})
    names: dict[str, Any] = {}
    exec(after, names)  # torch takes no prefetch_factor without workers
    assert (names["train"].num_workers, names["train"].prefetch_factor) == (0, None)
    assert len(list(names["train"])) == 2


def test_a_partials_foreach_does_not_meet_fused(tmp_path: Path) -> None:
    source = f"{HEAD}make = partial(Adam, foreach=True)\nopt = make(p)\n"
    sites = JobSites("train.py", optimizers=(optimizer(source, "make(p)"),))
    assert "opt = make(p, fused=True, foreach=None)\n" in patched(
        tmp_path, source, sites, {"optimizer_impl": "fused"}
    )


@pytest.mark.parametrize(("made", "before", "knobs", "after"), PARTIALS)
def test_what_a_partial_has_given_is_not_given_again(
    tmp_path: Path, made: str, before: str, knobs: dict, after: str
) -> None:
    source = f"{HEAD}make = {made}\ntrain = {before}\n"
    assert patched(tmp_path, source, loader(source, before), knobs) == source.replace(before, after)


def test_a_partial_that_gave_it_in_order_is_left_alone(tmp_path: Path) -> None:
    source = f"{HEAD}make = partial(DataLoader, ds, 16)\ntrain = make(shuffle=True)\n"
    assert (
        "no argument batch_size"
        in refusals(tmp_path, source, loader(source, "make(shuffle=True)"), {"batch_size": 32})[
            "batch_size"
        ]
    )
    source = source.replace("ds, 16", "*given")
    assert (
        "whose bound arguments are unclear"
        in refusals(tmp_path, source, loader(source, "make(shuffle=True)"), {"num_workers": 2})[
            "num_workers"
        ]
    )


def test_only_the_call_that_was_recorded(tmp_path: Path) -> None:
    source = (
        HEAD + "def main():\n    train, test = DataLoader(a), DataLoader(b)\n    more ="
        " [DataLoader(a)]\n"
    )
    after = patched(tmp_path, source, loader(source, "DataLoader(b)"), {"num_workers": 2})
    assert after == source.replace("DataLoader(b)", "DataLoader(b, num_workers=2)")
    third = JobSites(
        "train.py", BuiltSite(call(source, "DataLoader(a)", which=1), "DataLoader", LOADER)
    )
    assert "more = [DataLoader(a, num_workers=2)]" in patched(
        tmp_path, source, third, {"num_workers": 2}
    )


def test_a_call_in_parentheses_and_after_wide_characters(tmp_path: Path) -> None:
    source = HEAD + 'größe = "日本"; train = (DataLoader(ds, collate_fn=lambda b: "é"))\n'
    text = 'DataLoader(ds, collate_fn=lambda b: "é")'
    assert '(DataLoader(ds, collate_fn=lambda b: "é", num_workers=2))' in patched(
        tmp_path, source, loader(source, text), {"num_workers": 2}
    )


def test_classes_derived_from_dataloader(tmp_path: Path) -> None:
    source = HEAD + "train = GraphLoader(ds, 4)\n"
    forwards = loader(
        source, "GraphLoader(ds, 4)", parameters=("dataset", "batch_size", "follow", "**")
    )
    assert "GraphLoader(ds, 4, num_workers=2)" in patched(
        tmp_path, source, forwards, {"num_workers": 2}
    )
    narrow = loader(source, "GraphLoader(ds, 4)", parameters=("dataset", "batch_size"))
    assert refusals(tmp_path, source, narrow, {"num_workers": 2})["num_workers"].endswith(
        "takes no argument num_workers"
    )
    assert "GraphLoader(ds, 8)" in patched(tmp_path, source, narrow, {"batch_size": 8})


def test_a_class_that_gives_the_argument_itself(tmp_path: Path) -> None:
    source = (
        f"{HEAD}class Fast(DataLoader):\n    def __init__(self, dataset, **options):\n"
        "        super().__init__(dataset, num_workers=0, **options)\n\ntrain = Fast(ds)\n"
    )
    built = BuiltSite(call(source, "Fast(ds)"), "__main__.Fast", ("dataset", "**"))
    sites = JobSites("train.py", built)
    reasons = refusals(tmp_path, source, sites, {"num_workers": 2})
    assert reasons == {
        "num_workers": "the class Fast (train.py:4) passes num_workers to DataLoader itself: change"
        " it there"
    }
    [written] = make_patch(tuned(tmp_path, sites, {"pin_memory": True})).written
    assert (
        "__main__.Fast has to pass pin_memory on to torch's DataLoader" in written.change.notes[0]
    )


def test_the_batch_size_brings_its_learning_rate(tmp_path: Path) -> None:
    source = (
        HEAD + "train = DataLoader(ds, batch_size=args.batch)\nopt = torch.optim.Adam(params,"
        " lr=args.lr)\n"
    )
    sites = loader(
        source,
        "DataLoader(ds, batch_size=args.batch)",
        optimizers=(optimizer(source, "torch.optim.Adam(params, lr=args.lr)"),),
    )
    linear = patched(
        tmp_path, source, sites, {"batch_size": 64}, lr_scaling="linear", own_batch_size=16
    )
    assert changed_lines(source, linear) == [
        "train = DataLoader(ds, batch_size=64)",
        "opt = torch.optim.Adam(params, lr=args.lr * 4)",
    ]
    uneven = patched(
        tmp_path, source, sites, {"batch_size": 24}, lr_scaling="linear", own_batch_size=16
    )
    assert "lr=args.lr * (24 / 16))" in uneven
    root = patched(
        tmp_path, source, sites, {"batch_size": 32}, lr_scaling="sqrt", own_batch_size=16
    )
    assert "lr=args.lr * (32 / 16) ** 0.5)" in root
    assert "lr=args.lr)" in patched(tmp_path, source, sites, {"batch_size": 32}, lr_scaling="none")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Adam(p, lr=a + b)", "Adam(p, lr=(a + b) * 2)"),
        ("Adam(p, 1e-3 if a else 2e-3)", "Adam(p, (1e-3 if a else 2e-3) * 2)"),
        ("Adam(p)", "Adam(p, lr=0.1 * 2)"),  # torch's default, as seen in the run
    ],
)
def test_learning_rates_of_any_form(tmp_path: Path, before: str, after: str) -> None:
    source = f"{HEAD}train = DataLoader(ds, batch_size=16)\nopt = {before}\n"
    sites = loader(source, "DataLoader(ds, batch_size=16)", optimizers=(optimizer(source, before),))
    assert f"opt = {after}\n" in patched(
        tmp_path, source, sites, {"batch_size": 32}, lr_scaling="linear", own_batch_size=16
    )


def test_a_batch_size_is_not_written_without_its_learning_rate(tmp_path: Path) -> None:
    source = HEAD + "train = DataLoader(ds, batch_size=16)\nopt = Adam(p, **options)\n"
    hidden, many = (
        optimizer(source, "Adam(p, **options)"),
        optimizer(source, "Adam(p, **options)", None),
    )
    for built, reason in ((hidden, "may be among the call's **"), (many, "of their own")):
        sites = loader(source, "DataLoader(ds, batch_size=16)", optimizers=(built,))
        knobs = {"batch_size": 32, "num_workers": 2}
        assert (
            reason
            in refusals(tmp_path, source, sites, knobs, lr_scaling="linear", own_batch_size=16)[
                "batch_size"
            ]
        )
        after = patched(tmp_path, source, sites, knobs, lr_scaling="linear", own_batch_size=16)
        # the rest is written
        assert changed_lines(source, after) == [
            "train = DataLoader(ds, batch_size=16, num_workers=2)"
        ]


@pytest.mark.parametrize(
    ("size", "more", "shared"),
    [
        ("batch_size", "test = load(ds, 1)", True),
        ("batch_size // 2", "def evaluate():\n    test = load(ds, 1)", True),
        ("batch_size", "", False),
        ("SIZE", "test = load(ds, 1)", False),
    ],
)
def test_a_batch_size_that_a_function_is_given_for_several_loaders(
    tmp_path: Path, size: str, more: str, shared: bool
) -> None:
    made = f"DataLoader(data, batch_size={size})"
    source = (
        f"{HEAD}def load(data, batch_size):\n    return {made}\n\ntrain = load(ds, 16)\n{more}\n"
    )
    reasons = refusals(tmp_path, source, loader(source, made), {"batch_size": 32, "num_workers": 2})
    said = "load is given the batch size, and called at train.py:7 and train.py:"
    assert set(reasons) == ({"batch_size"} if shared else set())
    assert (said in reasons.get("batch_size", "")) == shared


def test_a_class_that_is_given_the_batch_size_of_several_loaders(tmp_path: Path) -> None:
    made = "DataLoader(data, batch_size)"
    source = (
        f"{HEAD}class Batches:\n    def __init__(self, data, batch_size):\n        self.all = {made}\n"
        "\ntrain, test = Batches(a, 16), Batches(b, 1)\n"
    )
    reasons = refusals(tmp_path, source, loader(source, made), {"batch_size": 32})
    assert "Batches is given the batch size" in reasons["batch_size"]


def test_optimizers_that_did_not_step_are_named(tmp_path: Path) -> None:
    source = (
        f"{HEAD}train = DataLoader(ds, batch_size=16)\nopt = Adam(p, lr=1)\nidle = Adam(q, lr=3)\n"
    )
    (tmp_path / "train.py").write_text(source)
    first, idle = optimizer(source, "Adam(p, lr=1)"), optimizer(source, "Adam(q, lr=3)")
    sites = loader(
        source, "DataLoader(ds, batch_size=16)", optimizers=(first, replace(idle, stepped=False))
    )
    rule = {"lr_scaling": "linear", "own_batch_size": 16}
    for knobs in ({"batch_size": 32}, {"optimizer_impl": "fused"}):
        [written] = make_patch(tuned(tmp_path, sites, knobs, **rule)).written
        named = [note.split()[3] for note in written.change.notes if "did not step" in note]
        assert named == ["train.py:6"]


@pytest.mark.parametrize(
    ("value", "before", "after"),
    [
        ("fused", "Adam(p, lr=1)", "Adam(p, lr=1, fused=True)"),
        ("fused", "Adam(w for w in p)", "Adam((w for w in p), fused=True)"),
        ("fused", "Adam(p, foreach=True, lr=1)", "Adam(p, lr=1, fused=True)"),
        ("foreach", "Adam(p, fused=args.fused)", "Adam(p, foreach=True)"),
        ("for-loop", "Adam(p, **o)", 'Adam(p, **{**o, "foreach": False, "fused": None})'),
    ],
)
def test_the_optimizers_implementation(tmp_path: Path, value: str, before: str, after: str) -> None:
    source = f"{HEAD}opt = {before}\n"
    sites = JobSites("train.py", optimizers=(optimizer(source, before),))
    assert f"opt = {after}\n" in patched(tmp_path, source, sites, {"optimizer_impl": value})


@pytest.mark.parametrize(("made", "place"), [("Loader(ds, 32)", 1), ("Loader(ds)", 0)])
def test_a_class_that_passes_its_arguments_on_may_have_it_by_position(
    made: str, place: int, tmp_path: Path
) -> None:
    source = f"{HEAD}loader = {made}\n"
    sites = loader(source, made, parameters=("*", "**"))
    after = [
        patched(tmp_path, source, sites, {knob: value})
        for knob, value in (("num_workers", 2), ("batch_size", 64))[: 2 - place]
    ]
    assert "num_workers=2" in after[0] and ("batch_size=64" in after[-1]) is (place == 0)
    if place:
        reason = refusals(tmp_path, source, sites, {"batch_size": 64})["batch_size"]
        assert "passed by position" in reason


def test_fused_sgd_is_not_written_beside_a_gradient_scaler(tmp_path: Path) -> None:
    source = f"{HEAD}opt = SGD(p, lr=1, momentum=0.9)\n"
    parameters = ("params", "lr", "momentum", "*", "foreach", "fused")
    site = replace(
        optimizer(source, "SGD(p, lr=1, momentum=0.9)"),
        kind="torch.optim.sgd.SGD",
        parameters=parameters,
    )
    (tmp_path / "train.py").write_text(source)
    for dtype, argument in (("bfloat16", "fused"), ("float16", "foreach")):
        knobs = {"optimizer_impl": "fused", "amp_dtype": dtype}
        patch = make_patch(tuned(tmp_path, JobSites("train.py", optimizers=(site,)), knobs, "cuda"))
        assert f"momentum=0.9, {argument}=True)" in patch.files["train.py"][1]
        [written] = patch.written
        assert any("foreach is written instead of fused" in n for n in written.change.notes) == (
            argument == "foreach"
        )


def test_lightnings_refusal_to_clip_beside_fused_is_told(tmp_path: Path) -> None:
    source = f"{HEAD}opt = Adam(p)\n"
    (tmp_path / "train.py").write_text(source)
    site = optimizer(source, "Adam(p)")
    for owner in ("lightning", "accelerate"):
        steps = (library("optimizer.step()", f"{owner}/optimizer.py"),)
        sites = JobSites("train.py", optimizers=(site,), steps=steps)
        [written] = make_patch(tuned(tmp_path, sites, {"optimizer_impl": "fused"})).written
        told = any("gradient_clip_val" in note for note in written.change.notes)
        assert told == (owner == "lightning")


def test_settings_of_several_kinds_share_one_expansion(tmp_path: Path) -> None:
    source = HEAD + "train = DataLoader(ds, **options)\n"
    after = patched(
        tmp_path,
        source,
        loader(source, "DataLoader(ds, **options)"),
        {"num_workers": 2, "batch_size": 8},
    )
    assert 'DataLoader(ds, **{**options, "num_workers": 2, "batch_size": 8})' in after


def test_an_optimizers_own_expression_is_named(tmp_path: Path) -> None:
    source = HEAD + "opt = Adam(p, fused=args.fused)\n"
    (tmp_path / "train.py").write_text(source)
    sites = JobSites("train.py", optimizers=(optimizer(source, "Adam(p, fused=args.fused)"),))
    [written] = make_patch(tuned(tmp_path, sites, {"optimizer_impl": "foreach"})).written
    assert written.change.notes[0] == (
        "the optimizer's fused replaces `args.fused`, which no longer has any effect there"
    )
    assert "load_state_dict(), set them again in its param_groups" in written.change.notes[1]


def test_one_call_for_two_optimizers_is_changed_once(tmp_path: Path) -> None:
    source = HEAD + "opts = [Adam(m.parameters()) for m in nets]\n"
    sites = JobSites("train.py", optimizers=(optimizer(source, "Adam(m.parameters())"),) * 2)
    assert "Adam(m.parameters(), fused=True)" in patched(
        tmp_path, source, sites, {"optimizer_impl": "fused"}
    )


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    source = HEAD + "train = DataLoader(ds, *rest)\n"
    reasons = refusals(
        tmp_path,
        source,
        loader(source, "DataLoader(ds, *rest)"),
        {"num_workers": 2, "prefetch_factor": 4},
    )
    assert reasons == dict.fromkeys(
        ("num_workers", "prefetch_factor"), "num_workers may be among *rest"
    )
    both = loader(source, "DataLoader(ds, *rest)", others=1)
    assert (
        "builds 2 DataLoaders" in refusals(tmp_path, source, both, {"batch_size": 2})["batch_size"]
    )
    assert (
        "did not record"
        in refusals(tmp_path, source, JobSites(), {"num_workers": 2})["num_workers"]
    )
    theirs = JobSites(
        "train.py",
        BuiltSite(
            library("DataLoader(dataset, **params)", "transformers/trainer.py"),
            "DataLoader",
            LOADER,
        ),
    )
    said = refusals(tmp_path, source, theirs, {"num_workers": 2})["num_workers"]
    assert "the library transformers (transformers/trainer.py:10), not in your own source" in said
    moved = loader("\n" + source, "DataLoader(ds, *rest)")
    assert (
        "train.py:5 has changed since the run"
        in refusals(tmp_path, source, moved, {"num_workers": 2})["num_workers"]
    )
    other = loader(source.replace("rest", "more"), "DataLoader(ds, *more)")
    assert (
        "`DataLoader(ds, *more)` was there"
        in refusals(tmp_path, source, other, {"num_workers": 2})["num_workers"]
    )
