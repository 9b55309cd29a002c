"""Any module: what is found, that reading changes nothing, and that patterns and edits are the module's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.testing import assert_close

import interp
from interp.attention import edits, probes
from interp.errors import UserError
from interp.models import Declaration
from tests.own_models import VOCABULARY, Language, Pair
from tests.zoo import ZOO, Entry

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def arguments(entry: Entry) -> tuple[Tensor, ...]:
    return entry.example if isinstance(entry.example, tuple) else (entry.example,)


@contextmanager
def eager_attention(pattern_of: list[Tensor], edit: Any = None) -> Iterator[None]:
    """Replace torch's attention by three lines that keep every pattern, and may change it."""
    own, softmax, flex = F.scaled_dot_product_attention, torch.softmax, None
    own_f_softmax, own_tensor_softmax = F.softmax, Tensor.softmax

    def keep(pattern: Tensor) -> Tensor:
        pattern_of.append(pattern)
        return pattern if edit is None else edit(pattern, len(pattern_of) - 1)

    def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
        group = query.shape[-3] // key.shape[-3] if enable_gqa else 1
        key, value = (t.repeat_interleave(group, -3) if group > 1 else t for t in (key, value))
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            by_bool = attn_mask.dtype is torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if by_bool else scores + attn_mask
        return keep(softmax(scores, -1)) @ value

    F.scaled_dot_product_attention = sdpa
    torch.softmax = lambda scores, dim: keep(softmax(scores, dim))  # type: ignore[assignment]
    F.softmax = lambda scores, dim=None: keep(own_f_softmax(scores, dim))  # type: ignore[assignment]
    Tensor.softmax = lambda self, dim: keep(own_tensor_softmax(self, dim))  # type: ignore[assignment,method-assign]
    try:
        yield flex
    finally:
        F.scaled_dot_product_attention, torch.softmax, F.softmax = own, softmax, own_f_softmax  # type: ignore[assignment]
        Tensor.softmax = own_tensor_softmax  # type: ignore[method-assign]


def own_patterns(entry: Entry, edit: Any = None) -> tuple[Tensor, list[Tensor]]:
    """The module's output and patterns, computed without the project."""
    seen: list[Tensor] = []
    torch.backends.mha.set_fastpath_enabled(False)  # it would not call what is replaced here
    try:
        with torch.no_grad(), eager_attention(seen, edit):
            output = first(entry.module(*arguments(entry)))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return output, [p.reshape(-1, entry.heads, *p.shape[-2:]) for p in seen[: entry.n_sites]]


def flexed(entry: Entry) -> list[Tensor]:
    """Patterns of the flex_attention modules, from their definition."""
    module: Any = entry.module
    q, k, _ = module.qkv(entry.example)
    i, j = torch.arange(16)[:, None], torch.arange(16)[None]
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if type(module).__name__ == "Flex":
        scores = scores - 0.1 * (i - j) * (torch.arange(4)[:, None, None] + 1)
    else:
        scores = scores.masked_fill(~((i >= j) & (i - j < 5)), -torch.inf)
    return [scores.softmax(-1)]


@pytest.fixture(params=ZOO, ids=list(ZOO))
def entry(request: pytest.FixtureRequest) -> Entry:
    torch.manual_seed(0)
    made = ZOO[request.param]()
    made.module.eval()
    with torch.no_grad():
        for parameter in made.module.parameters():
            parameter.mul_(2.0)
    return made


def test_patterns_are_the_modules_own(entry: Entry) -> None:
    is_flex = entry.how == "flex_attention"
    with torch.no_grad():
        alone = first(entry.module(*arguments(entry)))
        truth = flexed(entry) if is_flex else own_patterns(entry)[1]
    model = interp.load(entry.module, entry.example)
    assert len(model.sites) == entry.n_sites
    assert model.info["sites"][0]["how"] == entry.how
    if entry.kinds:
        assert tuple(s.kind for s in model.sites) == entry.kinds
    n_queries = max(p.shape[2] for p in truth)
    rows = probes.SelectedRows(queries=range(n_queries))
    run = model.run(**model.inputs.example(model), probes=[rows])
    assert_close(first(run.output), alone, rtol=0, atol=1e-5 * max(1.0, float(alone.abs().max())))
    for site, own in zip(model.sites, truth, strict=True):
        assert site.n_heads == entry.heads
        read = run.readings(rows)[site.name].values
        padding = read.isnan()  # rows of padding are not read
        assert bool(padding.any()) == (type(entry.module).__name__ == "PaddingMask")
        assert_close(read[~padding], own.double()[~padding], rtol=0, atol=1e-5)
    assert model.is_causal == entry.causal


