"""The command that puts Michel et al.'s numbers beside measured ones, on a small random classifier."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import interp
from analyses.head_pruning import beside, classified, reproduce_michel
from analyses.head_pruning.labelled import Cut, Labelled, classifier, read
from analyses.head_pruning.reproduce_michel import Config, reproduce
from interp.errors import UserError
from interp.models.checkpoints import locate

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


def config_of(folder: Path, texts: Path, out: Path, **more: Any) -> Config:
    given: dict[str, Any] = {"n": 60, "batch_size": 16, "length": 16, "gate_steps": 4, "gate_penalties": (0.01, 30.0)}
    files = {"scored": texts, "reported": texts, "fit": texts}
    return Config(model=str(folder), out=out, **{**files, "rounds": 2, **given, **more})


def test_published_numbers_stand_beside_measured_ones(folder: Path, texts: Path, tmp_path: Path) -> None:
    found = reproduce(config_of(folder, texts, tmp_path))
    table = found.set_index("quantity")

    def measured(begins: str) -> str:
        return next(str(row["measured"]) for name, row in table.iterrows() if str(name).startswith(begins))

    assert float(measured("accuracy of the whole model").split()[0]) > 90  # the head was fitted
    assert measured("r of single heads").startswith("1.00")  # both files are the same
    assert measured("texts reported on") == "60 of texts.csv"
    names = [str(name) for name in table.index]
    assert sum("best head alone" in name and name.startswith("accuracy, layer") for name in names) == 2
    assert sum("pruned by importance" in name for name in names) == 10
    assert sum("learned gates" in name for name in names) == 2
    assert sum("batches of" in name for name in names) == 2
    elsewhere: Any = found[found["needs"] != ""]
    assert (elsewhere["measured"] == "").all()
    assert (elsewhere["published"] != "").all()
    said = "\n".join(reproduce_michel.markdown(found))
    assert said.index("other models") < said.index("36.05")


def test_an_interrupted_run_is_gone_on_with(
    folder: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(folder, texts, tmp_path / "a", rounds=0)
    whole = reproduce(replace(config, out=tmp_path / "b"))
    seen, own = [], classified.ablation_effects

    def stopped(*given: Any, **more: Any) -> Any:
        seen.append(given)
        if len(seen) > 5:
            raise KeyboardInterrupt
        return own(*given, **more)

    monkeypatch.setattr(classified, "ablation_effects", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce(config)
    seen.clear()
    monkeypatch.setattr(
        classified, "ablation_effects", lambda *given, **more: (seen.append(given), own(*given, **more))[1]
    )
    pd.testing.assert_frame_equal(reproduce(config), whole)
    assert len(seen) == 3  # of 2 files × 2 layers, 2 curves and 2 best heads, 5 were there
    seen.clear()
    monkeypatch.chdir(tmp_path)  # what lies beside the run has no part in it
    pd.testing.assert_frame_equal(reproduce(config), whole)
    assert not seen
    pd.read_csv(texts).iloc[:50].to_csv(tmp_path / "fewer.csv", index=False)
    monkeypatch.setattr(classified, "michel", stopped_at_once)
    with pytest.raises(KeyboardInterrupt):
        reproduce(replace(config, scored=tmp_path / "fewer.csv"))


def stopped_at_once(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_single_heads_are_those_of_the_eager_model(folder: Path, texts: Path, tmp_path: Path) -> None:
    """Sorted, padded batches and replayed layers against one text at a time without the head's columns of W_O."""
    checkpoint, tokenizer, table = locate(str(folder)), AutoTokenizer.from_pretrained(folder), pd.read_csv(texts)
    module = classifier(checkpoint, tokenizer, table, Cut(16, 16))
    again = classifier(checkpoint, tokenizer, table, Cut(16, 16))
    assert torch.equal(module.classifier.weight, again.classifier.weight)  # fitted from one start
    model = interp.load(module, tokenizer=tokenizer, verify=False)
    given = Labelled(table, tokenizer, Cut(16, 7))
    found = classified._changes(model, given, given.loss, [[(model.sites[1].name, 2)]])[0]
    eager: Any = BertForSequenceClassification.from_pretrained(folder, num_labels=2, attn_implementation="eager").eval()
    eager.load_state_dict(module.state_dict())

    def losses() -> list[float]:
        made = []
        for text, label in zip(table["text"], table["label"], strict=True):
            logits = eager(**tokenizer(text, return_tensors="pt")).logits
            made.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor([label]))))
        return made

    with torch.no_grad():
        before = np.array(losses())
        eager.bert.encoder.layer[1].attention.output.dense.weight[:, 12:18] = 0
        expected = np.array(losses()) - before
    lengths = [len(tokenizer(text)["input_ids"]) for text in table["text"]]
    np.testing.assert_allclose(found, expected[np.argsort(lengths, kind="stable")], atol=2e-6)


