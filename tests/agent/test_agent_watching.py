"""The watched window: what it records, at which line, and that it neither changes the job nor costs
time anywhere else.
"""

from __future__ import annotations

import gc
import sys
import threading
import time

import pytest
from tiers import slow
from tiny_tuner import CNN, Tuner, run_bare

from autotune.findings.sites import sites
from autotune_trials.agent.observers.sampler import stack_of
from autotune_trials.protocol.evidence import Calls, Evidence
from autotune_trials.protocol.messages import Hello, Record

LOOP = (
    CNN
    + """
import gc, os, tempfile, time
path = os.path.join(tempfile.gettempdir(), f"watched-{os.getpid()}")
before = None
count = 0
while count < 260:
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad(); loss.backward()
        optimizer.step()
        count += 1
        noise = torch.rand(2000)
        value = loss.item()
        copied = torch.tensor([value, 1.0, 2.0])
        if count % 10 == 0:
            with open(path, "w") as file:
                file.write("x" * 100)
                time.sleep(0.01)
        if count % 30 == 0:
            gc.collect()
        print(count, float(value).hex(), float(noise.sum()).hex(), f"{loss.detach():.3f}", flush=True)
if os.path.exists(path):
    os.remove(path)
untouched = [torch.Tensor.item, torch.Tensor.__bool__, torch.tensor, torch.rand, print, open, torch.save, gc.collect]
print([getattr(f, "__wrapped__", None) for f in untouched], "item" in vars(torch.Tensor), gc.callbacks)
"""
)


def watched(tuner: Tuner, source: str = LOOP, **config: object) -> Evidence:
    tuner.start(
        source,
        "profile",
        **{"steps": 6, "profile_steps": 3, "watch_steps": 60, "watch_seconds": 0.5, **config},
    )  # type: ignore[arg-type]
    assert isinstance(tuner.receive(), Hello)
    record = tuner.receive()
    assert isinstance(record, Record) and record.evidence is not None
    return record.evidence


def line_of(text: str, source: str = LOOP) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


def only(evidence: Evidence, kind: str, text: str) -> Calls:
    (calls,) = [c for c in evidence.calls if c.kind == kind and text in c.place.code]
    return calls


def test_calls_are_seen_at_their_line(tuner: Tuner) -> None:
    seen = watched(tuner)
    steps = len(seen.times_s)
    assert steps >= 60 and not seen.blind
    assert sum(map(sum, seen.phase_times_s.values())) == pytest.approx(sum(seen.times_s))
    item = only(seen, "item", "value = loss.item()")
    assert item.place.code == "value = loss.item()" and item.place.own and item.device == "cpu"
    assert steps - 1 <= item.count == len(item.iterations) <= steps and sum(
        item.each_s
    ) == pytest.approx(item.seconds)
    copied = only(seen, "tensor_from_array", "copied =")
    assert copied.nbytes == 12 * copied.count and copied.detail == "float32[3] of a list of 3"
    assert only(seen, "format", "print(count").count == only(seen, "print", "print(count").count
    written = only(seen, "file_write", "with open")
    gaps = {b - a for a, b in zip(written.iterations, written.iterations[1:])}
    assert gaps == {10} and written.lines == (line_of("with open"), line_of("time.sleep"))
    collected = only(seen, "gc_collect", "gc.collect()")
    assert sum(p.seconds for p in seen.pauses if p.generation == 2) == pytest.approx(
        collected.seconds, rel=0.3
    )
    assert not [c for c in seen.calls if "site-packages" in c.place.file]


LIBRARY = """
def step(loss):
    for name in ("a1", "a2", "b"):
        with open(name, "w") as file:
            file.write(str(loss.item()))
"""
WITH_LIBRARY = (
    CNN
    + """
import os, sys
folder = os.path.abspath("site-packages")
os.makedirs(folder)
sys.path.insert(0, folder)
with open("site-packages/library.py", "w") as file:
    file.write(LIBRARY)
import library
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for _ in range(8):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward()
        optimizer.step()
        library.step(loss)
        value = loss.item()
""".replace("LIBRARY", repr(LIBRARY))
)


def test_what_a_library_calls_is_told_from_what_the_job_calls(tuner: Tuner) -> None:
    seen = watched(tuner, WITH_LIBRARY, watch_steps=20)
    written = [c for c in seen.calls if c.kind == "file_write"]
    assert [c.detail for c in written] == ["open('a1', 'w')", "open('b', 'w')"], "numbers are one"
    assert {c.place.code for c in written} == {"library.step(loss)"}
    assert not any(c.direct for c in written)
    read = [(c.place.code, c.direct) for c in seen.calls if c.kind == "item"]
    assert sorted(read) == [("library.step(loss)", False), ("value = loss.item()", True)]


