"""Token sequences with what is known about them: where something repeats, which document they come from.

Knows no model: tokenizers are passed in (any that works like a Hugging Face one), and sizes as numbers.

    sequences.py    Sequences: tokens, which of them are real, and their documents
    vocabulary.py   which tokens a random sequence may be drawn from
    conventions.py  the special tokens that a tokenizer puts around a text
    repeats.py      random tokens that repeat, and their control that does not
    segments.py     random tokens with a segment that is copied, as training data
    documents.py    documents from .txt, .jsonl and .npy files, the hub, or the sample text
    text.py         windows of documents
"""

from interp.data.conventions import prefix_tokens, suffix_tokens
from interp.data.documents import SAMPLE, Document, read_documents
from interp.data.repeats import RepeatedTokens, repeated_tokens, unrepeated_tokens
from interp.data.segments import CopiedSegments, copied_segments
from interp.data.sequences import Sequences
from interp.data.text import windows
from interp.data.vocabulary import Vocabulary

__all__ = [
    "SAMPLE",
    "CopiedSegments",
    "Document",
    "RepeatedTokens",
    "Sequences",
    "Vocabulary",
    "copied_segments",
    "prefix_tokens",
    "read_documents",
    "repeated_tokens",
    "suffix_tokens",
    "unrepeated_tokens",
    "windows",
]
