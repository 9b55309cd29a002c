"""Direct effects against logits put together by hand, and against total effects where both must be the same."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import interp
from interp import HookedModel
from interp.ablation import Batch, ablation_effects, single_heads
from interp.direct import direct_effects, known_weights, why_no_direct_effect
from interp.errors import UserError
from interp.models.planted import plant, twins
from tests.families import make


def tokens(n: int = 4, length: int = 11, seed: int = 0) -> Tensor:
    return torch.randint(3, 97, (n, length), generator=torch.Generator().manual_seed(seed))


def loss(model: HookedModel, batch: Batch) -> Tensor:
    return model.token_loss(**batch).mean(1)


def by_hand(plain: Any, final: Any, head: int, d_head: int, ids: Tensor, other: Tensor | None) -> np.ndarray:
    """GPT-2: the loss with a head's change added to the last stream, its final norm's statistics kept."""
    z: list[Tensor] = []
    projection = plain.transformer.h[1].attn.c_proj
    handle = projection.register_forward_pre_hook(lambda _, given: z.append(given[0]))
    streams: list[Tensor] = []
    final.register_forward_pre_hook(lambda _, given: streams.append(given[0]))
    with torch.no_grad():
        plain(input_ids=ids)
        if other is not None:
            plain(input_ids=other)
    handle.remove()
    part = slice(head * d_head, (head + 1) * d_head)
    replacement = z[1][..., part] if other is not None else 0.0
    change = (replacement - z[0][..., part]) @ projection.weight[part]
    stream = streams[0]
    scale = (stream.var(-1, unbiased=False, keepdim=True) + final.eps).sqrt()

    def of(x: Tensor) -> Tensor:
        logits = plain.lm_head((x - x.mean(-1, keepdim=True)) / scale * final.weight + final.bias)[:, :-1]
        return nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)

    return (of(stream + change) - of(stream)).detach().numpy()


@pytest.mark.parametrize("kind", ["zero", "resample"])
def test_it_is_the_change_of_logits_with_the_norm_frozen(kind: Any) -> None:
    model, plain = interp.load(make("gpt2", 0, torch.float64), verify=False), make("gpt2", 0, torch.float64)
    ids, other = tokens(), tokens(seed=1)
    heads = [("blocks.1.attn", 4), ("blocks.1.attn", 0)]
    found = direct_effects(model, [{"tokens": ids}], loss, heads, kind, others=[{"tokens": other}])
    for (_, head), effect in zip(heads, found, strict=True):
        expected = by_hand(plain, plain.transformer.ln_f, head, 8, ids, other if kind == "resample" else None)
        np.testing.assert_allclose(effect, expected, rtol=0, atol=1e-6)
        assert np.abs(effect).max() > 1e-3


def test_without_later_layers_or_norms_direct_is_total() -> None:
    planted = plant(*twins(), gain=8.0)
    half = torch.randint(64, (6, 20), generator=torch.Generator().manual_seed(0))
    batch, model = {"tokens": torch.cat([half, half], 1)}, planted.model
    heads = [head for (head,) in single_heads(model)]
    direct = direct_effects(model, [batch], loss, heads, "zero")
    total = ablation_effects(model, [batch], loss, [[head] for head in heads]).change[0]
    np.testing.assert_allclose(direct[2:], total[2:], rtol=0, atol=1e-5)
    assert total[2].min() > 0.5  # the induction head
    np.testing.assert_array_equal(direct[3], 0.0)  # its twin
    np.testing.assert_array_equal(direct[0], 0.0)  # the previous-token head acts through the induction head alone
    assert total[0].min() > 0.5


def test_nothing_stays_and_a_first_layer_is_not_computed() -> None:
    model = interp.load(make("llama", 0, torch.float64), verify=False)
    before, module = model.token_loss(tokens()), model.module
    direct_effects(model, [{"tokens": tokens()}], loss, [("blocks.0.attn", 1)], "zero")
    torch.testing.assert_close(model.token_loss(tokens()), before, rtol=0, atol=0)
    assert all("forward" not in vars(each) for each in module.modules())


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("bert", "the stream itself passes through norms"),
        ("gemma2", "a norm of its own"),
        ("bart", "the stream itself"),
    ],
)
def test_it_is_refused_where_it_is_not_defined(family: str, why: str) -> None:
    model = interp.load(make(family), verify=False)
    weights = known_weights(model)
    assert all(why in why_no_direct_effect(weights, site.path) for site in model.sites)
    with pytest.raises(UserError, match=why):
        direct_effects(model, [{"tokens": tokens()}], loss, [(model.sites[0].name, 0)], "zero")


def test_an_encoder_has_no_direct_path_and_cross_attention_has() -> None:
    model = interp.load(make("t5", 0, torch.float64), verify=False)
    weights = known_weights(model)
    reasons = {site.name: why_no_direct_effect(weights, site.path) for site in model.sites}
    assert "does not end in the logits" in reasons["encoder_blocks.0.attn"]
    assert reasons["decoder_blocks.1.cross_attn"] == ""
    batch = {"tokens": tokens(2, 7), "decoder_tokens": tokens(2, 5, 3)}

    def metric(model: HookedModel, batch: Batch) -> Tensor:
        logits = model.run(**batch).logits
        assert logits is not None
        return logits.logsumexp(-1).mean(1)

    found = direct_effects(model, [batch], metric, [("decoder_blocks.0.cross_attn", 1)], "zero")
    assert np.abs(found).min() > 0
