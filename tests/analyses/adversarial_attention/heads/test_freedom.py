"""Freedom where it is known: an output that ignores attention, one that copies, planted heads."""

import math

import numpy as np
import pytest
import torch

from analyses.adversarial_attention.heads.continuations import Continuation, Watched, distributions, prefix_works
from analyses.adversarial_attention.heads.nullspace import farthest_null
from analyses.adversarial_attention.heads.rows import Row
from analyses.adversarial_attention.heads.search import Freedom, Settings, find
from interp import HookedModel
from interp.attention.edits import ReplaceRows
from interp.errors import UserError
from interp.models.planted import Planted, induction, plant, previous_token, uniform
from interp.statistics import jensen_shannon
from tests.families import load, make

EPSILON = Settings(epsilon=0.05)


def planted(logit_gain: float = 4.0) -> Planted:
    """Copying that matters and is not saturated (probability about a half), and heads that nothing reads."""
    return plant(
        [previous_token(writes="previous"), uniform()], [induction(), uniform()], d_vocab=64, n_ctx=48,
        logit_gain=logit_gain,
    )  # fmt: skip


def tokens(period: int = 16, seed: int = 0) -> torch.Tensor:
    once = torch.randperm(64, generator=torch.Generator().manual_seed(seed))[:period]
    return torch.cat([once, once])[None]


def searched(
    model: HookedModel, heads: list[tuple[int, int]], query: int, settings: Settings = EPSILON, horizon: int = 8
) -> dict[tuple[int, int], Freedom]:
    sites = {layer: model.site(layer).name for layer, _ in heads}
    continuation = Continuation(model, tokens(), query, list(sites.values()), Watched(horizon))
    rows = [continuation.rows[sites[layer]][head] for layer, head in heads]
    nulls = [farthest_null(row, 4, np.random.default_rng(0)) for row in rows]
    found = find(continuation, rows, nulls, settings, [np.random.default_rng(0) for _ in rows])
    return dict(zip(heads, found, strict=True))


def test_planted_heads_that_matter_are_pinned_and_idle_ones_free() -> None:
    truth = planted()
    for query in (18, 23):
        found = searched(truth.model, list(truth.kinds), query)
        for head, freedom in found.items():
            if head in truth.matter and truth.kinds[head] == "induction":
                assert freedom.share < 0.1, (head, query)
                assert not freedom.untried()  # every farther vertex was run before saying so
            elif head not in truth.matter:
                assert freedom.share > 0.9, (head, query)
                assert freedom.by == "vertex"


def test_a_head_that_feeds_another_is_pinned_where_what_it_writes_is_read() -> None:
    """The previous-token head matters at a query whose token comes again within the positions that are watched."""
    truth = planted()
    read = searched(truth.model, [(0, 0)], 9, horizon=16)[0, 0]  # the second copy reads position 9's note
    assert read.share < 0.6  # its reader attends sharply, and so is served by a part of the weight
    unread = searched(truth.model, [(0, 0)], 9, horizon=4)[0, 0]
    assert unread.share > 0.9


def test_output_that_ignores_attention_leaves_the_ceiling() -> None:
    """With an unembedding of zero, every row is as good as any other: the ε-max divergence is max_j JSD(α, δ_j)."""
    truth = planted(logit_gain=0.0)
    for freedom in searched(truth.model, list(truth.kinds), 20).values():
        assert freedom.jsd == pytest.approx(freedom.row.ceiling, abs=1e-6)
        assert freedom.tvd == 0


def test_copying_one_of_few_values_leaves_nothing_as_epsilon_vanishes() -> None:
    truth = planted()
    shares = [
        searched(truth.model, [(1, 0)], 20, Settings(epsilon=epsilon))[1, 0].share for epsilon in (0.2, 0.02, 0.002)
    ]
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.005


