"""Sentences as an installed spaCy model parses them, where no treebank is at hand."""

from collections.abc import Iterable
from typing import Any

from interp.data.treebank import Sentence


def parsed_by_spacy(texts: Iterable[tuple[str, str]], model: str) -> list[Sentence] | None:
    """Sentences of some documents (name, text); None where spaCy or its model is not installed.

    Words and relations are spaCy's (ClearNLP's labels for English: dobj, pobj, nsubjpass), not a treebank's.
    """
    try:
        import spacy  # pyright: ignore[reportMissingImports]

        parser: Any = spacy.load(model)
    except (ImportError, OSError):
        return None
    found = []
    for name, text in texts:
        for number, sentence in enumerate(parser(text).sents, 1):
            words = [token for token in sentence if not token.is_space]
            place = {token.i: i for i, token in enumerate(words)}
            start = sentence.start_char
            found.append(
                Sentence(
                    name=f"{name}, sentence {number}",
                    document=name,
                    text=sentence.text,
                    words=tuple(token.text for token in words),
                    spans=tuple((token.idx - start, token.idx - start + len(token.text)) for token in words),
                    heads=tuple(-1 if token.head.i == token.i else place.get(token.head.i, -1) for token in words),
                    relations=tuple(token.dep_ for token in words),
                )
            )
    return found
