"""What the weights alone say of a head: whether it copies the token it attends to, and which heads it feeds.

A head's *direct path* takes a token's embedding through W_V and W_O straight to the logits, past all other layers:

    embedding → norm before attention → W_V[h] → W_O[h] → (norm after attention) → final norm → W_U

The norms' gains are folded into the weights beside them, and so is a layer norm's subtraction of the mean; an RMS norm
has none. Their division by a positive number is kept where it acts on an embedding (`copying_logits`) and left out
where it acts on a sum: it changes no sign. Everything is computed in float64, and nothing of size vocabulary².

Sources: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits; Olsson et al. 2022, arXiv:2209.11895.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.errors import UserError
from interp.models import projections
from interp.models.norms import Norm
from interp.models.weights import Site, Weights, as_float64

__all__ = [
    "Composition",
    "CopyingScores",
    "Site",
    "Weights",
    "composition",
    "composition_by_rotation",
    "copying_eigenvalues",
    "copying_logits",
    "ov_norms",
    "rotations",
]


@dataclass(frozen=True, eq=False)
class CopyingScores:
    """A copying score of each head of a site.

    Attributes:
        site: where.
        value: in [−1, 1]; NaN where there is no direct path, or a head writes nothing.
        chance: what a head scores that does not copy.
        samples: what lies behind: scores of randomly rotated heads (`copying_eigenvalues`), scores by sequence of
            tokens (`copying_logits`).
        note: why values are NaN; "" where none is.
    """

    site: Site
    value: Float[Tensor, " head"]
    chance: Float[Tensor, " head"]
    samples: Float[Tensor, "sample head"]
    note: str = ""


def copying_eigenvalues(weights: Weights, draws: int = 32, seed: int = 0) -> list[CopyingScores]:
    """Σλ / Σ|λ| over the eigenvalues of W_E · W_OV · W_U, a head's map from the token attended to, to the logits.

    1: every direction of tokens raises its own logits (copying); −1: lowers them; about 0: neither. The eigenvalues
    are those of the d_head × d_head product W_O · W_U · W_E · W_V, which has the same nonzero ones (Elhage et al.).

    Null: in W_OV = U S Vᵀ the directions read (U) are joined to the directions written (V) at random, U R S Vᵀ with R
    orthogonal (Haar). Singular values and both subspaces stay; only that what is read is what is written does not. Its
    scores are ``samples``, its mean is ``chance``.

    Args:
        weights: of the model.
        draws: random rotations of each head; with 0 there is no null, and chance is NaN.
        seed: of the rotations.

    Returns:
        The scores of each site; where a site has no direct path, NaN and the reason.
    """
    token_circuit = _token_circuit(weights)
    generator = torch.Generator().manual_seed(seed)
    scores = []
    for site in weights.sites:
        if token_circuit is None or site.no_direct_path:
            scores.append(_not_applicable(site))
            continue
        W_V, W_O = _values_in(site), _values_out(site)
        value = _positive_share(W_O @ token_circuit @ W_V)
        rotated = _rotated_shares(W_V, W_O, token_circuit, draws, generator)
        scores.append(CopyingScores(site, value, rotated.mean(0), rotated, _silent(value)))
    return scores


def copying_logits(weights: Weights, tokens: Int[Tensor, "sequence token"]) -> list[CopyingScores]:
    """How much of the logits that a head raises among some tokens it raises on the one attended to.

    For each token i of a sequence, the head's output is taken with all attention on i and with the embedding of i
    alone in the stream (no position, nothing from earlier layers), normed as attention reads it. Its logits through the
    final norm's gain and W_U, minus their mean over the vocabulary, and cut off below zero, are r[i, j] for token j of
    the sequence. The score is 2 · Σᵢ r[i, i] / Σᵢⱼ r[i, j] − 1, averaged over sequences (``samples``).

    1: only the attended token is raised; −1: it never is. Chance, for a head whose raised tokens have nothing to do
    with the attended one: 2 / n_tokens − 1 (−0.92 for 25), exactly, averaged over all ways to pair them up. NaN for
    a sequence of whose tokens none is raised.

    Olsson et al. take 25 random tokens, without the most and least common; there the head's own attention decides which
    tokens it is fed, here each token is attended to once.

    Args:
        weights: of the model.
        tokens: ids, all different within a sequence, at least two.

    Raises:
        ValueError: tokens repeat within a sequence, or are fewer than two.
    """
    if tokens.ndim != 2 or tokens.shape[1] < 2:
        raise ValueError(f"tokens must be [sequence, token] with at least two tokens; got shape {tuple(tokens.shape)}")
    if any(len(row.unique()) < len(row) for row in tokens):
        raise ValueError("the tokens of a sequence must all be different: a repeated one cannot be told from its copy")
    unembedded = _unembedded(weights, tokens)
    chance = 2 / tokens.shape[1] - 1
    scores = []
    for site in weights.sites:
        if unembedded is None or site.no_direct_path:
            scores.append(_not_applicable(site))
            continue
        raised = _direct_logits(weights, site, tokens, unembedded).relu()
        share = raised.diagonal(dim1=-2, dim2=-1).sum(-1) / raised.sum((-2, -1))
        samples = 2 * share - 1
        value = samples.nanmean(0)
        scores.append(CopyingScores(site, value, torch.full_like(value, chance), samples, _silent(value)))
    return scores


@dataclass(frozen=True, eq=False)
class Composition:
    """How much of what one head writes another one reads.

    Attributes:
        heads: (path of the attention module, layer, head), in the order of both axes of ``value``.
        value: ‖W_OV · W‖ / (‖W_OV‖ · ‖W‖) in [0, 1], Frobenius norms; NaN where the target is not in a later layer of
            the same stack, or the stream between them passes through norms of its own.
        chance: the same (root mean square) for a randomly rotated W_OV: 1/√d_model.
        note: what the value does not tell, "" where nothing.
    """

    heads: tuple[tuple[str, int, int], ...]
    value: Float[Tensor, "source target"]
    chance: float
    note: str = ""


def composition(weights: Weights, into: Literal["query", "key", "value"]) -> Composition:
    """Composition of each head with each head of later layers (Elhage et al.).

    Into the key input: ‖W_OV¹ W_K² W_Q²ᵀ‖ / (‖W_OV¹‖ ‖W_K² W_Q²ᵀ‖); query: W_Q² W_Kᵀ² ; value: W_OV². Norms of d_head ×
    d_head products, the d_model × d_model matrices are never formed. Elhage et al. subtract what random matrices give,
    ``chance``: for W_OV turned by a random rotation of the stream, the mean square of the ratio is exactly 1/d_model
    (1/(d_model − 1) where a layer norm takes the mean out).

    Only self-attention in pre-norm stacks. The position's part of scores (rotary, biases) and norms of queries and keys
    are not in W_QK: ``note``.
    """
    return composition_by_rotation(weights, into, [None])[0]


def composition_by_rotation(
    weights: Weights,
    into: Literal["query", "key", "value"],
    turns: Sequence[Float[Tensor, "d_head d_head"] | None],
) -> list[Composition]:
    """`composition` with W_Q R W_Kᵀ in place of W_Q W_Kᵀ, for several rotations R of queries.

    Args:
        weights: of the model.
        into: which input of the later head; no rotation changes that of values.
        turns: as `rotations` gives them; None is none, which holds for a key at the query's own position.
    """
    sites = [site for site in weights.sites if site.kind == "self"]
    written = [_triangular(_values_in(site)) @ _values_out(site) for site in sites]
    numbers = torch.arange(sum(map(len, written))).split([len(heads) for heads in written])
    found = [torch.full((sum(map(len, written)),) * 2, torch.nan, dtype=torch.float64) for _ in turns]
    for t, target in enumerate(sites):
        outer, *inner = _reading(target, into, turns)
        for s, source in enumerate(sites):
            if source.stack == target.stack and source.layer < target.layer and not _has_post_norm(source, target):
                overlaps = _overlaps(_centered(written[s], target), outer.to(written[s]), inner)
                for value, overlap in zip(found, overlaps, strict=True):
                    value[numbers[s][:, None], numbers[t]] = overlap
    caveats = [site.values_caveat for site in sites]
    caveats += [site.scores_caveat for site in sites if into != "value"]
    caveats += ["post-norm layers are left out"] if _has_post_norm(*sites) else []
    heads = tuple((site.path, site.layer, head) for site in sites for head in range(len(site.heads.W_Q)))
    note = "; ".join(dict.fromkeys(filter(None, caveats)))
    return [Composition(heads, value, _rotated_overlap(sites), note) for value in found]


def ov_norms(weights: Weights) -> list[tuple[Site, Float[Tensor, " head"]]]:
    """‖W_V W_O‖ (Frobenius) of each head of each site, the norms around attention folded in: how much a head writes of
    what it reads. Comparable between heads of a layer; between layers the stream's own size differs as well."""
    return [
        (site, (_triangular(_values_in(site)) @ _values_out(site)).norm(dim=(-2, -1)).cpu()) for site in weights.sites
    ]


