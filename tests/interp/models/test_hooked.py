"""Runs, edits and what they refuse, against independent computations on transformers' own eager attention."""

import gc
import re
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import interp
from interp.attention import NonFiniteError, Rows, edits, probes
from interp.attention.edits import Edit
from interp.errors import UserError
from interp.models import NeverReachedError
from interp.models.hooked import next_token_loss
from tests import eager, families
from tests.families import FAMILIES, OWN_SOFTMAX, load, make

TOKENS = families.tokens(2, 11)
ON_THE_CORE = ["llama", "gpt2", "gemma2", "gemma3", "gpt_neox", "opt", "bert", "vit"]


@cache
def pair(family: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A hooked model and its untouched eager twin; tests leave both as they are."""
    module = make(family, dtype=dtype)
    twin = eager.untouched(module)
    return load(module), twin


def given(family: str) -> dict[str, Any]:
    return families.example(family, length=11)


def own_arguments(family: str) -> dict[str, Tensor]:
    names = {"tokens": "input_ids", "decoder_tokens": "decoder_input_ids"}
    return {names.get(name, name): value for name, value in given(family).items()}


def output(found: Any) -> Tensor:
    return found.logits if getattr(found, "logits", None) is not None else found.last_hidden_state


# Edits as independent computations ------------------------------------------------------------------------------------


@contextmanager
def projection_input(twin: Any, path: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change what an output projection reads: all heads' z side by side."""
    handle = twin.get_submodule(path).register_forward_pre_hook(lambda module, args: (change(args[0]), *args[1:]))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def softmaxed(twin: Any, path: str, scores: Any = None, pattern: Any = None) -> Iterator[None]:
    """Change the scores or the pattern of one module of an eager model, by a softmax put in torch's place."""
    module, softmax = twin.get_submodule(path), nn.functional.softmax
    forward = module.forward

    def changed(given_scores: Tensor, dim: int = -1, **options: Any) -> Tensor:
        given_scores = given_scores if scores is None else scores(given_scores)
        weights = softmax(given_scores, dim=dim, **options)
        return weights if pattern is None else pattern(weights)

    def observed(*args: Any, **kwargs: Any) -> Any:
        nn.functional.softmax = changed
        try:
            return forward(*args, **kwargs)
        finally:
            nn.functional.softmax = softmax

    module.forward = observed
    try:
        yield
    finally:
        del module.forward


def output_path(site: Any) -> str:
    """Where a site's output projection is, by the names of the families used here."""
    names = {"GPT2": "c_proj", "Llama": "o_proj", "Gemma": "o_proj", "GPTNeoX": "dense", "OPT": "out_proj",
             "Qwen": "o_proj", "Mistral": "o_proj", "GptOss": "o_proj", "Bloom": "dense", "Falcon": "dense",
             "Mpt": "out_proj", "T5": "o", "Bart": "out_proj", "GPTJ": "out_proj"}  # fmt: skip
    kind = type(site.module).__name__
    if kind.startswith(("Bert", "Roberta")):
        return f"{site.path.rpartition('.')[0]}.output.dense"
    return f"{site.path}.{next(name for start, name in names.items() if kind.startswith(start))}"


def zeroed(z: Tensor, block: slice) -> Tensor:
    z = z.clone()
    z[..., block] = 0
    return z


def head_block(site: Any, head: int) -> slice:
    return slice(head * site.d_head, (head + 1) * site.d_head)


@pytest.mark.parametrize(
    "family", [*ON_THE_CORE[:-1], *OWN_SOFTMAX, "gpt_oss", "qwen3", "mistral", "gptj", "t5", "bart"]
)
def test_gating_a_head_zeroes_its_block_of_the_projections_input(family: str) -> None:
    """Biases of W_O stay, and the head's neighbours in a group of one kv head stay too."""
    model, twin = pair(family)
    for site, head in ((model.sites[-1], 1), (model.sites[0], model.sites[0].n_heads - 1)):
        zero = partial(zeroed, block=head_block(site, head))
        with projection_input(twin, output_path(site), zero), torch.no_grad():
            expected = output(twin(**own_arguments(family)))
        found = output(model.run(**given(family), edits=[edits.GateHeads({(site.name, head): 0.0})]).output)
        assert_close(found, expected, rtol=1e-5, atol=5e-5)
        assert (found - output(model.run(**given(family)).output)).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "t5"])
