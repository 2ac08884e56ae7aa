"""`autotune export --format diff`: the forward region under autocast, with gradient scaling for
float16.
"""

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from patch_sources import call, changed_lines, library, patched, refusals, training, tuned

from autotune.export.patch.libraries import option
from autotune.export.patch.plan import make_patch
from autotune.export.tuned import TunedKnob
from autotune_spaces.sites import BackwardSite, BuiltSite, ForwardSite, JobSites

LOOP = """import torch
from torch import nn


def train(model, loader, optimizer):
    for x, y in loader:
{body}


train(model, loader, optimizer)
"""
OUTER = "train(model, loader, optimizer)"


def source(body: str) -> str:
    return LOOP.format(body=textwrap.indent(textwrap.dedent(body).strip("\n"), "        "))


def loop_of(text: str) -> str:
    return textwrap.dedent(text.partition("for x, y in loader:\n")[2].partition("\n\n\ntrain(")[0])


REGIONS = [
    (  # the usual loop; code before the model call stays outside
        """
        x, y = x.to(device), y.to(device)  # move
        optimizer.zero_grad()
        # forward
        out = model(x)
        loss = criterion(out, y)  # cross entropy

        loss.backward()
        optimizer.step()
        """,
        """
        x, y = x.to(device), y.to(device)  # move
        optimizer.zero_grad()
        # forward
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            out = model(x)
            loss = criterion(out, y)  # cross entropy

        loss.backward()
        optimizer.step()
        """,
    ),
    (  # PyTorch's tutorial: zero_grad between forward and backward
        """
        loss = criterion(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        """,
        """
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            loss = criterion(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        """,
    ),
    (  # the model is called in an inner block: all of that block's statement
        """
        if mixup:
            loss = mixed(model(x), y)
        else:
            loss = plain(x, y)
        loss = loss / 4
        loss.backward()
        """,
        """
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            if mixup:
                loss = mixed(model(x), y)
            else:
                loss = plain(x, y)
            loss = loss / 4
        loss.backward()
        """,
    ),
    (  # backward is the first statement in one branch of an if
        """
        loss = criterion(model(x), y)
        if retain:
            loss.backward(retain_graph=True)
        else:
            other.backward()
        """,
        """
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            loss = criterion(model(x), y)
        if retain:
            loss.backward(retain_graph=True)
        else:
            other.backward()
        """,
    ),
    # code between the finished loss and its backward stays outside (nanoGPT fetches the next batch
    # there)
    (
        """
        with ctx:
            logits, loss = model(x, y)
            loss /= 4
        x, y = get_batch("train")
        loss.backward()
        """,
        """
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            with ctx:
                logits, loss = model(x, y)
                loss /= 4
        x, y = get_batch("train")
        loss.backward()
        """,
    ),
    (
        """
        with ctx:
            logits, loss = model(x, y)
            loss /= 4
        x, y = get_batch("train")
        scaler.scale(loss).backward()
        """,
        """
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            with ctx:
                logits, loss = model(x, y)
                loss /= 4
        x, y = get_batch("train")
        scaler.scale(loss).backward()
        """,
    ),
    # lines broken inside brackets or by a backslash, and multi-line strings, keep their text
    (
        """
        loss = criterion(model(x),
                         y) + \\
            0
        text = '''a
          b'''
        loss = loss + len(text)
        loss.backward()
        """,
        """
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            loss = criterion(model(x),
                             y) + \\
            0
            text = '''a
          b'''
            loss = loss + len(text)
        loss.backward()
        """,
    ),
]


@pytest.mark.parametrize(("before", "after"), REGIONS)
def test_regions(tmp_path: Path, before: str, after: str) -> None:
    text = source(before)
    forms = ("loss.backward(retain_graph=True)", "scaler.scale(loss).backward()")
    backward = next((form for form in forms if form in text), "loss.backward()")
    found = training(text, "model(x, y)" if "model(x, y)" in text else "model(x)", backward, OUTER)
    assert loop_of(patched(tmp_path, text, found, {"amp_dtype": "bfloat16"})) == textwrap.dedent(
        after
    ).strip("\n")


