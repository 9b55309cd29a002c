from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from interp.data.treebank import Mention, read_treebank, shuffled
from interp.errors import UserError

# Best fixed offsets on UD English EWT (dev), pairs without punctuation and roots
BASELINES = {
    "ALL": (34.5, 1), "det": (59.6, 1), "obj": (35.8, -2), "nsubj": (36.5, 1), "amod": (74.7, 1), "case": (37.7, 1),
    "aux": (48.2, 1), "aux:pass": (82.7, 1), "compound": (82.5, 1), "advmod": (45.8, 1), "nmod:poss": (58.1, 1),
    "compound:prt": (74.3, -1), "mark": (52.3, 1),
}  # fmt: skip


def row(number: Any, form: str, head: Any = "_", relation: str = "_", misc: str = "_") -> str:
    return "\t".join(map(str, [number, form, "_", "_", "_", "_", head, relation, "_", misc]))


def write(folder: Path, *lines: str, end: str = "\n") -> Path:
    path = folder / "some.conllu"
    path.write_bytes((end.join(lines) + end + end).encode())
    return path


GOOD = (
    "# newdoc id = letters", "# sent_id = a-1", "# text = I don't (ever) sleep.",
    row(1, "I", 6, "nsubj"), row("2-3", "don't"), row(2, "do", 6, "aux"), row(3, "n't", 6, "advmod"),
    row("3.1", "ghost"), row(4, "(", 5, "punct", "SpaceAfter=No"), row(5, "ever", 6, "advmod", "SpaceAfter=No"),
)  # fmt: skip


def test_words_ranges_empty_nodes_and_places(tmp_path: Path) -> None:
    lines = [*GOOD, row(6, ")", 7, "punct"), row(7, "sleep", 0, "root", "SpaceAfter=No"), row(8, ".", 7, "punct")]
    for end in ("\n", "\r\n"):
        (sentence,) = read_treebank(write(tmp_path, *lines, end=end))
        assert sentence.words == ("I", "do", "n't", "(", "ever", ")", "sleep", ".")
        assert sentence.heads == (5, 5, 5, 4, 5, 6, -1, 6)
        assert (sentence.name, sentence.document, sentence.text) == ("a-1", "letters", "I don't (ever) sleep.")
        assert tuple(sentence.text[a:b] for a, b in sentence.spans) == sentence.words


def test_words_that_are_not_parts_of_what_is_written_share_its_place(tmp_path: Path) -> None:
    lines = [
        "# text = du pain",
        row("1-2", "du"),
        row(1, "de", 3, "case"),
        row(2, "le", 3, "det"),
        row(3, "pain", 0, "root"),
    ]
    (sentence,) = read_treebank(write(tmp_path, *lines))
    assert sentence.spans == ((0, 2), (0, 2), (3, 7))
    assert sentence.document == sentence.name == "sentence 1"


def test_a_text_that_does_not_hold_the_words_is_put_together_from_them(tmp_path: Path) -> None:
    lines = ["# text = something else", row(1, "Go", 0, "root", "SpaceAfter=No"), row(2, "!", 1, "punct")]
    (sentence,) = read_treebank(write(tmp_path, *lines))
    assert sentence.text == "Go!"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([row(1, "a", 0, "root"), "2\tb\t1"], r"line 2: a word has 10 columns, separated by tabs; got 3 columns"),
        ([row(1, "a", 0, "root"), row(3, "b", 1, "obj")], r"line 2: words are numbered from 1 on, this one 2; got '3'"),
        ([row(1, "a", 2, "x"), row(2, "b", 1, "y")], r"line 1: heads lead to a root, without cycles; got 1 → 2 → 1"),
        ([row(1, "a", 1, "x")], r"without cycles; got 1 → 1"),
        ([row(1, "a", 4, "x")], r"line 1: HEAD is a word of the sentence, 0 to 1; got 4"),
        ([row(1, "a", "_", "x")], r"line 1: HEAD \(column 7\) is the number of a word, or 0; got '_'"),
        ([row(1, "a", 0, "_")], r"line 1: DEPREL \(column 8\) names a relation"),
        ([row("1-3", "ab"), row(1, "a", 0, "root")], r"a range of words ends within its sentence"),
        ([row(1, "a", 0, "root"), row("1-2", "ab")], r"line 2: a range of words begins with the word that follows it"),
        ([row(1, "a", 0, "root", "Entity=e1)")], r"line 1: Entity= closes a mention that is open; got 'e1'"),
        (["# only a comment"], "holds no sentence"),
    ],
)  # fmt: skip
def test_what_breaks_the_format_is_named_with_its_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(read_treebank(write(tmp_path, *lines)))