def test_gates_of_every_position(family: str) -> None:
    model, twin = pair(family)
    site, gate = model.sites[-1], torch.linspace(-1, 2, given(family).get("decoder_tokens", TOKENS).shape[1])

    def gated(z: Tensor) -> Tensor:
        z = z.clone()
        z[..., head_block(site, 2)] *= gate[:, None]
        return z

    with projection_input(twin, output_path(site), gated), torch.no_grad():
        expected = output(twin(**own_arguments(family)))
    found = output(model.run(**given(family), edits=[edits.GateHeads({(site.name, 2): gate})]).output)
    assert_close(found, expected, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bart"])
def test_replaced_z_is_what_the_projection_reads(family: str) -> None:
    model, twin = pair(family)
    site = model.sites[-1]
    z = torch.randn(2, given(family).get("decoder_tokens", TOKENS).shape[1], site.d_head)

    def replaced(flat: Tensor) -> Tensor:
        flat = flat.clone()
        flat[..., head_block(site, 3)] = z
        return flat

    with projection_input(twin, output_path(site), replaced), torch.no_grad():
        expected = output(twin(**own_arguments(family)))
    found = output(model.run(**given(family), edits=[edits.ReplaceZ({(site.name, 3): z})]).output)
    assert_close(found, expected, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_neox", "bert", *OWN_SOFTMAX, "t5", "bart"])
def test_edits_of_pattern_and_scores(family: str) -> None:
    """Uniform, KnockOut, Temperature and AddLogits on head 1 of one site, against a patched softmax."""
    model, twin = pair(family)
    site = model.sites[1]

    def one_head(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def changed(x: Tensor) -> Tensor:
            x = x.clone()
            lowest = torch.finfo(x.dtype).min / 2
            x[:, 1] = change(x[:, 1], x[:, 1] > lowest)
            return x

        return changed

    def cut(scores: Tensor, allowed: Tensor) -> Tensor:
        scores = scores.clone()
        scores[:, 4, 2] = torch.finfo(scores.dtype).min
        scores[:, 7, 0] = torch.finfo(scores.dtype).min
        return scores

    bias = torch.linspace(-2, 2, 11)
    address = (site.name, 1)
    cases: list[tuple[Edit, dict[str, Any]]] = [
        (edits.Uniform(heads=[address]), {"pattern": one_head(lambda p, _: (p > 0) / (p > 0).sum(-1, keepdim=True))}),
        (edits.KnockOut(edges=[(4, 2), (7, 0)], heads=[address]), {"scores": one_head(cut)}),
        (edits.Temperature({address: 2.5}),
         {"scores": one_head(lambda s, a: torch.where(a, s / 2.5, s))}),
        (edits.AddLogits({address: bias}), {"scores": one_head(lambda s, a: torch.where(a, s + bias, s))}),
    ]  # fmt: skip
    plain = output(model.run(**given(family)).output)
    for edit, patch in cases:
        with softmaxed(twin, site.path, **patch), torch.no_grad():
            expected = output(twin(**own_arguments(family)))
        found = output(model.run(**given(family), edits=[edit]).output)
        assert_close(found, expected, rtol=1e-5, atol=5e-5, msg=lambda m, e=edit: f"{type(e).__name__}: {m}")
        assert (found - plain).abs().max() > 1e-4


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "bart"])
def test_the_exponent_of_the_scale(family: str) -> None:
    """α = 0 leaves q · k unscaled: as temperature d_head^−½ does where the model's own scale is d_head^−½."""
    model, _ = pair(family)
    site = model.sites[1]
    unscaled = output(model.run(**given(family), edits=[edits.ScaleExponent({(site.name, 1): 0.0})]).output)
    sharper = edits.Temperature({(site.name, 1): site.d_head**-0.5})
    assert_close(unscaled, output(model.run(**given(family), edits=[sharper]).output), rtol=1e-5, atol=5e-5)
    assert (unscaled - output(model.run(**given(family)).output)).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "bert", "t5", "gpt_oss"])
