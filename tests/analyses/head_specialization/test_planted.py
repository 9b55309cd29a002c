"""The whole analysis on models whose heads follow rules: each kind is found where it was planted, and nowhere else."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyses.head_specialization import SCHEMAS, Config, run
from interp.data import read_treebank, shuffled
from interp.results import Result, Workspace, check_tables
from tests.analyses.head_specialization.planted import (
    CAUSAL,
    ENCODER,
    EXPECTED,
    Truth,
    World,
    planted,
    world,
    write_text,
    write_treebank,
)

SETTINGS: dict[str, Any] = {"window": 64, "windows": 24, "least_pairs": 30, "shown": 4, "shown_sentences": 1}
# Which control destroys a kind; every kind but broad has one
CONTROLS = {
    "positional": "the offset beside it",
    "previous_token": "the offset beside it",
    "current_token": "the offset beside it",
    "sink": "the second position",
    "separator": "labels moved by a token",
    "duplicate_token": "another document's tokens",
    "induction": "another document's tokens",
    "rare_word": "another document's labels",
    "bracket_matching": "the token beside the bracket",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("planted")
    write_text(made / "text.txt")
    write_treebank(made / "trees.conllu")
    return made


def settings(folder: Path, **more: Any) -> Config:
    files: dict[str, Any] = {"text": str(folder / "text.txt"), "treebank": str(folder / "trees.conllu")}
    return Config(**SETTINGS | files | more)


@pytest.fixture(scope="module")
def known(folder: Path) -> World:
    return world(folder / "trees.conllu")


@pytest.fixture(scope="module")
def works() -> dict[str, Workspace]:
    return {"decoder": Workspace(), "encoder": Workspace()}


@pytest.fixture(scope="module")
def results(folder: Path, works: dict[str, Workspace], known: World) -> dict[str, Result]:
    found = {}
    for name, truth in (("decoder", CAUSAL), ("encoder", ENCODER)):
        with planted(truth, causal=name == "decoder", known=known) as model:
            found[name] = run(model, settings(folder), works[name])
    return found


def called(kinds: Any) -> set[tuple[tuple[int, int], str, str]]:
    rows = kinds[kinds["called"]]
    return {((r.layer, r.head), r.kind, r.detail) for r in rows.itertuples()}


def expected(truth: Truth) -> set[tuple[tuple[int, int], str, str]]:
    return {(head, kind, detail) for head, rule in truth.items() for kind, detail in EXPECTED[rule]}


@pytest.mark.parametrize(("name", "truth"), [("decoder", CAUSAL), ("encoder", ENCODER)])
def test_each_kind_is_found_where_it_was_planted_and_nowhere_else(
    results: dict[str, Result], name: str, truth: Truth
) -> None:
    assert called(results[name].tables["kinds"]) == expected(truth)


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_tables_keep_their_schemas(results: dict[str, Result], name: str) -> None:
    check_tables("head-specialization", results[name].tables, SCHEMAS)


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_controls_destroy_what_was_planted(results: dict[str, Result], name: str) -> None:
    kinds: Any = results[name].tables["kinds"]
    rows = kinds[kinds["called"] & kinds["kind"].isin(CONTROLS)]
    assert set(rows["kind"]) >= {"positional", "sink", "duplicate_token", "rare_word", "bracket_matching"}
    assert (rows["control"] < rows["threshold"] / 2).all()
    assert (rows["p_corrected"] < 0.01).all()
    assert kinds[kinds["kind"] == "broad"]["control"].isna().all()  # nothing destroys it, so nothing is compared


def test_an_ideal_head_scores_one(results: dict[str, Result]) -> None:
    heads: Any = results["decoder"].tables["heads"]
    for (layer, head), metric in {
        (0, 0): "previous_token", (0, 2): "current_token", (0, 3): "first_position", (0, 4): "duplicate_token",
        (0, 5): "prefix_matching", (1, 1): "bracket_match", (1, 2): "relative_entropy",
    }.items():  # fmt: skip
        row = heads[(heads["layer"] == layer) & (heads["head"] == head) & (heads["metric"] == metric)].iloc[0]
        assert row["value"] == pytest.approx(1.0, abs=1e-6), metric
        assert row["data"] == "text"


def test_relations_are_those_of_the_planted_head(results: dict[str, Result]) -> None:
    table: Any = results["decoder"].tables["relations"]
    assert set(table["relation"]) == {"all", "det", "amod", "obj"}
    det = table[(table["relation"] == "det") & (table["direction"] == "dependent→head") & table["best"]].iloc[0]
    assert (det["layer"], det["head"], det["accuracy"]) == (1, 3, 1.0)
    assert 0.3 < det["possible"] < 0.7  # a causal head sees what stands before it
    assert det["baseline"] < 0.35
    assert det["difference"] == pytest.approx(1 - det["baseline"])
    whole: Any = results["encoder"].tables["relations"]
    assert (whole["possible"] == 1).all()


def test_syntax_is_destroyed_where_words_are_shuffled(folder: Path, known: World, tmp_path: Path) -> None:
    """The tree stays where it was and its words go elsewhere: the head goes after the words."""
    lines = []
    for sentence in shuffled(read_treebank(folder / "trees.conllu"), seed=3):
        lines.append(f"# newdoc id = {sentence.name}")
        for i, (word, head, relation) in enumerate(
            zip(sentence.words, sentence.heads, sentence.relations, strict=True), 1
        ):
            lines.append("\t".join([str(i), word, "_", "_", "_", "_", str(head + 1), relation, "_", "_"]))
        lines.append("")
    path = tmp_path / "shuffled.conllu"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with planted(CAUSAL, causal=True, known=known) as model:
        tables: Any = run(model, settings(folder, treebank=str(path), windows=2), Workspace()).tables
    assert not tables["relations"]["called"].any()
    assert tables["relations"]["accuracy"].max() < 0.5


def test_coreference_is_that_of_the_planted_head(results: dict[str, Result]) -> None:
    table: Any = results["decoder"].tables["coreference"]
    (best,) = table.loc[table["best"]].to_dict("records")
    assert (best["layer"], best["head"], best["accuracy"]) == (1, 4, 1.0)
    assert 0.1 < best["nearest"] < 0.6
    assert best["difference"] == pytest.approx(1 - max(best["nearest"], best["head_match"]))


def test_offsets_and_distances(results: dict[str, Result]) -> None:
    offsets: Any = results["decoder"].tables["offsets"]
    assert set(offsets["offset"]) == set(range(-8, 1))
    third = offsets[(offsets["layer"] == 0) & (offsets["head"] == 1)].set_index("offset")
    assert third.loc[-3, ["share", "mass"]].tolist() == [1.0, 1.0]
    assert third.loc[-4, "mass"] < 0.1
    distances: Any = results["decoder"].tables["distances"]
    previous = distances[(distances["layer"] == 0) & (distances["head"] == 0)].set_index("low")
    assert previous.loc[1, "mass"] > 0.98
    assert previous["mass"].sum() == pytest.approx(1)
    assert (distances["low"] >= 0).all()
    both: Any = results["encoder"].tables["distances"]
    following = both[(both["layer"] == 0) & (both["head"] == 1)].set_index("high")
    assert following.loc[-1, "mass"] > 0.95


def test_chance_is_that_of_uniform_attention(results: dict[str, Result]) -> None:
    heads: Any = results["decoder"].tables["heads"]
    of_text = heads[(heads["data"] == "text") & ~heads["metric"].str.endswith("_norm")]
    uniform = of_text[(of_text["layer"] == 1) & (of_text["head"] == 2)]
    known = uniform[uniform["chance"].notna()]
    assert len(known) > 15
    np.testing.assert_allclose(known["value"], known["chance"], atol=1e-5)


def test_notes_say_what_was_done_and_left_out(works: dict[str, Workspace], results: dict[str, Result]) -> None:
    notes = " ".join(works["decoder"].notes)
    assert "[BOS] is put there" in notes
    assert "[BOS]" not in " ".join(works["encoder"].notes)
    left_out = {part["part"] for part in works["decoder"].left_out}
    assert "stability between text kinds" in left_out
    assert results["decoder"].provenance["inputs"]["treebank"]["what"].startswith("240 sentences, 2,160 words")


def test_it_repeats_exactly(folder: Path, known: World, results: dict[str, Result], tmp_path: Path) -> None:
    with planted(ENCODER, causal=False, known=known) as model:
        again = run(model, settings(folder), Workspace(tmp_path / "steps"))
        resumed = run(model, settings(folder), Workspace(tmp_path / "steps"))
    for name, table in results["encoder"].tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)
        pd.testing.assert_frame_equal(table, resumed.tables[name], check_exact=True)


def test_a_second_text_tells_which_scores_depend_on_it(folder: Path, known: World, tmp_path: Path) -> None:
    other = write_text(tmp_path / "other.txt", seed=9)
    with planted(CAUSAL, causal=True, known=known) as model:
        tables: Any = run(model, settings(folder, treebank=None, other_text=str(other)), Workspace()).tables
    assert {"text", "other_text"} <= set(tables["heads"]["data"])
    between = tables["stability"].set_index(["metric", "between"])
    row = between.loc[("previous_token", "text kinds")]
    assert row["ci_low"] <= row["spearman"] <= row["ci_high"]
    assert row["spearman"] > 0.5


def test_strongest_edges_of_notable_heads(results: dict[str, Result]) -> None:
    patterns: Any = results["decoder"].tables["patterns"]
    tokens: Any = results["decoder"].tables["tokens"]
    assert len(patterns.groupby(["layer", "head"])) == 4
    assert patterns["weight"].min() >= 0.05
    assert tokens["text"].iloc[0] == "[BOS]"
    assert patterns["query"].max() < len(tokens)
