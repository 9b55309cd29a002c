"""The classifiers' half as a whole: tables, what is said of the texts, what is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.adversarial_attention import Config
from analyses.adversarial_attention.classifiers import consistent, tables
from analyses.adversarial_attention.classifiers.task import prepare
from analyses.adversarial_attention.classifiers.training import train
from analyses.adversarial_attention.schemas import CLASSIFIERS, empty, with_absent
from interp.errors import UserError
from interp.results import Workspace, check_tables
from tests.analyses.adversarial_attention.classifiers import N_WORDS, examples, random_classifier

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def words_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts whose label is whether they hold the word good or the word bad; one of a single word, one too long."""
    rng = np.random.default_rng(0)
    fillers = [f"word{i}" for i in range(20)]
    rows = ["text,label"]
    for i in range(240):
        text = list(rng.choice(fillers, rng.integers(2, 8)))
        text.insert(int(rng.integers(len(text) + 1)), ("good", "bad")[i % 2])
        rows.append(f"{' '.join(text)},{('fine', 'dull')[i % 2]}")
    rows += ["good,fine", f"{'word1 ' * 30}bad,dull", ",fine", "word1,"]
    path = tmp_path_factory.mktemp("texts") / "words.csv"
    path.write_text("\n".join(rows))
    return path


def small(data: Path | None, **more: object) -> Config:
    settings = {
        "part": "classifiers", "data": None if data is None else str(data), "encoders": ("average",), "epochs": 3,
        "instances": 24, "permutations": 11, "steps": 20, "variants": 1, "consistent_weights": (0.1,), "longest": 20,
    }  # fmt: skip
    return Config(**{**settings, **more})  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def ran(words_file: Path) -> tuple[dict[str, pd.DataFrame], Workspace]:
    work = Workspace()
    made, about = tables(small(words_file, instances=1000), work, CPU)
    assert about["n"]["test"] == pytest.approx(48, abs=1)
    return made, work


def test_all_tables_are_there_and_fit_their_schemas(ran: tuple[dict[str, pd.DataFrame], Workspace]) -> None:
    made, _ = ran
    assert set(made) == set(CLASSIFIERS) - {"supporting_facts"}  # whose texts have no facts
    check_tables("adversarial-attention", with_absent(made), CLASSIFIERS)
    assert set(made["agreement"]["class"]) == {"all", "dull", "fine"}
    assert set(made["adversaries"]["steps"]) == {0, 2, 4, 10, 20}
    assert set(made["consistent"]["kind"]) == {
        "base", "uniform", "seed", "per_instance", "consistent", "guide_uniform", "guide_own", "guide_base",
        "guide_adversary",
    }  # fmt: skip
    (row,) = made["classifiers"].to_dict("records")
    assert row["learned"]
    assert row["accuracy"] > 0.9


def test_what_was_done_to_the_texts_is_said(ran: tuple[dict[str, pd.DataFrame], Workspace]) -> None:
    _, work = ran
    notes, left = " ".join(work.notes), {each["reason"] for each in work.left_out}
    assert "longer than 20 words and were cut there: 11 words are not read" in notes
    assert "comes without test" in notes
    assert "word vectors: random" in notes
    assert {"they hold no word", "their label is missing"} <= left


def test_instances_are_drawn_twice_with_the_same_answer(ran: tuple[dict[str, pd.DataFrame], Workspace]) -> None:
    shown = ran[0]["instances"]
    for _, rows in shown.groupby("instance"):
        own, other = (rows.loc[rows["which"] == which] for which in ("original", "adversarial"))
        assert own["text"].tolist() == other["text"].tolist()
        assert own["weight"].sum() == pytest.approx(1, abs=1e-5)
        assert other["weight"].sum() == pytest.approx(1, abs=1e-5)
        assert abs(own["output"].iloc[0] - other["output"].iloc[0]) <= 0.01 + 1e-6


def test_the_same_seed_gives_the_same_numbers(words_file: Path) -> None:
    one, two = (tables(small(words_file, variants=0), Workspace(), CPU)[0] for _ in range(2))
    for name, table in one.items():
        pd.testing.assert_frame_equal(table, two[name])


