"""Transformers whose heads are known, because their weights were set by hand: the ground truth of tests.

Heads are combined freely, a list for each layer::

    planted = plant([previous_token(writes="previous"), uniform()], [induction(), first_position()])
    planted.model                     # a HookedModel
    planted.kinds[1, 0]               # "induction"

The residual stream has a place for each thing: the token and its position as one-hot vectors, the previous token
(which induction heads read), the output (which the unembedding reads), and one aside, which nothing reads. There are no
norms and no MLPs. A key that a head looks for scores ``gain``, any other 0, so that all others together weigh at most
their number times e^(−gain).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import UserError
from interp.models.hooked import HookedModel
from interp.models.transformer import Transformer, TransformerConfig, hook_transformer

__all__ = [
    "Part",
    "Planted",
    "Stream",
    "Writes",
    "current_token",
    "duplicate_token",
    "first_position",
    "fixed_offset",
    "induction",
    "induction_circuit",
    "label",
    "plant",
    "previous_token",
    "twins",
    "uniform",
]

Writes = Literal["output", "previous", "aside"]
"""Where a head writes the token it attends to: to the output, which raises that token's logit; to the place of the
previous token; or aside, where nothing reads it."""


@dataclass(frozen=True)
class Stream:
    """Places in the residual stream, of the sizes of the vocabulary and the context."""

    d_vocab: int
    n_ctx: int

    @property
    def places(self) -> dict[str, slice]:
        """token, previous, output, aside and position."""
        names = ("token", "previous", "output", "aside")
        found = {name: slice(i * self.d_vocab, (i + 1) * self.d_vocab) for i, name in enumerate(names)}
        return found | {"position": slice(4 * self.d_vocab, self.d_model)}

    @property
    def d_model(self) -> int:
        """Features in all."""
        return 4 * self.d_vocab + self.n_ctx

    def read(self, place: str, codes: Float[Tensor, "entry code"]) -> Float[Tensor, "d_model code"]:
        """A projection that gives a code for each one-hot entry of a place."""
        weight = torch.zeros(self.d_model, codes.shape[1])
        weight[self.places[place]] = codes
        return weight


Scores = Callable[[Stream], list[tuple[Tensor, Tensor]]]
"""Pairs of projections of queries and keys [d_model, code]; a head's scores are the sum of their products, times the
gain."""


@dataclass(frozen=True)
class Part:
    """One head.

    Attributes:
        kind: what it does. ``writes``: where.
        scores: how its queries and keys meet.
        reads_previous: it needs an earlier head that writes the previous token.
    """

    kind: str
    writes: Writes
    scores: Scores = field(repr=False)
    reads_previous: bool = False


def fixed_offset(offset: int, *, writes: Writes = "aside") -> Part:
    """Attends to the token ``offset`` before; uniformly where there is none.

    Raises:
        UserError: offset below 0.
    """
    if offset < 0:
        raise UserError(f"a head looks back by 0 tokens or more; got offset {offset}")
    kind = {0: "current_token", 1: "previous_token"}.get(offset, "fixed_offset")
    return Part(kind, writes, lambda stream: [_at_offset(stream, offset)])


def previous_token(*, writes: Writes = "aside") -> Part:
    """Attends to the token before; the first token to itself."""
    return fixed_offset(1, writes=writes)


def current_token(*, writes: Writes = "aside") -> Part:
    """Attends to the token itself."""
    return fixed_offset(0, writes=writes)


def first_position(*, writes: Writes = "aside") -> Part:
    """A sink: every token attends to the first one."""

    def scores(stream: Stream) -> list[tuple[Tensor, Tensor]]:
        return [(_always(stream), stream.read("position", _one_of(stream.n_ctx, [0])))]

    return Part("first_position", writes, scores)


def duplicate_token(*, writes: Writes = "aside") -> Part:
    """Attends to earlier occurrences of the token, alike; where there is none, uniformly to what is not itself."""

    def scores(stream: Stream) -> list[tuple[Tensor, Tensor]]:
        query, key = _at_offset(stream, 0)
        same = torch.eye(stream.d_vocab)
        return [(stream.read("token", same), stream.read("token", same)), (-2 * query, key)]

    return Part("duplicate_token", writes, scores)


def induction(*, writes: Writes = "output") -> Part:
    """Attends to the tokens that followed earlier occurrences of the token, alike; uniformly where there is none.

    It matches the token with what a head of an earlier layer wrote to the place of the previous token. The first token
    has none, and is left out.
    """

    def scores(stream: Stream) -> list[tuple[Tensor, Tensor]]:
        same = torch.eye(stream.d_vocab)
        match = stream.read("token", same), stream.read("previous", same)
        not_first = -2 * _always(stream), stream.read("position", _one_of(stream.n_ctx, [0]))
        return [match, not_first]

    return Part("induction", writes, scores, reads_previous=True)


def label(tokens: Collection[int], *, writes: Writes = "aside") -> Part:
    """Attends to the tokens of one label (separators, say), alike; uniformly where there is none so far."""

    def scores(stream: Stream) -> list[tuple[Tensor, Tensor]]:
        if outside := [token for token in tokens if not 0 <= token < stream.d_vocab]:
            raise UserError(f"label tokens must lie in the vocabulary, 0 … {stream.d_vocab - 1}; got {outside}")
        return [(_always(stream), stream.read("token", _one_of(stream.d_vocab, tokens)))]

    return Part("label", writes, scores)


def uniform(*, writes: Writes = "aside") -> Part:
    """Attends to everything that it may read, alike."""
    return Part("uniform", writes, lambda stream: [])


def induction_circuit() -> tuple[list[Part], list[Part]]:
    """Two layers: a previous-token head, and an induction head that reads what it writes (Elhage et al. 2021)."""
    return [previous_token(writes="previous")], [induction()]


def twins() -> tuple[list[Part], list[Part]]:
    """Two layers; the second has two induction heads with one pattern, and only the first of them matters."""
    return [previous_token(writes="previous"), uniform()], [induction(writes="output"), induction(writes="aside")]


@dataclass(frozen=True, eq=False)
class Planted:
    """A model and the truth about it.

    Attributes:
        model: hooked; ``model.module`` is the `Transformer`.
        kinds: what each (layer, head) does.
        matter: the heads without which the logits are other ones, on inputs where they find what they look for.
    """

    model: HookedModel
    kinds: dict[tuple[int, int], str]
    matter: frozenset[tuple[int, int]]

    def of_kind(self, kind: str) -> set[tuple[int, int]]:
        """The heads of one kind."""
        return {head for head, known in self.kinds.items() if known == kind}


def plant(
    *layers: Sequence[Part],
    d_vocab: int = 64,
    n_ctx: int = 64,
    gain: float = 25.0,
    logit_gain: float = 10.0,
    causal: bool = True,
) -> Planted:
    """A transformer with the given heads in each layer; layers with fewer heads than others get uniform ones.

    Args:
        layers: parts, layer by layer.
        d_vocab, n_ctx: sizes; d_model is 4 · d_vocab + n_ctx.
        gain: score of a key that is looked for. A row's weight elsewhere is at most n_ctx · e^(−gain).
        logit_gain: logit of a token that is written to the output with weight 1.
        causal: tokens see what came before; else they see all.

    Raises:
        UserError: no heads, or a head that reads the previous token and none before it that writes it.
    """
    n_heads = max((len(parts) for parts in layers), default=0)
    if n_heads == 0:
        raise UserError("plant() takes the heads of each layer; got none")
    _check_fed(layers)
    whole = [[*parts, *[uniform()] * (n_heads - len(parts))] for parts in layers]
    stream = Stream(d_vocab, n_ctx)
    scores = [[_joined(part.scores(stream), stream) for part in parts] for parts in whole]
    d_head = max(d_vocab, *(query.shape[1] for heads in scores for query, _ in heads))
    config = TransformerConfig(
        d_vocab=d_vocab, n_ctx=n_ctx, d_model=stream.d_model, n_layers=len(layers), n_heads=n_heads, d_head=d_head,
        causal=causal, positions="learned", scale_exponent=0.0, norm_position="none",
    )  # fmt: skip
    model = Transformer(config)
    with torch.no_grad():
        _write_ends(model, stream, logit_gain)
        for block, parts, of_layer in zip(model.blocks, whole, scores, strict=True):
            for head, (part, (query, key)) in enumerate(zip(parts, of_layer, strict=True)):
                _write_head(block.attn, head, stream, part, gain * query, key)
    hooked = hook_transformer(model, info={"name": "planted", "source": "weights set by hand"})
    kinds = {(layer, head): part.kind for layer, parts in enumerate(whole) for head, part in enumerate(parts)}
    return Planted(hooked, kinds, _that_matter(whole))


# Weights --------------------------------------------------------------------------------------------------------------


def _write_ends(model: Transformer, stream: Stream, logit_gain: float) -> None:
    model.embed.weight.copy_(stream.read("token", torch.eye(stream.d_vocab)).T)
    model.pos_embed.weight.copy_(stream.read("position", torch.eye(stream.n_ctx)).T)
    model.unembed.weight.copy_(stream.read("output", logit_gain * torch.eye(stream.d_vocab)).T)


def _write_head(attention: torch.nn.Module, head: int, stream: Stream, part: Part, query: Tensor, key: Tensor) -> None:
    copied = stream.read("token", torch.eye(stream.d_vocab)), stream.read(part.writes, torch.eye(stream.d_vocab)).T
    for name, weight in (("W_Q", query), ("W_K", key), ("W_V", copied[0]), ("W_O", copied[1])):
        mine = getattr(attention, name)[head]
        mine.zero_()
        mine[: weight.shape[0], : weight.shape[1]] = weight


def _joined(pairs: list[tuple[Tensor, Tensor]], stream: Stream) -> tuple[Tensor, Tensor]:
    """Projections whose product is the sum of the pairs' products."""
    nothing = torch.zeros(stream.d_model, 1)
    queries, keys = zip(*pairs, strict=True) if pairs else ((nothing,), (nothing,))
    return torch.cat(queries, 1), torch.cat(keys, 1)