def rotations(model: nn.Module, distances: Sequence[int]) -> dict[int, Float[Tensor, "d_head d_head"]]:
    """What rotary positions turn a query by, relative to a key so many tokens before it: q R, with scores (q R) · k.

    Taken from the model itself: its rotary module's angles at these positions, and its own function that applies them.

    Raises:
        UserError: the model does not work that way, or its layers turn by different angles.
    """
    modules = [module for name, module in model.named_modules() if name.split(".")[-1] == "rotary_emb"]
    attentions = projections.attention_modules(model)
    apply = getattr(sys.modules[type(attentions[0].module).__module__], "apply_rotary_pos_emb", None)
    if len(modules) != 1 or apply is None or len({each.d_head for each in attentions}) != 1:
        raise UserError("the model's rotation of queries and keys is not known")
    d_head = attentions[0].d_head
    unturned = torch.eye(d_head, dtype=torch.float32, device=next(model.parameters()).device)[None, None]
    found = {}
    for distance in distances:
        places = torch.full((1, d_head), distance, device=unturned.device)
        try:
            cos, sin = modules[0](unturned[0], places)
            turned = apply(unturned, unturned, cos, sin)[0][0, 0].double().cpu()
        except (TypeError, ValueError, RuntimeError) as error:  # another family's conventions
            raise UserError(f"the model's rotation of queries and keys is not known ({error})") from error
        scale = float(turned.norm() / d_head**0.5)  # attention scaling of some long-context variants
        turned = turned / scale
        if turned.shape != (d_head, d_head) or not torch.allclose(
            turned @ turned.mT, torch.eye(d_head).double(), atol=1e-4
        ):
            raise UserError("what the model turns queries and keys by is no rotation")
        found[distance] = turned
    return found