def test_line_numbers_count_from_the_top_of_the_file(tmp_path: Path) -> None:
    lines = [row(1, "a", 0, "root"), "", "", "# sent_id = 2", row(1, "b", 0, "root"), row(2, "c", 9, "obj")]
    with pytest.raises(UserError, match=r"some.conllu, line 6: HEAD"):
        list(read_treebank(write(tmp_path, *lines)))


def test_not_utf8_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "latin.conllu").write_bytes(row(1, "a", 0, "root").encode() + b"\n\n\xe9\n")
    with pytest.raises(UserError, match="must be UTF-8"):
        list(read_treebank(tmp_path / "latin.conllu"))
    with pytest.raises(UserError, match="there is no treebank"):
        list(read_treebank(tmp_path / "none.conllu"))


def test_mentions(tmp_path: Path) -> None:
    lines = [
        row(1, "The", 2, "det", "Entity=(1-person-new-cf1-2-sgl"), row(2, "owner", 5, "nsubj"), row(3, "of", 4, "case"),
        row(4, "it", 2, "nmod", "Bridge=x|Entity=(2-object-giv-cf2-1-ana)1)"), row(5, "sees", 0, "root"),
        row(6, "her", 5, "obj", "Entity=(1-person-giv-cf1-1-ana)(2[1/2]-object"),
        row(7, "now", 5, "advmod", "Entity=2[1/2])"),
    ]  # fmt: skip
    (sentence,) = read_treebank(write(tmp_path, *lines))
    assert sentence.mentions == (
        Mention("1", 0, 3, 1), Mention("2", 3, 3, 3), Mention("2", 5, 6, 5), Mention("1", 5, 5, 5)
    )  # fmt: skip


def test_shuffled_words_leave_the_tree_where_it_was(tmp_path: Path) -> None:
    lines = [*GOOD, row(6, ")", 7, "punct"), row(7, "sleep", 0, "root"), row(8, ".", 7, "punct")]
    (sentence,) = read_treebank(write(tmp_path, *lines))
    (other,) = shuffled([sentence], seed=1)
    assert sorted(other.words) == sorted(sentence.words)
    assert other.words != sentence.words
    assert (other.heads, other.relations) == (sentence.heads, sentence.relations)
    assert tuple(other.text[a:b] for a, b in other.spans) == other.words
    assert shuffled([sentence], seed=1) == [other]


def test_best_offsets_on_ewt(shared_data: Path) -> None:
    """A few lines of their own, on the file's own columns, against the reader and against published numbers."""
    path = shared_data / "ud_english_ewt" / "en_ewt-ud-dev.conllu"
    hits: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    n: dict[str, int] = defaultdict(int)
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        for columns in (line.split("\t") for line in block.splitlines() if line[:1].isdigit()):
            if columns[0].isdigit() and columns[6] != "0" and columns[7] != "punct":
                for relation in (columns[7], "ALL"):
                    n[relation] += 1
                    hits[relation][int(columns[6]) - int(columns[0])] += 1
    sentences = list(read_treebank(path))
    assert (len(sentences), sum(map(len, sentences))) == (2001, 25_147)
    for relation, (percent, offset) in BASELINES.items():
        best = max(hits[relation], key=lambda each: hits[relation][each])
        assert (round(100 * hits[relation][best] / n[relation], 1), best) == (percent, offset)
        pairs = [
            head - word
            for s in sentences
            for word, (head, name) in enumerate(zip(s.heads, s.relations, strict=True))
            if head >= 0 and name != "punct" and relation in (name, "ALL")
        ]
        assert len(pairs) == n[relation]
        assert pairs.count(offset) == hits[relation][offset]
    assert all(s.text[a:b] == w for s in sentences for w, (a, b) in zip(s.words, s.spans, strict=True))
