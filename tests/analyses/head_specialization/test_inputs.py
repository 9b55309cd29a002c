"""Bad and unusual input: no tokenizer, few sentences, no spaces, encoder–decoders, heads that attend to nothing."""

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import interp
from analyses.head_specialization import SCHEMAS, Config, run
from interp.attention.edits import KnockOut
from interp.data.spacy_parses import parsed_by_spacy
from interp.errors import UserError
from interp.models import planted
from interp.results import Workspace, check_tables
from tests.analyses.head_specialization.planted import WORDS, tokenizer
from tests.families import make

SMALL: dict[str, Any] = {"window": 24, "windows": 17, "shown_sentences": 1, "shown": 2}


def checked(model: Any, config: Config) -> tuple[dict[str, Any], Workspace]:
    work = Workspace()
    result = run(model, config, work)
    check_tables("head-specialization", result.tables, SCHEMAS)
    return dict(result.tables), work


def test_a_model_without_a_tokenizer_is_measured_on_random_tokens() -> None:
    found = planted.plant(
        [planted.previous_token(writes="previous"), planted.duplicate_token(), planted.first_position()],
        [planted.induction(), planted.fixed_offset(3), planted.uniform()],
        n_ctx=48,
    )
    tables, work = checked(found.model, Config(windows=20))
    assert set(tables["heads"]["data"]) == {"repeated", "weights"}
    assert any("without a tokenizer" in part["reason"] for part in work.left_out)
    called = tables["kinds"][tables["kinds"]["called"]]
    kinds = {(row.layer, row.head, row.kind, row.detail) for row in called.itertuples()}
    assert {
        (0, 0, "previous_token", ""), (0, 0, "positional", "-1"), (0, 2, "sink", ""), (1, 0, "induction", ""),
        (1, 1, "positional", "-3"), (1, 2, "broad", ""), (0, 1, "duplicate_token", ""),
    } <= kinds  # fmt: skip
    undefined = tables["heads"][tables["heads"]["metric"] == "punctuation"]
    assert undefined["value"].isna().all()
    assert (undefined["note"] != "").all()


def test_composition_finds_what_was_wired() -> None:
    """The induction head's keys read what the previous-token head writes, and nothing else composes.

    It reads the previous token (64 directions, weight 1) and leaves the first position out (one of 64, weight 2).
    """
    found = planted.plant([planted.previous_token(writes="previous"), planted.uniform()], [planted.induction()])
    tables, _ = checked(found.model, Config(windows=2, window=16))
    into_keys = tables["composition"][tables["composition"]["path"] == "key"]
    strongest = into_keys.loc[into_keys["excess"].idxmax()]
    assert (strongest["source_head"], strongest["target_head"]) == (0, 0)
    assert strongest["value"] == pytest.approx(8 / (8 * (64 + 4 * 64) ** 0.5))
    assert (into_keys[into_keys["source_head"] == 1]["value"].dropna() == 0).all()  # writes aside


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_encoder_decoders(family: str, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(5, 97, (17, 24))
    np.save(tmp_path / "ids.npy", ids)
    model = interp.load(make(family), verify=False)
    tables, work = checked(model, Config(text=str(tmp_path / "ids.npy"), **SMALL))
    heads: Any = tables["heads"]
    cross = heads[heads["site"].str.contains("cross")]
    assert "the same tokens" in " ".join(work.notes)
    positions = cross[cross["metric"] == "previous_token"]
    assert positions["value"].isna().all()
    assert positions["note"].str.contains("another sequence").all()
    assert cross[cross["metric"] == "first_position"]["value"].notna().all()
    ahead = tables["distances"].groupby("site")["low"].min() < 0
    assert ahead[[site for site in ahead.index if site.startswith("encoder")]].all()
    assert not ahead[[site for site in ahead.index if site.startswith("decoder")]].any()


@pytest.mark.parametrize("family", ["gpt_oss", "bloom", "gemma3", "qwen3", "modernbert"])
def test_families_with_something_of_their_own(family: str, tmp_path: Path) -> None:
    """Learned sinks, a softmax by hand, windows, norms of queries and keys."""
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(5, 97, (17, 24)))
    tables, work = checked(interp.load(make(family), verify=False), Config(text=str(tmp_path / "ids.npy"), **SMALL))
    heads: Any = tables["heads"]
    entropy = heads[heads["metric"] == "relative_entropy"]
    assert entropy["value"].between(0, 1 + 1e-6).all()
    skipped = " ".join(part["part"] for part in work.left_out)
    assert ("norm-weighted attention" in skipped) == (family == "bloom")
    assert ("composition into queries and keys" in skipped) == (family in ("gemma3", "qwen3"))


def write(path: Path, *documents: str) -> str:
    path.write_text("\n\n\n".join(documents), encoding="utf-8")
    return str(path)