def test_another_runs_patterns_are_replayed(family: str) -> None:
    """Under the replayed patterns of another text, every site's pattern is that text's."""
    model, _ = pair(family)
    other = given(family) | {name: value.flip(0) for name, value in given(family).items()}
    traces = model.run(**other, keep="qk").traces
    n_queries = {site.name: traces[site.name].query.shape[2] for site in model.sites}
    for site in model.sites:
        probe = probes.SelectedRows(queries=range(n_queries[site.name]))
        replayed = model.run(**given(family), probes=[probe], sites=[site.name], edits=[edits.Replay(traces=traces)])
        assert_close(
            replayed.values(0), model.run(**other, probes=[probe], sites=[site.name]).values(0), atol=1e-6, rtol=0
        )


def test_edits_reach_query_heads_of_a_group_one_by_one() -> None:
    """Six query heads on two kv heads: uniform attention of head 4 changes z of head 4 alone."""
    model, _ = pair("llama")
    plain = model.run(TOKENS, keep="z").z["blocks.0.attn"]
    edited = model.run(TOKENS, keep="z", edits=[edits.Uniform(heads=[(0, 4)])]).z["blocks.0.attn"]
    changed = (edited - plain).abs().amax((0, 2, 3)) > 1e-6
    assert changed.tolist() == [False, False, False, False, True, False]


