"""Matrix products on the processor, against float64, whichever library computes them."""

import pytest
import torch
from torch import Tensor

from interp.attention import products

SIZES = [
    (3, 40, 64, 1000),
    (2, 7, 5, 3),
    (1, 257, 64, 129),
    (2, 64, 1, 64_000),
    (0, 4, 4, 4),
    (2, 0, 8, 8),
    (1, 128, 300, 128),
]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that went through oneDNN."""
    if not products._HAS_ONEDNN:
        pytest.skip("this build of PyTorch has no oneDNN")
    shapes: list[tuple[int, ...]] = []
    by_onednn = products._by_onednn

    def watched(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        shapes.append((*rows.shape, len(weight)))
        return by_onednn(rows, weight, bias)

    monkeypatch.setattr(products, "_by_onednn", watched)
    return shapes


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("into", [False, True])
def test_batched_equals_float64(sizes: tuple[int, int, int, int], transposed: bool, into: bool) -> None:
    matrices, rows, inner, columns = sizes
    left = random(matrices, rows, inner)
    right = random(matrices, columns, inner).transpose(1, 2) if transposed else random(matrices, inner, columns)
    out = torch.full((matrices, rows, columns), float("nan")) if into else None
    found = products.batched(left, right, out)
    assert out is None or found is out
    want = left.double() @ right.double()
    # a sum of `inner` products of numbers of size 1
    torch.testing.assert_close(found.double(), want, rtol=0, atol=2e-6 * max(inner, 1))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_equals_float64(strided: bool, with_bias: bool) -> None:
    rows, weight = random(300, 64), random(200, 64)
    if strided:
        rows, weight = random(300, 128)[:, ::2], random(64, 200).t()
    bias = random(200) if with_bias else None
    want = rows.double() @ weight.double().t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(products.linear(rows, weight, bias).double(), want, rtol=0, atol=1e-4)


def test_large_float32_products_go_through_onednn_and_others_do_not(seen: list[tuple[int, ...]]) -> None:
    left, right = random(2, 200, 64), random(2, 64, 300)
    products.batched(left, right)
    assert seen == [(200, 64, 300)] * 2
    seen.clear()
    for a, b in ((left[:, :8, :8], right[:, :8]), (left.double(), right.double()), (left.bfloat16(), right.bfloat16())):
        products.batched(a, b)
    assert not seen


def test_gradients_are_those_of_torch(seen: list[tuple[int, ...]]) -> None:
    left, right = random(2, 200, 64).requires_grad_(), random(2, 64, 300)
    products.batched(left, right).square().sum().backward()
    assert not seen
    assert left.grad is not None
    want = 2 * (left.detach() @ right) @ right.transpose(1, 2)
    torch.testing.assert_close(left.grad, want)
    with torch.no_grad():
        products.batched(left, right)
    assert seen


def test_results_repeat(seen: list[tuple[int, ...]]) -> None:
    left, right = random(3, 200, 64), random(3, 64, 500)
    first = products.batched(left, right)
    assert all(torch.equal(products.batched(left, right), first) for _ in range(10))
    assert seen


class Gram(torch.nn.Module):
    """Calls linear as models may: as a layer, with keywords, without a bias, on one row and on a batch of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 300)

    def forward(self, x: Tensor) -> list[Tensor]:
        weight, linear = self.layer.weight, torch.nn.functional.linear
        return [
            self.layer(x),
            linear(input=x, weight=weight),
            linear(x, weight, bias=self.layer.bias),
            linear(x[0, 0], weight[0]),
        ]


@torch.no_grad()
def test_linear_layers_of_a_module(seen: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    module, x = Gram(), random(4, 100, 64)
    with products.linear_layers():
        found = module(x)
    assert seen == [(4, 100, 64, 300)] * 3
    seen.clear()
    want = module.double()(x.double())
    assert not seen
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-4)


def test_autocast_and_gradients_are_left_to_torch(seen: list[tuple[int, ...]]) -> None:
    x, weight = random(200, 64), random(300, 64).requires_grad_()
    with products.linear_layers():
        assert torch.nn.functional.linear(x, weight).requires_grad
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            assert torch.nn.functional.linear(x, weight).dtype is torch.bfloat16
    assert not seen


def test_a_bias_that_learns_alone_has_its_gradient(seen: list[tuple[int, ...]]) -> None:
    x, weight, bias = random(200, 64), random(300, 64), random(300).requires_grad_()
    with products.linear_layers():
        torch.nn.functional.linear(x, weight, bias).sum().backward()
    assert not seen
    torch.testing.assert_close(bias.grad, torch.full((300,), 200.0))


@torch.no_grad()
def test_what_does_not_fit_is_refused_as_by_torch(seen: list[tuple[int, ...]]) -> None:
    x, weight = random(200, 64), random(300, 64)
    for wrong in ((x[:, :63], weight, None), (x, weight, random(299)), (x, weight, random(300).double())):
        with pytest.raises(RuntimeError):
            products.linear(*wrong)
    torch.testing.assert_close(products.linear(x, weight, random(1)), torch.nn.functional.linear(x, weight, random(1)))
    left, right = random(2, 200, 64), random(3, 64, 300)
    for a, b in ((left, right), (right.mT, left), (left[:, :, :63], right[:2])):
        with pytest.raises(RuntimeError):
            products.batched(a, b)
    assert not seen


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # PyTorch's own use of it
def test_tangents_pass(seen: list[tuple[int, ...]]) -> None:
    x, weight = random(200, 64), random(300, 64)
    with products.linear_layers(), torch.no_grad():
        tangent = torch.func.jvp(lambda x: torch.nn.functional.linear(x, weight), (x,), (x,))[1]
    torch.testing.assert_close(tangent, torch.nn.functional.linear(x, weight))
    assert not seen
