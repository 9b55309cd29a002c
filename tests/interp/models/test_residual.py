"""The residual stream's norms and ends against what the model computes with them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from interp.errors import UserError
from interp.models.norms import read_norm
from interp.models.projections import attention_modules
from interp.models.residual import ResidualStream, residual_stream
from tests.families import TINY_NAMES, noised, tiny, tiny_inputs

#: By family: order, the norms before and after attention, the norm before the unembedding (last parts of their paths).
EXPECTED: dict[str, tuple[str, str | None, str | None, str | None]] = {
    "gpt2": ("pre", "ln_1", None, "ln_f"),
    "llama": ("pre", "input_layernorm", None, "norm"),
    "mistral": ("pre", "input_layernorm", None, "norm"),
    "gemma2": ("pre", "input_layernorm", "post_attention_layernorm", "norm"),
    "gemma3": ("pre", "input_layernorm", "post_attention_layernorm", "norm"),
    "gpt_neox": ("pre", "input_layernorm", None, "final_layer_norm"),
    "qwen2": ("pre", "input_layernorm", None, "norm"),
    "qwen3": ("pre", "input_layernorm", None, "norm"),
    "gpt_oss": ("pre", "input_layernorm", None, "norm"),
    "opt": ("pre", "self_attn_layer_norm", None, "final_layer_norm"),
    "gptj": ("pre", "ln_1", None, "ln_f"),
    "gpt_neo": ("pre", "ln_1", None, "ln_f"),
    "gpt_bigcode": ("pre", "ln_1", None, "ln_f"),
    "bloom": ("pre", "input_layernorm", None, "ln_f"),
    "falcon_grouped": ("pre", "ln_attn", None, "ln_f"),
    "falcon_multi_query": ("pre", "input_layernorm", None, "ln_f"),
    "falcon_alibi": ("pre", "input_layernorm", None, "ln_f"),
    "mpt": ("pre", "norm_1", None, "norm_f"),
    "phi3": ("pre", "input_layernorm", None, "norm"),
    "phi": ("pre", "input_layernorm", None, "final_layernorm"),
    "cohere": ("pre", "input_layernorm", None, "norm"),
    "olmo2": ("pre", None, "post_attention_layernorm", "norm"),
    "granite": ("pre", "input_layernorm", None, "norm"),
    "t5": ("pre", "layer_norm", None, "final_layer_norm"),
    "bart": ("post", None, "self_attn_layer_norm", None),
    "bert": ("post", None, "LayerNorm", None),
    "distilbert": ("post", None, "sa_layer_norm", None),
    "modernbert": ("pre", "attn_norm", None, None),
    "vit": ("pre", "layernorm_before", None, None),
}
LINEAR_TO_LOGITS = [name for name in TINY_NAMES if EXPECTED[name][3]]


def stream_of(model: Any) -> ResidualStream:
    return residual_stream(model, attention_modules(model))


def seen_at(model: Any, paths: list[str]) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """What modules read and wrote, and the logits."""
    read: dict[str, Tensor] = {}
    written: dict[str, Tensor] = {}

    def before(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
            read.setdefault(path, (args[0] if args else kwargs["hidden_states"]).clone())

        return hook

    def after(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
            written.setdefault(path, (output if isinstance(output, Tensor) else output[0]).clone())

        return hook

    for path in paths:
        model.get_submodule(path).register_forward_pre_hook(before(path), with_kwargs=True)
        model.get_submodule(path).register_forward_hook(after(path))
    with torch.no_grad():
        return read, written, model(**tiny_inputs(model)).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", TINY_NAMES)
def test_norms_are_found_by_what_they_do(family: str, dtype: torch.dtype) -> None:
    model = tiny(family, dtype=dtype)
    attentions = [a for a in attention_modules(model) if a.kind == "self"]
    stream = stream_of(model)
    norms = stream.norms[attentions[-1].path]
    found = [
        None if norm is None else norm.path.split(".")[-1] for norm in (norms.before, norms.after, stream.final_norm)
    ]
    assert (norms.order, *found) == EXPECTED[family]


@pytest.mark.parametrize("family", LINEAR_TO_LOGITS)
def test_final_norm_and_unembedding_make_the_logits(family: str) -> None:
    model = tiny(family)
    stream = stream_of(model)
    assert stream.no_direct_path == ""
    assert stream.final_norm is not None
    assert stream.W_U is not None
    read, _, logits = seen_at(model, [stream.final_norm.path])
    made = stream.logit_scale * (stream.final_norm(read[stream.final_norm.path]) @ stream.W_U)
    if stream.b_U is not None:
        made = made + stream.b_U
    if stream.softcap is not None:
        made = stream.softcap * (made / stream.softcap).tanh()
    torch.testing.assert_close(made, logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", LINEAR_TO_LOGITS)
def test_an_embedding_is_what_the_first_layer_reads(family: str) -> None:
    model = tiny(family)
    stream = stream_of(model)
    attention = next(a for a in attention_modules(model) if a.stack == stream.stack)
    layer = attention.path[: attention.path.index(".0.") + 2]
    read, _, _ = seen_at(model, [layer])
    given = tiny_inputs(model)
    tokens = given.get("decoder_input_ids", given["input_ids"])
    assert stream.W_E is not None
    embedded = stream.embedding_scale * stream.W_E[tokens]
    if stream.embedding_norm is not None:
        embedded = stream.embedding_norm(embedded)
    # of two sequences, position by position: what was added for position is gone
    torch.testing.assert_close(read[layer][0] - read[layer][1], embedded[0] - embedded[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "olmo2", "t5"])
def test_attention_reads_the_norm_of_the_stream(family: str) -> None:
    model = tiny(family)
    attention = attention_modules(model)[-1]
    norms = stream_of(model).norms[attention.path]
    reading = attention.projections.get("query") or attention.projections["fused"]
    path = next(path for path, module in model.named_modules() if module is reading)
    paths = [path, attention.output_path, *(n.path for n in (norms.before, norms.after) if n is not None)]
    read, written, _ = seen_at(model, paths)
    for norm, into in ((norms.before, read[path]), (norms.after, None)):
        if norm is not None:
            made = norm(read[norm.path])
            torch.testing.assert_close(made, written[norm.path] if into is None else into, rtol=1e-5, atol=1e-5)
    if norms.after is not None:
        torch.testing.assert_close(read[norms.after.path], written[attention.output_path])


def test_ends_are_views_and_ties_are_seen() -> None:
    tied, loose = stream_of(model := tiny("gpt2")), stream_of(tiny("llama"))
    assert (tied.tied, loose.tied) == (True, False)
    assert tied.W_E is not None
    assert tied.W_E.data_ptr() == model.transformer.wte.weight.data_ptr()
    assert stream_of(tiny("gemma2")).softcap == 30
    assert stream_of(tiny("cohere")).logit_scale == pytest.approx(0.0625)
    assert stream_of(tiny("granite")).embedding_scale == pytest.approx(3)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("bert", "between the last layer and the unembedding"),
        ("modernbert", "between the last layer and the unembedding"),
        ("vit", "no unembedding"),
    ],
)
def test_no_direct_path_has_its_reason(family: str, reason: str) -> None:
    assert reason in stream_of(tiny(family)).no_direct_path


def test_a_stream_that_attention_is_added_to_after_its_norm_is_post_norm() -> None:
    model = tiny("bloom", apply_residual_connection_post_layernorm=True)
    assert {norms.order for norms in stream_of(model).norms.values()} == {"post"}


def test_a_norm_that_changes_next_to_nothing_is_no_post_norm() -> None:
    """Where the stream is of unit size already, stream and norm differ by rounding alone."""
    model = tiny("llama", dtype=torch.bfloat16)
    with torch.no_grad():
        rows = model.model.embed_tokens.weight
        rows /= rows.float().square().mean(-1, keepdim=True).sqrt()
        model.model.layers[0].input_layernorm.weight.fill_(1)
    norms = stream_of(model).norms["model.layers.0.self_attn"]
    assert (norms.order, norms.before is not None) == ("pre", True)


def test_an_embedding_of_another_width_is_no_direct_path() -> None:
    assert stream_of(tiny("opt", word_embed_proj_dim=16)).no_direct_path != ""


def test_modes_are_left_as_they_were() -> None:
    model = tiny("gpt2").train()
    model.transformer.h[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    stream_of(model)
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_a_model_of_neither_tokens_nor_images_wants_an_example() -> None:
    model = tiny("llama")
    model.main_input_name = "input_features"
    with pytest.raises(UserError, match=r"reads input_features.*give an example"):
        stream_of(model)
    example = {"input_ids": torch.tensor([[3, 4], [5, 6]])}
    assert residual_stream(model, attention_modules(model), example).no_direct_path == ""


class OnePlus(nn.Module):
    """An RMS norm that stores its gain less one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.5, 0.5, 16))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["layer", "layer without gain", "rms", "one plus"])
def test_a_norm_is_told_by_trying_it(kind: str, dtype: torch.dtype) -> None:
    made = {
        "layer": nn.LayerNorm(16),
        "layer without gain": nn.LayerNorm(16, elementwise_affine=False),
        "rms": nn.RMSNorm(16, eps=1e-3),
        "one plus": OnePlus(),
    }[kind]
    module = noised(made).to(dtype)
    norm = read_norm(module, "a.norm", 16)
    assert norm.kind == ("layernorm" if kind.startswith("layer") else "rmsnorm")
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(5)).to(dtype)
    close = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(norm(x.double()), module(x).double(), rtol=close, atol=close)
    expected = x.double() - x.double().mean(-1, keepdim=True) if norm.kind == "layernorm" else x.double()
    torch.testing.assert_close(norm.centered(x.double()), expected)


def test_another_norm_is_refused() -> None:
    class DoubleNorm(nn.LayerNorm):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).tanh()

    with pytest.raises(UserError, match=r"a\.norm \(DoubleNorm\) computes neither"):
        read_norm(DoubleNorm(16), "a.norm", 16)