def trees(path: Path, n: int) -> str:
    rows = ["1\tw1\t_\t_\t_\t_\t2\tdet\t_\t_", "2\tw2\t_\t_\t_\t_\t0\troot\t_\t_", ""]
    path.write_text("\n".join(rows * n) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def tiny() -> Any:
    return interp.load(
        make("llama", vocab_size=len(WORDS), bos_token_id=1, eos_token_id=None),
        tokenizer=tokenizer(False),
        verify=False,
    )


def test_one_document_has_no_interval_and_says_so(tiny: Any, tmp_path: Path) -> None:
    text = write(tmp_path / "text.txt", " ".join(f"w{i % 40}" for i in range(200)))
    tables, work = checked(tiny, Config(text=text, **SMALL))
    of_text = tables["heads"][tables["heads"]["data"] == "text"]
    assert of_text["ci_low"].isna().all()
    assert not tables["kinds"]["called"].any()
    assert any("one document" in part["reason"] for part in work.left_out)


@pytest.mark.parametrize(("n", "reason"), [(1, "usable sentences"), (6, "pairs")])
def test_a_treebank_with_too_few_sentences(tiny: Any, tmp_path: Path, n: int, reason: str) -> None:
    text = write(tmp_path / "text.txt", *(" ".join(f"w{i * j % 40}" for i in range(60)) for j in range(3)))
    tables, work = checked(tiny, Config(text=text, treebank=trees(tmp_path / "few.conllu", n), **SMALL))
    assert len(tables["relations"]) == 0
    assert reason in " ".join([*work.notes, *(part["reason"] for part in work.left_out)])


def test_without_a_treebank_syntax_is_skipped(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyses.head_specialization.sentences.find_spec", lambda name: None)
    text = write(tmp_path / "text.txt", *(" ".join(f"w{i * j % 40}" for i in range(60)) for j in range(3)))
    _, work = checked(tiny, Config(text=text, **SMALL))
    assert any("--treebank FILE.conllu" in part["reason"] for part in work.left_out)


def test_a_first_word_that_is_a_sink_is_no_word(tiny: Any, tmp_path: Path) -> None:
    text = write(tmp_path / "text.txt", *(" ".join(f"w{(i + j) % 40}" for i in range(60)) for j in range(3)))
    tables, work = checked(tiny, Config(text=text, beginning="left_out", **SMALL))
    assert "counted as a sink alone" in " ".join(work.notes)
    assert tables["tokens"]["text"].iloc[0] != "[BOS]"


def test_a_text_without_spaces(minilm: Any, tmp_path: Path) -> None:
    text = write(tmp_path / "text.txt", *("我爱北京天安门。你好吗？" * 5 for _ in range(3)))
    tables, _ = checked(minilm, Config(text=text, window=32, windows=3, shown=2))
    heads: Any = tables["heads"]
    assert heads[heads["metric"] == "rare_word"]["value"].notna().all()
    assert heads[heads["metric"] == "sentence_start"]["value"].notna().all()


def test_a_model_that_reads_no_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="reads none"):
        run(interp.load(make("vit"), verify=False), Config(), Workspace())


@pytest.mark.parametrize(("name", "value"), [("window", 2), ("positional_share", 1.5), ("seed", -1)])
def test_settings_that_make_no_sense(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must"):
        Config(**{name: value})


def test_sentences_as_spacy_parses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for spaCy: two sentences, spaces that are tokens, a root that heads itself."""

    def token(i: int, text: str, idx: int, head: int, dep: str) -> Any:
        return SimpleNamespace(
            i=i, text=text, idx=idx, head=SimpleNamespace(i=head), dep_=dep, is_space=not text.strip()
        )  # fmt: skip

    class Sent(list):
        def __init__(self, text: str, start: int, tokens: list[Any]) -> None:
            super().__init__(tokens)
            self.text, self.start_char = text, start

    first = Sent("A dog ", 0, [token(0, "A", 0, 1, "det"), token(1, "dog", 2, 1, "ROOT"), token(2, " ", 5, 1, "")])
    second = Sent("Runs", 6, [token(3, "Runs", 6, 3, "ROOT")])
    spacy: Any = ModuleType("spacy")
    spacy.load = lambda name: lambda text: SimpleNamespace(sents=[first, second])
    monkeypatch.setitem(__import__("sys").modules, "spacy", spacy)
    one, two = parsed_by_spacy([("doc", "A dog Runs")], "any") or []
    assert (one.words, one.heads, one.relations) == (("A", "dog"), (1, -1), ("det", "ROOT"))
    assert [one.text[a:b] for a, b in one.spans] == ["A", "dog"]
    assert (two.words, two.spans, two.document) == (("Runs",), ((0, 4),), "doc")
    spacy.load = lambda name: (_ for _ in ()).throw(OSError("no such model"))
    assert parsed_by_spacy([("doc", "A")], "none") is None


def test_a_head_that_attends_to_nothing(tiny: Any, tmp_path: Path) -> None:
    """Rows that lost all their keys enter no statistic, and the word that they choose is none."""
    text = write(tmp_path / "text.txt", *(" ".join(f"w{(i + j) % 40}" for i in range(60)) for j in range(3)))
    config = Config(text=text, treebank=trees(tmp_path / "many.conllu", 40), least_pairs=5, **SMALL)
    with tiny.edit(KnockOut(edges=[(None, None)], heads=[(0, 2)])):
        tables, _ = checked(tiny, config)
    heads: Any = tables["heads"]
    dead = heads[(heads["layer"] == 0) & (heads["head"] == 2) & (heads["data"] == "text")]
    assert dead["value"].isna().all()
    assert (dead["note"] != "").all()
    relations: Any = tables["relations"]
    assert relations[(relations["layer"] == 0) & (relations["head"] == 2)]["accuracy"].eq(0).all()
