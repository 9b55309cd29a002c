"""Syntax on real models and a real treebank: accuracies by other code, baselines by a few lines, Clark's findings."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analyses.head_specialization import inputs, pooled, sentences, syntax
from analyses.head_specialization.config import Config
from analyses.head_specialization.reproduce_clark import beside_published
from analyses.head_specialization.syntax import DIRECTIONS, Pairs
from interp import HookedModel
from interp.data import Sentence, read_treebank
from interp.results import Workspace
from interp.statistics import halves
from tests import eager

CONFIG = Config(windows=2, window=16)


@pytest.fixture(scope="module")
def treebank(shared_data: Path) -> list[Sentence]:
    return list(read_treebank(shared_data / "ud_english_ewt" / "en_ewt-ud-dev.conllu"))


def parsed_of(model: HookedModel, some: list[Sentence]) -> sentences.Parsed:
    given = inputs.make(model, CONFIG, Workspace())
    return sentences.as_tokens(model, given, some, "EWT")


def word_map(pattern: Tensor, words: list[int], n: int) -> np.ndarray:
    """Clark et al.'s map of one head: sums over to-tokens, means over from-tokens, a diagonal of 0."""
    member = torch.tensor([[float(word == w) for word in words] for w in range(n)], dtype=torch.float64)
    sums = pattern.double() @ member.T
    means = (member @ sums) / member.sum(1, keepdim=True).clamp_min(1)
    return means.fill_diagonal_(0).numpy()


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_accuracies_are_those_of_eager_patterns(
    name: str, treebank: list[Sentence], request: pytest.FixtureRequest
) -> None:
    model: HookedModel = request.getfixturevalue(name)
    parsed = parsed_of(model, treebank[100:112])
    pairs = syntax.measure(model, parsed, CONFIG, Workspace())
    twin, layers = eager.untouched(model.module), [0, 3, len(model.sites) - 1]
    n_heads, expected = model.sites[0].n_heads, {direction: [] for direction in DIRECTIONS}
    for number, sentence in enumerate(parsed.sentences):
        found, _ = eager.patterns(twin, input_ids=torch.tensor([parsed.tokens[number]]))
        of_sentence = np.flatnonzero(pairs.sentence == number)
        for layer in layers:
            for head in range(n_heads):
                between = word_map(found[""][layer][0, head], parsed.words[number], len(sentence))
                for at in of_sentence:
                    one, other = int(pairs.dependent[at]), int(pairs.head[at])
                    assert sentence.heads[one] == other
                    hits = (between[one].argmax() == other, between[:, one].argmax() == other)
                    for direction, hit in zip(DIRECTIONS, hits, strict=True):
                        column = layer * n_heads + head
                        # a row of zeros attends to nothing, and hits nothing
                        seen = between[one].max() > 0 if direction == DIRECTIONS[0] else between[:, one].max() > 0
                        expected[direction].append((at, column, bool(hit and seen)))
    assert len(pairs.sentence) > 50
    for direction, cells in expected.items():
        wrong = [cell for cell in cells if pairs.hits[direction][cell[0], cell[1]] != cell[2]]
        # float32 may put another of two nearly equal words first
        assert len(wrong) <= 0.001 * len(cells)


def test_what_a_causal_head_can_see(smollm2: HookedModel, minilm: HookedModel, treebank: list[Sentence]) -> None:
    for model, causal in ((smollm2, True), (minilm, False)):
        pairs = syntax.measure(model, parsed_of(model, treebank[:15]), CONFIG, Workspace())
        before = pairs.head < pairs.dependent
        for direction, possible in zip(DIRECTIONS, (before, ~before), strict=True):
            expected = possible if causal else np.ones_like(possible)
            assert (pairs.possible[direction] == expected[:, None]).all()


def test_baselines_are_those_of_a_few_lines(minilm: HookedModel, treebank: list[Sentence]) -> None:
    """Offsets counted with a Counter, on the reporting half of the pairs whose words both have tokens."""
    some, config = treebank[:250], Config(windows=2, window=16, least_pairs=20)
    parsed = parsed_of(minilm, some)
    pairs = syntax.measure(minilm, parsed, config, Workspace())
    table: Any = syntax.relations(pairs, config, Workspace())
    _, reporting = halves(pairs.unit, config.seed)
    reported = {int(pairs.sentence[i]) for i in reporting}
    offsets: dict[str, Counter[int]] = defaultdict(Counter)
    for number, sentence in enumerate(parsed.sentences):
        present = set(parsed.words[number])
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if number in reported and head >= 0 and relation != "punct" and {word, head} <= present:
                offsets[relation][head - word] += 1
                offsets["all"][head - word] += 1
    assert {"all", "det", "nsubj", "case"} <= set(table["relation"])
    for row in table.drop_duplicates(["relation", "direction"]).itertuples():
        counted = offsets[row.relation]
        assert row.n == counted.total()
        assert row.baseline == pytest.approx(max(counted.values()) / counted.total())
        assert counted[row.baseline_offset] == max(counted.values())