def test_gating_a_head_is_zeroing_its_pattern(entry: Entry) -> None:
    if entry.how == "flex_attention":
        pytest.skip("the comparison replaces torch's attention function, which flex_attention does not call")
    head = entry.heads - 1
    last = entry.n_sites - 1

    def silence(pattern: Tensor, number: int) -> Tensor:
        if number != last:
            return pattern
        gated = pattern.reshape(-1, entry.heads, *pattern.shape[-2:]).clone()
        gated[:, head] = 0.0
        return gated.reshape(pattern.shape)

    expected, _ = own_patterns(entry, silence)
    model = interp.load(entry.module, entry.example)
    edit = edits.GateHeads({(last, head): 0.0})
    given = model.inputs.example(model)
    alone = first(model.run(**given).output)
    edited = first(model.run(**given, edits=[edit]).output)
    assert_close(edited, expected, rtol=0, atol=1e-5)
    assert (edited - alone).abs().max() > 1e-4
    with model.edit(edit), torch.no_grad():
        assert_close(first(model(*arguments(entry))), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["flex score_mod", "flex block mask"])
def test_uniform_attention_in_flex(name: str) -> None:
    entry = ZOO[name]()
    module: Any = entry.module.eval()
    model = interp.load(module, entry.example)
    (pattern,) = flexed(entry)
    allowed = (pattern > 0).float()
    z = allowed / allowed.sum(-1, keepdim=True) @ module.qkv(entry.example)[2]
    run = model.run(entry.example, edits=[edits.Uniform(heads=[(0, h) for h in range(4)])])
    assert_close(run.output, module.out(z), rtol=0, atol=1e-5)


def test_left_alone_it_is_the_same_module() -> None:
    entry = ZOO["encoder, 8 heads"]()
    module = entry.module.eval()
    with torch.no_grad():
        before = module(entry.example)
        interp.load(module, entry.example)
        assert torch.equal(module(entry.example), before)
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in module.modules())


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_inference_mode_and_fast_paths(mode: Any) -> None:
    entry = ZOO["encoder, 8 heads"]()
    model = interp.load(entry.module.eval(), entry.example)
    with mode(), model.edit(edits.GateHeads({(0, 3): 0.0})):
        edited = model(entry.example)
    assert (edited - model(entry.example)).abs().max() > 1e-4


def test_dropout_in_training_is_refused() -> None:
    entry = ZOO["encoder, 3 heads"]()
    model = interp.load(entry.module, entry.example)
    model.module.train()
    with pytest.raises(UserError, match=r"training mode.*dropout.*eval\(\)"):
        model.run(entry.example, probes=probes.basic())


