"""Freedom on real weights: grouped keys, kept keys and values, a vocabulary that matters."""

import numpy as np
import pytest
import torch

from analyses.adversarial_attention.heads.continuations import Continuation, Watched, distributions, prefix_works
from analyses.adversarial_attention.heads.nullspace import farthest_null
from analyses.adversarial_attention.heads.search import Settings, find
from interp import HookedModel
from interp.attention.edits import ReplaceRows

TEXT = (
    "The library keeps every book that was ever printed here. When a reader asks for a book, the clerk walks down to "
    "the cellar, finds the shelf, and brings the book up again; when the reader asks for another book, the clerk walks."
)


@pytest.fixture(scope="module")
def tokens(smollm2: HookedModel) -> torch.Tensor:
    """One short text."""
    assert smollm2.tokenizer is not None
    return torch.tensor([smollm2.tokenizer(TEXT)["input_ids"]])


def test_a_late_heads_row(smollm2: HookedModel, tokens: torch.Tensor) -> None:
    """Found with kept keys and values, and measured again without them by the core's own edit."""
    query = tokens.shape[1] - 5
    assert prefix_works(smollm2, tokens, query)
    site = smollm2.site(24).name
    continuation = Continuation(smollm2, tokens, query, [site], Watched(4), prefix=True)
    row = continuation.rows[site][8]
    assert len(row.keys) == query + 1
    assert row.values is not None
    assert row.values.shape == (query + 1, 64)
    null = farthest_null(row, 2, np.random.default_rng(0))
    freedom = find(continuation, [row], [null], Settings(epsilon=0.01), [np.random.default_rng(0)])[0]
    assert freedom.point is not None
    assert 0.05 < freedom.share <= 1
    weights = torch.zeros(1, 1, query + 4)
    weights[0, 0, row.keys] = torch.tensor(freedom.point, dtype=torch.float32)
    edit = ReplaceRows({(site, 8): ([query], weights)})
    whole = tokens[:, : query + 4]
    plain, changed = (distributions(smollm2.run(whole, edits=edits).logits)[0, query:] for edits in ((), (edit,)))
    tvd = float((plain - changed).abs().sum(-1).max() / 2)
    assert tvd == pytest.approx(freedom.tvd, abs=2e-5)
    assert tvd <= 0.01 + 2e-5