def test_query_heads_read_their_kv_head() -> None:
    """h // (H / KV), for a batch as large as the number of kv heads: z is pattern · v of that head."""
    model, _ = pair("llama")
    values: dict[str, Tensor] = {}
    run = model.run(TOKENS, keep="z", probes=[probes.SelectedRows(queries=range(11))],
                    hooks={"blocks.1.attn.hook_v": lambda v, hook: values.update(v=v)})  # fmt: skip
    pattern = run.readings(0)["blocks.1.attn"].values.float()
    per_head = values["v"].transpose(1, 2)[:, [h // 3 for h in range(6)]]
    assert_close(run.z["blocks.1.attn"], pattern @ per_head, atol=1e-5, rtol=0)


def test_edits_compose_in_the_order_given_and_nest() -> None:
    model, _ = pair("llama")
    double, uniform = edits.GateHeads({(1, 2): 2.0}), edits.Uniform(heads=[(1, 2)])
    both = model.run(TOKENS, edits=[uniform, double]).logits
    with model.edit(uniform), model.edit(double):
        assert torch.equal(model.run(TOKENS).logits, both)
        with model.edit(edits.GateHeads({(1, 2): 0.5})):
            assert_close(model.run(TOKENS).logits, model.run(TOKENS, edits=[]).logits)
        assert torch.equal(model(TOKENS).logits, both)
    alone = model.run(TOKENS, edits=[uniform]).logits
    undone = model.run(TOKENS, edits=[uniform, double, edits.GateHeads({(1, 2): 0.5})]).logits
    assert_close(undone, alone, atol=1e-5, rtol=1e-5)


def test_contexts_may_be_left_in_any_order() -> None:
    model, _ = pair("llama")
    first, second = edits.Uniform(heads=[(0, 0)]), edits.Uniform(heads=[(1, 1)])
    a, b = model.edit(first), model.edit(second)
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    assert torch.equal(model.run(TOKENS).logits, model.run(TOKENS, edits=[]).logits)
    inside = model.run(TOKENS).logits
    b.__exit__(None, None, None)
    assert torch.equal(inside, model.run(TOKENS, edits=[second]).logits)


# Addresses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "address", "said"),
    [
        ("llama", 3, "head 3 of which layer"),
        ("llama", (7, 0), "there is no site 7; the sites are blocks.0.attn, blocks.1.attn, blocks.2.attn"),
        ("llama", (0, 6), "blocks.0.attn has heads 0 … 5; there is no head 6"),
        ("llama", (0, -1), "blocks.0.attn has heads 0 … 5; there is no head -1"),
        ("llama", ("blocks.0.mlp", 0), "there is no site 'blocks.0.mlp'"),
        ("t5", (0, 1), "layer 0 is ambiguous: it has encoder_blocks.0.attn, decoder_blocks.0.self_attn, "),
        ("bloom", (0, 4), "blocks.0.attn has heads 0 … 3; there is no head 4"),
    ],
)
def test_heads_that_do_not_exist(family: str, address: Any, said: str) -> None:
    model, _ = pair(family)
    with pytest.raises(UserError, match=re.escape(said)):
        model.run(**given(family), edits=[edits.GateHeads({address: 0.0})])
    with pytest.raises(UserError, match=re.escape(said)), model.edit(edits.Uniform(heads=[address])):
        pass


def test_layers_and_names_are_the_same_addresses() -> None:
    model, _ = pair("llama")
    by_layer = model.run(TOKENS, edits=[edits.GateHeads({(1, 2): 0.0})], sites=[1], probes=[probes.MaxWeight()])
    by_name = model.run(TOKENS, edits=[edits.GateHeads({("blocks.1.attn", 2): 0.0})])
    assert torch.equal(by_layer.logits, by_name.logits)
    assert list(by_layer.readings(0)) == ["blocks.1.attn"]
    assert model.site(1) is model.site("blocks.1.attn")
    assert model.head_weights(1).W_K.shape == (2, 48, 8)


# Nothing is silent ----------------------------------------------------------------------------------------------------


@contextmanager
def without_last_layer(model: interp.HookedModel) -> Iterator[None]:
    """The model with its last layer left out of the forward pass."""
    model.config.num_hidden_layers -= 1
    try:
        yield
    finally:
        model.config.num_hidden_layers += 1


def test_what_is_never_reached_raises() -> None:
    model = load(make("llama"))
    gate = edits.GateHeads({(2, 0): 0.0})
    with without_last_layer(model):
        assert len(model.run(TOKENS, probes=[probes.MaxWeight()]).readings(0)) == 2
        for call in (
            lambda: model.run(TOKENS, edits=[gate]),
            lambda: model.run(TOKENS, probes=[probes.MaxWeight()], sites=[2]),
            lambda: model.run(TOKENS, keep="z", sites=["blocks.2.attn", 0]),
            lambda: model.run(TOKENS, hooks={"blocks.2.attn.hook_z": lambda z, hook: None}),
            lambda: model.run(TOKENS, hooks={"blocks.2.hook_resid_post": lambda z, hook: None}),
        ):
            with pytest.raises(NeverReachedError, match=r"blocks\.2|at 2, head 0"):
                call()
        with pytest.raises(NeverReachedError, match=r"went through blocks.0.attn, blocks.1.attn"), model.edit(gate):
            model(TOKENS)
        with pytest.raises(NeverReachedError), model.hooks({"blocks.2.attn.hook_q": lambda q, hook: None}):
            model(TOKENS)
        with model.edit(gate):
            pass  # no forward pass was made, so none missed it
    model.run(TOKENS, edits=[gate])


def test_no_site_asked_for_means_no_probe_reads() -> None:
    model, _ = pair("llama")
    with pytest.raises(NeverReachedError, match="any site that was asked for"):
        model.run(TOKENS, probes=[probes.MaxWeight()], sites=[])
    with pytest.raises(UserError, match="there is no site 9"):
        model.run(TOKENS, probes=[probes.MaxWeight()], sites=[9])
    with pytest.raises(UserError, match=r"keep takes 'qk' and 'z'; got \['pattern'\]"):
        model.run(TOKENS, keep="pattern")


# Left clean -----------------------------------------------------------------------------------------------------------


class Interrupt(probes.RowMean):
    """Stops the run in the middle."""

    def __init__(self, what: BaseException) -> None:
        object.__setattr__(self, "what", what)
        object.__setattr__(self, "first_position", 0)

    def measure(self, rows: Rows) -> Any:
        if rows.site is not None and rows.site.layer == 1:
            raise self.what  # type: ignore[attr-defined]
        return rows.max_weight, None


def interrupted(what: BaseException) -> Any:
    def function(tensor: Tensor, hook: Any) -> None:
        raise what

    return function


@pytest.mark.parametrize("what", [KeyboardInterrupt(), ValueError("in the middle"), torch.OutOfMemoryError("out")])
@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_an_interrupted_run_leaves_nothing_behind(family: str, what: BaseException) -> None:
    model = load(make(family))
    before = model.run(TOKENS, probes=probes.basic())
    names = ["blocks.1.attn.hook_pattern", "blocks.1.hook_resid_pre"]
    names += ["blocks.1.attn.hook_k", "blocks.1.attn.hook_v"] if family == "llama" else []
    broken: list[dict[str, Any]] = [{"hooks": {name: interrupted(what)}} for name in names]
    broken.append({"probes": [Interrupt(what)]})
    for call in broken:
        with pytest.raises(type(what)):
            model.run(TOKENS, edits=[edits.GateHeads({(0, 0): 0.0})], **call)
        with pytest.raises(type(what)), model.edit(edits.Uniform()):
            model.run(TOKENS, **call)
        after = model.run(TOKENS, probes=probes.basic())
        assert torch.equal(after.logits, before.logits)
        for i in range(5):
            assert_close(after.values(i), before.values(i), rtol=0, atol=0, equal_nan=True)
    assert torch.is_grad_enabled()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())
    seam = model.seam
    assert (seam.edits, seam.hooks, seam.watches, seam.recording) == ([], [], [], None)


