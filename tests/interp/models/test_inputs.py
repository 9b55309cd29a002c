"""What a forward pass may be given, and what is refused in words."""

import re
from functools import cache
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from interp.attention import probes
from interp.errors import UserError
from interp.models.inputs import context_length, example_tokens, together
from tests import families
from tests.families import FAMILIES, hf, load, make

TOKENS = families.tokens(2, 9)
VALID = torch.arange(9) < torch.tensor([[9], [6]])


@cache
def model_of(family: str) -> Any:
    return load(make(family))


# Given in several ways ------------------------------------------------------------------------------------------------


def test_lists_are_padded_on_the_right() -> None:
    model = model_of("llama")
    rows = [TOKENS[0].tolist(), TOKENS[1, :6].tolist()]
    run = model.run(rows, probes=probes.basic())
    same = model.run(TOKENS, VALID, probes=probes.basic())
    for number in range(5):
        assert_close(run.values(number), same.values(number), rtol=1e-6, atol=1e-6, equal_nan=True)
    tokens, valid = together(rows, None, "tokens")
    assert tokens.shape == (2, 9)
    assert valid is not None
    assert torch.equal(valid, VALID)
    assert together([[3, 4], [5, 6]], None, "tokens")[1] is None


@pytest.mark.parametrize("text", ["The cat sat.", ["The cat", "sat."]])
def test_text_is_sent_to_the_tokenizer(text: Any) -> None:
    with pytest.raises(UserError, match=r"must be token ids; got .*The cat.*: model.run\(\*\*model.tokenizer\(text"):
        together(text, None, "tokens")


def test_what_a_tokenizer_gives_is_no_argument_but_many() -> None:
    with pytest.raises(UserError, match=r"(?s)tokens must be token ids; got .*input_ids.*: model.run\(\*\*given\)"):
        together({"input_ids": VALID.long()}, None, "tokens")


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_what_a_tokenizer_gives_is_understood(family: str) -> None:
    """Under transformers' names the same happens: tokens checked, padding left out, positions told."""
    model = model_of(family)
    left = VALID.flip(1)
    decoder = {"decoder_tokens": TOKENS, "decoder_valid": left} if family == "t5" else {}
    theirs = {"input_ids": TOKENS, "attention_mask": left.long()}
    if family == "t5":
        theirs |= {"decoder_input_ids": TOKENS, "decoder_attention_mask": left.long()}
    run, same = model.run(**theirs, probes=probes.basic()), model.run(TOKENS, left, **decoder, probes=probes.basic())
    assert torch.equal(run.logits[left], same.logits[left])
    assert len(run.table()) == len(same.table())
    pd.testing.assert_frame_equal(run.table(), same.table())
    with pytest.raises(UserError, match="must lie in the vocabulary"):
        model.run(**theirs | {"input_ids": TOKENS + 90})
    with pytest.raises(UserError, match="given twice, once as input_ids"):
        model.run(TOKENS, **theirs)
    with pytest.raises(UserError, match="said twice, once as attention_mask"):
        model.run(valid=left, **theirs)


def test_a_mask_that_hides_nothing_is_none() -> None:
    model = model_of("llama")
    run = model.run(TOKENS, torch.ones_like(TOKENS, dtype=torch.bool))
    assert torch.equal(run.logits, model.run(TOKENS).logits)
    assert all(mask.key_valid is None for mask, _ in run.masks.values())


def test_embeddings_in_place_of_tokens() -> None:
    model = model_of("llama")
    embedded = model.module.get_input_embeddings()(TOKENS)
    left = VALID.flip(1)
    run = model.run(inputs_embeds=embedded, attention_mask=left.long(), probes=probes.basic())
    same = model.run(TOKENS, left, probes=probes.basic())
    for number in range(5):
        assert_close(run.values(number), same.values(number), rtol=1e-6, atol=1e-6, equal_nan=True)


