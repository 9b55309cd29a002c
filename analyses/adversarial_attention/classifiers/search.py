"""Adversarial attention: distributions far from a classifier's own under which its answer stays the same.

The answer depends on attention through a weighted mean of a few numbers per word (`AttentionClassifier.features`), so a
step of the search touches no hidden state: it costs and holds a handful of tensors of batch x adversaries x words, for
texts of different lengths together.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.adversarial_attention.bounds import divergence
from interp.models.classifiers import AttentionClassifier, Batch, Encoded, as_distribution
from interp.models.classifiers.attention import masked_softmax

Adversaries = Float[Tensor, "batch adversary word"]
_BETAS, _EPS = (0.9, 0.999), 1e-8  # of Adam, as PyTorch has them
_LOWEST = -1e4  # logit of what may not be attended to: its softmax is exactly zero


@dataclass(frozen=True)
class Search:
    """How adversaries are searched for (Jain & Wallace 2019 and their code).

    Attributes:
        adversaries: K distributions of each text, which are also driven apart.
        steps: of Adam with AMSGrad.
        penalty: λ, the weight of the output's change beyond the margin.
        margin: change of the output that is free.
        learning_rate: of Adam.
        spread: standard deviation of the random logits that the search starts from.
    """

    adversaries: int = 5
    steps: int = 500
    penalty: float = 500.0
    margin: float = 0.01
    learning_rate: float = 0.01
    spread: float = 3.0


@dataclass(frozen=True, eq=False)
class Target:
    """What the search is against: a batch of texts, words alone.

    Attributes:
        features: what of each word the answer depends on; 0 where there is no word.
        attention: the classifier's own.
        is_word: where there are words.
        answer: logits from weighted means of the features, [batch, adversary, feature] → [batch, adversary, output].
        probabilities: the untouched answer.
    """

    features: Float[Tensor, "batch word feature"]
    attention: Float[Tensor, "batch word"]
    is_word: Bool[Tensor, "batch word"]
    answer: Callable[[Float[Tensor, "batch adversary feature"]], Float[Tensor, "batch adversary output"]]
    probabilities: Float[Tensor, "batch label"]

    @classmethod
    @torch.no_grad()
    def of(cls, model: AttentionClassifier, batch: Batch) -> "Target":
        """A batch under a classifier, encoded once."""
        encoded = model.encode(batch)
        attention, features = model.attend(encoded), model.features(encoded)
        pooled = torch.einsum("bp,bpf->bf", attention, features)
        return cls(
            words_only(features), words_only(attention), words_only(batch.is_word), _answer(model, encoded),
            as_distribution(model.answer(pooled, encoded)),
        )  # fmt: skip


def words_only(positions: Tensor) -> Tensor:
    """[batch, position, ...] without the first position and the last column: a text's n words come first."""
    return positions[:, 1:-1]


def with_ends(words: Float[Tensor, "batch word"]) -> Float[Tensor, "batch position"]:
    """Weights of words as weights of positions: the inverse of `words_only`."""
    return torch.nn.functional.pad(words, (1, 1))


def _answer(model: AttentionClassifier, encoded: Encoded) -> Callable[[Tensor], Tensor]:
    return lambda pooled: model.answer(pooled, encoded)