def test_heads_of_minilm_find_what_clark_found_in_bert(minilm: HookedModel, treebank: list[Sentence]) -> None:
    """Heads chosen on one half beat the best offset by more than 10 points on the other, sure over all heads."""
    work = Workspace()
    pairs = syntax.measure(minilm, parsed_of(minilm, treebank[::2]), CONFIG, work)
    table: Any = syntax.relations(pairs, CONFIG, work)
    best = table[table["best"] & (table["direction"] == DIRECTIONS[0])].set_index("relation")
    for relation in ("det", "obj", "case", "nsubj"):
        assert best.loc[relation, "called"], relation
        assert best.loc[relation, "difference_low"] > 0.1
    assert (table.loc[table["called"], "difference"] >= 0.1).all()
    assert (table.loc[table["called"], "p_corrected"] <= 0.05).all()


def test_pooled_accuracies_in_closed_form() -> None:
    hits = np.array([[1, 0], [1, 0], [0, 0], [1, 1], [1, 0], [1, 0]], dtype=bool)
    baseline = np.array([1, 0, 0, 0, 1, 0], dtype=bool)
    found = pooled.pooled(hits, baseline, np.array([0, 0, 0, 1, 1, 2]), seed=0)
    assert found.accuracy.tolist() == [5 / 6, 1 / 6]
    assert found.baseline == 2 / 6
    assert found.difference.tolist() == pytest.approx([3 / 6, -1 / 6])
    assert found.p[0] == 1 / 2**3  # three units, each with more right than the baseline
    assert (found.low <= found.accuracy).all()
    assert (found.high >= found.accuracy).all()


def test_intervals_of_pooled_accuracies_hold_the_truth() -> None:
    """95 % intervals over 40 documents whose sizes and difficulties differ."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(120):
        sizes = rng.integers(2, 12, 40)
        units = np.repeat(np.arange(40), sizes)
        hits = rng.random(len(units)) < np.repeat(rng.beta(6, 4, 40), sizes)
        found = pooled.pooled(hits[:, None], np.zeros(len(units), bool), units, seed=1)
        held += bool(found.low[0] <= 0.6 <= found.high[0])
    assert 0.88 <= held / 120 <= 0.99


def test_a_relation_is_not_called_for_one_lucky_half() -> None:
    """A head that is right on the reporting half alone is no find: the other half has to choose it too."""
    n = 200
    unit = np.arange(n)
    _, reporting = halves(unit, 0)
    lucky = np.zeros((n, 2), dtype=bool)
    lucky[reporting, 0] = True
    rng = np.random.default_rng(1)
    head = rng.permutation(n) + 20
    pairs = Pairs(
        unit, head - rng.choice([-5, 3, 7, 2], n), head, np.full(n, "det"), unit, (("blocks.0.attn", 0, 2),),
        dict.fromkeys(DIRECTIONS, lucky),
        {direction: np.ones((n, 1), dtype=bool) for direction in DIRECTIONS},
    )  # fmt: skip
    table: Any = syntax.relations(pairs, Config(), Workspace())
    assert (table["accuracy"] == 1).any()
    assert not table["called"].any()


def test_published_numbers_stand_beside_what_is_measured(
    minilm: HookedModel, shared_data: Path, tmp_path: Path
) -> None:
    whole = (shared_data / "ud_english_ewt" / "en_ewt-ud-dev.conllu").read_text(encoding="utf-8")
    some = tmp_path / "some.conllu"
    some.write_text("\n\n".join(whole.split("\n\n")[:600]) + "\n\n", encoding="utf-8")
    table: Any = beside_published(minilm, str(some))
    rows = table.set_index("relation")
    assert {"det", "obj (dobj)", "nmod:poss (poss)", "compound (nn)"} <= set(rows.index)
    assert (rows.loc["det", "published"], rows.loc["det", "published_baseline"]) == (94.3, 51.7)
    assert rows.loc["det", "accuracy"] > 70
    assert rows["accuracy_theirs"].isna().any()  # MiniLM has 6 layers