def test_nan_in_the_middle_names_the_site_and_leaves_nothing_behind() -> None:
    model = load(make("llama"))
    before = model.run(TOKENS).logits
    weight = model.module.model.layers[1].self_attn.k_proj.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight[3, 4] = float("nan")
    with pytest.raises(NonFiniteError, match=r"blocks\.1\.attn: attention met NaN or infinity in key"):
        model.run(TOKENS, probes=probes.basic(), edits=[edits.Uniform(heads=[(0, 0)])])
    with torch.no_grad():
        weight.copy_(kept)
    assert torch.equal(model.run(TOKENS).logits, before)


def test_a_run_within_a_run_is_refused() -> None:
    model, _ = pair("llama")
    before = model.run(TOKENS).logits

    def again(z: Tensor, hook: Any) -> None:
        model.run(TOKENS)

    with pytest.raises(RuntimeError, match="in the middle of a run already"):
        model.run(TOKENS, hooks={"blocks.0.attn.hook_z": again})
    assert torch.equal(model.run(TOKENS).logits, before)


def test_questions_about_the_model_are_allowed_within_a_run() -> None:
    """What the model finds out by trial runs: neither seen by the run's probes and hooks, nor changed by its edits."""
    model = load(make("llama"))
    calls: list[str] = []

    def ask(z: Tensor, hook: Any) -> None:
        calls.append(hook.name)
        assert model.is_causal
        model.verify()

    hooks = {"blocks.0.attn.hook_z": ask, "blocks.0.hook_resid_pre": lambda x, hook: calls.append(hook.name)}
    with model.edit(edits.Uniform()):
        run = model.run(TOKENS, hooks=hooks, probes=[probes.MaxWeight()])
    assert calls == ["blocks.0.hook_resid_pre", "blocks.0.attn.hook_z"]
    assert len(run.readings(0)) == 3


def test_a_hooked_model_goes_when_it_is_let_go() -> None:
    model = load(make("bloom"))
    module = model.module
    gone = weakref.ref(model)
    model.run(TOKENS, probes=probes.basic(), hooks={"blocks.0.attn.hook_pattern": lambda p, hook: None})
    del model
    gc.collect()
    assert gone() is None
    assert module(TOKENS).logits.isfinite().all()


# Gradients ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_neox", "bert", "t5", "bart", "bloom", "falcon"])
def test_gradients_of_every_parameter_are_eagers(family: str) -> None:
    model, twin = pair(family, torch.float64)
    run = model.run(**given(family), grad=True, probes=[probes.MaxWeight()])
    own = twin(**own_arguments(family)).logits
    weights = torch.randn(own.shape, dtype=own.dtype, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad((run.logits * weights).sum(), list(model.module.parameters()), allow_unused=True)
    expected = torch.autograd.grad((own * weights).sum(), list(twin.parameters()), allow_unused=True)
    assert any(g is not None and g.abs().max() > 1e-3 for g in found)
    for (name, _), got, want in zip(twin.named_parameters(), found, expected, strict=True):
        if want is None:
            assert got is None or not got.any(), name
        else:
            # transformers' eager softmax is in float32 here and there; key biases have no effect at all
            atol = 1e-6 * float(want.abs().max()) + 1e-13
            assert_close(got, want, rtol=1e-5, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def test_nothing_is_kept_without_gradients() -> None:
    model, _ = pair("llama")
    assert not model.run(TOKENS).logits.requires_grad
    assert model.run(TOKENS, grad=True).logits.requires_grad


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "t5", "bart"])
def test_gates_of_all_heads_in_one_backward_pass(family: str) -> None:
    """∂loss/∂gate of every head (Michel et al. 2019), against gates on what eager output projections read."""
    model, twin = pair(family, torch.float64)
    addresses = [(site, head) for site in model.sites for head in range(site.n_heads)]
    gates = [torch.ones((), dtype=torch.float64, requires_grad=True) for _ in addresses]
    gate_heads = edits.GateHeads({(s.name, h): g for (s, h), g in zip(addresses, gates, strict=True)})
    run = model.run(**given(family), edits=[gate_heads], grad=True)
    found = torch.autograd.grad(run.logits.logsumexp(-1).mean(), gates)

    own = [torch.ones(site.n_heads, dtype=torch.float64, requires_grad=True) for site in model.sites]
    with ExitStack() as stack:
        for site, gate in zip(model.sites, own, strict=True):
            stack.enter_context(
                projection_input(twin, output_path(site), lambda z, g=gate, d=site.d_head: z * g.repeat_interleave(d))
            )
        expected = torch.autograd.grad(twin(**own_arguments(family)).logits.logsumexp(-1).mean(), own)
    assert_close(torch.stack(found), torch.cat(expected), rtol=1e-5, atol=1e-8)
    assert min(float(g.abs()) for g in found) > 1e-7


