"""Arguments that have no meaning are refused instead of read as something else."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.attention import Mask, Site, attend, edits, probes
from interp.attention.rows import Rows

WEIGHTS = torch.full((6, 1), 0.5)


def read(probe: probes.Probe, mask: Mask = Mask(causal=True), **options: Any) -> Any:  # noqa: B008 (immutable)
    query, key, value = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    return attend(query, key, value, mask, probes=[probe], **options)[1][0]


def edited(*changes: edits.Edit, site: Site | None = None) -> Tensor:
    query, key, value = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    return attend(query, key, value, Mask(causal=True), edits=changes, site=site)


VALUED: list[Any] = [
    edits.GateHeads, edits.ReplaceZ, edits.AddLogits, edits.Temperature, edits.ScaleExponent, edits.ReplaceRows,
]  # fmt: skip


@pytest.mark.parametrize("kind", VALUED)
@pytest.mark.parametrize("heads", [[0, 1], (1,), {2}, 3, None])
def test_edits_with_values_take_a_mapping(kind: Any, heads: Any) -> None:
    """A list was read as gates of its own places: `GateHeads([0, 1])` gated head 0 with 0 and head 1 with 1."""
    with pytest.raises(ValueError, match="takes a value for each head"):
        kind(heads)


@pytest.mark.parametrize("address", [1.5, "1", True, None, (0, 1, 2), (0, 1.0), (None, 1), (0.0, 1), ("attn", "1")])
def test_what_names_no_head_is_refused(address: Any) -> None:
    with pytest.raises(ValueError, match=r"heads are named as \(layer, head\)"):
        edited(edits.GateHeads({address: 0.0}), site=Site("attn", 0))


def test_numpys_numbers_name_heads() -> None:
    by_numpy = edited(edits.GateHeads({np.int64(2): 0.0}))
    assert torch.equal(by_numpy, edited(edits.GateHeads({2: 0.0})))
    assert not by_numpy[:, 2].any()


def test_a_number_stands_for_a_tensor_in_every_edit() -> None:
    assert (edited(edits.ReplaceZ({1: 0.25}))[:, 1] == 0.25).all()
    assert torch.equal(edited(edits.AddLogits({1: 3.0}))[:, 0], edited()[:, 0])
    torch.testing.assert_close(edited(edits.AddLogits({1: 3.0})), edited())  # one constant for every key of a row


def test_replaced_outputs_are_as_wide_as_the_heads() -> None:
    with pytest.raises(ValueError, match="d_head must be 1 or 8"):
        edited(edits.ReplaceZ({0: torch.zeros(5)}))


@pytest.mark.parametrize("given", [WEIGHTS, WEIGHTS.bool(), np.zeros((6, 1), int), [[0]] * 6, WEIGHTS * torch.nan])
def test_targets_are_integers(given: Any) -> None:
    """Of floating targets the weights were read at their whole parts, and whether they may be read at themselves."""
    with pytest.raises(ValueError, match=r"TargetMass\.targets must be an integer tensor"):
        probes.TargetMass(targets=given)


@pytest.mark.parametrize("kind", [probes.LabelMass, probes.LabelMatch])
@pytest.mark.parametrize("given", [torch.rand(6), torch.ones(6).bool(), [0] * 6])
def test_labels_are_integers(kind: Any, given: Any) -> None:
    with pytest.raises(ValueError, match=r"\.labels must be an integer tensor"):
        kind(labels=given)


def test_keys_are_booleans() -> None:
    """~ of integers is no negation: keys taken out as 0 and 1 stayed in, with weights of their own."""
    with pytest.raises(ValueError, match=r"WithoutKeys\.keys must be a boolean tensor; got torch.int64"):
        probes.WithoutKeys(probes.Entropy(), keys=torch.tensor([1, 0, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match=r"LargestAmong\.keys must be a boolean tensor"):
        probes.LargestAmong(keys=torch.ones(6))


class Writing(probes.RowMean):
    """A person's probe that works in place."""

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        return rows.pattern.clamp_min_(0.5).sum(-1), None


@pytest.mark.parametrize("inference", [False, True])
def test_a_probe_that_writes_into_its_rows_is_refused(inference: bool) -> None:
    """The model would go on with what it wrote."""
    with torch.inference_mode(inference), pytest.raises(ValueError, match=r"Writing changed in place the rows"):
        read(Writing())


def wrong(result: Any) -> probes.RowMean:
    class Mine(probes.RowMean):
        def measure(self, rows: Rows) -> Any:
            return result(rows)

    return Mine()


@pytest.mark.parametrize("result", [
    lambda rows: rows.pattern.sum(-1),
    lambda rows: (rows.pattern.sum(), None),
    lambda rows: (rows.pattern, None),
    lambda rows: (rows.pattern.sum(-1)[:, :, :1], None),
    lambda rows: (rows.pattern.sum(-1), rows.pattern.sum(-1)),
    lambda rows: (0.5, None),
])  # fmt: skip
def test_what_a_persons_probe_returns_is_checked(result: Any) -> None:
    with pytest.raises(ValueError, match=r"Mine\.measure\(rows\) must return the statistic of every row"):
        read(wrong(result))


def test_a_row_that_is_all_sink_has_no_distance() -> None:
    """It counted as distance 0, the current token."""
    sinks = torch.tensor([0.0, 500.0, 0.0, 0.0])
    mask = Mask(causal=True, sinks=sinks)
    with_sink, without = read(probes.ExpectedDistance(), mask), read(probes.ExpectedDistance())
    assert with_sink.values[:, 1].isnan().all()
    assert not with_sink.n[:, 1].any()
    torch.testing.assert_close(with_sink.values[:, [0, 2, 3]], without.values[:, [0, 2, 3]])


def test_more_bins_than_distances() -> None:
    many, few = read(probes.DistanceHistogram(100, signed=True)), read(probes.DistanceHistogram(6, signed=True))
    torch.testing.assert_close(many.values[..., :5], few.values[..., :5])
    assert not many.values[..., 6:].any()
