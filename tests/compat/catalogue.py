"""The programs: how their data is made, how they are started, and their facts. One row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import truths
from truths import Truth

HERE = Path(__file__).parent
# the search space of full runs; the other knobs are switched one by one
SPACE = {"num_workers": [0, 1], "optimizer_impl": "auto", "intra_op_threads": "auto"}
LONG = 10**6  # steps of a job to tune: it is ended from outside


@dataclass(frozen=True)
class Program:
    """``command`` is split at spaces; {steps}, {epochs} and {out} are filled in."""

    name: str
    package: str  # its version is shown
    what: str
    command: str
    truth: Callable[[Path], Truth]
    epoch: tuple[int, ...]  # samples of each step of an epoch; 1 if they cannot be counted
    drawn: bool = False  # the program draws them at random and logs them: ``epoch`` is the mean
    files: tuple[str, ...] = ()  # of tests/compat/programs, copied next to it
    maker: str = ""  # of tests/compat/makers, run once by the program's Python
    loader: int | None = 0  # its own num_workers; None: it builds no DataLoader
    ranks: int = 1
    minutes: int = 1  # of the budget; more if the start alone takes most of one
    backwards: float = 1.0  # per step
    # its own environment, separate from the others': installed from tests/compat/<environment>.txt
    environment: str = ""
    # knob -> words in the reason
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    space: Mapping[str, object] = field(default_factory=lambda: dict(SPACE))

    def samples(self, steps: int) -> list[int]:
        """Samples of each of the first ``steps`` steps, unless they are random."""
        return [self.epoch[n % len(self.epoch)] for n in range(steps)]

    def argv(self, steps: int, out: str) -> list[str]:
        epochs = -(-steps // len(self.epoch))
        return [word.format(steps=steps, epochs=epochs, out=out) for word in self.command.split()]


TRAINER = Program(
    "trainer",
    "transformers",
    "Trainer: tiny GPT-2, gradient accumulation 2, evaluation every 20 steps",
    "python trainer.py {steps} {out}",
    truths.by_trainer,
    (8,) * 64,
    files=("trainer.py", "words.py"),
    backwards=2.0,
)
ACCELERATE = Program(
    "accelerate",
    "accelerate",
    "plain loop with accumulation 2 and a schedule",
    "python accelerate_loop.py {steps} {out}",
    truths.by_script,
    (16,) * 32,
    files=("accelerate_loop.py",),
    backwards=2.0,
)
LIGHTNING = Program(
    "lightning",
    "lightning",
    "LightningModule, loaders built in its hooks, validation after every epoch",
    "python lightning_job.py {steps} {out}",
    truths.by_lightning,
    (16,) * 25,
    files=("lightning_job.py",),
)
FRAMEWORKS = (TRAINER, ACCELERATE, LIGHTNING)

TRL = Program(
    "trl",
    "trl",
    "`trl sft`: tiny Llama, accumulation 2; training runs in a child of a child",
    "trl sft --model_name_or_path model --dataset_name data --output_dir {out} --max_steps {steps}"
    " --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --logging_steps 1 --use_cpu"
    " --bf16 False --report_to none --save_strategy steps --save_steps {steps} --max_length 32"
    " --learning_rate 1e-3 --seed 1 --disable_tqdm True",
    truths.by_trainer,
    (8,) * 50,
    maker="tiny_llama.py",
    backwards=2.0,
)
OPEN_CLIP = Program(
    "open_clip",
    "open_clip_torch",
    "`open_clip_train`: tiny CLIP on JPEGs, contrastive loss, 2 workers",
    "python -m open_clip_train.main --dataset-type csv --train-data pictures.csv --model"
    " local-dir:clip --batch-size 32 --workers 2 --epochs {epochs} --warmup 10 --lr 1e-3"
    " --precision fp32 --device cpu --logs {out} --name run --log-every-n-steps 1 --save-frequency"
    " 0 --seed 1",
    truths.by_open_clip,
    (32,) * 13,
    maker="pictures.py",
    minutes=4,  # observing it takes 35 s
    loader=2,
    withdrawn={"batch_size": "compares the samples of a batch"},
)
CHEMPROP = Program(
    "chemprop",
    "chemprop",
    "`chemprop train`: message passing on molecules, Lightning below",
    "chemprop train -i molecules.csv -o {out} --epochs {epochs} -b 32 --pytorch-seed 1"
    " --accelerator cpu --split-sizes 0.8 0.1 0.1",
    truths.by_chemprop,
    (32,) * 12 + (16,),
    maker="molecules.py",
)
PYKEEN = Program(
    "pykeen",
    "pykeen",
    "`pykeen train rotate`: knowledge-graph embedding, IterableDataset that makes its batches",
    "pykeen train rotate -t triples.tsv -n {epochs} -b 128 --random-seed 1 --embedding-dim 32"
    " --device cpu --output-directory {out}",
    truths.by_pykeen,
    (128,) * 15 + (80,),
    maker="triples.py",
    withdrawn={"batch_size": "batch_size=None", "num_workers": "makes its batches itself"},
)
SENTENCES = Program(
    "sentence-transformers",
    "sentence-transformers",
    "its trainer on transformers', in-batch negatives",
    "python sentences.py {steps} {out}",
    truths.by_trainer,
    (8,) * 60,
    files=("sentences.py",),
    maker="tiny_bert.py",
    withdrawn={"batch_size": "its own batch sampler"},
)
SKORCH = Program(
    "skorch",
    "skorch",
    "scikit-learn estimator; closure, validation after every epoch",
    "python skorch_job.py {epochs} {out}",
    truths.by_skorch,
    (32,) * 12 + (16,),
    files=("skorch_job.py",),
)
GRAPHS = Program(
    "torch-geometric",
    "torch-geometric",
    "its DataLoader class; evaluation on the training loader",
    "python graphs.py {steps} {out}",
    truths.by_script,
    (16,) * 20,
    files=("graphs.py",),
)
ZOO = Program(
    "timm",
    "timm",
    "ResNet of the model zoo in a plain loop, random numbers in the collate function",
    "python zoo.py {steps} {out}",
    truths.by_script,
    (8,) * 32,
    files=("zoo.py",),
)
KERAS = Program(
    "keras",
    "keras",
    "`fit` on torch: a training step and an optimizer of Keras' own",
    "python keras_job.py {epochs} {out}",
    truths.by_script,
    (16,) * 20,
    files=("keras_job.py",),
    withdrawn={"optimizer_impl": "optimizer"},
    space={"num_workers": [0, 1], "intra_op_threads": "auto", "gc": "auto"},
)
FASTAI = Program(
    "fastai",
    "fastai",
    "Learner: optimizer and DataLoader classes of its own, validation after every epoch",
    "python fastai_job.py {epochs} {out}",
    truths.by_script,
    (1,) * 20,
    files=("fastai_job.py",),
    loader=None,
    withdrawn={"optimizer_impl": "optimizer", "num_workers": "DataLoader"},
    space={"intra_op_threads": "auto", "gc": "auto", "matmul_precision": "auto"},
)
IGNITE = Program(
    "ignite",
    "pytorch-ignite",
    "supervised trainer, an evaluator after every epoch",
    "python ignite_job.py {epochs} {out}",
    truths.by_script,
    (16,) * 25,
    files=("ignite_job.py",),
)
HYDRA = Program(
    "hydra",
    "hydra-core",
    "`hydra.main`: its own flags, and a change of directory",
    "python hydra_job.py +steps={steps} +width=64 +lr=0.003 hydra.run.dir={out}"
    " hydra.job.chdir=True",
    truths.by_script,
    (16,) * 25,
    files=("hydra_job.py",),
)
NOTEBOOK = Program(
    "nbconvert",
    "nbconvert",
    "a notebook's training loop, exported as a script",
    "python training.py {steps} {out}",
    truths.by_script,
    (16,) * 25,
    maker="notebook.py",
)
MMENGINE = Program(
    "mmengine",
    "mmengine",
    "Runner: accumulation 2 in its OptimWrapper, on over the end of an epoch and its validation",
    "python mmengine_job.py {steps} {out}",
    truths.by_mmengine,
    # two epochs: each ends with a batch of 4, one in the middle of a step and one at its end
    (16,) * 12 + (12,) + (16,) * 11 + (12,),
    files=("mmengine_job.py",),
    backwards=2.0,
)
OPACUS = Program(
    "opacus",
    "opacus",
    "differential privacy: Poisson sampling, gradients of each sample by hooks, DPOptimizer",
    "python private.py {steps} {out}",
    truths.by_steps,
    (16,) * 25,
    drawn=True,
    files=("private.py",),
    withdrawn={"batch_size": "the batch size varies from step to step"},
)
MACE = Program(
    "mace",
    "mace-torch",
    "`mace_run_train`: interatomic potential in float64, forces by a double backward, average of"
    " the weights",
    "mace_run_train --name run --seed 1 --work_dir {out} --device cpu --default_dtype float64"
    " --train_file train.xyz --valid_file valid.xyz --E0s average --model MACE --num_channels 8"
    " --max_L 0 --max_ell 2 --correlation 2 --r_max 4 --batch_size 4 --valid_batch_size 4"
    " --max_num_epochs {epochs} --amsgrad --ema --ema_decay 0.99 --plot False",
    truths.by_mace,
    (4,) * 25,
    maker="clusters.py",
    withdrawn={"amp_dtype": "float64", "matmul_precision": "float64", "compile_mode": "twice"},
)
RECBOLE = Program(
    "recbole",
    "recbole",
    "`run_recbole`: NeuMF on a DataLoader class that draws negative samples; an autocast region,"
    " switched off",
    "python recbole_job.py {epochs} {out}",
    partial(truths.by_recbole, steps=20),
    (32,) * 20,
    files=("recbole_job.py",),
    maker="ratings.py",
    environment="recbole",
)
RAY = Program(
    "ray",
    "ray",
    "Ray Train's TorchTrainer on a local cluster of its own; training runs in a Ray worker, which"
    " Ray kills at the end",
    "python ray_job.py 1 {epochs} {out}",
    truths.by_script,
    (16,) * 25,
    files=("ray_job.py",),
)
RAY_RANKS = Program(
    "ray-2",
    "ray",
    "Ray Train with two workers: DistributedDataParallel over gloo",
    "python ray_job.py 2 {epochs} {out}",
    truths.by_script,
    (32,) * 12 + (16,),
    files=("ray_job.py",),
    ranks=2,
    minutes=10,
)
LITGPT = Program(
    "litgpt",
    "litgpt",
    "`litgpt pretrain`: tiny GPT, torch.compile of its own, Lightning Fabric below, accumulation 2",
    # one thread: with more, two runs differ in their last bits even without autotune
    "env OMP_NUM_THREADS=1 litgpt pretrain pythia-14m --model_config.name tiny"
    " --model_config.n_layer 2 --model_config.n_head 2 --model_config.n_embd 64"
    " --model_config.block_size 64 --model_config.vocab_size 128 --data TextFiles"
    " --data.train_data_path texts --data.num_workers 0 --tokenizer_dir tokenizer --train.max_seq_length 25"
    " --train.micro_batch_size 2 --train.global_batch_size 4 --train.max_tokens {steps}00"
    " --train.log_interval 1 --train.save_interval 1000000 --eval.interval 1000000"
    " --eval.max_iters 2 --logger_name csv --precision 32-true --devices 1 --seed 1"
    " --out_dir {out}",
    truths.by_litgpt,
    (1,) * 50,
    maker="litgpt_texts.py",
    environment="litgpt",
    loader=None,
    backwards=2.0,
    withdrawn={
        "compile_mode": "torch.compile",
        "num_workers": "(StreamingDataLoader) makes its iterators itself",
        "batch_size": "(StreamingDataLoader) makes its iterators itself",
    },
    space={"intra_op_threads": "auto", "gc": "auto", "optimizer_impl": "auto"},
)
ALL = (
    *FRAMEWORKS,
    TRL,
    OPEN_CLIP,
    CHEMPROP,
    PYKEEN,
    SENTENCES,
    SKORCH,
    GRAPHS,
    ZOO,
    KERAS,
    FASTAI,
    IGNITE,
    HYDRA,
    NOTEBOOK,
    MMENGINE,
    OPACUS,
    MACE,
    RECBOLE,
    RAY,
    RAY_RANKS,
    LITGPT,
)