def test_a_classifier_that_did_not_learn_is_not_interpreted_unless_told_to(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [f"{' '.join(rng.choice(list('abcdefgh'), 4))},{'xy'[rng.integers(2)]}" for _ in range(150)]
    path = tmp_path / "noise.csv"
    path.write_text("\n".join(["text,label", *rows]))
    work = Workspace()
    made, _ = tables(small(path, epochs=1), work, CPU)
    assert set(made) == {"classifiers"}
    (row,) = made["classifiers"].to_dict("records")
    assert (row["learned"], row["tested"]) == (False, False)
    assert any("did not learn" in each["reason"] and "--interpret-anyway" in each["reason"] for each in work.left_out)
    made, _ = tables(small(path, epochs=1, interpret_anyway=True), Workspace(), CPU)
    assert "agreement" in made
    assert made["classifiers"]["tested"].tolist() == [True]


def test_questions_about_facts_that_are_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from analyses.adversarial_attention.classifiers import task
    from interp.data import supporting_facts

    monkeypatch.setattr(task, "supporting_facts", lambda seed: supporting_facts(200, n_dev=40, n_test=40, seed=seed))
    made, about = tables(small(None, interpret_anyway=True, adversaries=1), Workspace(), CPU)
    assert about["asks"]
    check_tables("adversarial-attention", with_absent(made), CLASSIFIERS)
    assert made["supporting_facts"]["ranking"].tolist() == ["attention", "gradient", "leave_one_out"]
    assert all(0.2 < chance < 0.5 for chance in made["supporting_facts"]["chance"])
    assert np.isnan(made["adversaries"]["among"]).all()  # one adversary is apart from no other
    assert (made["adversaries"]["epsilon"].iloc[0], made["instances"]["question"].iloc[0][:8]) == (0.05, "where is")


def test_trained_classifiers_are_kept_and_taken_up_again(words_file: Path, tmp_path: Path) -> None:
    config = small(words_file, keep=str(tmp_path))
    task = prepare(config, Workspace())
    first = train(task, ("average", "tanh", 0), Workspace(), CPU, keep=config.keep)
    again = train(task, ("average", "tanh", 0), Workspace(), CPU, keep=config.keep)
    assert again.quality == first.quality
    assert again.best_epoch == first.best_epoch
    other = prepare(small(words_file, longest=3), Workspace())
    with pytest.raises(UserError, match="holds a classifier of other texts or settings"):
        train(other, ("average", "tanh", 0), Workspace(), CPU, keep=config.keep, epochs=2)


def test_the_objective_of_the_adversarial_classifier() -> None:
    model, texts = random_classifier("lstm", True, 3).float(), examples([4, 2], True, 3)
    rows = [np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.5])]
    p = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    batch = texts.batch([0, 1])
    answer = model(batch)
    own = [answer.attention[i, 1 : 1 + len(row)].detach().numpy() for i, row in enumerate(rows)]
    change = np.abs(answer.logits.softmax(-1).detach().numpy() - p).sum(1) / 2
    away = [float((row * np.log(row / other)).sum()) for row, other in zip(rows, own, strict=True)]
    wanted = np.mean(change - 0.3 * np.array(away))
    found = consistent.adversarial_objective(p, rows, 0.3)(model, batch, np.arange(2))
    assert float(found.detach()) == pytest.approx(wanted, rel=1e-5)
    assert N_WORDS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon, the largest change of the output"),
        ({"epsilon": -0.1}, "must be above 0"),
        ({"adversaries": 0}, "adversaries must be at least 1"),
        ({"encoders": ()}, "encoders must name at least one"),
        ({"consistent_weights": (float("nan"),)}, "consistent_weights must be finite"),
        ({"penalty": float("inf")}, "penalty must be a finite number"),
        ({"instances": 1}, "instances must be at least 2"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**settings)  # pyright: ignore[reportArgumentType]


def test_tables_of_a_part_that_was_not_asked_for_are_empty_and_fit() -> None:
    made = with_absent({})
    assert all(table.empty for table in made.values())
    check_tables("adversarial-attention", made, CLASSIFIERS)
    assert empty("classifiers")["learned"].dtype == bool


def test_the_part_runs_by_itself_as_the_command_runs_it(words_file: Path) -> None:
    from types import SimpleNamespace

    from analyses import adversarial_attention

    config = small(words_file, variants=0, keep=None)
    result = adversarial_attention.run(SimpleNamespace(device=CPU), config, Workspace())  # pyright: ignore[reportArgumentType]
    assert result.analysis == "adversarial-attention"
    assert set(result.tables) >= set(adversarial_attention.SCHEMAS)
    check_tables(result.analysis, result.tables, adversarial_attention.SCHEMAS)
    assert result.provenance["data"]["labels"] == ["dull", "fine"]