def test_forward_in_a_function_of_its_own(tmp_path: Path) -> None:
    text = """import torch


def forward(model, x, y):
    out = model(x)
    return criterion(out, y)


for x, y in loader:
    loss = forward(model, x, y)
    loss.backward()
"""
    forwards = (
        ForwardSite(
            "Net",
            (call(text, "model(x)", binding="model"), call(text, "forward(model, x, y)", which=1)),
            (),
        ),
    )
    found = JobSites(
        "train.py",
        forwards=forwards,
        backwards=(BackwardSite((call(text, "loss.backward()"),), 0),),
    )
    after = patched(tmp_path, text, found, {"amp_dtype": "bfloat16"})
    assert changed_lines(text, after) == [
        'with torch.autocast(device_type="cpu", dtype=torch.bfloat16):',
        "loss = forward(model, x, y)",
    ]


def test_two_regions_of_a_gan(tmp_path: Path) -> None:
    text = source("""
        real = D(x)
        d_loss = bce(real, 1)
        d_loss.backward()
        d_opt.step()
        g_loss = bce(D(G(z)), 1)
        g_loss.backward()
        """)
    outer = call(text, OUTER)
    forwards = (
        ForwardSite("D", (call(text, "D(x)"), outer)),
        ForwardSite("G", (call(text, "G(z)"), outer)),
        ForwardSite("D", (call(text, "D(G(z))"), outer)),
    )
    backwards = (
        BackwardSite((call(text, "d_loss.backward()"), outer), 0),
        BackwardSite((call(text, "g_loss.backward()"), outer), 1),
    )
    found = JobSites("train.py", forwards=forwards, backwards=backwards)
    after = loop_of(patched(tmp_path, text, found, {"amp_dtype": "bfloat16"}))
    autocast = 'with torch.autocast(device_type="cpu", dtype=torch.bfloat16):\n'
    assert (
        after == f"{autocast}    real = D(x)\n    d_loss = bce(real,"
        f" 1)\nd_loss.backward()\nd_opt.step()\n{autocast}    g_loss = bce(D(G(z)),"
        " 1)\ng_loss.backward()"
    )
    assert (
        "several places"
        in refusals(tmp_path, text, found, {"amp_dtype": "float16"}, "cuda")["amp_dtype"]
    )


def test_float16_with_clipping(tmp_path: Path) -> None:
    text = source("""
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # grads
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        """)
    found = training(text, "model(x)", "loss.backward()", OUTER, step="optimizer.step()")
    after = patched(tmp_path, text, found, {"amp_dtype": "float16"}, "cuda")
    assert 'from torch import nn\n\nscaler = torch.amp.GradScaler("cuda")\n\n\ndef train' in after
    assert loop_of(after) == textwrap.dedent("""\
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # grads
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()""")


def test_float16_with_clipping_between_two_steps(tmp_path: Path) -> None:
    text = source(
        "loss = model(x)\nloss.backward()\nactor.step()\nclip_grad_norm_(p, 1)\ncritic.step()\n"
    )
    found = training(text, "model(x)", "loss.backward()", OUTER, step="actor.step()")
    found = replace(found, steps=(*found.steps, call(text, "critic.step()")))
    after = loop_of(patched(tmp_path, text, found, {"amp_dtype": "float16"}, "cuda"))
    assert after.splitlines()[-7:] == [
        "scaler.scale(loss).backward()",
        "scaler.unscale_(actor)",
        "scaler.unscale_(critic)",
        "scaler.step(actor)",
        "clip_grad_norm_(p, 1)",
        "scaler.step(critic)",
        "scaler.update()",
    ]


def test_float16_without_anything_between(tmp_path: Path) -> None:
    text = source(
        "scaler = 1\nloss = model(x)\nloss.backward(retain_graph=True)\nself.opt.step()\n"
    )
    found = training(
        text, "model(x)", "loss.backward(retain_graph=True)", OUTER, step="self.opt.step()"
    )
    after = loop_of(patched(tmp_path, text, found, {"amp_dtype": "float16"}, "cuda"))
    assert after.splitlines()[3:] == [
        "grad_scaler.scale(loss).backward(retain_graph=True)",
        "grad_scaler.step(self.opt)",
        "grad_scaler.update()",
    ]


