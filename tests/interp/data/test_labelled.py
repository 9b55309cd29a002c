"""Labelled texts: what is read, what is refused, what is left out and said."""

import json
from pathlib import Path

import numpy as np
import pytest

from interp.data import Columns, LabelledTexts, labelled, read_labelled, supporting_facts, words_of
from interp.data.labelled import LabelledText
from interp.errors import UserError


def texts(n: int = 20, split: str | None = None) -> list[LabelledText]:
    return [LabelledText((f"word{i}", "and", "more"), "ab"[i % 2], split) for i in range(n)]  # pyright: ignore[reportArgumentType]


def table(path: Path, rows: list[tuple[str, ...]], header: str = "text,label", between: str = ",") -> Path:
    path.write_text("\n".join([header, *(between.join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


GOOD = [(f"a {word} film", label) for label, word in [("good", f"fine{i}") for i in range(12)]] + [
    (f"a {word} film", label) for label, word in [("bad", f"dull{i}") for i in range(12)]
]


def test_words_are_lower_case_and_separated_by_anything_that_is_none() -> None:
    assert words_of("It's GOOD -- really_good,\n2nd “film”") == ("it", "s", "good", "really_good", "2nd", "film")
    assert words_of(" ... ") == ()


@pytest.mark.parametrize(("name", "between"), [("a.csv", ","), ("a.tsv", "\t")])
def test_a_table_is_read_and_split(tmp_path: Path, name: str, between: str) -> None:
    path = table(tmp_path / name, GOOD, f"text{between}label", between)
    made = read_labelled(path)
    assert made.labels == ("bad", "good")
    assert {split: len(made.of(split)) for split in ("train", "dev", "test")} == {"train": 17, "dev": 2, "test": 5}
    assert sorted(text.words for text in made.texts) == sorted(words_of(text) for text, _ in GOOD)
    assert "comes without test (5 texts) and dev (2 texts): drawn at random" in made.remarks[0]
    again = read_labelled(path)
    assert [text.split for text in again.texts] == [text.split for text in made.texts]
    assert [text.split for text in read_labelled(path, seed=1).texts] != [text.split for text in made.texts]


def test_json_lines_with_questions_and_splits(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [
        {"story": f"anna has {i}", "ask": "how many?", "answer": i % 3, "fold": fold}
        for fold, n in (("training", 6), ("validation", 3), ("test", 3)) for i in range(n)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    made = read_labelled(path, Columns("story", "answer", "ask", "fold"))
    assert made.asks
    assert made.labels == ("0", "1", "2")
    assert made.of("dev")[1] == LabelledText(("anna", "has", "1"), "1", "dev", ("how", "many"))


def test_a_folder_with_a_file_for_each_split(tmp_path: Path) -> None:
    for name, rows in (("train", GOOD), ("valid", GOOD[:2] + GOOD[-2:]), ("test", GOOD[:4] + GOOD[-4:])):
        table(tmp_path / f"{name}.csv", rows)
    made = read_labelled(tmp_path)
    assert {split: len(made.of(split)) for split in ("train", "dev", "test")} == {"train": 24, "dev": 4, "test": 8}
    assert [remark.split(",")[0] for remark in made.remarks] == [
        "4 of 4 dev texts are in train too", "8 of 8 test texts are in train too", "4 of 8 test texts are in dev too",
    ]  # fmt: skip


def test_treebank_files_without_the_neutral_sentences(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        lines = ["(4 (3 (2 A) (3 Good)) (2 film))", "(1 (2 A) (0 dull))", "(2 (2 So) (2 what))", "(3 fine)", "(0 bad)"]
        (tmp_path / f"{split}.txt").write_text("\n".join(lines))
    made = read_labelled(tmp_path)
    assert [(text.words, text.label) for text in made.of("test")] == [
        (("a", "good", "film"), "positive"), (("a", "dull"), "negative"), (("fine",), "positive"),
        (("bad",), "negative"),
    ]  # fmt: skip
    (tmp_path / "dev.txt").write_text("(4 (3 (2 A) (3 Good)) (2 film)")
    with pytest.raises(UserError, match=r"dev\.txt, line 1 must be a tree"):
        read_labelled(tmp_path)


BABI = """1 Mary moved to the hall.
2 John went home {1}.
3 Where is Mary?{0}hall{0}1
4 Mary left.
5 Where is John?{0}home{0}2
"""


@pytest.mark.parametrize("between", [" \t", " |", "\t"])
def test_babi(tmp_path: Path, between: str) -> None:
    for split in ("train", "test"):
        (tmp_path / f"qa1_x_{split}.txt").write_text("".join(BABI.format(between, split + str(i)) for i in range(10)))
    made = read_labelled(tmp_path / "qa1_x_train.txt")
    assert {split: len(made.of(split)) for split in ("train", "dev", "test")} == {"train": 18, "dev": 2, "test": 20}
    first, second = made.of("test")[:2]
    assert first.words == ("mary", "moved", "to", "the", "hall", ".", "john", "went", "home", "test0", ".")
    assert (first.question, first.label, first.facts, first.supporting) == (
        ("where", "is", "mary"), "hall", ((0, 6), (6, 11)), (0,)
    )  # fmt: skip
    assert (len(second.facts), second.supporting, second.label) == (3, (1,), "home")
    assert made.has_facts
    (tmp_path / "qa1_x_test.txt").write_text("1 Mary left.\n2 Where is Mary?\thall\t7\n")
    with pytest.raises(UserError, match="supporting facts '7' are no lines of this story"):
        read_labelled(tmp_path / "qa1_x_train.txt")


def test_what_cannot_be_used_is_left_out_and_counted() -> None:
    odd = [
        LabelledText((), "a"), LabelledText(("x",), ""), LabelledText(("x",), "a"),
        LabelledText(("a", "b"), "new", "test"),
        LabelledText(("a", "c"), "a", "test"),
    ]  # fmt: skip
    made = labelled("them", [*texts(), *odd], shortest=2)
    assert {reason: part for part, reason in made.left_out} == {
        "they hold no word": "1 of the labelled texts",
        "their label is missing": "1 of the labelled texts",
        "they have fewer than 2 words": "1 of the labelled texts",
        "their label does not occur in training ('new')": "1 of the labelled texts",
    }
    assert len(made.texts) == 21


def test_long_texts_are_cut_and_it_is_said_how_much() -> None:
    made = labelled("them", [*texts(), LabelledText(tuple("abcdefgh"), "a")], longest=3)
    assert max(len(text.words) for text in made.texts) == 3
    assert "1 of 21 texts are longer than 3 words and were cut there: 5 words are not read" in made.remarks[0]


def test_of_long_stories_the_last_facts_are_kept() -> None:
    facts = ((0, 2), (2, 4), (4, 6))
    story = LabelledText(tuple("abcdef"), "a", None, ("q",), facts, (1,))
    gone = LabelledText(tuple("abcdef"), "a", None, ("q",), facts, (0,))
    many = [LabelledText((f"w{i}",), "ab"[i % 2], None, ("q",), ((0, 1),), (0,)) for i in range(20)]
    made = labelled("them", [*many, story, gone], longest=5)
    (short,) = [text for text in made.texts if len(text.words) > 1]
    assert (short.words, short.facts, short.supporting) == (tuple("cdef"), ((0, 2), (2, 4)), (0,))
    assert made.left_out == (("1 of the labelled texts", "the fact that answers is further back than 5 words"),)


def test_copies_are_said_and_never_part_when_splits_are_made() -> None:
    twice = [
        *texts(10, "train"),
        *texts(4, "dev"),
        *[LabelledText((f"other{i}",), "ab"[i % 2], "test") for i in range(4)],
    ]
    assert any("4 of 4 dev texts are in train too" in remark for remark in labelled("them", twice).remarks)
    copied = labelled("them", [text for text in texts(30) for _ in range(3)])
    where: dict[tuple[str, ...], set[str | None]] = {}
    for text in copied.texts:
        where.setdefault(text.words, set()).add(text.split)
    assert all(len(splits) == 1 for splits in where.values())
    assert not any(" too, word for word" in remark for remark in copied.remarks)


def test_one_class_only_is_refused() -> None:
    with pytest.raises(UserError, match="at least two classes in training; got 'a' alone in"):
        labelled("them", [LabelledText((f"w{i}",), "a") for i in range(20)])
    with pytest.raises(UserError, match="no labelled text to learn from; 2 left out: they hold no word"):
        labelled("them", [LabelledText((), "a")] * 2)
    with pytest.raises(UserError, match="has no test text left; 1 left out: their label does not occur in training"):
        labelled("them", [*texts(10, "train"), *texts(4, "dev"), LabelledText(("x",), "c", "test")])


def test_a_column_that_does_not_exist(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", GOOD, "texts,label")
    with pytest.raises(UserError, match=r"no column 'text'; did you mean texts\?; it has: texts, label"):
        read_labelled(path)
    with pytest.raises(UserError, match=r"must say train, dev, test .*; got 'good'"):
        read_labelled(path, Columns(text="texts", split="label"))


def test_files_that_are_none(tmp_path: Path) -> None:
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"text,label\nna\xefve,a\n")
    with pytest.raises(UserError, match=r"must be UTF-8; line 2 holds the byte 0xef"):
        read_labelled(latin)
    (tmp_path / "wide.csv").write_text("text,label\na,b\na,b,c\n")
    with pytest.raises(UserError, match="no table with commas between columns"):
        read_labelled(tmp_path / "wide.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UserError, match="no table"):
        read_labelled(tmp_path / "empty.csv")
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1}\n[1]\n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 2 must be a JSON object; got list"):
        read_labelled(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match=r"there is no file or folder .*did you mean wide\.csv or"):
        read_labelled(tmp_path / "wid.csv")
    with pytest.raises(UserError, match="must hold files named train, dev and test"):
        read_labelled(tmp_path)
    (tmp_path / "prose.txt").write_text("Once upon a time\n")
    with pytest.raises(UserError, match="labelled texts are read from"):
        read_labelled(tmp_path / "prose.txt")


def test_the_hub(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    rows = {"text": [text for text, _ in GOOD], "label": [int(label == "good") for _, label in GOOD]}
    whole = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": whole, "validation": whole, "unsupervised": whole}).save_to_disk(str(tmp_path / "d"))

    def load(name: str, configuration: str | None) -> object:
        assert (name, configuration) == ("owner/name", "small")
        return datasets.load_from_disk(str(tmp_path / "d"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_dataset", load)
        made = read_labelled("hub:owner/name/small")
    assert made.labels == ("bad", "good")
    assert {split: len(made.of(split)) for split in ("train", "dev")} == {"train": 19, "dev": 24}
    assert made.given == ("train", "dev")


def test_supporting_facts_are_what_answers() -> None:
    made = supporting_facts(300, n_dev=50, n_test=50, seed=3)
    assert isinstance(made, LabelledTexts)
    assert made.has_facts
    assert made.asks
    for text in made.texts:
        about = [i for i, (begin, _) in enumerate(text.facts) if text.words[begin] == text.question[-1]]
        _, end = text.facts[about[-1]]
        assert text.supporting == (about[-1],)
        assert text.label == text.words[end - 1]
    places = np.bincount([text.supporting[0] for text in made.texts if len(text.facts) == 5])
    assert places.min() > 5  # any of the facts may be the one
    again = supporting_facts(300, n_dev=50, n_test=50, seed=3)
    assert again.texts == made.texts
    with pytest.raises(UserError, match="at least 2 facts"):
        supporting_facts(fewest=1)


def test_the_stanford_sentiment_treebank(shared_data: Path) -> None:
    made = read_labelled(shared_data / "sst", shortest=6)
    # published: 863 and 863 before the longest sentence of the split is dropped (N = 1,725)
    assert [sum(text.label == label for text in made.of("test")) for label in "01"] == [863, 863]
    story = read_labelled(shared_data / "babi" / "en" / "qa1_single-supporting-fact_train.txt")
    assert {split: len(story.of(split)) for split in ("train", "dev", "test")} == {
        "train": 900,
        "dev": 100,
        "test": 1000,
    }
    assert len(story.labels) == 6
