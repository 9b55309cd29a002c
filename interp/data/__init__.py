"""Token sequences with what is known about them: where something repeats, which document they come from.

Knows no model: tokenizers are passed in (any that works like a Hugging Face one), and sizes as numbers.

    sequences.py    Sequences: tokens, which of them are real, and their documents
    vocabulary.py   which tokens a random sequence may be drawn from
    conventions.py  the special tokens that a tokenizer puts around a text
    repeats.py      random tokens that repeat, and their control that does not
    segments.py     random tokens with a segment that is copied, as training data
    documents.py    documents from .txt, .jsonl and .npy files, the hub, or the sample text
    text.py         windows of documents
    labelled.py     texts with labels, questions with answers: checked and split
    labelled_files.py   these from tables, treebanks, bAbI files and the hub
    supporting_facts.py  questions about facts, made up, with the fact that answers
    word_index.py   words, their numbers, and vectors to begin with
    treebank.py     sentences with heads, relations and mentions, from CoNLL-U
    alignment.py    which tokens a word is written with
    labels.py       what each token is: special, punctuation, one of a pair of brackets, …
"""

from interp.data.alignment import Alignment, align
from interp.data.conventions import prefix_tokens, suffix_tokens
from interp.data.documents import SAMPLE, Document, read_documents
from interp.data.labelled import LabelledText, LabelledTexts, labelled
from interp.data.labelled_files import Columns, read_labelled
from interp.data.labels import TokenLabels, token_labels, token_texts
from interp.data.repeats import RepeatedTokens, repeated_tokens, unrepeated_tokens
from interp.data.segments import CopiedSegments, copied_segments
from interp.data.sequences import Sequences
from interp.data.supporting_facts import supporting_facts
from interp.data.text import windows
from interp.data.treebank import Mention, Sentence, read_treebank, shuffled
from interp.data.vocabulary import Vocabulary
from interp.data.word_index import (
    Vectors,
    WordIndex,
    completed_vectors,
    random_vectors,
    read_vectors,
    text_vectors,
    words_of,
)

__all__ = [
    "SAMPLE",
    "Alignment",
    "Columns",
    "CopiedSegments",
    "Document",
    "LabelledText",
    "LabelledTexts",
    "Mention",
    "RepeatedTokens",
    "Sentence",
    "Sequences",
    "TokenLabels",
    "Vectors",
    "Vocabulary",
    "WordIndex",
    "align",
    "completed_vectors",
    "copied_segments",
    "labelled",
    "prefix_tokens",
    "random_vectors",
    "read_documents",
    "read_labelled",
    "read_treebank",
    "read_vectors",
    "repeated_tokens",
    "shuffled",
    "suffix_tokens",
    "supporting_facts",
    "text_vectors",
    "token_labels",
    "token_texts",
    "unrepeated_tokens",
    "windows",
    "words_of",
]
