"""What a hooked model meets around it: copies, threads, autocast, gradient checkpointing, compiled layers, modes."""

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import interp
from interp.attention import edits, probes
from interp.attention.precision import full_precision
from interp.errors import UserError
from interp.models.loading import parameters_sha256
from tests import families

OFF = edits.GateHeads({(0, 0): 0.0})
IDS = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))


class Module(nn.Module):
    """One layer of PyTorch's own attention."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.attention = nn.Embedding(11, 16), nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return x + self.attention(x, x, x, need_weights=False)[0]


def logits_of(run: Any) -> Tensor:
    """Those of a model that has some."""
    assert run.logits is not None
    return run.logits


def output_of(run: Any) -> Tensor:
    """That of a module of one's own."""
    assert isinstance(run.output, Tensor)
    return run.output


def hooked(kind: str) -> tuple[Any, Tensor]:
    if kind == "module":
        return interp.load(Module(), IDS), IDS
    if kind == "toy":
        return interp.load("tiny-2l"), IDS
    return interp.load(families.make(kind)), families.tokens()


def differences(model: Any, tokens: Tensor) -> float:
    """How much the output changes without one head."""
    off = edits.GateHeads({(model.sites[0].name, 0): 0.0})
    return float((first(model.run(tokens, edits=[off]).output) - first(model.run(tokens).output)).abs().max())


def first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


# Copies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "bloom", "module", "toy"])
@pytest.mark.parametrize("pickled", [False, True])
def test_a_copy_is_a_hooked_model_of_its_own(kind: str, pickled: bool) -> None:
    model, tokens = hooked(kind)
    before = model.run(tokens, probes=[probes.Entropy()])
    with model.edit(edits.GateHeads({(model.sites[0].name, 0): 0.0})):
        other = copy.deepcopy(model)  # what is in force stays with the original
        model.run(tokens)
    if pickled:
        other = pickle.loads(pickle.dumps(model))
    run = other.run(tokens, probes=[probes.Entropy()])
    assert torch.equal(first(run.output), first(before.output))
    assert torch.equal(run.values(0), before.values(0))
    assert differences(other, tokens) == differences(model, tokens) > 0
    with torch.no_grad():
        for parameter in other.module.parameters():
            parameter.zero_()
    assert not first(other.run(tokens).output).any()
    assert torch.equal(first(model.run(tokens).output), first(before.output))


@pytest.mark.parametrize("kind", ["llama", "module"])
def test_a_copy_of_the_module_runs_its_own_weights(kind: str) -> None:
    """A module of one's own ran the original's forward, whatever its own weights were."""
    model, tokens = hooked(kind)
    other = copy.deepcopy(model.module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
        assert not first(other(tokens)).any()
        with model.edit(edits.GateHeads({(model.sites[0].name, 0): 0.0})):
            model.run(tokens)
            assert not first(other(tokens)).any()
        assert first(model.module(tokens)).any()


# Threads ------------------------------------------------------------------------------------------------------------


def test_models_run_in_threads_of_their_own() -> None:
    """PyTorch's names are replaced while a module runs: what another thread calls must not be answered by it."""
    models = [interp.load(Module(seed), IDS) for seed in range(3)]
    alone = [model.run(IDS, probes=[probes.Entropy()]) for model in models]
    own = F.scaled_dot_product_attention, F.softmax

    def again(number: int) -> bool:
        runs = [models[number].run(IDS, probes=[probes.Entropy()]) for _ in range(40)]
        expected = alone[number]
        return all(torch.equal(output_of(run), output_of(expected)) for run in runs) and all(
            torch.equal(run.values(0), expected.values(0)) for run in runs
        )

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(again, range(3))) == [True] * 3
    assert (F.scaled_dot_product_attention, F.softmax) == own


def test_settings_of_the_process_outlive_threads_that_overlap() -> None:
    """The second to enter found the first one's setting, and left it behind."""
    cpu, matmul = torch.device("cpu"), getattr(torch.backends.mkldnn, "matmul")  # noqa: B009
    before = matmul.fp32_precision  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as other:
        theirs = full_precision(cpu)
        with full_precision(cpu):
            other.submit(theirs.__enter__).result()
        assert matmul.fp32_precision == "ieee"  # type: ignore[attr-defined]
        other.submit(theirs.__exit__, None, None, None).result()
    assert matmul.fp32_precision == before != "ieee"  # type: ignore[attr-defined]


def test_models_are_loaded_in_threads_of_their_own() -> None:
    made = [families.make("llama") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(interp.load, made))
    found = [model.run(families.tokens(), probes=[probes.Entropy()]).values(0) for model in models]
    assert all(torch.equal(values, found[0]) for values in found)


# Autocast -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2", "toy", "module"])
def test_attention_under_autocast(kind: str) -> None:
    """Rotated queries and keys are float32 there, values bfloat16."""
    model, tokens = hooked(kind)
    plain = model.run(tokens, probes=[probes.Entropy()]).values(0)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.run(tokens, probes=[probes.Entropy()]).values(0)
    torch.testing.assert_close(found, plain, atol=0.05, rtol=0.05)
    assert not torch.equal(found, plain)


