"""Every measure against the same statistic taken in float64 from the whole patterns of an untouched, eager model."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analyses.head_specialization import inputs, measures
from analyses.head_specialization.config import Config
from analyses.head_specialization.inputs import Text
from interp import HookedModel
from interp.results import Workspace
from tests import eager

CONFIG = Config(window=40, windows=3, sink_length=20)
OfRow = Callable[[int, int, list[float]], float | None]
"""(sequence, query, weights) → the statistic; None where the row is not eligible."""


class Direct:
    """The measures by loops over rows, from nothing but the patterns, the tokens and the labels."""

    def __init__(self, text: Text, causal: bool) -> None:
        self.text, self.causal = text, causal
        self.tokens, self.sink = text.sequences.tokens.tolist(), text.sink.tolist()
        assert text.labels is not None
        self.labels = text.labels
        self.n = text.sequences.n_positions

    def readable(self, query: int) -> range:
        return range(query + 1) if self.causal else range(self.n)

    def in_set(self, member: Callable[[int, int], bool], first: int = 0) -> OfRow:
        """Mass on keys of a set, over rows that may read one."""

        def of_row(b: int, query: int, weights: list[float]) -> float | None:
            keys = [key for key in self.readable(query) if member(b, key)]
            return math.fsum(weights[key] for key in keys) if keys and query >= first else None

        return of_row

    def at(self, key_of: Callable[[int, int], list[int]], first: int = 0) -> OfRow:
        """Mass on certain keys of each row."""

        def of_row(b: int, query: int, weights: list[float]) -> float | None:
            keys = [key for key in key_of(b, query) if key in self.readable(query)]
            return math.fsum(weights[key] for key in keys) if keys and query >= first else None

        return of_row

    def matching(self, shift: int) -> OfRow:
        def keys(b: int, query: int) -> list[int]:
            own = self.tokens[b][query]
            earlier = [key - shift for key in range(self.n)]
            return [
                key for key, at in enumerate(earlier)
                if at >= 0 and at != query and self.tokens[b][at] == own and not self.sink[b][query]
            ]  # fmt: skip

        return self.at(keys)

    def rest(self, b: int, weights: list[float]) -> list[float] | None:
        left = [0.0 if self.sink[b][key] else weight for key, weight in enumerate(weights)]
        total = math.fsum(left)
        return [weight / total for weight in left] if total > 0 else None

    def entropy_without_sink(self, b: int, query: int, weights: list[float]) -> float | None:
        rest = self.rest(b, weights)
        return None if rest is None else entropy(rest)

    def distance_without_sink(self, b: int, query: int, weights: list[float]) -> float | None:
        rest = self.rest(b, weights)
        return None if rest is None else math.fsum(w * abs(query - key) for key, w in enumerate(rest))

    def relative_entropy(self, b: int, query: int, weights: list[float]) -> float | None:
        n = len(self.readable(query))
        return entropy(weights) / math.log(n) if n > 1 else None

    def confidence(self, b: int, query: int, weights: list[float]) -> float | None:
        counted = [
            key for key in self.readable(query) if not self.sink[b][key] and not self.labels.separator[b, key]
        ]  # fmt: skip
        return max(weights[key] for key in counted) if counted else None

    def strongest(self, offset: int) -> OfRow:
        def of_row(b: int, query: int, weights: list[float]) -> float | None:
            key = query + offset
            if key not in self.readable(query) or query < 1:
                return None
            best = [k for k, weight in enumerate(weights) if weight == max(weights)]
            return (key in best) / len(best)

        return of_row

    def bin(self, low: int, high: int) -> OfRow:
        return lambda b, query, weights: math.fsum(w for key, w in enumerate(weights) if low <= query - key <= high)

    def measures(self) -> dict[str, OfRow]:
        labels = self.labels
        word = lambda b, key: not self.sink[b][key]  # noqa: E731
        found: dict[str, OfRow] = {
            "entropy": lambda b, query, weights: entropy(weights),
            "relative_entropy": self.relative_entropy,
            "entropy_without_sink": self.entropy_without_sink,
            "max_weight": lambda b, query, weights: max(weights),
            "confidence": self.confidence,
            "expected_distance": lambda b, q, weights: math.fsum(w * abs(q - k) for k, w in enumerate(weights)),
            "expected_distance_without_sink": self.distance_without_sink,
            "first_position": self.at(lambda b, query: [0], first=1),
            "control:first_position": self.at(lambda b, query: [1], first=2),
            "special": self.in_set(lambda b, key: bool(labels.special[b, key])),
            "separator": self.in_set(lambda b, key: bool(labels.separator[b, key])),
            "current_token": self.at(lambda b, query: [query], first=1),
            "previous_token": self.at(lambda b, query: [query - 1], first=1),
            "next_token": self.at(lambda b, query: [query + 1], first=1),
            "duplicate_token": self.matching(0),
            "prefix_matching": self.matching(1),
            "rare_word": self.at(lambda b, q: [k for k in labels.rare[b, q].tolist() if k >= 0 and k != q]),
            "bracket_match": self.at(lambda b, query: [int(labels.bracket[b, query])]),
            "quote_match": self.at(lambda b, query: [int(labels.quote[b, query])]),
            **{f"share:{offset}": self.strongest(offset) for offset in (-8, -1, 0, 2)},
            **{f"mass:{o}": self.at(lambda b, query, o=o: [query + o], first=1) for o in (-8, -1, 0, 2)},
            **{f"bin:{low}:{high}": self.bin(low, high) for low, high in measures.bins(self.n)},
        }
        for name in ("punctuation", "number", "sentence_start"):
            flag = getattr(labels, name)
            found[name] = self.in_set(lambda b, key, flag=flag: word(b, key) and bool(flag[b, key]))
        return found


def entropy(weights: list[float]) -> float:
    return -math.fsum(w * math.log(w) for w in weights if w > 0)


def mean(of_row: OfRow, b: int, pattern: list[list[float]]) -> float:
    rows = [of_row(b, query, weights) for query, weights in enumerate(pattern)]
    found = [value for value in rows if value is not None]
    return math.fsum(found) / len(found) if found else math.nan


def norms(model: HookedModel, layer: int, run_value: Tensor) -> Tensor:
    """‖v W_O‖ of every head and key, from the whole matrices: [batch, head, key]."""
    weights = model.head_weights(layer)
    W_O = weights.W_O.double()
    shared = W_O.shape[0] // run_value.shape[1]
    return (run_value.double().repeat_interleave(shared, 1) @ W_O).norm(dim=-1)


def values_of(model: HookedModel, layer: int, hidden: Tensor) -> Tensor:
    """v of a layer by its own projection: [batch, kv_head, key, d_head]."""
    site = model.site(layer)
    projected = site.projections["value"](hidden)
    return projected.view(*hidden.shape[:2], site.n_kv_heads, site.d_head).transpose(1, 2)


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_measures_are_those_of_eager_patterns(name: str, request: pytest.FixtureRequest) -> None:
    model: HookedModel = request.getfixturevalue(name)
    work = Workspace()
    given = inputs.make(model, CONFIG, work)
    text = given.main
    table: Any = measures.measure(model, given, CONFIG, work)["scores"]
    twin = eager.untouched(model.module)
    tokens = text.sequences.tokens
    found, output = eager.patterns(twin, input_ids=tokens, output_hidden_states=True)
    direct = Direct(text, causal=name == "smollm2")
    layers = [0, len(model.sites) - 1] if name == "smollm2" else range(len(model.sites))
    for layer in layers:
        patterns = found[""][layer].double()
        hidden = output.hidden_states[layer]
        if name == "smollm2":
            hidden = twin.model.layers[layer].input_layernorm(hidden)
        weighted = patterns * norms(model, layer, values_of(model, layer, hidden))[:, :, None]
        weighted = weighted / weighted.sum(-1, keepdim=True)
        for head in range(0, model.sites[0].n_heads, 4):
            rows = table[(table["layer"] == layer) & (table["head"] == head)].sort_values("sequence")
            for metric, of_row in direct.measures().items():
                for suffix, source in (("", patterns), ("_norm", weighted)):
                    if (column := metric + suffix) not in rows or (suffix and ":" in metric):
                        continue
                    expected = [mean(of_row, b, source[b, head].tolist()) for b in range(len(tokens))]
                    relative = 1e-5 * max(1.0, np.nanmax(np.abs(expected)) if not np.isnan(expected).all() else 1.0)
                    np.testing.assert_allclose(
                        rows[column], expected, rtol=0, atol=relative, err_msg=f"{column} {layer}"
                    )
            received = patterns[:, head, :20]
            readers = torch.arange(20)[:, None] >= torch.arange(patterns.shape[-1]) if name == "smollm2" else None
            n = 20.0 if readers is None else readers.sum(0)
            alpha = received.sum(1) / n
            assert rows["sink"].tolist() == (alpha[:, 0] > 0.3).double().tolist()
            eligible = alpha[:, 1:] if readers is None else alpha[:, 1:11]
            assert rows["sink_elsewhere"].tolist() == (eligible.amax(-1) > 0.3).double().tolist()


def test_controls_are_labels_of_another_document(minilm: HookedModel) -> None:
    given = inputs.make(minilm, CONFIG, Workspace())
    text = given.main
    assert (text.sequences.document[text.others] != text.sequences.document).all()
    table: Any = measures.measure(minilm, given, CONFIG, Workspace())["scores"]
    found, _ = eager.patterns(eager.untouched(minilm.module), input_ids=text.sequences.tokens)
    pattern = found[""][2][:, 5].double()
    direct, labels = Direct(text, causal=False), text.labels
    assert labels is not None
    other = text.others.tolist()

    def punctuation(b: int, key: int) -> bool:
        flags = labels.punctuation
        inside = bool(flags[other[b], key]) and not text.sink[other[b], key]
        own = bool(flags[b, key]) and not text.sink[b, key]
        return inside and not own and not text.sink[b, key]

    def duplicates(b: int, query: int) -> list[int]:
        tokens, sink = direct.tokens[other[b]], direct.sink[other[b]]
        return [k for k in range(direct.n) if tokens[k] == tokens[query] and k != query and not sink[query]]

    rows = table[(table["layer"] == 2) & (table["head"] == 5)].sort_values("sequence")
    for column, of_row in {
        "control:punctuation": direct.in_set(punctuation),
        "control:duplicate_token": direct.at(duplicates),
        "control:bracket_match": direct.at(
            lambda b, q: [int(labels.bracket[b, q]) - 1] if labels.bracket[b, q] > 0 else []
        ),
    }.items():
        expected = [mean(of_row, b, pattern[b].tolist()) for b in range(len(pattern))]
        np.testing.assert_allclose(rows[column], expected, rtol=0, atol=1e-5, err_msg=column)