def test_gradients_flow_back_through_hooks_and_learned_logits() -> None:
    model, _ = pair("llama", torch.float64)
    logits: Any = torch.zeros(11, 11, dtype=torch.float64, requires_grad=True)
    shift: Any = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    run = model.run(TOKENS, edits=[edits.AddLogits({(1, 2): logits})], grad=True,
                    hooks={"blocks.0.attn.hook_z": lambda z, hook: z + shift})  # fmt: skip
    run.logits.square().mean().backward()
    assert logits.grad.tril().abs().max() > 1e-6
    assert not logits.grad.triu(1).any()
    assert shift.grad.abs().min() > 1e-9


def test_gradient_statistics_exist_after_the_backward_pass() -> None:
    model, twin = pair("gpt2", torch.float64)
    run = model.run(TOKENS, probes=[probes.GradientTimesWeight()], grad=True)
    with pytest.raises(RuntimeError, match="only after backward"):
        run.table()
    run.logits.logsumexp(-1).mean().backward()
    own = twin(TOKENS, output_attentions=True)
    gradients = torch.autograd.grad(own.logits.logsumexp(-1).mean(), own.attentions)
    for layer, (pattern, gradient) in enumerate(zip(own.attentions, gradients, strict=True)):
        expected = (pattern * gradient).abs().sum(-1).mean(-1)
        assert_close(run.readings(0)[f"blocks.{layer}.attn"].values, expected, rtol=1e-9, atol=1e-14)


# Losses ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", families.DECODERS)
def test_token_loss_is_cross_entropy(family: str) -> None:
    model, twin = pair(family)
    with torch.no_grad():
        logits = twin(TOKENS).logits
    expected = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), TOKENS[:, 1:], reduction="none")
    assert_close(model.token_loss(TOKENS), expected, rtol=1e-5, atol=1e-4)


def test_token_loss_of_padded_sequences() -> None:
    model, _ = pair("llama")
    rows = [TOKENS[0].tolist(), TOKENS[1, :6].tolist()]
    loss = model.token_loss(rows)
    assert loss.shape == (2, 10)
    assert_close(loss[0], model.token_loss(TOKENS[:1])[0], rtol=1e-5, atol=1e-5)
    assert_close(loss[1, :5], model.token_loss(TOKENS[1:, :6])[0], rtol=1e-5, atol=1e-5)
    assert loss[1, 5:].isnan().all()
    left = torch.cat([torch.zeros(1, 3, dtype=torch.long), TOKENS[:1]], 1)
    shifted = model.token_loss(left, torch.arange(14)[None] >= 3)
    assert shifted[0, :3].isnan().all()
    assert_close(shifted[0, 3:], loss[0], rtol=1e-5, atol=1e-5)


