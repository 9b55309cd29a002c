"""Heads that are not where they are taken to be, in modules of one's own."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import Tensor, nn

import interp
from interp.attention import edits, probes
from interp.errors import UserError

HEADS, LENGTH = 4, 9
TOKENS = torch.randint(11, (2, LENGTH), generator=torch.Generator().manual_seed(0))


class Module(nn.Module):
    """One layer whose attention is written in different ways: ``attend(query, key, value)``."""

    def __init__(self, attend: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.qkv, self.out = nn.Embedding(11, 32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.attend = attend

    def heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(self.embedding(tokens)).unflatten(-1, (3, HEADS, -1))
        return qkv.permute(2, 0, 3, 1, 4).unbind(0)  # type: ignore[return-value]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.attend(*self.heads(tokens)).transpose(1, 2).flatten(2))


def by_sequence(*tensors: Tensor) -> list[Tensor]:
    return [t.flatten(0, 1) for t in tensors]


def by_head(*tensors: Tensor) -> list[Tensor]:
    return [t.transpose(0, 1).flatten(0, 1) for t in tensors]


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf).softmax(-1) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(len(q), q.shape[1], q.shape[1]).tril().bool()
    return F.scaled_dot_product_attention(q, k, v, mask)


@pytest.mark.parametrize("attend", [softmax, sdpa, masked_sdpa])
@pytest.mark.parametrize("batch", [1, 2])
def test_heads_folded_into_sequences(attend: Any, batch: int) -> None:
    """A call of scaled_dot_product_attention in three dimensions was one head of batch · head sequences."""

    def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(*by_sequence(q, k, v)).unflatten(0, (len(q), -1))

    module = Module(folded)
    tokens = TOKENS[:batch]
    model = interp.load(module, tokens)
    site = model.sites[0]
    assert site.n_heads == HEADS
    q, k, v = module.heads(tokens)
    pattern = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
    pattern = pattern.softmax(-1).double()
    run = model.run(tokens, probes=[probes.Entropy()])
    torch.testing.assert_close(run.values(0)[0], torch.special.entr(pattern).sum(-1).mean(-1), atol=1e-5, rtol=1e-5)
    z = pattern.float() @ v
    z[:, 1] = 0
    without = model.run(tokens, edits=[edits.GateHeads({(site.name, 1): 0.0})]).output
    torch.testing.assert_close(without, module.out(z.transpose(1, 2).flatten(2)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attend", [softmax, sdpa, masked_sdpa])
@pytest.mark.parametrize("batch", [1, 2])
def test_sequences_folded_into_heads_are_refused(attend: Any, batch: int) -> None:
    """Heads were taken for sequences, and numbers were those of neither."""

    def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(*by_head(q, k, v)).unflatten(0, (HEADS, -1)).transpose(0, 1)

    with pytest.raises(UserError, match=r"into one dimension with the heads first, \[head · sequence, query, …\]"):
        interp.load(Module(folded), TOKENS[:batch])


def queries_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    pattern = torch.einsum("bhqd,bhkd->bqhk", q, k).softmax(-1)
    return torch.einsum("bqhk,bhkd->bhqd", pattern, v)


def test_queries_before_heads_are_refused() -> None:
    """Nine heads of four queries were found."""
    with pytest.raises(UserError, match=r"looks like \[batch, query, head, key\]"):
        interp.load(Module(queries_first), TOKENS)


@pytest.mark.parametrize("attend", [
    queries_first, lambda q, k, v: sdpa(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2),
])  # fmt: skip
def test_heads_that_change_with_the_length_are_refused(attend: Any) -> None:
    """On an example of as many tokens as heads nothing shows."""
    model = interp.load(Module(attend), TOKENS[:, :HEADS])
    with pytest.raises(UserError, match="had 4 heads on the example and has 9 on this input"):
        model.run(TOKENS, probes=[probes.Entropy()])