@pytest.mark.parametrize(
    ("body", "backward", "step", "reason"),
    [
        (
            "loss = model(x)\nengine.backward(loss)\noptimizer.step()",
            "engine.backward(loss)",
            "optimizer.step()",
            "needs `loss.backward()` as a statement",
        ),
        (
            "loss = model(x)\nloss.backward()\nif n % 4 == 0:\n    optimizer.step()",
            "loss.backward()",
            "optimizer.step()",
            "in the same block as backward",
        ),
        (
            "loss = model(x)\nloss.backward()\noptimizer.step(closure)",
            "loss.backward()",
            "optimizer.step(closure)",
            "in the same block as backward",
        ),
        (
            "loss = model(x)\nif a:\n    loss.backward()\noptimizer.step()",
            "loss.backward()",
            "optimizer.step()",
            "as a statement in the forward's block",
        ),
        (
            "loss = model(x)\nloss.backward()\nopt.step()",
            "loss.backward()",
            "",
            "did not record where the optimizer steps",
        ),
        (
            "loss = model(x)\nloss.backward()\nif not finite(model):\n    continue\noptimizer.step()",
            "loss.backward()",
            "optimizer.step()",
            "may be skipped, and the gradient scaler has to know when",
        ),
        (
            "loss = model(x)\nloss.backward()\nif late:\n    penalty(model).backward()\n"
            "optimizer.step()",
            "loss.backward()",
            "optimizer.step()",
            "is not the only backward() there",
        ),
    ],
)
def test_float16_that_is_refused(
    tmp_path: Path, body: str, backward: str, step: str, reason: str
) -> None:
    text = source(body)
    found = training(text, "model(x)", backward, OUTER, step=step)
    assert reason in refusals(tmp_path, text, found, {"amp_dtype": "float16"}, "cuda")["amp_dtype"]


@pytest.mark.parametrize(
    ("body", "backward", "reason"),
    [
        (
            "z = model(x).backward()",
            "model(x).backward()",
            "are one statement at train.py:7; give the loss a line of its own",
        ),
        (
            "if a:\n    pass\nelse: criterion(model(x), y).backward()",
            "criterion(model(x), y).backward()",
            "are one statement at train.py:9; give the loss",
        ),
        (
            "out = model(x)\nif a:\n    loss = f(out)\n    loss.backward()",
            "loss.backward()",
            "are in different blocks (train.py:7 and train.py:10)",
        ),
        ("loss.backward()\nloss = model(x)", "loss.backward()", "spans loop iterations"),
        (
            "out = model(x)\ncriterion(out, y).backward()",
            "criterion(out, y).backward()",
            "computed in the line of its backward, at train.py:8; give it a line of its own",
        ),
        (
            "out = model(x)\nloss = f(out, y); loss.backward()",
            "loss.backward()",
            "computed in the line of its backward, at train.py:8",
        ),
    ],
)
def test_regions_that_are_refused(tmp_path: Path, body: str, backward: str, reason: str) -> None:
    text = source(body)
    assert (
        reason
        in refusals(
            tmp_path, text, training(text, "model(x)", backward, OUTER), {"amp_dtype": "bfloat16"}
        )["amp_dtype"]
    )


@pytest.mark.parametrize(
    "line",
    [
        "(loss / len(loader)).backward()",
        "loss.backward(gradient=torch.tensor(1.0))",
        "optimizer.zero_grad(set_to_none=True); loss.backward()",
    ],
)
def test_a_line_of_the_backward_that_computes_nothing_in_the_region(
    tmp_path: Path, line: str
) -> None:
    text = source(f"loss = criterion(model(x), y)\n{line}")
    found = training(text, "model(x)", line.rpartition("; ")[2], OUTER)
    header = 'with torch.autocast(device_type="cpu", dtype=torch.bfloat16):'
    assert loop_of(patched(tmp_path, text, found, {"amp_dtype": "bfloat16"})) == (
        f"{header}\n    loss = criterion(model(x), y)\n{line}"
    )


def test_a_generator_that_a_loop_runs_is_no_changed_file(tmp_path: Path) -> None:
    source = (
        "import torch\n\n\ndef steps():\n    for x in data:\n        yield model(x).sum()\n\n\nfor"
        " loss in steps():\n    loss.backward()\n"
    )
    loop = call(source, "for loss in steps():\n    loss.backward()")
    sites = training(source, "model(x)", "loss.backward()")
    (forward,) = sites.forwards
    sites = replace(sites, forwards=(replace(forward, stack=(*forward.stack, loop)),))
    assert (
        "train.py:9 runs it implicitly, with no call to edit"
        in refusals(tmp_path, source, sites, {"amp_dtype": "bfloat16"})["amp_dtype"]
    )


