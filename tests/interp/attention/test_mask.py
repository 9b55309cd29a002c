"""The mask language against transformers' own masks and biases, and what it refuses."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformers import masking_utils
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from interp.attention import AlibiSlopes, Mask, RelativeBuckets, attend
from interp.attention.bound import BoundMask
from tests.interp.attention.cases import Case, cases, tensors

CPU = torch.device("cpu")


def bind(mask: Mask, n_queries: int = 7, n_keys: int = 7, batch: int = 2, n_heads: int = 6) -> BoundMask:
    return mask.bind(batch, n_heads, n_queries, n_keys, CPU)


def whole(bound: BoundMask) -> Tensor:
    """Who may read whom, [batch, head, query, key]."""
    allowed = bound.allowed(0, bound.n_queries, 0, bound.n_keys)
    return allowed.expand(bound.batch, bound.n_heads, -1, -1)


def as_transformers(function: Callable[..., Tensor], n_queries: int, n_keys: int, batch: int = 2) -> Tensor:
    """A transformers mask function on every pair, queries at the last keys."""
    query = torch.arange(n_keys - n_queries, n_keys)[None, None, :, None]
    index = torch.arange(batch)[:, None, None, None], torch.zeros(1, dtype=torch.long).view(1, 1, 1, 1)
    return function(*index, query, torch.arange(n_keys)[None, None, None, :]).expand(batch, 6, -1, -1)


# Against transformers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_queries", [1, 5, 11])
@pytest.mark.parametrize("window", [1, 2, 4, 11, 50])
def test_windows_are_those_of_transformers(n_queries: int, window: int) -> None:
    causal = bind(Mask(causal=True, window=window), n_queries, 11)
    expected = as_transformers(masking_utils.sliding_window_causal_mask_function(window), n_queries, 11)
    assert (whole(causal) == expected).all()
    # On both sides transformers counts the distance, here the window holds the query itself
    free = bind(Mask(window=window + 1), n_queries, 11)
    expected = as_transformers(masking_utils.sliding_window_bidirectional_mask_function(window), n_queries, 11)
    assert (whole(free) == expected).all()


def test_padding_and_order_are_those_of_transformers() -> None:
    for key_valid in (
        torch.arange(7)[None] >= torch.tensor([[0], [3]]),
        torch.arange(7)[None] < torch.tensor([[7], [2]]),
    ):
        function = masking_utils.and_masks(
            masking_utils.causal_mask_function, masking_utils.padding_mask_function(key_valid)
        )
        assert (whole(bind(Mask(causal=True, key_valid=key_valid))) == as_transformers(function, 7, 7)).all()


def test_a_transformers_mask_function_is_a_mask() -> None:
    chunks = masking_utils.chunked_causal_mask_function(3, torch.tensor([0, 2]))
    bound = bind(Mask(allowed=chunks), 5, 11)
    assert (whole(bound) == as_transformers(chunks, 5, 11)).all()


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 20), (4, 7), (33, 100)])
def test_buckets_are_those_of_t5(bidirectional: bool, n_buckets: int, max_distance: int) -> None:
    buckets = RelativeBuckets(torch.zeros(n_buckets, 2), bidirectional, max_distance)
    query, key = torch.arange(300)[:, None], torch.arange(300)[None, :]
    expected = T5Attention._relative_position_bucket(key - query, bidirectional, n_buckets, max_distance)
    assert (buckets.buckets(query, key) == expected).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_alibi_is_blooms_up_to_a_constant_of_each_row(dtype: torch.dtype) -> None:
    n = 300  # beyond 256, bfloat16 does not know every distance
    key_valid = torch.ones(2, n, dtype=torch.long)
    key_valid[1, :5] = 0
    blooms = build_alibi_tensor(key_valid, 6, torch.float32).view(2, 6, 1, n)
    slopes = (blooms[0, :, 0, 1] - blooms[0, :, 0, 0]).to(dtype)
    ours = bind(Mask(causal=True, bias=AlibiSlopes(slopes)), n, n).bias(0, n, 0, n, torch.float32)
    assert ours is not None
    slack = 1e-4 if dtype is torch.float32 else 0.004 * n * float(slopes.max())
    apart = (ours - blooms).expand(2, 6, n, n)
    readable = (torch.arange(n) <= torch.arange(n)[:, None]) & key_valid.bool()[:, None, None, :]
    for b, first in ((0, 0), (1, 5)):
        row = apart[b].where(readable[b], apart[b, :, :, first, None])
        assert_close(row, apart[b, :, :, first, None].expand_as(row), rtol=0, atol=slack)
    steps = ours[0, :, -1].diff()
    assert_close(steps, slopes.float()[:, None].expand_as(steps), rtol=0, atol=1e-4)


# Every way to ask gives the same answer ------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(cases(), st.data())
def test_blocks_and_single_pairs_agree_with_the_definition(case: Case, data: st.DataObject) -> None:
    batch, n_heads, n_queries, n_keys = case.sizes
    bound = case.mask.bind(batch, n_heads, n_queries, n_keys, CPU)
    expected = case.reference.permitted
    assert (whole(bound) == expected).all()

    start = data.draw(st.integers(0, n_queries - 1))
    stop = data.draw(st.integers(start + 1, n_queries))
    low, high = bound.key_range(start, stop)
    assert 0 <= low <= high <= n_keys
    assert not expected[:, :, start:stop, :low].any()
    assert not expected[:, :, start:stop, high:].any()
    assert (bound.allowed(start, stop, low, high) == expected[:, :, start:stop, low:high]).all()

    query, key = torch.arange(n_queries)[None, None, :, None], torch.arange(n_keys)[None, None, None, :]
    assert (bound.permits(query, key) == expected).all()
    own_keys = torch.randint(0, n_keys, (batch, n_heads, n_queries, 3))
    assert (bound.permits(query, own_keys) == expected.gather(-1, own_keys)).all()
    if not bound.may_have_empty_rows:
        assert expected.any(-1).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 13), st.integers(0, 12), st.integers(1, 15), st.booleans(), st.integers(1, 6))
def test_only_the_ragged_ends_of_a_block_are_masked(
    n_queries: int, more_keys: int, window: int, causal: bool, height: int
) -> None:
    bound = bind(Mask(causal=causal, window=window), n_queries, n_queries + more_keys)
    for start in range(0, n_queries, height):
        stop = min(start + height, n_queries)
        low, high = bound.key_range(start, stop)
        ragged = torch.zeros(high - low, dtype=torch.bool)
        for first, last in bound.ragged(start, stop, low, high):
            ragged[first - low : last - low] = True
        assert bound.allowed(start, stop, low, high)[..., ~ragged].all()


@settings(max_examples=60, deadline=None)
@given(cases(orders=("causal", "window")))
def test_what_is_said_in_words_can_be_said_by_a_tensor(case: Case) -> None:
    batch, n_heads, n_queries, n_keys = case.sizes
    bound = case.mask.bind(batch, n_heads, n_queries, n_keys, CPU)
    bias = bound.bias(0, n_queries, 0, n_keys, torch.float32)
    dense = Mask(
        allowed=whole(bound), bias=None if bias is None else bias.expand(batch, n_heads, -1, -1), sinks=case.mask.sinks
    )
    in_words = attend(*case.arguments, block_rows=3)
    as_tensor = attend(case.query, case.key, case.value, dense, case.scale, case.softcap, block_rows=3)
    assert_close(in_words, as_tensor, rtol=0, atol=case.tolerance(case.reference.scores))


def test_decoding_a_token_at_a_time_gives_the_whole() -> None:
    query, key, value = tensors(n_queries=11, n_keys=11)
    mask = Mask(causal=True, window=4, bias=AlibiSlopes(torch.rand(6)), sinks=torch.zeros(6))
    expected = attend(query, key, value, mask)
    for at in range(11):
        step = attend(query[:, :, at : at + 1], key[:, :, : at + 1], value[:, :, : at + 1], mask)
        assert_close(step, expected[:, :, at : at + 1])
        # A static cache holds room for later keys
        static = Mask(causal=True, window=4, bias=mask.bias, sinks=mask.sinks, query_offset=at)
        assert_close(attend(query[:, :, at : at + 1], key, value, static), expected[:, :, at : at + 1])


# Positions ----------------------------------------------------------------------------------------------------------


def test_positions_count_from_the_first_token_that_is_no_padding() -> None:
    key_valid = torch.tensor([[False, False, True, True, True], [True, True, True, False, False]])
    bound = bind(Mask(causal=True, key_valid=key_valid), 3, 5)
    assert bound.key_position[key_valid].tolist() == [0, 1, 2, 0, 1, 2]
    assert bound.query_position[0].tolist() == [0, 1, 2]
    assert bound.query_valid is not None
    assert bound.query_valid.tolist() == [[True, True, True], [True, False, False]]
    assert bind(Mask(), 3, 5).query_position.tolist() == [[2, 3, 4]]
    assert bind(Mask(), 3, 5).query_valid is None
    assert bind(Mask(query_offset=1), 3, 5).query_position.tolist() == [[1, 2, 3]]


def test_positions_across_sequences() -> None:
    valid = torch.tensor([[False, True, True], [True, True, False]])
    key_valid = torch.ones(2, 5, dtype=torch.bool)
    assert bind(Mask(cross=True), 3, 5).query_position.tolist() == [[0, 1, 2]]
    assert bind(Mask(cross=True, key_valid=key_valid), 3, 5).query_valid is None
    bound = bind(Mask(cross=True, key_valid=key_valid, query_valid=valid), 3, 5)
    assert bound.query_position[valid].tolist() == [0, 1, 0, 1]
    assert bound.query_valid is valid


def test_queries_without_a_key_of_their_own_are_padding() -> None:
    bound = bind(Mask(causal=True, key_valid=torch.ones(2, 4, dtype=torch.bool), query_offset=2), 4, 4)
    assert bound.query_valid is not None
    assert bound.query_valid[0].tolist() == [True, True, False, False]


# Other tensors, other devices ----------------------------------------------------------------------------------------


def test_parameters_can_be_exchanged() -> None:
    for bias, name in (
        (torch.zeros(7, 7), "bias"),
        (AlibiSlopes(torch.zeros(6)), "slopes"),
        (RelativeBuckets(torch.zeros(8, 6), False, 9), "table"),
    ):
        mask = Mask(causal=True, bias=bias, sinks=torch.zeros(6))
        assert list(mask.parameters()) == [name, "sinks"]
        ones = {key: torch.ones_like(value) for key, value in mask.parameters().items()}
        other = mask.with_parameters(ones)
        assert other.causal
        assert all(other.parameters()[key] is ones[key] for key in ones)
        assert type(other.bias) is type(bias)
    exchanged = (
        Mask(bias=RelativeBuckets(torch.zeros(8, 6), False, 9)).with_parameters({"table": torch.ones(8, 6)}).bias
    )
    assert isinstance(exchanged, RelativeBuckets)
    assert (exchanged.bidirectional, exchanged.max_distance) == (False, 9)


def test_a_mask_moves_between_devices_as_a_whole() -> None:
    everything = Mask(
        key_valid=torch.ones(2, 7, dtype=torch.bool),
        query_valid=torch.ones(2, 7, dtype=torch.bool),
        allowed=torch.ones(7, 7, dtype=torch.bool),
        bias=RelativeBuckets(torch.zeros(8, 6)),
        sinks=torch.zeros(6),
        query_offset=0,
    )
    moved = everything.to("meta")
    assert isinstance(moved.bias, RelativeBuckets)
    for tensor in (moved.key_valid, moved.query_valid, moved.allowed, moved.bias.table, moved.sinks):
        assert isinstance(tensor, Tensor)
        assert tensor.device.type == "meta"
    assert moved.query_offset == 0
    slopes = Mask(bias=AlibiSlopes(torch.zeros(6))).to("meta").bias
    assert isinstance(slopes, AlibiSlopes)
    assert slopes.slopes.is_meta
    with pytest.raises(ValueError, match=r"key_valid is on meta, query on cpu; move it with Mask.to"):
        bind(moved)


# What is refused ----------------------------------------------------------------------------------------------------

YES = torch.ones(7, 7, dtype=torch.bool)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "window must be at least 1"),
        ({"cross": True, "causal": True}, "no common order"),
        ({"cross": True, "window": 3}, "no common order"),
    ],
)
def test_masks_that_mean_nothing(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mask(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Mask(key_valid=YES[:, :6]), r"key_valid must have shape \[2, 7\]; got \[7, 6\]"),
        (Mask(query_valid=YES[:2, :6]), r"query_valid must have shape \[2, 7\]; got \[2, 6\]"),
        (Mask(sinks=torch.zeros(5)), r"sinks must have shape \[6\]; got \[5\]"),
        (Mask(key_valid=torch.ones(2, 7)), "key_valid must be boolean .* got torch.float32"),
        (Mask(allowed=torch.ones(7, 7)), "allowed must be boolean"),
        (Mask(allowed=YES[:, :6]), r"allowed must broadcast to .* \[2, 6, 7, 7\]; got \[7, 6\]"),
        (Mask(allowed=YES[None]), "2 dimensions .* or 4"),
        (Mask(bias=torch.zeros(6, 7, 7)), "2 dimensions .* or 4"),
        (Mask(bias=torch.zeros(3, 1, 7, 7)), "bias must broadcast"),
        (Mask(bias=YES), "bias must be floating"),
        (Mask(bias=AlibiSlopes(torch.zeros(5))), "AlibiSlopes in Mask.bias must cover 6 heads; got 5"),
        (Mask(bias=RelativeBuckets(torch.zeros(8, 5))), "RelativeBuckets in Mask.bias must cover 6 heads; got 5"),
        (Mask(bias=RelativeBuckets(torch.full((8, 6), float("-inf")))), "must be finite"),
        (Mask(bias=AlibiSlopes(torch.full((6,), torch.finfo(torch.float32).min))), "must be finite"),
        (Mask(causal=True, query_offset=-1), "every query among the keys"),
    ],
)
def test_masks_that_do_not_fit_the_call(mask: Mask, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(*tensors(), mask)


def test_causal_needs_the_keys_of_all_queries() -> None:
    with pytest.raises(ValueError, match="got 7 queries, 5 keys"):
        attend(*tensors(n_queries=7, n_keys=5), Mask(causal=True))


def test_functions_that_return_something_else() -> None:
    calls = tensors()
    with pytest.raises(ValueError, match=r"must return booleans; got torch.int64"):
        attend(*calls, Mask(allowed=lambda batch, head, query, key: query - key))
    with pytest.raises(ValueError, match=r"returned -inf; forbid keys with Mask.allowed"):
        attend(*calls, Mask(bias=lambda query, key: torch.zeros(7, 7).log()))
    learned = torch.zeros(1, requires_grad=True)
    with pytest.raises(ValueError, match="is a constant, but returned a tensor that requires grad"):
        attend(
            calls[0].requires_grad_(), *calls[1:], Mask(bias=lambda query, key: learned * (query - key))
        ).sum().backward()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AlibiSlopes(torch.zeros(6, 1)), r"must be \[head\]"),
        (lambda: RelativeBuckets(torch.zeros(32)), r"must be \[bucket, head\]"),
        (lambda: RelativeBuckets(torch.zeros(3, 6)), "at least 4 buckets"),
        (lambda: RelativeBuckets(torch.zeros(1, 6), bidirectional=False), "at least 2 buckets"),
        (lambda: RelativeBuckets(torch.zeros(32, 6), max_distance=8), "max_distance above 8"),
    ],
)
def test_biases_that_mean_nothing(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
def test_batch_and_heads_are_not_confused(n_kv_heads: int) -> None:
    """A mask per sequence, where there are as many sequences as kv heads, or as heads, must not land on the heads."""
    batch = n_kv_heads
    query, key, value = tensors(batch=batch, n_kv_heads=n_kv_heads)
    per_sequence = torch.rand(batch, 1, 7, 7, generator=torch.Generator().manual_seed(2)) < 0.5
    for mask in (
        Mask(allowed=per_sequence),
        Mask(bias=torch.zeros(batch, 1, 7, 7).masked_fill(~per_sequence, float("-inf"))),
    ):
        together = attend(query, key, value, mask)
        for b in range(batch):
            one = Mask(allowed=per_sequence[b, 0])
            assert_close(together[b : b + 1], attend(query[b : b + 1], key[b : b + 1], value[b : b + 1], one))