def _not_applicable(site: Site) -> CopyingScores:
    nothing = torch.full((len(site.heads.W_Q),), torch.nan, dtype=torch.float64)
    return CopyingScores(site, nothing, nothing, nothing.new_empty(0, len(nothing)), site.no_direct_path)


def _silent(value: Tensor) -> str:
    return "a head that writes nothing has no score" if value.isnan().any() else ""


def _after(norm: Norm | None, W: Float[Tensor, "... d_model out"]) -> Float[Tensor, "... d_model out"]:
    """The linear part of a norm, and then W, as one matrix."""
    if norm is None:
        return W
    return norm.centered((as_float64(norm.gain).to(W)[:, None] * W).mT).mT


def _values_in(site: Site) -> Float[Tensor, "head d_model d_head"]:
    """From the stream to the value that each query head reads."""
    return site.heads.for_query_heads(_after(site.norms.before, as_float64(site.heads.W_V)))


def _values_out(site: Site) -> Float[Tensor, "head d_head d_model"]:
    """From a head's z to the stream."""
    W_O, norm = as_float64(site.heads.W_O), site.norms.after
    return W_O if norm is None else norm.centered(W_O) * as_float64(norm.gain).to(W_O)


def _token_circuit(weights: Weights) -> Float[Tensor, "d_model d_model"] | None:
    """W_U · W_E with the final norm: from what a head writes to logits, and on as if these were tokens attended to."""
    if weights.W_U is None or all(site.no_direct_path for site in weights.sites):
        return None
    parts = (
        as_float64(weights.W_U[:, part]) @ weights.embed(part).to(weights.W_U.device) for part in weights.vocabulary()
    )
    return _after(weights.final_norm, sum(parts, start=torch.zeros((), dtype=torch.float64)))


def _positive_share(product_of_all: Float[Tensor, "... d_head d_head"]) -> Float[Tensor, "..."]:
    """Σλ / Σ|λ|; the sum of eigenvalues is the trace."""
    matrices = product_of_all.cpu()
    # NumPy's: torch's does not converge on some matrices of rank 1
    sizes = torch.from_numpy(np.abs(np.linalg.eigvals(matrices.numpy()))).sum(-1)
    share = matrices.diagonal(dim1=-2, dim2=-1).sum(-1) / sizes
    return share.clamp(-1, 1)


def _rotated_shares(
    W_V: Tensor, W_O: Tensor, token_circuit: Tensor, draws: int, generator: torch.Generator
) -> Float[Tensor, "draw head"]:
    """The share of positive eigenvalues with U R S Vᵀ in place of W_OV = U S Vᵀ."""
    read, from_read = torch.linalg.qr(W_V)
    written, from_written = torch.linalg.qr(W_O.mT)
    u, s, vT = torch.linalg.svd(from_read @ from_written.mT)
    around = ((s[..., None] * vT) @ written.mT @ token_circuit.to(W_V) @ read @ u).cpu()
    shares = [_positive_share(around @ _rotations(around.shape, generator)) for _ in range(draws)]
    return torch.stack(shares) if shares else around.new_empty(0, len(W_V))