def test_a_second_backward_of_no_call_of_the_model_is_not_left_unscaled(tmp_path: Path) -> None:
    text = (
        "import torch\nfor x, y in data:\n    loss = model(x).sum()\n    loss.backward()\n"
        "    second = other(y)\n    second.backward()\n    optimizer.step()\n"
    )
    sites = training(text, "model(x)", "loss.backward()", step="optimizer.step()")
    more = BackwardSite((call(text, "second.backward()"),), -1)
    sites = replace(sites, backwards=(*sites.backwards, more))
    refused = refusals(tmp_path, text, sites, {"amp_dtype": "float16"}, "cuda")
    assert "backward() is called in several places" in refused["amp_dtype"]


def test_a_librarys_batch_size_comes_with_its_learning_rate(tmp_path: Path) -> None:
    text = "import torch\ntrainer.train()\n"
    built = library("DataLoader(dataset, **params)", "transformers/trainer.py")
    found = JobSites("train.py", BuiltSite(built, "torch.utils.data.DataLoader", (), 0))
    (tmp_path / "train.py").write_text(text)
    size = TunedKnob(64, 16, None, {"lr_scaling": "linear"})
    config = replace(tuned(tmp_path, found, {}), knobs={"batch_size": size})
    (missing,) = make_patch(config).unwritten
    assert "per_device_train_batch_size=64" in missing.instead and '"lr"' in missing.instead
    settings = {"compile_mode": "default", "optimizer_impl": "fused"}
    config = tuned(tmp_path, found, settings, "cuda")
    assert "TF32" in option(config, "compile_mode", built.file)
    assert "adamw_torch_fused" in option(config, "optimizer_impl", built.file)
    config = tuned(tmp_path, found, {"optimizer_impl": "foreach", "amp_dtype": "float16"})
    assert not option(config, "optimizer_impl", built.file)
    accelerate = option(config, "amp_dtype", "accelerate/accelerator.py")
    assert accelerate == 'Accelerator(mixed_precision="fp16")'


def test_a_librarys_loop_is_refused_with_its_own_option(tmp_path: Path) -> None:
    text = "import torch\ntrainer = Trainer(model)\ntrainer.train()\n"
    outer = call(text, "trainer.train()")
    inner = library("model(**inputs)", "transformers/trainer.py")
    gradient = library("loss.backward()", "lightning/pytorch/strategy.py")
    found = JobSites(
        "train.py",
        forwards=(ForwardSite("Bert", (inner, outer)),),
        backwards=(BackwardSite((gradient, outer), 0),),
    )
    assert (
        "is in the library transformers"
        in refusals(tmp_path, text, found, {"amp_dtype": "bfloat16"})["amp_dtype"]
    )
    (missing,) = make_patch(tuned(tmp_path, found, {"amp_dtype": "float16"}, "cuda")).unwritten
    assert missing.instead == "its own option: TrainingArguments(bf16=False, fp16=True)"
    mine = replace(found, forwards=(ForwardSite("Bert", (outer,)),))
    (missing,) = make_patch(tuned(tmp_path, mine, {"amp_dtype": "bfloat16"})).unwritten
    assert "`loss.backward()` is in the library lightning" in missing.reason
    assert missing.instead == "its own option: Trainer(precision='bf16-mixed')"
    nobodys = replace(mine, backwards=(BackwardSite((outer,), 0),))
    assert (
        "no function in your source calls both"
        in refusals(tmp_path, text, nobodys, {"amp_dtype": "bfloat16"})["amp_dtype"]
    )
    assert (
        "no call of the model followed by a backward"
        in refusals(tmp_path, text, JobSites(), {"amp_dtype": "bfloat16"})["amp_dtype"]
    )


HELPER = """import torch


def compute(model, x):
{before}
    return model(x).sum()


def train(model, loader):
    for x in loader:
        loss = compute(model, x)
        loss.backward()


train(model, loader)
"""