@pytest.mark.slow
def test_frames_show_where_the_time_goes(tuner: Tuner) -> None:
    seen = watched(tuner, watch_seconds=1.0)
    sleeping = [f for f in seen.frames if f.place.line == line_of("time.sleep")]
    stalls = only(seen, "file_write", "with open").count
    assert sum(f.seconds for f in sleeping) == pytest.approx(0.0101 * stalls, rel=0.25)
    assert {f.phase for f in sleeping} == {"other"}
    assert sum(f.seconds for f in seen.frames if f.phase != "away") == pytest.approx(
        sum(seen.times_s), rel=0.1
    )


@pytest.mark.slow
def test_the_job_computes_and_prints_what_it_does_alone(tuner: Tuner) -> None:
    bare = run_bare(tuner.directory, LOOP).splitlines()
    tuner.start(LOOP, "profile", steps=6, profile_steps=3, watch_steps=60, watch_seconds=0.3)
    assert isinstance(tuner.receive(), Hello)
    assert isinstance(tuner.receive(), Record)
    tuner.close_connection()  # the agent steps aside, and the job goes on to its end
    code, out, err = tuner.finish()
    assert code == 0, err
    assert out.splitlines()[:-1] == bare[:-1]
    assert out.splitlines()[-1].startswith(
        "[None, None, None, None, None, None, None, None] False ["
    )


@pytest.mark.slow
def test_a_job_that_ends_while_it_is_watched_leaves_what_was_seen(tuner: Tuner) -> None:
    seen = watched(tuner, source=LOOP.replace("count < 260", "count < 48"), watch_steps=1000)
    assert 30 < len(seen.times_s) < 60
    assert tuner.finish()[0] == 0


RAISING = LOOP.replace(
    "value = loss.item()",
    "value = loss.item()\n        try: out.item()\n        except RuntimeError: pass",
)


@pytest.mark.slow
def test_exceptions_pass_through(tuner: Tuner) -> None:
    assert only(watched(tuner, source=RAISING), "item", "value = loss.item()").count


SUBCLASS = LOOP.replace(
    "before = None",
    """
class Mine(torch.Tensor):
    asked = set()
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.asked.add(function)
        return super().__torch_function__(function, types, args, kwargs or {})
plain = torch.Tensor.item
""",
).replace(
    "value = loss.item()",
    "value = loss.item(); mine = torch.ones(1).as_subclass(Mine); mine.item(); assert plain in"
    " Mine.asked",
)


@pytest.mark.slow
def test_a_subclass_of_tensor_is_told_of_torchs_own_functions(tuner: Tuner) -> None:
    assert only(watched(tuner, source=SUBCLASS), "item", "value = loss.item()").count


MOVED = LOOP.replace(
    "noise = torch.rand(2000)",
    "noise = torch.rand(2000); noise.to('meta')\n        noise.sqrt().to('meta')\n"
    "        padded = torch.zeros(3000); padded[:2000] = noise; padded.to('meta')\n"
    "        torch.as_tensor(noise.cos(), device='meta')",
)


def test_what_is_made_on_the_host_and_moved_is_told_where_it_is_made(tuner: Tuner) -> None:
    seen = watched(tuner, source=MOVED)
    made = only(seen, "made_on_host", "noise = torch.rand")
    assert made.device == "meta" and made.nbytes == 8000 * made.count
    # what was computed or filled here; pinning what is made would not help
    transfers = sorted(seen.transfers, key=lambda transfer: transfer.place.line)
    assert [t.nbytes / made.count for t in transfers] == [8000, 12000, 8000]
    assert "noise.sqrt" in transfers[0].place.code and "padded" in transfers[1].place.code
    assert not [
        c for c in seen.calls if c.kind == "tensor_from_array" and "as_tensor" in c.place.code
    ]


COMPILED = LOOP.replace(
    "count = 0\n",
    """count = 0
def forward(x):
    return inner(x) + torch.zeros(4) + torch.tensor(1.0)
inner, model = model, torch.compile(forward, backend="eager")
""",
)


@pytest.mark.slow
def test_a_compiled_job_is_not_compiled_again(tuner: Tuner) -> None:
    seen = watched(tuner, source=COMPILED)
    assert "compiled" in seen.blind["copies"] and not [
        b for b in seen.breaks if b.kind == "recompile"
    ]
    assert only(seen, "item", "value = loss.item()").count


COMPILED_STEP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0); torch.set_num_threads(1)
loader = DataLoader(TensorDataset(torch.randn(256, 8), torch.randn(256, 1)), batch_size=16)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
@torch.compile(backend="eager")
def update():
    optimizer.step()
while True:
    for x, y in loader:
        optimizer.zero_grad(); (model(x) - y).pow(2).mean().backward()
        update()