def test_encoder_outputs_in_place_of_tokens() -> None:
    model = model_of("t5")
    encoded = model.run(TOKENS, decoder_tokens=TOKENS).output.encoder_last_hidden_state
    run = model.run(encoder_outputs=(encoded,), decoder_tokens=TOKENS, probes=[probes.MaxWeight()])
    assert {site.stack for site in run.sites} == {"decoder"}
    assert_close(run.logits, model.run(TOKENS, decoder_tokens=TOKENS).logits)


def test_integers_of_either_width() -> None:
    model = model_of("llama")
    assert torch.equal(model.run(TOKENS.int()).logits, model.run(TOKENS).logits)


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tokens": TOKENS + 90}, "tokens must lie in the vocabulary, 0 … 96; got 9"),
        ({"tokens": -TOKENS}, "tokens must lie in the vocabulary, 0 … 96; got -"),
        ({"tokens": families.tokens(1, 129)}, "tokens: 129 tokens are more than the model's context of 128"),
        (
            {"tokens": TOKENS.float()},
            "tokens must be token ids [batch, position], at least one, of dtype int64 or int32",
        ),
        ({"tokens": TOKENS > 0}, "of dtype int64 or int32; got torch.bool"),
        ({"tokens": [[1.5, 2.0]]}, "of dtype int64 or int32; got torch.float32"),
        ({"tokens": TOKENS[0]}, "got torch.int64 [9]"),
        ({"tokens": [3, 4, 5]}, "tokens must be sequences of at least one token id each"),
        ({"tokens": []}, "tokens must be sequences of at least one token id each"),
        ({"tokens": [[3], []]}, "tokens must be sequences of at least one token id each"),
        ({"tokens": TOKENS[:, :0]}, "at least one"),
        ({"tokens": TOKENS[:0]}, "at least one"),
        ({"tokens": TOKENS, "valid": VALID[:, :8]}, "valid must be boolean [2, 9] as tokens; got torch.bool [2, 8]"),
        ({"tokens": TOKENS, "valid": VALID.long()}, "valid must be boolean [2, 9] as tokens; got torch.int64 [2, 9]"),
        (
            {"tokens": TOKENS, "valid": VALID & (torch.arange(2) < 1)[:, None]},
            "valid leaves sequence 1 without a token",
        ),
        (
            {"tokens": TOKENS, "valid": torch.arange(9).expand(2, -1) != 4},
            "valid: in sequence 0 padding stands between",
        ),
        ({}, "run() needs tokens, or the model's own inputs"),
    ],
)
def test_what_is_no_input(given: dict[str, Any], said: str) -> None:
    model = model_of("llama")
    with pytest.raises(UserError, match=re.escape(said)):
        model.run(**given)
    assert model.run(TOKENS).logits.isfinite().all()


def test_a_decoder_needs_its_own_tokens() -> None:
    model = model_of("bart")
    with pytest.raises(UserError, match="needs decoder_tokens beside tokens"):
        model.run(TOKENS)
    with pytest.raises(UserError, match="decoder_tokens must lie in the vocabulary"):
        model.run(TOKENS, decoder_tokens=TOKENS + 90)
    with pytest.raises(UserError, match="decoder_valid: in sequence 1 padding stands between"):
        model.run(TOKENS, decoder_tokens=TOKENS, decoder_valid=torch.arange(9) != torch.tensor([[9], [3]]))


@pytest.mark.parametrize("family", ["gpt2", "bert", "gptj", "opt", "mpt"])
def test_the_whole_context_and_no_more(family: str) -> None:
    model = model_of(family)
    assert model.n_ctx == 128
    assert model.run(families.tokens(1, 128)).logits.shape[1] == 128
    with pytest.raises(UserError, match="more than the model's context of 128"):
        model.run(families.tokens(1, 129))


def test_roberta_loses_the_positions_before_its_padding() -> None:
    model = model_of("roberta")
    assert model.n_ctx == 126
    assert model.run(families.tokens(1, 126)).logits.isfinite().all()
    with pytest.raises(UserError, match="more than the model's context of 126"):
        model.run(families.tokens(1, 127))


