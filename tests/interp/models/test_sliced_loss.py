"""The loss by slices of the vocabulary against the loss of whole logits."""

from typing import Any

import pytest
import torch
from torch import Tensor

import interp
from interp.models import sliced_loss
from interp.models.sliced_loss import sliced_token_loss
from tests.families import make

VOCABULARY = 5000  # not a multiple of any slice


def hooked(family: str, dtype: torch.dtype = torch.float64, **changed: Any) -> Any:
    return interp.load(make(family, 0, dtype, vocab_size=VOCABULARY, **changed), verify=False)


def tokens(n: int = 3, length: int = 9) -> Tensor:
    return torch.randint(3, VOCABULARY, (n, length), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def sliced_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often the loss was taken by slices; slices are small."""
    calls: list[int] = []
    plain = sliced_loss._loss
    monkeypatch.setitem(sliced_loss._SLICE_BYTES, "cpu", 1 << 16)
    monkeypatch.setattr(sliced_loss, "_loss", lambda *given: calls.append(1) or plain(*given))
    return calls


@pytest.mark.parametrize("family", ["llama", "gpt2", "gptj", "opt"])  # GPT-J's unembedding has a bias
def test_slices_give_the_loss(family: str, sliced_calls: list[int]) -> None:
    model = hooked(family)
    torch.testing.assert_close(sliced_token_loss(model, tokens()), model.token_loss(tokens()), rtol=0, atol=1e-11)
    assert len(sliced_calls) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_other_precisions_too(dtype: torch.dtype, sliced_calls: list[int]) -> None:
    model = hooked("llama", dtype)
    exact = model.token_loss(tokens())
    found = sliced_token_loss(model, tokens())
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-5 if dtype is torch.float32 else 2e-2)
    assert found.dtype is exact.dtype
    assert sliced_calls


def test_padding_has_no_loss(sliced_calls: list[int]) -> None:
    model, valid = hooked("llama"), torch.ones(3, 9, dtype=torch.bool)
    valid[0, :3], valid[1, 7:] = False, False
    torch.testing.assert_close(
        sliced_token_loss(model, tokens(), valid), model.token_loss(tokens(), valid), equal_nan=True, rtol=0, atol=1e-11
    )
    assert sliced_calls


def test_a_softcap_is_found_out(sliced_calls: list[int]) -> None:
    model = hooked("gemma2", final_logit_softcapping=2.0)
    torch.testing.assert_close(sliced_token_loss(model, tokens()), model.token_loss(tokens()), rtol=0, atol=0)
    assert not sliced_calls


def test_gradients_and_small_vocabularies_are_left_to_the_whole_loss(sliced_calls: list[int]) -> None:
    model = hooked("llama")
    assert sliced_token_loss(model, tokens(), grad=True).requires_grad
    small: Any = interp.load(make("llama"), verify=False)
    sliced_token_loss(small, tokens() % 90)
    assert not sliced_calls


def test_a_watched_unembedding_is_left_alone(sliced_calls: list[int]) -> None:
    model = hooked("llama")
    seen = []
    model.module.lm_head.register_forward_hook(lambda *given: seen.append(given[2].shape))
    sliced_token_loss(model, tokens())
    assert seen[-1][-1] == VOCABULARY
    assert "forward" not in vars(model.module.lm_head)