# Gradient checkpointing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_(enable|disable)` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_gradients_of_edits_are_refused_where_layers_are_computed_again(reentrant: bool) -> None:
    """The backward pass ran the layers again without the edits: its gradients were half wrong, and nothing said so."""
    module = families.make("llama")
    model = interp.load(module)
    given: Any = {"inputs_embeds": torch.randn(2, 7, 48).requires_grad_(), "grad": True}
    module.gradient_checkpointing_enable({"use_reentrant": reentrant})
    module.train()
    logits_of(model.run(**given, probes=[probes.Entropy()])).sum().backward()
    hooks = {"blocks.0.attn.hook_z": lambda z, hook: z * 2}
    changes: tuple[Any, ...] = ({"edits": [OFF]}, {"hooks": hooks}, {"probes": [probes.GradientTimesWeight()]})
    for changed in changes:
        with pytest.raises(UserError, match="gradient checkpointing"):
            model.run(**given, **changed)
    module.gradient_checkpointing_disable()
    logits_of(model.run(**given, edits=[OFF])).sum().backward()


class Checkpointed(Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return x + checkpoint(lambda y: self.attention(y, y, y, need_weights=False)[0], x, use_reentrant=self.reentrant)  # type: ignore[operator]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_modules_of_ones_own_that_are_computed_again(reentrant: bool) -> None:
    model = interp.load(Checkpointed(reentrant), IDS)
    off = edits.GateHeads({(model.sites[0].name, 0): 0.0})
    model.run(IDS, edits=[off])
    with pytest.raises(UserError, match="gradient checkpointing"):
        model.run(IDS, edits=[off], grad=True)


# Compiled layers ----------------------------------------------------------------------------------------------------


def test_layers_compiled_in_place() -> None:
    plain = interp.load(families.make("llama"))
    module = families.make("llama")
    module.model.layers[0].compile(backend="eager")
    model = interp.load(module)
    tokens = families.tokens()
    settings: tuple[dict[str, Any], ...] = ({}, {"edits": [OFF]})
    for given in settings:
        run, expected = (each.run(tokens, **given, probes=[probes.Entropy()]) for each in (model, plain))
        torch.testing.assert_close(run.logits, expected.logits)
        torch.testing.assert_close(run.values(0), expected.values(0))


# Modes and weights --------------------------------------------------------------------------------------------------


def test_loading_leaves_each_part_in_its_mode() -> None:
    module = Module()
    module.train()
    module.embedding.eval()  # frozen, say
    model = interp.load(module, IDS)
    assert [child.training for child in module.modules()] == [True, False, True, True]
    model.verify()
    assert [child.training for child in module.modules()] == [True, False, True, True]


def test_dropout_that_is_no_module_is_refused_too() -> None:
    """OPT and BART call the function; only modules were looked for, and logits were random without a word."""
    model = interp.load(families.make("opt", dropout=0.2))
    tokens = families.tokens()
    plain = logits_of(model.run(tokens))
    model.module.train()
    with pytest.raises(UserError, match="is in training mode, where dropout"):
        model.run(tokens)
    assert torch.equal(logits_of(model.run(tokens, seed=1)), logits_of(model.run(tokens, seed=1)))
    assert not torch.equal(logits_of(model.run(tokens, seed=1)), plain)


def test_a_model_that_could_not_be_loaded_is_in_the_mode_it_was_in() -> None:
    module = families.make("llama")
    module.train()
    module.model.layers[1].self_attn = module.model.layers[0].self_attn
    with pytest.raises(UserError, match="for several layers"):
        interp.load(module)
    assert all(child.training for child in module.modules())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_weights_that_are_no_tensors_are_hashed() -> None:
    """Quantised layers of torch.ao keep packed weights and dtypes among their state."""

    class Packed(nn.Linear):
        def get_extra_state(self) -> Any:
            return torch.quint8, torch.quantize_per_tensor(self.weight.detach(), 0.1, 0, torch.qint8)

        def set_extra_state(self, state: Any) -> None: ...

    torch.manual_seed(0)
    one, other = Packed(4, 4), Packed(4, 4)
    assert parameters_sha256(one) == parameters_sha256(copy.deepcopy(one)) != parameters_sha256(other)


def test_weights_that_the_model_does_not_use_are_named(tmp_path: Path) -> None:
    """A config of fewer layers than the checkpoint has made another model of it, and nothing said so."""
    families.make("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "unread" not in interp.load(str(tmp_path)).info
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2, "layer_types": None}))
    model = interp.load(str(tmp_path))
    assert len(model.sites) == 2
    assert model.info["unread"][0].startswith("model.layers.2.")


# Inputs -------------------------------------------------------------------------------------------------------------


def test_one_site_by_itself() -> None:
    model = interp.load("tiny-2l")
    for one in (1, "blocks.1.attn"):
        assert list(model.run(IDS, probes=[probes.Entropy()], sites=one).readings(0)) == ["blocks.1.attn"]


@pytest.mark.parametrize("changed", [lambda z, hook: z.double(), lambda z, hook: 0, lambda z, hook: z[:, :1]])
def test_what_a_hook_returns_is_checked(changed: Any) -> None:
    with pytest.raises(ValueError, match=r"hook_z returned .*; it was given torch.float32 \[2, 9, 4, 16\]"):
        interp.load("tiny-2l").run(IDS, hooks={"blocks.0.attn.hook_z": changed})