"""


def test_a_break_where_our_hooks_are_called_is_none_of_the_jobs(tuner: Tuner) -> None:
    """Dynamo breaks its graph in ``optimizer.step`` because we listen to it."""
    assert [b for b in watched(tuner, source=COMPILED_STEP).breaks if b.kind == "break"] == []


EVALUATING = LOOP.replace(
    "while count < 260:\n",
    """while count < 260:
    model.eval()
    with torch.no_grad():
        model(data.tensors[0][:64]); gc.collect()
    model.train()
""",
).replace("        if count % 30 == 0:\n            gc.collect()\n", "")


def test_collections_outside_training_are_no_pauses_of_it(tuner: Tuner) -> None:
    seen = watched(tuner, source=EVALUATING)
    assert [c for c in seen.calls if c.kind == "gc_collect" and c.phase == "away"]
    assert not [p for p in seen.pauses if p.generation == 2]


READING = (
    CNN
    + """
losses = torch.zeros(400)
while True:
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad(); loss.backward()
        optimizer.step()
        total = sum([losses[i].item() for i in range(400)])
"""
)


def test_the_time_of_watching_calls_is_not_that_of_their_line(tuner: Tuner) -> None:
    """Noting a call takes several times as long as a small read."""
    seen = watched(tuner, source=READING)
    (read,) = sites(seen, ("item",))
    assert read.per_step == pytest.approx(400, rel=0.02)
    assert read.cost_s < 0.7 * sum(seen.phase_times_s["other"]) / len(seen.times_s)


def test_nothing_is_watched_where_time_is_taken(tuner: Tuner) -> None:
    tuner.start(LOOP, "fixed", steps=20)
    assert isinstance(tuner.receive(), Hello)
    record = tuner.receive()
    assert isinstance(record, Record) and record.evidence is None


def within(stacks: list, name: str) -> bool:
    return any(code.co_name == name for stack in stacks for code, _ in stack)


def test_a_stack_is_read_while_its_thread_runs_on() -> None:
    """Takes thousands of samples of a thread that constantly enters and leaves frames and
    generators.
    """

    def numbers():
        yield from range(50)

    def deep(n: int) -> int:
        return sum(numbers()) if n == 0 else deep(n - 1)

    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            deep(20)

    usual = sys.getswitchinterval()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        sys.setswitchinterval(2e-5)
        assert thread.ident is not None
        seen, until = [], time.monotonic() + 30
        while len(seen) < 5000 or (not within(seen, "numbers") and time.monotonic() < until):
            seen += [stack_of(thread.ident) for _ in range(1000)]
    finally:
        sys.setswitchinterval(usual)
        stop.set()
        thread.join()
    outermost = {stack[-1][0].co_name for stack in seen}
    assert outermost == {"_bootstrap"}, "whole stacks, always"
    assert within(seen, "numbers")
    assert stack_of(thread.ident) == []


def test_no_collection_begins_while_a_stack_is_read() -> None:
    """A collection would run Python callbacks, during which the sampled thread could go on."""
    own, began = threading.get_ident(), []

    def collections_at(depth: int) -> int:
        if depth:
            return collections_at(depth - 1)
        before = len(began)
        assert len(stack_of(own)) > 200
        return len(began) - before

    def on_collection(phase: str, info: dict) -> None:
        if threading.get_ident() == own:  # the test runner has threads, too
            began.append(phase)

    usual = gc.get_threshold()
    gc.callbacks.append(on_collection)
    try:
        gc.set_threshold(5)
        assert collections_at(200) <= 10, (
            "those of the iterators, before and after; a frame object each would make eighty"
        )
        assert began, "collections are counted"
        assert gc.isenabled()
        gc.disable()
        collections_at(200)
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*usual)
        gc.callbacks.remove(on_collection)


PICTURES = """
import io
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Pictures(Dataset):
    def __init__(self):
        self.file = io.BytesIO()
        Image.effect_noise((600, 600), 50).save(self.file, FORMAT)
    def __len__(self): return 4000
    def __getitem__(self, index):
        self.file.seek(0)
        picture = Image.open(self.file)
        return torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)[:64].float(), index % 4
if __name__ == "__main__":
    model = nn.Linear(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for x, y in DataLoader(Pictures(), batch_size=4, num_workers=WORKERS):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("form", "workers", "share"), [slow("JPEG", 2, 1.0), slow("PNG", 2, 0.0), ("JPEG", 0, 0.0)]
)
def test_decoding_of_jpeg_is_timed_in_workers(
    tuner: Tuner, form: str, workers: int, share: float
) -> None:
    """Nearly all of the fetch time is decoding. The training process itself is not instrumented."""
    source = PICTURES.replace("FORMAT", repr(form)).replace("WORKERS", str(workers))
    evidence = watched(tuner, source, watch_seconds=0.1)
    assert (evidence.fetching_s > 0) == (workers > 0)
    assert evidence.decoding_s == pytest.approx(share * evidence.fetching_s, rel=0.4)