@torch.no_grad()
def search(target: Target, how: Search, generator: torch.Generator, at: Collection[int] = ()) -> dict[int, Adversaries]:
    """Adversaries of every text after some numbers of steps, the last among them.

    Minimised, for each text by itself, is

        −Σ_k JSD(α_k, α) − mean_{k,k'} JSD(α_k, α_k') + λ Σ_k max(0, Δ_k − margin)

    over the logits of α_k, from ln(1/n) + 3·N(0, 1). Δ_k is |Δσ| for one sigmoid output, Σ|Δp| (without ½) for a
    softmax, as in the authors' code. Gradients of the divergences are written out, ∂JSD(p, q)/∂p = ½ ln(p / m) with
    m = (p + q)/2, and finite at zero mass.

    Args:
        target: the texts.
        how: the search.
        generator: of the start; on the CPU, so that every device starts at the same place.
        at: steps after which the adversaries are wanted too; 0 is the random start.

    Returns:
        By step; weights are exactly 0 where there is no word.
    """
    shape = (len(target.is_word), how.adversaries, target.is_word.shape[1])
    logits = how.spread * torch.randn(shape, generator=generator).to(target.attention)
    logits -= target.is_word.sum(-1).clamp(min=1).log()[:, None, None]
    permitted = target.is_word[:, None]
    # a word that may not be attended to keeps its logit: it has no gradient, and no softmax
    logits.masked_fill_(~permitted, _LOWEST)
    first, second, largest = (torch.zeros_like(logits) for _ in range(3))
    wanted, found = {*at, how.steps}, {}
    for step in range(how.steps + 1):
        if step in wanted:
            found[step] = masked_softmax(logits, permitted.expand(shape))
        if step == how.steps:
            break
        slope = _gradient(logits, target, how)
        first.mul_(_BETAS[0]).add_(slope, alpha=1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(slope, slope, value=1 - _BETAS[1])
        torch.maximum(largest, second, out=largest)
        unbiased = [1 - beta ** (step + 1) for beta in _BETAS]
        scale = (largest.sqrt() / unbiased[1] ** 0.5).add_(_EPS)
        logits.addcdiv_(first, scale, value=-how.learning_rate / unbiased[0])
    return found


def objective(weights: Adversaries, target: Target, how: Search) -> Float[Tensor, " batch"]:
    """What `search` minimises, of each text, written with autograd's own pieces: the reference of its gradient."""
    change = _change(target.answer(weights @ target.features), target.probabilities)
    among = divergence(weights[:, :, None], weights[:, None]).mean((1, 2))
    away = divergence(weights, target.attention[:, None]).sum(1)
    return -away - among + how.penalty * (change - how.margin).relu().sum(1)


def _change(
    logits: Float[Tensor, "batch adversary output"], probabilities: Float[Tensor, "batch label"]
) -> Float[Tensor, "batch adversary"]:
    """|Δσ| of one output, Σ|Δp| of several."""
    if logits.shape[-1] == 1:
        return (logits[..., 0].sigmoid() - probabilities[:, None, 1]).abs()
    return (logits.softmax(-1) - probabilities[:, None]).abs().sum(-1)


def _gradient(logits: Adversaries, target: Target, how: Search) -> Adversaries:
    """The objective's gradient with respect to the logits."""
    log_weights = logits.log_softmax(-1)
    weights = log_weights.exp()
    tiny = torch.finfo(weights.dtype).tiny
    n = how.adversaries
    middle = torch.add(weights, target.attention[:, None]).mul_(0.5).clamp_min_(tiny).log_()
    # −½ ln(p/m) from the own attention, −(1/K²) ln(p/m) from each of the others
    slope = log_weights.mul(-(0.5 + (n - 1) / n**2)).add_(middle, alpha=0.5)
    for shift in range(1, n // 2 + 1):  # each pair once; at K/2 the shift meets every pair from both sides
        middle = torch.add(weights, weights.roll(-shift, 1)).mul_(0.5).clamp_min_(tiny).log_()
        slope.add_(middle, alpha=1 / n**2)
        if 2 * shift != n:
            slope.add_(middle.roll(shift, 1), alpha=1 / n**2)
    slope.add_(_penalty_slope(weights, target, how))
    slope.sub_((slope * weights).sum(-1, keepdim=True))
    return slope.mul_(weights)


def _penalty_slope(weights: Adversaries, target: Target, how: Search) -> Tensor:
    """Gradient of the penalty with respect to the weights: through the pooled features alone."""
    pooled = weights @ target.features
    if target.features.shape[-1] == 1:
        p = target.answer(pooled).sigmoid()
        difference = p - target.probabilities[:, None, 1:]
        beyond = difference.abs() > how.margin
        outer = how.penalty * difference.sign() * beyond * p * (1 - p)
        return outer * target.features.transpose(1, 2)
    with torch.enable_grad():
        pooled = pooled.requires_grad_()
        beyond = (_change(target.answer(pooled), target.probabilities) - how.margin).relu().sum()
        (outer,) = torch.autograd.grad(beyond, pooled)
    return (how.penalty * outer) @ target.features.transpose(1, 2)