class Dropping(nn.Module):
    """Dropout of the input, and of the softmax's rows by hand; none inside torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.drop, self.attention = nn.Dropout(0.5), ZOO["mingpt"]().module

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.drop(x))


def test_dropout_in_training_is_allowed_with_a_seed() -> None:
    x = ZOO["mingpt"]().example
    model = interp.load(Dropping(), x)
    assert model.module.training
    with pytest.raises(UserError, match=r"or give run\(\) a seed"):
        model.run(x, probes=[probes.MaxWeight()])
    before = torch.get_rng_state()
    read = [model.run(x, probes=[probes.MaxWeight()], seed=seed).readings(0)["attention"].values for seed in (1, 1, 2)]
    assert torch.equal(read[0], read[1])
    assert not torch.equal(read[0], read[2])
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        dropped = model.module.drop(x)  # type: ignore[operator]
    model.module.eval()
    assert torch.equal(model.run(dropped, probes=[probes.MaxWeight()]).readings(0)["attention"].values, read[0])


def test_attention_dropout_is_refused_even_with_a_seed() -> None:
    entry = ZOO["encoder, 3 heads"]()
    model = interp.load(entry.module, entry.example)
    model.module.train()
    with pytest.raises(UserError, match=r"asks for attention dropout 0\.1"):
        model.run(entry.example, probes=[probes.MaxWeight()], seed=0)


def test_autocast() -> None:
    entry = ZOO["fused qkv"]()
    model = interp.load(entry.module, entry.example)
    with torch.autocast("cpu", torch.bfloat16):
        run = model.run(entry.example, probes=[probes.MaxWeight()])
        with torch.no_grad():
            assert_close(run.output, entry.module(entry.example), rtol=0.02, atol=0.02)


def test_data_parallel() -> None:
    entry = ZOO["fused qkv"]()
    model = interp.load(nn.DataParallel(entry.module), entry.example)
    assert [s.path for s in model.sites] == ["module"]


def test_gradients_reach_a_gate() -> None:
    entry = ZOO["mingpt"]()
    model = interp.load(entry.module, entry.example)
    gates = torch.ones(4, requires_grad=True)
    run = model.run(entry.example, edits=[edits.GateHeads({(0, h): gates[h] for h in range(4)})], grad=True)
    first(run.output).square().sum().backward()
    assert gates.grad is not None
    assert (gates.grad.abs() > 1e-6).all()


def test_names_shapes_and_renaming() -> None:
    entry = ZOO["weight sharing"]()
    assert [s.name for s in interp.load(entry.module, entry.example).sites] == ["layer", "layer#2", "layer#3"]
    entry = ZOO["weight sharing"]()
    model = interp.load(entry.module, entry.example, sites={"layer#2": "blocks.1.attn"})
    assert [s.name for s in model.sites] == ["blocks.1.attn"]
    assert model.info["sites"][0]["path"] == "layer"
    with pytest.raises(UserError, match="found were layer, layer#2, layer#3"):
        interp.load(ZOO["weight sharing"]().module, entry.example, sites=["layer#4"])


@pytest.mark.parametrize("name", ["boolean mask", "encoder, 3 heads", "grouped keys"])
def test_head_weights(name: str) -> None:
    entry = ZOO[name]()
    model = interp.load(entry.module, entry.example)
    weights = model.head_weights(0)
    model.module.eval()
    run = model.run(entry.example, keep=("qk", "z"))
    site = model.sites[0].name
    x = entry.example
    query = torch.einsum("bpm,hmd->bhpd", x, weights.W_Q) + weights.b_Q[:, None]
    assert_close(run.traces[site].query, query, rtol=0, atol=1e-5)
    if name != "encoder, 3 heads":
        result = torch.einsum("bhpd,hdm->bpm", run.z[site], weights.W_O) + weights.b_O
        assert_close(run.output, result, rtol=0, atol=1e-5)


def test_head_weights_that_are_not_known() -> None:
    entry = ZOO["three dimensions"]()
    with pytest.raises(UserError, match="declare them"):
        interp.load(entry.module, entry.example).head_weights(0)


class Twice(nn.Module):
    """Attention by hand, then the fused one, in one module with projections of their own."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.q2 = nn.Linear(16, 16) if again else None

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (p(x).unflatten(-1, (2, 8)).transpose(1, 2) for p in (self.q, self.k, self.v))
        z = torch.softmax(query @ key.mT / 8**0.5, -1) @ value
        x = x + self.o(z.transpose(1, 2).flatten(2))
        if self.q2 is not None:
            query = self.q2(x).unflatten(-1, (2, 8)).transpose(1, 2)
            x = x + F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return x


def test_head_weights_of_a_softmax_by_hand_are_those_declared() -> None:
    declared = [Declaration(output="o", query="q", key="k", value="v")]
    module = Twice(again=False)
    with pytest.raises(UserError, match="declare them"):
        interp.load(module, torch.randn(2, 5, 16)).head_weights(0)
    weights = interp.load(module, torch.randn(2, 5, 16), declarations=declared).head_weights(0)
    assert_close(weights.W_Q[1], module.q.weight[8:].T)
    assert_close(weights.W_O[1], module.o.weight[:, 8:].T)
    assert repr(weights).startswith("HeadWeights(W_Q [2, 16, 8]")


@pytest.mark.parametrize("declared", [(), (Declaration(output="o", query="q", key="k", value="v"),)])
def test_which_projections_are_whose_is_not_guessed_where_a_module_computes_attention_twice(declared: Any) -> None:
    model = interp.load(Twice(again=True), torch.randn(2, 5, 16), declarations=declared)
    with pytest.raises(UserError, match=r"computes attention 2 times, and has other weights beside them \(q2\)"):
        model.head_weights(1)