def test_heads_that_surely_change_are_counted_by_direction() -> None:
    rng = np.random.default_rng(0)
    change = rng.normal(size=(10, 200)) * 0.1
    change[3] += 0.2
    change[5] -= 0.2
    change[6] += 0.2
    assert beside.sure_heads(change) == (3, 1)


def test_texts_of_a_batch_are_about_equally_long_and_find_their_labels(folder: Path, texts: Path) -> None:
    table = pd.read_csv(texts)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    labelled = Labelled(table, tokenizer, Cut(16, 7))
    found = torch.cat([labelled.labels(batch) for batch in labelled.batches])
    lengths = np.array([len(tokenizer(text)["input_ids"]) for text in table["text"]])
    assert found.tolist() == table["label"].iloc[np.argsort(lengths, kind="stable")].tolist()
    padding = sum(int((~batch["valid"]).sum()) for batch in labelled.batches if "valid" in batch)
    assert 0 < padding < 0.05 * labelled.n_tokens
    assert any("valid" not in batch for batch in labelled.batches)


def test_what_is_missing_is_said(folder: Path, texts: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "bad.csv").write_text("words,label\nw1,0\n")
    with pytest.raises(UserError, match="has no text"):
        reproduce(config_of(folder, texts, tmp_path, scored=tmp_path / "bad.csv"))
    flags = ["--model", str(folder), "--scored", str(tmp_path / "none.csv"), "--reported", str(texts)]
    assert reproduce_michel.main(flags) == 1
    assert "there is no file" in capsys.readouterr().err
    with pytest.raises(UserError, match="gate-penalties"):
        config_of(folder, texts, tmp_path, gate_penalties=())


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", "", "could not be read"),
        ("heads.csv", "text,label\n", "holds no texts"),
        ("words.csv", "text,label\ngood,positive\n", "the number of a class"),
        ("unlabelled.csv", "text,label\ngood,1\nbad,\n", "the number of a class"),
        ("below.csv", "text,label\ngood,1\nneutral,-1\n", "got .*-1"),
        ("half.csv", "text,label\ngood,0.5\n", "got .*0.5"),
        ("quotes.csv", 'text,label\na,b,c,1\n"open,0\n', "could not be read|number of a class"),
        ("latin.csv", "text,label\nd\xe9j\xe0,1\n".encode("latin-1"), "could not be read"),
        ("broken.jsonl", '{"text": "good", "label": 1}\n{"text"\n', "could not be read"),
        ("null.jsonl", '{"text": "good", "label": 1}\n{"text": null, "label": 0}\n', "row 2: text must be"),
    ],
)
def test_files_that_are_no_labelled_texts(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=said):
        read(tmp_path / name, 10, 0)


def test_a_text_may_say_na(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text,label\nNA,1\nnull,0\n12,1\n")
    (tmp_path / "texts.jsonl").write_text('{"text": "12", "label": 1}\n{"text": "2020-01-01", "label": 0}\n')
    assert sorted(read(tmp_path / "texts.csv", 10, 0)["text"]) == ["12", "NA", "null"]
    assert sorted(read(tmp_path / "texts.jsonl", 10, 0)["text"]) == ["12", "2020-01-01"]


def test_labels_that_tokens_do_not_tell_are_refused(folder: Path, texts: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    same = pd.DataFrame({"text": ["w1 w2 w3 w4", "w1 w2 w3 w5"], "label": [0, 1]})
    assert Labelled(same, tokenizer, Cut(6, 2)).batches
    with pytest.raises(UserError, match="different labels"):
        Labelled(same, tokenizer, Cut(3, 2))
    pd.read_csv(texts).replace({"label": {1: 5}}).to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(UserError, match="the label 5, and the classifier 2 classes"):
        reproduce(config_of(folder, texts, tmp_path, reported=tmp_path / "other.csv"))
