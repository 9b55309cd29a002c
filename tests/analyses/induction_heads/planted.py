"""Models whose answer is known: heads planted by an edit that looks at the tokens, and a circuit wired by hand."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import interp
from interp import HookedModel
from interp.attention.edits import Edit
from tests.families import make

HEADS = {
    (1, 2): "induction", (2, 5): "induction", (0, 3): "duplicate", (0, 0): "previous", (1, 1): "previous",
    (2, 0): "first", (1, 4): "current",
}  # fmt: skip


def pattern(behaviour: str, tokens: list[int]) -> list[list[float]]:
    """The ideal pattern of a behaviour on one sequence, written out row by row."""
    rows = []
    for query, token in enumerate(tokens):
        earlier = [key for key in range(query) if tokens[key] == token]
        key = {
            "induction": earlier[-1] + 1 if earlier else query,
            "duplicate": earlier[-1] if earlier else query,
            "previous": max(query - 1, 0),
            "current": query,
            "first": 0,
        }[behaviour]
        rows.append([1.0 if at == key else 0.0 for at in range(len(tokens))])
    return rows


@dataclass(frozen=True, eq=False)
class Ideal(Edit):
    """Rows of ideal patterns, in place of the heads' own."""

    heads: Mapping[Any, str] = field(default_factory=dict)
    seen: list[Tensor] = field(default_factory=list)
    stage: ClassVar[Any] = "pattern"

    def parameters(self) -> dict[str, Tensor]:
        return {}

    def apply(self, x: Tensor, block: Any) -> Tensor:
        for head, behaviour in self.heads.items():
            rows = torch.tensor([pattern(behaviour, tokens.tolist()) for tokens in self.seen[0]], dtype=x.dtype)
            rows = rows[:, block.start : block.stop, block.low : block.high]
            x = x.index_copy(1, torch.tensor([head]), rows[:, None])
        return x


@contextmanager
def planted(heads: Mapping[tuple[int, int], str] = HEADS, model: HookedModel | None = None) -> Iterator[HookedModel]:
    """A tiny Llama (3 layers, 6 heads, random weights) some of whose heads are ideal."""
    model = interp.load(make("llama"), verify=False) if model is None else model
    seen: list[Tensor] = []
    embedding = model.module.get_input_embeddings()  # type: ignore[operator]
    handle = embedding.register_forward_pre_hook(lambda _, given: seen.__setitem__(slice(None), given[:1]))
    try:
        with model.edit(Ideal(dict(heads), seen)):
            yield model
    finally:
        handle.remove()


def circuit() -> HookedModel:
    """A GPT-2 of two layers, wired by hand so that it copies what repeats by one circuit and no other.

    The stream holds a code of the token (A), of the position (P), and of the previous token (B). L0H0 attends to the
    previous token and writes its A into B; L1H0 matches its own A with the keys' B, so attends to the token after the
    previous occurrence, and writes that one's A, which the unembedding reads. L0H1 attends to the previous token too,
    and L1H2 to itself and to duplicates, but both write nothing. All other heads are uniform and silent.
    """
    d_head, sharp, gain = 64, 12.0, 4.0
    config = GPT2Config(
        vocab_size=48, n_positions=d_head, n_embd=4 * d_head, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    module: Any = GPT2LMHeadModel(config).eval()
    every = torch.arange(d_head)
    A, B, P = every, every + d_head, every + 2 * d_head
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
        code = torch.randn(48, d_head, generator=torch.Generator().manual_seed(0)).sign()
        code[:, -1] = 0.0
        module.transformer.wte.weight[:, A] = code
        module.transformer.wpe.weight[every, P] = 8.0

        def wire(layer: int, head: int, query: Tensor, key: Tensor, shift: int = 0) -> None:
            """Scores: what ``query`` holds at place i + shift against what ``key`` holds at place i."""
            into = module.transformer.h[layer].attn.c_attn.weight
            start = head * d_head
            into[query[shift:], start + every[: d_head - shift]] = sharp
            into[key, 4 * d_head + start + every] = sharp

        def write(layer: int, head: int, source: Tensor, target: Tensor, factor: float) -> None:
            attention = module.transformer.h[layer].attn
            attention.c_attn.weight[source, 8 * d_head + head * d_head + every] = 1.0
            attention.c_proj.weight[head * d_head + every, target] = factor

        wire(0, 0, P, P, shift=1)
        write(0, 0, A, B, 1.0)
        wire(0, 1, P, P, shift=1)
        wire(1, 0, A, B)
        # nothing comes before the first token, so L0H0 finds that token itself: L1H0 must not look there
        attention = module.transformer.h[1].attn.c_attn
        attention.bias[d_head - 1] = sharp
        attention.weight[P[0], 5 * d_head - 1] = -1000.0
        write(1, 0, A, A, gain)
        wire(1, 2, A, A)
    return interp.load(module, verify=False)
