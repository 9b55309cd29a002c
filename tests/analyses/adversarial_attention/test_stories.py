"""Stories made up in the manner of bAbI's first task, beside the task's own."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analyses.adversarial_attention.reproduce import Config, main, read_task
from analyses.adversarial_attention.stories import FARTHEST, PEOPLE, PLACES, with_made_stories
from interp.data import LabelledText, LabelledTexts
from interp.data.labelled_files import of_facts
from interp.errors import UserError

TEST = of_facts([("mary", "moved", "to", "the", "garden", ".")], ("where", "is", "mary"), "garden", "test", [0])


def answered(text: LabelledText) -> tuple[str, int]:
    """Where the person asked for is, read off the words alone, and the fact that says so."""
    facts = [text.words[first:end] for first, end in text.facts]
    number = max(i for i, fact in enumerate(facts) if fact[0] == text.question[2])
    return facts[number][-2], number


def test_the_last_fact_about_who_is_asked_for_answers() -> None:
    made = with_made_stories(LabelledTexts("one", (TEST,), ("garden",)), train=500, dev=50)
    assert [len(made.of(split)) for split in ("train", "dev", "test")] == [500, 50, 1]
    assert made.labels == PLACES
    for text in made.texts:
        assert answered(text) == (text.label, text.supporting[0])
        assert len(text.facts) - text.supporting[0] <= FARTHEST
        assert text.words.count(".") == len(text.facts)


def test_nobody_goes_to_where_they_are() -> None:
    made = with_made_stories(LabelledTexts("one", (TEST,), ("garden",)), train=200, dev=1)
    for text in made.of("train"):
        for person in PEOPLE:
            stays = [text.words[end - 2] for first, end in text.facts if text.words[first] == person]
            assert all(one != other for one, other in pairwise(stays))


def test_the_same_seed_makes_the_same_stories() -> None:
    one = LabelledTexts("one", (TEST,), ("garden",))
    first, again, other = (with_made_stories(one, seed, train=100, dev=10).texts for seed in (1, 1, 2))
    assert first == again != other


def test_test_questions_are_not_learned_from() -> None:
    plain = with_made_stories(LabelledTexts("one", (TEST,), ("garden",)), train=300, dev=30)
    seen = plain.of("train")[0]
    held_back = LabelledText(seen.words, seen.label, "test", seen.question, seen.facts, seen.supporting)
    without = with_made_stories(LabelledTexts("two", (TEST, held_back), ("garden",)), train=300, dev=30)
    assert any((text.words, text.question) == (seen.words, seen.question) for text in plain.of("train"))
    assert not any((text.words, text.question) == (seen.words, seen.question) for text in without.of("train"))


def test_other_tasks_have_other_words(tmp_path: Path) -> None:
    milk = of_facts([("mary", "took", "the", "milk", ".")], ("where", "is", "milk"), "garden", "test", [0])
    with pytest.raises(UserError, match=r"also has milk, took: ask for babi-1"):
        with_made_stories(LabelledTexts("two facts", (milk,), ("garden",)))
    with pytest.raises(UserError, match=r"of babi-1 alone; got the cell 'babi-2:lstm:tanh'"):
        main(Config(tmp_path, cells=("babi-2:lstm:tanh",), babi="made", out=tmp_path / "out"))


def test_stories_are_like_the_tasks_own(shared_data: Path) -> None:
    """How far back the answer is, how many people there are, what is answered: chi-square tests on all 2,000 texts."""
    own = read_task(Config(shared_data), "babi-1").texts.texts
    made = read_task(Config(shared_data, babi="made"), "babi-1").texts
    words = [{word for text in some for word in text.words} for some in (own, made.of("train"))]
    assert words[0] == words[1]
    for text in own:
        assert answered(text) == (text.label, text.supporting[0])
    for of in (
        lambda text: len(text.facts) - text.supporting[0],
        lambda text: len({text.words[first] for first, _ in text.facts}),
        lambda text: text.label,
        lambda text: len(text.facts),
        lambda text: text.words[1:3],
    ):
        counts = [Counter(map(of, some)) for some in (own, made.of("train"))]
        table = np.array([[count[key] for key in sorted(counts[0] | counts[1])] for count in counts])
        _, p, *_ = stats.chi2_contingency(table)
        assert float(p) > 0.01  # pyright: ignore[reportArgumentType]: a number