def test_what_does_not_fit_is_not_laid_to_the_modules_length() -> None:
    model = interp.load(Twice(again=False), torch.randn(2, 5, 16))
    with pytest.raises(IndexError, match="KnockOut: query must lie in 0 … 4; got 9"):
        model.run(torch.randn(2, 5, 16), edits=[edits.KnockOut([(9, 0)])])
    with pytest.raises(UserError, match="such as Entropy"):
        model.run(torch.randn(2, 5, 16), probes=[probes.Entropy])  # type: ignore[list-item]
    with pytest.raises(UserError, match="such as GateHeads"):
        model.run(torch.randn(2, 5, 16), edits=[edits.GateHeads])  # type: ignore[list-item]


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.compile(ZOO["fused qkv"]().module)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_what_cannot_be_seen_through_is_refused() -> None:
    x = ZOO["fused qkv"]().example
    with pytest.raises(UserError, match=r"inner is compiled.*_orig_mod"):
        interp.load(Compiled(), x)
    traced: Any = torch.jit.trace(ZOO["fused qkv"]().module, x)
    with pytest.raises(UserError, match="scripted"):
        interp.load(traced, x)
    with pytest.raises(UserError, match=r"no attention was seen.*attend"):
        interp.load(nn.Sequential(nn.Linear(16, 16), nn.Softmax(-1)), x)


def test_inputs_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="no embedding"):
        interp.load(ZOO["fused qkv"]().module)
    with pytest.raises(UserError, match=r"example= as a dict or tuple"):
        interp.load(ZOO["two calls"]().module, (torch.zeros(2, 3, 16),) * 3)
    model = interp.load(ZOO["small lm"]().module)
    assert model.d_vocab == 50
    with pytest.raises(UserError, match="below 50"):
        model.run(torch.full((1, 3), 50))
    with pytest.raises(UserError, match="padding"):
        model.run(torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 3, dtype=torch.bool))