def test_what_a_helper_does_before_it_calls_the_model_is_said(tmp_path: Path) -> None:
    def of(before: str) -> tuple[str, JobSites]:
        text = HELPER.format(before=textwrap.indent(before, "    "))
        outer = call(text, "train(model, loader)", which=1)
        inner = call(text, "compute(model, x)", which=1)
        training_call = call(text, "model(x)", which=text.count("model(x)") - 1)
        return text, JobSites(
            "train.py",
            forwards=(ForwardSite("Net", (training_call, inner, outer)),),
            backwards=(BackwardSite((call(text, "loss.backward()"), outer), 0),),
        )

    text, sites = of("x = encode(x)")
    (tmp_path / "train.py").write_text(text)
    (written,) = make_patch(tuned(tmp_path, sites, {"amp_dtype": "bfloat16"})).written
    assert "all of compute (train.py:6) runs under autocast" in " ".join(written.change.notes)
    assert "where the same lines evaluate, they do so under autocast, too" in " ".join(
        written.change.notes
    )
    text, sites = of("with torch.no_grad():\n    target = model(x)")
    reason = refusals(tmp_path, text, sites, {"amp_dtype": "bfloat16"})["amp_dtype"]
    assert "computes without gradients before it calls the model" in reason


def test_a_loss_made_in_the_line_of_its_backward_by_an_operator(tmp_path: Path) -> None:
    for line in ("(out @ w).mean().backward()", "(-(out.log() * y).sum()).backward()"):
        text = source(f"out = model(x)\n{line}\n")
        found = training(text, "model(x)", line, OUTER)
        reason = refusals(tmp_path, text, found, {"amp_dtype": "bfloat16"})["amp_dtype"]
        assert "computed in the line of its backward" in reason


CALLED = """import torch


class Pair:
    def backward_D(self):
{below}
        self.loss.backward()

    def step(self, x):
        self.fake = self.G(x)
        self.optimizer.zero_grad()
        self.backward_D()


pair.step(x)
"""


@pytest.mark.parametrize(
    ("below", "computes"),
    [
        ("score = self.D(self.fake.detach())\nself.loss = self.criterion(score)", True),
        ("if self.fast:\n    self.loss = self.fake @ self.fake", True),
        ("start = time.perf_counter()\nprint(self.criterion(self.fake))", True),
        (
            "start = time.perf_counter()\nself.optimizer.zero_grad()\nself.loss = (self.loss_a + self.loss_b) / len(x)",
            False,
        ),
    ],
)
def test_a_function_that_computes_the_loss_and_calls_its_backward(
    tmp_path: Path, below: str, computes: bool
) -> None:
    text = CALLED.format(below=textwrap.indent(below, "        "))
    outer = call(text, "pair.step(x)")
    forward = ForwardSite("G", (call(text, "self.G(x)"), outer))
    backward = (call(text, "self.loss.backward()"), call(text, "self.backward_D()"), outer)
    found = JobSites("train.py", forwards=(forward,), backwards=(BackwardSite(backward, 0),))
    reasons = refusals(tmp_path, text, found, {"amp_dtype": "bfloat16"})
    said = "Pair.backward_D computes before its backward at train.py"
    assert (said in reasons.get("amp_dtype", "")) == computes
    if not computes:
        after = patched(tmp_path, text, found, {"amp_dtype": "bfloat16"})
        assert "float16):\n            self.fake = self.G(x)\n        self.optimizer" in after


TWO_LOSSES = """import torch

model, criterion = torch.nn.Linear(4, 4), torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.ones(2, 3, 4):
    out = model(x)
    first = criterion(out[:, :2], torch.zeros(3, 2))
    seen = torch.is_autocast_enabled("cpu")
    second = criterion(out @ out.T, torch.zeros(3, 3))
    optimizer.zero_grad()
    first.backward(retain_graph=True)
    second.backward()
    optimizer.step()
"""


def test_a_second_loss_of_the_same_forward_stays_in_its_region(tmp_path: Path) -> None:
    found = training(TWO_LOSSES, "model(x)", "first.backward(retain_graph=True)")
    more = BackwardSite((call(TWO_LOSSES, "second.backward()"),), -1)
    found = replace(found, backwards=(*found.backwards, more))
    after = patched(tmp_path, TWO_LOSSES, found, {"amp_dtype": "bfloat16"})
    assert "        second = criterion(out @ out.T, torch.zeros(3, 3))\n    optimizer" in after
    names: dict[str, object] = {}
    exec(after, names)  # raises if a loss has another dtype than its region
    assert names["seen"] is True