@pytest.mark.parametrize("family", ["t5", "bloom"])
def test_relative_positions_have_no_end(family: str) -> None:
    model = model_of(family)
    assert model.n_ctx is None
    decoder = {"decoder_tokens": TOKENS[:1]} if family == "t5" else {}
    assert model.run(families.tokens(1, 700), **decoder).logits.isfinite().all()


def test_other_inputs_are_refused_by_name() -> None:
    sizes = families.BART | {"num_mel_bins": 8, "max_source_positions": 10}
    module = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**sizes))
    with pytest.raises(UserError, match="reads input_features: only models of tokens and of images are hooked so far"):
        load(module)


def test_a_config_without_a_limit_has_none() -> None:
    xlnet = hf.XLNetLMHeadModel(hf.XLNetConfig(**families.TOKENS, d_model=16, n_layer=1, n_head=2, d_inner=16))
    assert context_length(xlnet) is None
    assert context_length(torch.nn.Linear(2, 2)) is None


# Padding on the left --------------------------------------------------------------------------------------------------


def positions_told(family: str) -> Tensor | None:
    """Which positions a left-padded batch is given."""
    model = model_of(family)
    decoder = {"decoder_tokens": TOKENS} if family in families.ENCODER_DECODERS else {}
    args = model.inputs.batch(model, TOKENS, VALID.flip(1), decoder.get("decoder_tokens"), None, {}).arguments
    return args.get("position_ids")


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("vit", "bart")])
def test_positions_count_valid_tokens(family: str) -> None:
    """From 0; from behind the padding's own row in RoBERTa; not at all where the model counts for itself."""
    told = positions_told(family)
    if family in ("t5", "bloom", "mpt"):
        assert told is None
        return
    first = 2 if family == "roberta" else 0
    assert told is not None
    assert (told[VALID.flip(1)] - first).tolist() == [*range(9), *range(6)]


def test_positions_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(make("llama"))
    passes: list[int] = []
    model.module.register_forward_pre_hook(lambda module, args: passes.append(1))
    model.run(TOKENS, VALID)
    assert len(passes) == 1
    model.run(TOKENS, VALID.flip(1))
    assert len(passes) == 1 + 2 + 1
    model.run(TOKENS, VALID.flip(1))
    assert len(passes) == 1 + 2 + 1 + 1


def test_positions_given_are_left_alone() -> None:
    model = model_of("llama")
    own = torch.arange(9).expand(2, -1) + 7
    args = model.inputs.batch(model, TOKENS, VALID.flip(1), None, None, {"position_ids": own}).arguments
    assert torch.equal(args["position_ids"], own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_trying_positions_in_every_dtype(dtype: torch.dtype) -> None:
    for seed in range(3):
        load(make("gpt2", seed=seed, dtype=dtype)).run(TOKENS, VALID.flip(1))
        load(make("gpt_oss", seed=seed, dtype=torch.float32 if dtype is torch.float64 else dtype)).run(
            TOKENS, VALID.flip(1)
        )
        with pytest.raises(UserError, match="pad on the right"):
            load(make("bart", seed=seed, dtype=dtype)).run(TOKENS, VALID.flip(1), decoder_tokens=TOKENS)


# Examples -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_examples_fit_the_model(family: str) -> None:
    model = model_of(family)
    example = model.inputs.example(model)
    model.run(**example)
    for name in ("tokens", "decoder_tokens"):
        if name in example:
            assert not torch.isin(example[name], torch.tensor([0, 1, 2])).any()


def test_examples_avoid_tokens_that_the_config_names() -> None:
    model = load(make("llama", vocab_size=12, bos_token_id=11, eos_token_id=10, pad_token_id=9))
    assert set(example_tokens(model, 200).flatten().tolist()) == set(range(1, 9))
