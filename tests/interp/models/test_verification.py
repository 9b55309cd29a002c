"""verify(): lets every family pass in every dtype, and nothing that computes something else."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import interp
from interp.attention import Mask, edits, probes
from interp.errors import UserError
from interp.models.verification import VerificationError, verify
from tests import families
from tests.families import FAMILIES, make

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def load(family: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    return interp.load(make(family, dtype=dtype, seed=seed), verify=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_in_every_dtype(family: str, dtype: torch.dtype) -> None:
    if family == "gpt_oss" and dtype is torch.float64:
        pytest.skip("mixtures of experts have no float64 in torch")
    for seed in range(2):
        found = verify(load(family, dtype, seed))
        assert 0 <= found["max_error"] <= found["tolerance"]
        alone = family in ("bloom", "mpt")
        no_sdpa = family in ("gemma2", "gpt_oss")
        assert found["compared_with"] == ("itself" if alone else "eager" if no_sdpa else "sdpa")
        assert (found["eager_against_sdpa"] is None) is (alone or no_sdpa)
        assert found["output"] == ("last_hidden_state" if family == "vit" else "logits")
        assert found["tolerance"] >= 3 * found["yardstick"]
        if dtype is torch.float64:
            assert found["max_error"] < 1e-4 * found["tolerance"] or found["compared_with"] == "eager"


def test_load_verifies_and_keeps_what_it_found() -> None:
    model = interp.load(make("llama"))
    assert model.info["verify"] == model.verify()
    assert "verify" not in interp.load(make("llama"), verify=False).info


# Broken on purpose ----------------------------------------------------------------------------------------------------


def broken(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Let the core compute something else."""
    from interp.models import seam

    plain = seam.attend

    def wrong(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: Any, softcap: Any, **rest: Any) -> Any:
        if how == "scale":
            factor = 1.01 if query.dtype in (torch.float32, torch.float64) else 1.3
            scale = factor * (query.shape[-1] ** -0.5 if scale is None else scale)
        elif how == "mask":
            mask = replace(mask, causal=False)
        elif how == "padding":
            mask = replace(mask, key_valid=None)
        elif how == "heads":
            query = query.flip(1)
        elif how == "groups":
            key, value = (t.repeat(1, 3, 1, 1) for t in (key, value))
        elif how == "window":
            mask = replace(mask, window=None if mask.window is None else mask.window + 1)
        elif how == "softcap":
            softcap = None
        elif how == "sinks":
            mask = replace(mask, sinks=None)
        elif how == "bias":
            mask = replace(mask, bias=None)
        elif how == "nan":
            scale = float("nan")
        return plain(query, key, value, mask, scale, softcap, **rest)

    monkeypatch.setattr(seam, "attend", wrong)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("family", "how"),
    [("llama", "scale"), ("gemma2", "scale"), ("bert", "scale"), ("t5", "scale"), ("vit", "scale"), ("llama", "mask"),
     ("bert", "padding"), ("gpt2", "heads"), ("llama", "groups"), ("mistral", "window"), ("gemma3", "window"),
     ("gemma2", "softcap"), ("gpt_oss", "sinks"), ("t5", "bias"), ("bart", "padding")],
)  # fmt: skip
def test_a_broken_core_fails(family: str, how: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if family == "gpt_oss" and dtype is torch.float64:
        pytest.skip("mixtures of experts have no float64 in torch")
    model = load(family, dtype)
    broken(monkeypatch, how)
    with pytest.raises(
        VerificationError, match=r"under the core differs from its own (sdpa|eager) attention by .*, more"
    ):
        model.verify()


def test_load_refuses_a_model_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "scale")
    with pytest.raises(VerificationError):
        interp.load(make("llama"))
    assert issubclass(VerificationError, UserError)


def test_a_model_that_computes_its_own_attention_fails_when_reading_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp.models import seam

    plain = seam.read_pattern

    def wrong(scores: Tensor, pattern: Tensor, *rest: Any) -> Any:
        pattern, readings = plain(scores, pattern, *rest)
        return pattern * 1.01, readings

    for family, own in (("bloom", "itself"), ("falcon", "sdpa")):
        model = load(family)
        with monkeypatch.context() as patch:
            patch.setattr(seam, "read_pattern", wrong)
            with pytest.raises(VerificationError, match=f"differs from its own {own} attention"):
                model.verify()
        model.verify()


def test_active_edits_and_hooks_are_left_out() -> None:
    model = load("llama")
    before = model.verify()
    calls: list[str] = []
    with model.edit(edits.Uniform()), model.hooks({"blocks.0.attn.hook_q": lambda q, hook: calls.append(hook.name)}):
        assert model.verify() == before
        assert not calls
        model.run(families.tokens())
    assert len(calls) == 1


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom", "falcon"])
def test_the_model_is_left_under_the_core(family: str) -> None:
    model = load(family)
    model.verify()
    scaling = [getattr(site.module, "scaling", None) for site in model.sites]
    model.verify()
    assert scaling == [getattr(site.module, "scaling", None) for site in model.sites]
    assert len(model.run(families.tokens(), probes=[probes.MaxWeight()]).readings(0)) == len(model.sites)


def test_smollm2_passes(smollm2: interp.HookedModel) -> None:
    found = smollm2.info["verify"]
    assert found["max_error"] <= found["tolerance"] < 1e-2
    assert found["compared_with"] == "sdpa"


def test_minilm_passes(minilm: interp.HookedModel) -> None:
    assert minilm.info["verify"]["max_error"] <= minilm.info["verify"]["tolerance"] < 1e-3
