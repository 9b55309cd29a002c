"""The batched search for adversarial attention against a loop in the manner of the authors' code.

``python -m benchmarks.adversaries [--data DIR]`` (part of ``make bench``). Both search for K = 5 adversaries of the
same texts, 500 steps each, with the same objective, from starts of the same distribution. The loop takes batches of 32
in the order of length, forms every context vector (batch x K x words x hidden) and differentiates by autograd, as Jain
& Wallace's code does; ours takes all texts and one number a word.
"""

import json
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from torch import Tensor

from analyses.adversarial_attention.bounds import divergence
from analyses.adversarial_attention.classifiers.adversaries import Found, checked, joined
from analyses.adversarial_attention.classifiers.search import Search, Target, search, words_only
from analyses.adversarial_attention.classifiers.task import prepare
from analyses.adversarial_attention.classifiers.tested import Tested
from analyses.adversarial_attention.classifiers.training import subset, train
from analyses.adversarial_attention.config import Config as Analysis
from interp.models.classifiers import AttentionClassifier, Batch, ClassifierConfig, Examples
from interp.models.classifiers.attention import masked_softmax
from interp.results import Workspace

TARGET, NEAR = 5.0, 0.01


@dataclass(frozen=True)
class Config:
    """Time the batched search for adversarial attention against a loop over batches of 32."""

    data: Path | None = None
    """Folder of the sentiment treebank; None: texts made up, as long as its sentences, and an untrained classifier."""
    instances: int = 512
    """Texts."""
    steps: int = 500
    """Steps of the search."""
    rounds: int = 3
    """How often each is timed; the fastest counts."""
    batch: int = 32
    """Texts of a batch of the loop."""
    epochs: int = 2
    """Passes that the classifier is trained for, where there is data."""
    out: Path = Path("benchmarks/results/adversaries.json")
    """Where the numbers go."""
    check: bool = False
    """Leave with 1 where a target is missed."""


def main(config: Config) -> int:
    """Time both, compare what they found, print and save."""
    torch.set_num_threads(1)
    tested = _tested(config)
    how = Search(steps=config.steps)
    parts = [(indices, tested.examples.batch(indices)) for indices in tested.examples.by_length(len(tested))]
    loops = [(indices, tested.examples.batch(indices)) for indices in tested.examples.by_length(config.batch)]
    times: dict[str, list[float]] = {"batched": [], "loop": []}
    found: dict[str, Found] = {}
    for _ in range(config.rounds):
        for name, batches, method in (("batched", parts, _batched), ("loop", loops, _loop)):
            started = time.perf_counter()
            weights = [method(tested.model, batch, how) for _, batch in batches]
            times[name].append(time.perf_counter() - started)
            found[name] = _found(tested, batches, weights)
    jsd = {name: float(np.nanmean(of.farthest(0.01))) for name, of in found.items()}
    ratio = min(times["loop"]) / min(times["batched"])
    apart = abs(jsd["batched"] - jsd["loop"])
    result = {
        "instances": len(tested), "steps": config.steps, "words": float(tested.examples.n_words.mean()),
        "seconds": {name: min(some) for name, some in times.items()}, "times_faster": ratio,
        "eps_max_jsd": jsd, "apart": apart, "threads": 1, "torch": torch.__version__,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip
    config.out.parent.mkdir(parents=True, exist_ok=True)
    config.out.write_text(json.dumps(result, indent=2) + "\n")
    for name, some in times.items():
        print(f"{name:8} {min(some):7.2f} s   mean ε-max JSD {jsd[name]:.4f} (ε = 0.01)")
    print(f"{ratio:.1f} times faster (target {TARGET:g}); {apart:.4f} apart (target {NEAR:g})")
    return int(config.check and (ratio < TARGET or apart > NEAR))


def _tested(config: Config) -> Tested:
    if config.data is None:
        return _made_up(config.instances)
    work = Workspace()
    task = prepare(Analysis(data=str(config.data), shortest=6, epochs=config.epochs), work)
    model = train(task, ("lstm", "tanh", 0), work, torch.device("cpu")).model
    texts = task.texts.of("test")
    chosen = [texts[i] for i in subset(len(texts), config.instances, 0)]
    return Tested(model, task.examples(chosen), chosen, task.texts.labels)


def _found(tested: Tested, batches: Sequence[tuple[NDArray[np.int64], Batch]], weights: Sequence[Tensor]) -> Found:
    """Both methods' adversaries, checked alike: by running the untouched classifier with them."""
    parts = [
        (indices, checked(tested, batch, Target.of(tested.model, batch), some, tested.examples.n_words[indices]))
        for (indices, batch), some in zip(batches, weights, strict=True)
    ]
    return joined(parts, len(tested))


def _made_up(n: int) -> Tested:
    """An untrained classifier of the published size on random words; lengths as in the treebank's test sentences."""
    torch.manual_seed(0)
    model = AttentionClassifier(ClassifierConfig(5000, 2)).eval()
    with torch.no_grad():
        model.output.weight.mul_(20)
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.normal(19.5, 8.7, n).round().astype(int), 6, 52)
    texts = [np.array([2, *rng.integers(4, 5000, length), 3]) for length in lengths]
    return Tested(model, Examples(texts, np.zeros(n, dtype=np.int64)), [], ("0", "1"))


def _batched(model: AttentionClassifier, batch: Batch, how: Search) -> Tensor:
    return search(Target.of(model, batch), how, torch.Generator().manual_seed(0))[how.steps]


def _loop(model: AttentionClassifier, batch: Batch, how: Search) -> Tensor:
    """One batch, as the authors' code does it; divergences are finite at zero mass."""
    target = Target.of(model, batch)
    with torch.no_grad():
        hidden = words_only(model.encode(batch).hidden)
    generator = torch.Generator().manual_seed(1)
    start = how.spread * torch.randn((len(batch), how.adversaries, hidden.shape[1]), generator=generator)
    free = (start - target.is_word.sum(-1).log()[:, None, None]).requires_grad_()
    optimizer = torch.optim.Adam([free], lr=how.learning_rate, amsgrad=True)
    permitted = target.is_word[:, None]
    parameters = list(model.parameters())
    for p in parameters:
        p.requires_grad_(False)
    for _ in range(how.steps):
        weights = free.masked_fill(~permitted, -torch.inf).softmax(-1)
        context = (weights[..., None] * hidden[:, None]).sum(2)
        p = model.output(context).sigmoid()
        change = (p - target.probabilities[:, None, 1:]).abs().sum(-1)
        away = divergence(weights, target.attention[:, None])
        among = divergence(weights[:, None], weights[:, :, None])
        loss = (-away + how.penalty * (change - how.margin).relu()).sum() - among.sum(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for p in parameters:
        p.requires_grad_(True)
    return masked_softmax(free.detach(), permitted.expand_as(free))


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Config)))