def test_the_loss_is_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, tokens = torch.randn(2, 9, 50), torch.randint(50, (2, 9))
    whole = next_token_loss(logits, tokens, None)
    monkeypatch.setattr("interp.models.loss._SLICE_BYTES", 3 * 2 * 50 * 4)
    assert torch.equal(next_token_loss(logits, tokens, None), whole)
    assert next_token_loss(logits.bfloat16(), tokens, None).dtype is torch.float32
    assert next_token_loss(logits[:, :1], tokens[:, :1], None).shape == (2, 0)
    with pytest.raises(ValueError, match="has none"):
        next_token_loss(None, tokens, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_causal_models_are_known(family: str) -> None:
    model, _ = pair(family)
    assert model.is_causal is (family in families.DECODERS)


@pytest.mark.parametrize("family", ["bert", "t5", "bart", "modernbert"])
def test_a_loss_is_refused_where_none_is_meant(family: str) -> None:
    model, _ = pair(family)
    with pytest.raises(UserError, match="does not predict the next token"):
        model.token_loss(TOKENS)


def test_a_loss_is_refused_without_a_trained_head(minilm: interp.HookedModel) -> None:
    with pytest.raises(UserError, match="no trained output head in its checkpoint"):
        minilm.token_loss(TOKENS)


# Bad input ------------------------------------------------------------------------------------------------------------


def test_dropout_is_refused() -> None:
    model = load(make("gpt2"))
    model.module.train()
    with pytest.raises(
        UserError, match=r"training mode, where dropout makes every number random: call model.module.eval"
    ):
        model.run(TOKENS)
    model.module.eval()
    model.run(TOKENS)
    llama = load(make("llama", attention_dropout=0.1))
    llama.module.train()
    with pytest.raises(UserError, match=r"training mode with attention dropout 0\.1"):
        llama.run(TOKENS)
    plain = load(make("llama"))
    plain.module.train()
    plain.run(TOKENS)


def test_what_a_model_keeps_to_itself_is_refused() -> None:
    model, _ = pair("bloom")
    with pytest.raises(UserError, match="computes its own attention, so queries, keys and z cannot be kept"):
        model.run(TOKENS, keep="qk")
    with pytest.raises(ValueError, match="ReplaceZ cannot be made on a pattern that the model has built itself"):
        model.run(TOKENS, edits=[edits.ReplaceZ({(0, 0): torch.zeros(12)})])
    with pytest.raises(ValueError, match="ScaleExponent cannot be made"):
        model.run(TOKENS, edits=[edits.ScaleExponent({(0, 0): 0.0})])
    with pytest.raises(ValueError, match="NormWeighted needs"):
        model.run(TOKENS, probes=[probes.NormWeighted(probes.PositionMass(positions=[0]))])


def test_two_passes_in_one_run_are_refused() -> None:
    model = load(make("llama"))
    forward = model.module.forward
    model.module.forward = lambda **arguments: (forward(**arguments), forward(**arguments))[1]
    with pytest.raises(UserError, match="reached twice in one forward pass"):
        model.run(TOKENS, probes=[probes.MaxWeight()])


# Tables ---------------------------------------------------------------------------------------------------------------


def test_the_table_holds_what_was_read() -> None:
    model, _ = pair("t5")
    targets = torch.arange(7).clamp_max(6)[:, None]
    chosen = [*probes.basic(), probes.TargetMass(targets=targets), probes.MassReceived()]
    run = model.run(**given("t5"), probes=chosen, sites=[site.name for site in model.sites if site.stack == "decoder"])
    table = run.table()
    assert list(table.columns) == [
        "site",
        "layer",
        "head",
        "metric",
        "label",
        "sequence",
        "value",
        "chance",
        "n",
        "probe",
    ]
    assert not table.duplicated(["site", "head", "probe", "label", "sequence"]).any()
    assert pd.api.types.is_integer_dtype(table["head"])
    assert pd.api.types.is_integer_dtype(table["n"])
    indexed = table.set_index(["probe", "site", "sequence", "head", "label"])["value"]
    chances, counts = (table.set_index(["probe", "site", "sequence", "head", "label"])[c] for c in ("chance", "n"))
    n = 0
    for number, probe in enumerate(chosen):
        axes = [[str(x) for x in labels] for _, labels in probe.axes()]
        for site, reading in run.readings(number).items():
            values = reading.values if reading.values.ndim == 3 else reading.values[..., None]
            chance = run.chance(number)[site].expand(reading.values.shape).reshape(values.shape)
            count = reading.n.expand(reading.values.shape).reshape(values.shape)
            for b, h, i in ((b, h, i) for b in range(2) for h in range(4) for i in range(values.shape[2])):
                label = "" if not axes else axes[0][i] if axes[0] else str(i)
                place = (number, site, b, h, label)
                for column, tensor in ((indexed, values), (chances, chance), (counts, count)):
                    assert column[place] == pytest.approx(float(tensor[b, h, i]), nan_ok=True)
                n += 1
    assert n == len(table)
    cross = {site.name for site in model.sites if site.kind == "cross"}
    assert set(run.not_applicable) == {(name, site) for site in cross for name in ("offset_mass", "expected_distance")}
    assert not set(table[table["metric"] == "offset_mass"]["site"]) & cross


def test_chance_is_uniform_attention_under_the_models_mask() -> None:
    model, _ = pair("mistral")
    tokens, valid = TOKENS, torch.arange(11) < torch.tensor([[11], [8]])
    run = model.run(tokens, valid, probes=probes.basic())
    uniform = model.run(tokens, valid, probes=probes.basic(), edits=[edits.Uniform()])
    for number in range(5):
        for site, chance in run.chance(number).items():
            got = uniform.readings(number)[site].values
            assert_close(chance.expand(got.shape), got, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_chance_leaves_nothing_to_a_sink() -> None:
    model, _ = pair("gpt_oss")
    run = model.run(TOKENS, probes=[probes.Entropy(), probes.PositionMass()])
    n = torch.arange(1, 12, dtype=torch.float64)
    assert_close(run.chance(0)["blocks.1.attn"].flatten(), n.log().mean()[None])
    assert_close(run.chance(1)["blocks.1.attn"].flatten(), (1 / n).mean()[None])


@pytest.mark.parametrize("family", ["t5", "bloom", "gemma3"])
def test_chance_of_every_kind_of_mask(family: str) -> None:
    model, _ = pair(family)
    chosen = [probes.Entropy(), probes.PositionMass()]
    run = model.run(**given(family), probes=chosen)
    uniform = model.run(**given(family), probes=chosen, edits=[edits.Uniform()])
    for number in range(2):
        for site, chance in run.chance(number).items():
            got = uniform.readings(number)[site].values
            assert_close(chance.expand(got.shape), got, rtol=1e-6, atol=1e-6)


def test_a_probe_is_found_by_itself_or_its_number() -> None:
    model, _ = pair("llama")
    twice = [probes.PositionMass(positions=[0]), probes.PositionMass(positions=[1])]
    run = model.run(TOKENS, probes=twice)
    assert run.readings(twice[1]) == run.readings(1)
    assert run.values(twice[0]).shape == (3, 2, 6, 1)
    assert run.table().groupby("probe")["label"].unique().map(list).tolist() == [["0"], ["1"]]
    with pytest.raises(KeyError, match="MaxWeight was not among the 2 probes"):
        run.readings(probes.MaxWeight())
    with pytest.raises(KeyError, match="probe number 2"):
        run.readings(2)
    t5, _ = pair("t5")
    with pytest.raises(ValueError, match="sites differ in heads or lengths"):
        t5.run(**given("t5"), probes=[probes.MassReceived()]).values(0)


def test_a_run_without_probes_has_an_empty_table() -> None:
    model, _ = pair("llama")
    run = model.run(TOKENS)
    assert run.table().empty
    assert [site.name for site in run.sites] == ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]


def test_a_large_table_is_made_quickly(smollm2: interp.HookedModel) -> None:
    tokens = torch.randint(100, 49152, (8, 16), generator=torch.Generator().manual_seed(0))
    run = smollm2.run(tokens, probes=[*probes.basic(), probes.DistanceHistogram(), probes.MassReceived()])
    started = time.perf_counter()
    table = run.table()
    assert time.perf_counter() - started < 1
    assert len(table) == 30 * 9 * 8 * (1 + 1 + 2 + 1 + 1 + 16 + 16)


def test_kept_queries_keys_and_outputs() -> None:
    model, twin = pair("gpt2")
    read: dict[int, Tensor] = {}
    handles = [
        block.attn.c_proj.register_forward_pre_hook(lambda m, args, i=i: read.update({i: args[0]}))
        for i, block in enumerate(twin.transformer.h)
    ]
    with torch.no_grad():
        patterns = twin(TOKENS, output_attentions=True).attentions
    for handle in handles:
        handle.remove()
    run = model.run(TOKENS, keep=("qk", "z"), sites=[0, 2])
    assert list(run.traces) == list(run.z) == ["blocks.0.attn", "blocks.2.attn"]
    for layer in (0, 2):
        z = run.z[f"blocks.{layer}.attn"]
        assert_close(z.transpose(1, 2).flatten(-2), read[layer], rtol=1e-5, atol=1e-5)
        assert_close(run.traces[f"blocks.{layer}.attn"].rows(0, 11).pattern, patterns[layer], rtol=0, atol=1e-6)
