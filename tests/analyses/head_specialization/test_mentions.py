"""Coreference: what an anaphor is, its baselines, and stretches of documents."""

from pathlib import Path
from typing import Any

import interp
from analyses.head_specialization import Config, inputs, mentions
from analyses.head_specialization.mentions import Stretch
from interp.data import read_treebank
from interp.results import Workspace
from tests.analyses.head_specialization.planted import WORDS, tokenizer, write_treebank
from tests.families import make


def stretch(*of: tuple[str, str]) -> Stretch:
    entities, forms = zip(*of, strict=True)
    return Stretch("a", [], [], [frozenset(each.split()) for each in entities], list(forms))


def test_anaphors_and_baselines() -> None:
    one = stretch(("e1", "cat"), ("e2", "dog"), ("e1 e3", "it"), ("e2", "dog"), ("e3", "its"), ("e4", "cat"))
    assert one.anaphors == [2, 3, 4]  # the last "cat" is another cat
    nearest = [one.same(m, m - 1) for m in one.anaphors]
    assert nearest == [False, False, False]
    assert [one.head_match(m) for m in one.anaphors] == [1, 1, 3]  # the same word, or the nearest where there is none
    assert [one.same(m, one.head_match(m)) for m in one.anaphors] == [False, True, False]


def test_stretches_are_whole_sentences_of_one_document(tmp_path: Path) -> None:
    """54 words a document and a context of 32: each stretch holds three sentences of nine words."""
    path = write_treebank(tmp_path / "trees.conllu", documents=4)
    module = make("llama", vocab_size=len(WORDS), bos_token_id=1, eos_token_id=None, max_position_embeddings=32)
    model: Any = interp.load(module, tokenizer=tokenizer(False), verify=False)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(["w1"] * 64), encoding="utf-8")
    given = inputs.make(model, Config(text=str(text), window=16, windows=2), Workspace())
    sentences = tuple(read_treebank(path))
    found = list(mentions.stretches(model, given, sentences))
    assert [len(each.tokens) for each in found] == [28] * 8
    assert [each.document for each in found] == [str(i // 2) for i in range(8)]
    for each in found:
        heads = [position for position, word in enumerate(each.words) if word >= 0]
        assert heads == [1 + 3, 1 + 9 + 3, 1 + 18 + 3]
        assert [each.words[position] for position in heads] == [0, 1, 2]
        assert each.forms == [WORDS[each.tokens[position]] for position in heads]
