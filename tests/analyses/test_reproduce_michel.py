"""The command that puts Michel et al.'s numbers beside measured ones, on a small random classifier."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from analyses import reproduce_michel
from analyses.reproduce_michel import Config, Labelled, reproduce

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(40))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("classifier")
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(place)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=32, max_position_embeddings=32)  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts whose label is whether they hold w1; of different lengths."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(60):
        ids = torch.randint(2, 40, (4 + number % 5,), generator=generator).tolist()
        label = number % 2
        rows.append({"text": " ".join(f"w{i}" for i in ([1] * 3 if label else [0] * 3) + ids), "label": label})
    place = tmp_path_factory.mktemp("texts") / "texts.csv"
    pd.DataFrame(rows).to_csv(place, index=False)
    return place


def test_published_numbers_stand_beside_measured_ones(folder: Path, texts: Path) -> None:
    config = Config(scored=texts, reported=texts, model=str(folder), fit=texts, n=60, batch_size=16, length=16)
    table = reproduce(config).set_index("quantity")
    assert float(str(table["measured"]["accuracy of the whole model"])) > 0.9  # the head was fitted
    assert "0.4 MNLI" in str(table["published"]["share that goes without a sure fall"])
    assert float(str(table["measured"]["r of single heads' effects, both files"])) == pytest.approx(1.0)
    assert sum(str(name).endswith("best head alone, %") for name in table.index) == 2
    assert sum("pruned" in str(name) for name in table.index) == 10


def test_labels_are_found_by_the_text_whatever_the_padding(folder: Path, texts: Path) -> None:
    from transformers import AutoTokenizer

    config = Config(scored=texts, reported=texts, batch_size=7, length=16)
    table = pd.read_csv(texts)
    labelled = Labelled(table, AutoTokenizer.from_pretrained(folder), config)
    found = torch.cat([labelled.labels(batch) for batch in labelled.batches])
    assert found.tolist() == table["label"].tolist()
    assert not all(bool(batch["valid"].all()) for batch in labelled.batches)


def test_what_is_missing_is_said(folder: Path, texts: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "bad.csv").write_text("words,label\nw1,0\n")
    with pytest.raises(reproduce_michel.UserError, match="has no text"):
        reproduce(Config(scored=tmp_path / "bad.csv", reported=texts, model=str(folder)))
    flags = ["--model", str(folder), "--scored", str(tmp_path / "none.csv"), "--reported", str(texts)]
    assert reproduce_michel.main(flags) == 1
    assert "there is no file" in capsys.readouterr().err