def test_what_is_reported_is_what_the_untouched_model_does() -> None:
    """The change, measured again from scratch: whole sequence, the core's own edit, plain softmax."""
    truth = planted()
    for (layer, head), freedom in searched(truth.model, list(truth.kinds), 20).items():
        point = freedom.point
        assert point is not None
        assert point.min() >= 0
        assert point.sum() == pytest.approx(1)
        assert 0 <= freedom.jsd <= min(math.log(2), freedom.row.ceiling) + 1e-9
        assert freedom.jsd == pytest.approx(float(jensen_shannon(freedom.row.pattern, point)))
        weights = torch.zeros(1, 32)
        weights[0, freedom.row.keys] = torch.tensor(point, dtype=torch.float32)
        assert (weights[0, 21:] == 0).all()  # permitted keys only
        plain = truth.model.run(tokens()).logits
        changed = truth.model.run(tokens(), edits=[ReplaceRows({(layer, head): ([20], weights[None])})]).logits
        assert plain is not None
        assert changed is not None
        tvd = (plain.softmax(-1) - changed.softmax(-1)).abs().sum(-1)[0, 20:28].max() / 2
        assert float(tvd) == pytest.approx(freedom.tvd, abs=1e-5)
        assert tvd <= 0.05 + 1e-5


def test_the_search_beats_an_optimiser_on_logits() -> None:
    """Jain and Wallace's way (Adam on logits, a penalty on the change) finds nothing farther."""
    truth = planted()
    freedom = searched(truth.model, [(1, 0)], 20)[1, 0]
    site = truth.model.site(1).name
    row, plain = freedom.row, distributions(truth.model.run(tokens()).logits)[0, 20:28]
    best = 0.0
    logits = torch.tensor(np.log(row.pattern + 1e-6), dtype=torch.float32) + 0.5 * torch.randn(
        len(row.pattern), generator=torch.Generator().manual_seed(0)
    )
    logits.requires_grad_()
    adam = torch.optim.Adam([logits], lr=0.05)
    pattern = torch.tensor(row.pattern, dtype=torch.float32)
    for _ in range(150):
        weights = torch.zeros(32).index_copy(0, torch.tensor(row.keys), logits.softmax(0))
        edit = ReplaceRows({(site, 0): ([20], weights[None, None])})
        output = distributions(truth.model.run(tokens(), edits=[edit], grad=True).logits)[0, 20:28]
        tvd = (output - plain).abs().sum(-1).max() / 2
        q = logits.softmax(0)
        middle = (pattern + q) / 2
        jsd = (pattern * ((pattern + 1e-12).log() - middle.log()) + q * (q.log() - middle.log())).sum() / 2
        if float(tvd.detach()) <= 0.05:
            best = max(best, float(jsd.detach()))
        adam.zero_grad()
        (-jsd + 500 * (tvd - 0.05).clamp_min(0)).backward()
        adam.step()
    assert freedom.jsd >= best - 1e-3


def test_a_change_that_is_not_a_number_is_never_feasible() -> None:
    row = Row("site", 0, 3, np.arange(3), np.array([0.5, 0.3, 0.2]), None)
    freedom = Freedom(row)
    assert not freedom.take(np.array([0.0, 0.0, 1.0]), float("nan"), "vertex", 0.01)
    assert freedom.by == "none"
    assert np.isnan(freedom.jsd)
    assert freedom.point is None


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma3", "gpt_oss", "gpt_neox", "bloom"])
def test_changes_are_the_same_with_and_without_kept_keys(name: str) -> None:
    """Grouped keys, windows, sinks, models that build their own patterns; in what is recomputed nothing differs."""
    model = load(make(name))
    ids = torch.randint(3, 97, (1, 24), generator=torch.Generator().manual_seed(0))
    sites = [model.site(layer).name for layer in (0, 1)]
    whole = Continuation(model, ids, 14, sites, Watched(6))
    works = prefix_works(model, ids, 14)
    kept = Continuation(model, ids, 14, sites, Watched(6), prefix=works)
    assert torch.allclose(whole.output, kept.output, atol=1e-5)
    for site in sites:
        a, b = whole.rows[site][1], kept.rows[site][1]
        assert a.keys.tolist() == b.keys.tolist()
        assert a.pattern == pytest.approx(b.pattern, abs=1e-5)
        assert (len(a.pattern) > len(a.keys)) == (name == "gpt_oss")
        points = [*list(np.eye(len(a.pattern))[:3]), a.pattern]
        expected, found = whole.changes([a] * 4, points), kept.changes([b] * 4, points)
        assert found == pytest.approx(expected, abs=1e-5)
        assert expected[-1] == pytest.approx(0, abs=1e-5)
        assert expected[:3].max() > 1e-6