def _rotations(shape: torch.Size, generator: torch.Generator) -> Float[Tensor, "head d_head d_head"]:
    """Orthogonal matrices, uniform (Haar): the QR decomposition of normal numbers with the signs of R taken out."""
    q, r = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def _unembedded(weights: Weights, tokens: Tensor) -> Float[Tensor, "sequence d_model token"] | None:
    """The unembedding of some tokens, less its mean over the vocabulary, behind the final norm."""
    W_U = weights.W_U
    if W_U is None or all(site.no_direct_path for site in weights.sites):
        return None
    # summed in float64 without a float64 copy, which Apple's devices do not have
    mean = as_float64(W_U.mean(1, dtype=torch.float32 if W_U.device.type == "mps" else torch.float64))
    chosen = as_float64(W_U[:, tokens.to(W_U.device)]) - mean[:, None, None]
    return _after(weights.final_norm, chosen.permute(1, 0, 2))


def _direct_logits(
    weights: Weights, site: Site, tokens: Tensor, unembedded: Tensor
) -> Float[Tensor, "sequence head attended token"]:
    """The logits of a sequence's tokens, each head attending to each of them in turn."""
    heads, norm = site.heads, site.norms.before
    x = weights.embed(tokens if weights.W_E is None else tokens.to(weights.W_E.device))
    x = (x if norm is None else norm(x)).to(unembedded)
    value = x[:, None] @ heads.for_query_heads(as_float64(heads.W_V)).to(x)
    if heads.b_V is not None:
        value = value + heads.for_query_heads(as_float64(heads.b_V)).to(x)[:, None]
    return (value @ (_values_out(site).to(x) @ unembedded[:, None])).cpu()


def _triangular(matrix: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, "head d_head d_head"]:
    """R of QR: in a Frobenius norm, R stands for the whole matrix."""
    return torch.linalg.qr(matrix).R


def _reading(
    site: Site, into: Literal["query", "key", "value"], turns: Sequence[Tensor | None]
) -> tuple[Float[Tensor, "some_heads d_model d_head"], ...]:
    """What a head reads of the stream by one of its inputs, and its other half as a triangular matrix, for each turn.

    Of keys and values, each kv head once: the query heads that share one follow one another.
    """
    heads, before = site.heads, site.norms.before
    if into == "value":
        other = _triangular(_values_out(site).mT).mT
        return _after(before, as_float64(heads.W_V)), *(other for _ in turns)
    query, key = (_after(before, as_float64(W)) for W in (heads.W_Q, heads.W_K))
    turned = [torch.eye(query.shape[-1]).to(query) if turn is None else turn.to(query) for turn in turns]
    if into == "key":
        other = _triangular(query)
        return key, *((other @ turn).mT for turn in turned)
    other = heads.for_query_heads(_triangular(key))
    return query, *(turn @ other.mT for turn in turned)


def _overlaps(written: Tensor, outer: Tensor, inner: Sequence[Tensor]) -> list[Float[Tensor, "source target"]]:
    """‖A B‖ / (‖A‖ ‖B‖) for all pairs, B = outer · inner."""
    shared = inner[0].shape[0] // outer.shape[0]
    reached = (written[:, None] @ outer).repeat_interleave(shared, dim=1)
    whole = _triangular(outer).repeat_interleave(shared, dim=0)
    of_written, found = written.norm(dim=(-2, -1))[:, None], []
    for other in inner:
        sizes = of_written * (whole @ other).norm(dim=(-2, -1))
        found.append(((reached @ other).norm(dim=(-2, -1)) / sizes).cpu())
    return found


def _centered(written: Tensor, target: Site) -> Tensor:
    """What is written, as far as a head behind a layer norm can see it."""
    return written if target.norms.before is None else target.norms.before.centered(written)


def _has_post_norm(*sites: Site) -> bool:
    return any(site.norms.order == "post" for site in sites)


def _rotated_overlap(sites: list[Site]) -> float:
    """Root mean square of the overlap when what is written is turned at random within what can be read."""
    if not sites:
        return float("nan")
    d_model = sites[0].heads.W_O.shape[-1]
    centered = any(site.norms.before is not None and site.norms.before.kind == "layernorm" for site in sites)
    return (d_model - centered) ** -0.5