class Raising(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.inner, self.error = ZOO["fused qkv"]().module, error

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        if x.shape[1] > 11:
            raise self.error
        return self.inner(scale * x)


@pytest.mark.parametrize(
    "error", [IndexError("out of range"), RuntimeError("shapes cannot be multiplied"), AssertionError("too long")]
)
def test_what_a_module_raises_is_said_with_what_it_was_given(error: Exception) -> None:
    x = torch.zeros(2, 12, 16)
    kind, given = type(error).__name__, r"x float32 \[2, 12, 16\]"
    with pytest.raises(UserError, match=rf"example \({given}\): it raised {kind}: {error}"):
        interp.load(Raising(error), x)
    model = interp.load(Raising(error), x[:, :5])
    with pytest.raises(UserError, match=rf"raised {kind} on {given}.*n_ctx="):
        model.run(x, probes=[probes.MaxWeight()])
    with pytest.raises(type(error)):
        model.module(x)  # left alone, it is the module that it was


def test_memory_that_is_used_up_stays_an_error_of_its_own() -> None:
    x = torch.zeros(2, 12, 16)
    for error in (RuntimeError("DefaultCPUAllocator: can't allocate memory"), torch.OutOfMemoryError("out of memory")):
        with pytest.raises(RuntimeError, match="memory"):
            interp.load(Raising(error), x)


@pytest.mark.parametrize(
    ("example", "told"),
    [
        (torch.zeros(2, 5, 7), "it raised RuntimeError"),  # a width that is not the module's
        (torch.zeros(2, 5, 7, dtype=torch.long), r"int64 \[2, 5, 7\] from 0 to 0.*raised RuntimeError"),
        ("a text", "must be a NumPy file"),
        (None, "no embedding"),
        ((), "does not take the example .missing a required argument"),
        ({}, "at least one input"),
        ({"y": torch.zeros(2, 5, 16)}, "raised TypeError: .*unexpected keyword argument"),
        (torch.zeros(()), "raised"),
        (7, "raised"),
    ],
)
def test_examples_that_do_not_fit(example: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        interp.load(Raising(ValueError()), example)


def test_a_module_that_reads_two_sequences_wants_both_or_a_way_to_be_called() -> None:
    tokens = torch.arange(12).view(2, 6)
    module = Pair().eval()
    model = interp.load(module, {"source": tokens, "target": tokens})
    with pytest.raises(UserError, match=r"Pair needs target beside source.*forward=lambda module, tokens"):
        model.run(tokens, probes=[probes.MaxWeight()])
    run = model.run(inputs={"source": tokens, "target": tokens}, probes=[probes.MaxWeight()])
    one = interp.load(Pair().eval(), tokens, forward=lambda module, tokens: module(tokens, tokens))
    assert_close(one.run(tokens).output, run.output)
    assert [site.name for site in one.sites] == [site.name for site in model.sites]
    for site in one.sites:
        assert one.module.get_submodule(site.path) is site.module


def test_the_vocabulary_is_that_of_the_embedding_that_takes_the_tokens() -> None:
    """Language has its positions' embedding first, with fewer rows."""
    assert interp.load(Language().eval()).d_vocab == VOCABULARY


@pytest.mark.parametrize(
    "valid", [torch.ones(2, 6), torch.ones(2, 5, dtype=torch.bool), torch.ones(6, dtype=torch.bool)]
)
def test_masks_of_another_shape_or_kind(valid: Tensor) -> None:
    x = torch.zeros(2, 6, 16)
    model = interp.load(
        ZOO["padding mask"]().module, {"tokens": x, "valid": torch.ones(2, 6, dtype=torch.bool)},
        forward=lambda module, tokens, valid: module(tokens, valid),
    )  # fmt: skip
    with pytest.raises(UserError, match=r"valid must be boolean \[batch, position\] as the tokens, \[2, 6\]; got"):
        model.run(x, valid)


def test_inputs_from_a_file(tmp_path: Path) -> None:
    """Numbers take the module's dtype, tokens say how long its inputs may be, an archive names its arguments."""
    np.save(tmp_path / "x.npy", np.ones((9, 5, 16), np.float16))
    model = interp.load(ZOO["fused qkv"]().module.double(), str(tmp_path / "x.npy"))
    assert model.inputs.example(model)["inputs"]["x"].dtype is torch.float64
    assert (model.n_ctx, model.d_vocab) == (None, None)
    np.save(tmp_path / "ids.npy", np.ones((9, 7), np.uint8))
    model = interp.load("tests.own_models:build", tmp_path / "ids.npy")
    assert (model.n_ctx, model.d_vocab) == (7, VOCABULARY)
    assert interp.load("tests.own_models:build", tmp_path / "ids.npy", n_ctx=20).n_ctx == 20
    np.savez(tmp_path / "both.npz", source=np.ones((2, 7), int), target=np.zeros((2, 7), int))
    model = interp.load("tests.own_models:pair", tmp_path / "both.npz")
    assert set(model.inputs.example(model)["inputs"]) == {"source", "target"}
    np.savez(tmp_path / "none.npz")
    with pytest.raises(UserError, match="holds no array"):
        interp.load("tests.own_models:pair", tmp_path / "none.npz")
    with pytest.raises(UserError, match="for a module of one's own"):
        interp.load("tiny-2l", tmp_path / "ids.npy")


def test_a_factory_may_return_what_load_made_of_its_module() -> None:
    model = interp.load("tests.own_models:tied_pair", dtype="float64")
    assert model.info["name"] == "tests.own_models:tied_pair"
    assert model.info["source"] == "factory tests.own_models:tied_pair"
    assert model.dtype is torch.float64
    assert model.info["dtype"] == "float64"


def test_forward_of_ones_own() -> None:
    entry = ZOO["padding mask"]()
    x, keep = arguments(entry)
    model = interp.load(
        entry.module, {"tokens": x, "valid": keep}, forward=lambda module, tokens, valid: module(tokens, valid)
    )
    run = model.run(x, keep, probes=[probes.MaxWeight()])
    assert run.readings(0)[model.sites[0].name].n[1, 0].item() == 7


def test_language_model_has_a_loss() -> None:
    model = interp.load(ZOO["small lm"]().module)
    tokens = torch.randint(0, 50, (2, 9))
    with torch.no_grad():
        logits, _ = model.module(tokens)
    expected = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    assert_close(model.token_loss(tokens), expected, rtol=0, atol=1e-5)


def build() -> nn.Module:
    return ZOO["small lm"]().module


def broken() -> nn.Module:
    raise KeyError("no weights")


def test_factories() -> None:
    assert len(interp.load("tests.interp.models.test_module:build").sites) == 2
    with pytest.raises(UserError, match="raised KeyError"):
        interp.load("tests.interp.models.test_module:broken")
    with pytest.raises(UserError, match="has no 'missing'"):
        interp.load("tests.interp.models.test_module:missing")
    with pytest.raises(UserError, match="cannot be imported"):
        interp.load("no_such_package:build")


def test_a_module_can_be_loaded_again() -> None:
    entry = ZOO["fused qkv"]()
    first_model, again = (interp.load(entry.module, entry.example) for _ in range(2))
    read = [model.run(entry.example, probes=[probes.MaxWeight()]).values(0) for model in (first_model, again)]
    assert_close(read[0], read[1], rtol=0, atol=0)
    with again.edit(edits.GateHeads({(0, 1): 0.0})), torch.no_grad():
        edited = entry.module(entry.example)
    with torch.no_grad():
        assert (edited - entry.module(entry.example)).abs().max() > 1e-4