def test_rows_of_several_layers_run_together() -> None:
    truth = planted()
    sites = [truth.model.site(layer).name for layer in (0, 1)]
    continuation = Continuation(truth.model, tokens(), 20, sites, Watched(8))
    rows = [continuation.rows[site][0] for site in sites]
    points = [np.eye(21)[3], np.eye(21)[5]]
    alone = [continuation.changes([row], [point])[0] for row, point in zip(rows, points, strict=True)]
    assert continuation.changes(rows, points) == pytest.approx(alone, abs=1e-6)


@pytest.mark.parametrize("prefix", [False, True])
def test_heads_of_later_layers_attend_as_they_would(prefix: bool) -> None:
    """In a pass that changes other heads too, a changed head's readers are free: the output is that of the core's own
    edit alone."""
    model = load(make("llama"))
    ids = torch.randint(3, 97, (1, 20), generator=torch.Generator().manual_seed(1))
    sites = [model.site(layer).name for layer in (0, 1)]
    continuation = Continuation(model, ids, 12, sites, Watched(6), prefix=prefix)
    rows = [continuation.rows[sites[0]][1], *continuation.rows[sites[1]]]
    points = [np.eye(13)[3] for _ in rows]
    together = continuation.changes(rows, points)
    plain = distributions(model.run(ids).logits)[0, 12:18]
    frozen = ReplaceRows({(row.site, row.head): ([12], torch.tensor(row.on_all_keys(row.pattern)[None, None, :18])
                          .float()) for row in continuation.rows[sites[1]]} if not prefix else {})  # fmt: skip
    for row, point, found in zip(rows, points, together, strict=True):
        weights = torch.tensor(np.pad(point, (0, 5)), dtype=torch.float32)[None, None]
        edit = ReplaceRows({(row.site, row.head): ([12], weights)})
        changed = distributions(model.run(ids[:, :18], edits=[edit]).logits)[0, 12:]
        assert float((changed - plain).abs().sum(-1).max() / 2) == pytest.approx(found, abs=1e-6)
        if row is rows[0] and not prefix:  # which would not be so with the readers' rows held where they were
            held = distributions(model.run(ids[:, :18], edits=[edit, frozen]).logits)[0, 12:]
            assert float((held - plain).abs().sum(-1).max() / 2) != pytest.approx(found, abs=1e-6)


def test_slopes_are_the_changes_derivative() -> None:
    truth = planted()
    site = truth.model.site(1).name
    continuation = Continuation(truth.model, tokens(), 20, [site], Watched(4))
    row = continuation.rows[site][0]

    def of(output: torch.Tensor) -> torch.Tensor:
        return output[:, 0, 7]

    slope = continuation.slopes([row, row], of)[1]
    step = np.zeros(21)
    step[2], step[4] = 1e-2, -1e-2
    ahead, behind = (of(continuation.outputs(row, row.pattern + sign * step)[None]) for sign in (1, -1))
    assert slope @ step == pytest.approx(float(ahead - behind) / 2, rel=2e-2, abs=1e-7)


def test_models_without_a_distribution_are_refused() -> None:
    with pytest.raises(UserError, match="no distribution"):
        distributions(None)


def test_one_logit_is_a_sigmoids() -> None:
    output = distributions(torch.tensor([[0.3]]))
    assert output.shape == (1, 1, 2)
    assert float(output[0, 0, 0]) == pytest.approx(1 / (1 + math.exp(-0.3)))