def _at_offset(stream: Stream, offset: int) -> tuple[Tensor, Tensor]:
    """A position and the one ``offset`` before it meet."""
    code = torch.eye(stream.n_ctx)
    back = torch.zeros_like(code)
    back[offset:] = code[: max(0, stream.n_ctx - offset)]
    return stream.read("position", back), stream.read("position", code)


def _always(stream: Stream) -> Tensor:
    """1 at every position."""
    return stream.read("position", torch.ones(stream.n_ctx, 1))


def _one_of(size: int, members: Collection[int]) -> Float[Tensor, "entry 1"]:
    code = torch.zeros(size, 1)
    code[list(members)] = 1.0
    return code


# Truth ----------------------------------------------------------------------------------------------------------------


def _check_fed(layers: Sequence[Sequence[Part]]) -> None:
    fed = False
    for number, parts in enumerate(layers):
        if not fed and any(part.reads_previous for part in parts):
            raise UserError(
                f"an induction head in layer {number} reads the previous token, which no head of an earlier layer "
                'writes: plant previous_token(writes="previous") before it'
            )
        fed = fed or any(part.writes == "previous" for part in parts)


def _that_matter(layers: Sequence[Sequence[Part]]) -> frozenset[tuple[int, int]]:
    """Heads that write to the output, and those that write what such a head reads."""
    places = {(layer, head): part for layer, parts in enumerate(layers) for head, part in enumerate(parts)}
    direct = {place for place, part in places.items() if part.writes == "output"}
    last_reader = max((layer for layer, head in direct if places[layer, head].reads_previous), default=0)
    feeding = {place for place, part in places.items() if part.writes == "previous" and place[0] < last_reader}
    return frozenset(direct | feeding)
