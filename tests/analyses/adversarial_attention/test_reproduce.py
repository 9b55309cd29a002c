"""The table of published and measured numbers, from results that are made up; and the texts it is made on."""

import json
from pathlib import Path

import pytest

from analyses.adversarial_attention.published import PUBLISHED
from analyses.adversarial_attention.reproduce import Config, finished, main, read_task
from analyses.adversarial_attention.reproduce_table import orderings, table, unpublished
from interp.errors import UserError
from tests.programs import python

CELL = ("babi-1", "lstm", "tanh")


def put(folder: Path, name: str, accuracy: float, jsd: float) -> None:
    steps = [
        {"class": "all", "steps": step, "epsilon": epsilon, "median": jsd - 0.1 * (step == 0)}
        for step in (0, 250, 500) for epsilon in (0.05, 0.01)
    ]  # fmt: skip
    found = {
        "accuracy": {"all": accuracy}, "auc": {"all": float("nan")}, "dev_accuracy": accuracy,
        "tau_gradient": {"all": 0.3, "kitchen": 0.1}, "tau_leave_one_out": {"all": 0.2}, "tau_both": {"all": 0.5},
        "jsd": {"all": jsd}, "above_half": {"all": 0.5}, "adversaries": steps, "permutation": [], "seconds": 1.0,
    }  # fmt: skip
    (folder / name).write_text(json.dumps(found))


def test_seeds_that_did_not_learn_are_shown_and_left_out(tmp_path: Path) -> None:
    config = Config(Path(), out=tmp_path, seeds=3)
    for seed, (accuracy, jsd) in enumerate(((1.0, 0.50), (0.6, 0.1), (0.98, 0.56))):
        put(tmp_path, f"babi-1-lstm-tanh-{seed}-random.json", accuracy, jsd)
    lines = table(finished(config, [CELL]))
    assert "| **bAbI-1, BiLSTM, tanh**: 2 of 3 seeds learned (accuracy of the others: 0.600) | | | | |" in lines
    assert "| accuracy | 1.000 | 0.990 | 0.980 to 1.000 | −0.010 |" in lines
    assert "| ε-max JSD, median (ε = 0.05) | 0.530 | 0.530 | 0.500 to 0.560 | +0.000 |" in lines
    assert "| random start, 0 steps, median (ε = 0.05) | — | 0.430 | 0.400 to 0.460 | — |" in lines
    assert not any("kitchen" in line or "AUC" in line for line in lines)


def test_classes_stand_side_by_side(tmp_path: Path) -> None:
    place = tmp_path / "sst-average-tanh-0-random.json"
    put(tmp_path, place.name, 0.8, 0.4)
    found = json.loads(place.read_text())
    found |= {"tau_gradient": {"all": 0.5, "0": 0.7, "1": 0.25}, "jsd": {"all": 0.47, "0": 0.46, "1": float("nan")}}
    place.write_text(json.dumps(found))
    lines = table(finished(Config(Path(), out=tmp_path), [("sst", "average", "tanh")]))
    row = "| 0.606, 0.611, 0.600 | 0.500, 0.700, 0.250 | — | −0.106, +0.089, −0.350 |"
    assert f"| τ attention, gradients: all, 0, 1 {row}" in lines
    assert "| ε-max JSD, median (ε = 0.05): all, 0 | —, 0.480 | 0.470, 0.460 | — | —, −0.020 |" in lines


def test_a_classifier_none_of_whose_seeds_learned_has_no_numbers(tmp_path: Path) -> None:
    put(tmp_path, "babi-1-lstm-tanh-0-random.json", 0.5, 0.3)
    seeds = finished(Config(Path(), out=tmp_path), [CELL])
    assert table(seeds)[2:] == [
        "| **bAbI-1, BiLSTM, tanh**: 0 of 1 seed learned (accuracy of the others: 0.500) | | | | |",
        "| accuracy | 1.000 | — | — | — |",
    ]
    assert orderings(seeds) == []


def test_without_published_numbers_seeds_count_that_beat_the_commonest_answer(tmp_path: Path) -> None:
    cell = ("babi-2", "cnn", "dot")
    for seed, (accuracy, above) in enumerate(((0.31, True), (0.22, False), (0.28, True))):
        place = tmp_path / f"babi-2-cnn-dot-{seed}-random.json"
        put(tmp_path, place.name, accuracy, accuracy + 0.2)
        place.write_text(json.dumps({**json.loads(place.read_text()), "above_chance": above, "chance": 0.19}))
    seeds = finished(Config(Path(), out=tmp_path), [cell])
    assert table(seeds) == []
    assert unpublished(seeds)[2:] == [
        "| bAbI-2, CNN, dot | 2 of 3 | 0.270 (0.220 to 0.310); 0.190 | 0.300 (0.300 to 0.300) | 0.200 (0.200 to 0.200) "
        "| 0.500 (0.500 to 0.500) | 0.495 (0.480 to 0.510) | 0.500 (0.500 to 0.500) |"
    ]
    for place in tmp_path.glob("*.json"):
        place.write_text(json.dumps({**json.loads(place.read_text()), "above_chance": False}))
    none = unpublished(finished(Config(Path(), out=tmp_path), [cell]))
    assert none[2] == "| bAbI-2, CNN, dot | 0 of 3 | 0.270 (0.220 to 0.310); 0.190 | — | — | — | — | — |"


def test_orderings_are_of_every_pair_of_seeds_that_learned() -> None:
    def seeds(*values: float, accuracy: float = 0.8) -> list[dict[str, object]]:
        return [
            {"accuracy": {"all": accuracy}, "dev_accuracy": accuracy, "tau_gradient": {"all": value}}
            for value in values
        ]

    measured = {
        ("sst", "average", "tanh"): seeds(0.5, 0.1), ("sst", "lstm", "tanh"): seeds(0.2, 0.4, 0.3),
        ("sst", "lstm", "dot"): seeds(0.1) + seeds(0.9, accuracy=0.5),
    }  # fmt: skip
    assert orderings(measured)[2:] == [
        "| SST, average, tanh > SST, BiLSTM, tanh | 0.606 > 0.351 | 0.300, 0.300 | 3 of 6 |",
        "| SST, BiLSTM, tanh > SST, BiLSTM, dot | 0.351 > 0.073 | 0.300, 0.100 | 3 of 3 |",
    ]


def test_published_orderings() -> None:
    """Average above BiLSTM, and additive above dot product for the BiLSTM, in the published numbers."""
    tau = {cell: PUBLISHED[cell].tau_gradient["all"] for cell in PUBLISHED}
    assert tau["sst", "average", "tanh"] > tau["sst", "lstm", "tanh"] > tau["sst", "lstm", "dot"]
    assert all(0 <= share <= 1 for cell in PUBLISHED.values() for share in cell.above_half.values())


def test_data_that_is_not_there(tmp_path: Path) -> None:
    for data, missing in (("sst", "the folder sst"), ("babi-2", "babi/en/qa2_")):
        with pytest.raises(UserError, match=missing):
            read_task(Config(tmp_path), data)


def test_what_cannot_be_computed_is_said_before_anything_is(tmp_path: Path) -> None:
    for cell in ("sst:lstm", "sst:gru:tanh", "sst:lstm:relu", "imdb:lstm:tanh"):
        with pytest.raises(UserError, match=f"sst or babi-1.*lstm or cnn or average, tanh or dot; got '{cell}'"):
            main(Config(tmp_path, cells=("sst:lstm:tanh", cell), out=tmp_path))
    with pytest.raises(UserError, match="--seeds is at least 1; got 0"):
        Config(tmp_path, seeds=0)
    with pytest.raises(UserError, match="--epochs is at least 1; got 0"):
        Config(tmp_path, epochs=0)
    with pytest.raises(UserError, match="nothing is finished"):
        main(Config(tmp_path, out=tmp_path, table_only=True))
    done = python("-m", "analyses.adversarial_attention.reproduce", "--data", str(tmp_path), "--out", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "the folder sst" in done.stderr


def test_ten_thousand_stories_are_other_classifiers(tmp_path: Path) -> None:
    stories = tmp_path / "babi" / "en-10k"
    stories.mkdir(parents=True)
    for split in ("train", "test"):
        places = ("hall", "yard") * 20
        asked = [f"1 P{n} went to the {place}.\n2 Where is P{n}?\t{place}\t1" for n, place in enumerate(places)]
        (stories / f"qa1_facts_{split}.txt").write_text("\n".join(asked))
    with pytest.raises(UserError, match="babi/en/qa1_"):
        read_task(Config(tmp_path), "babi-1")
    large = Config(tmp_path, babi="en-10k", out=tmp_path)
    assert len(read_task(large, "babi-1").texts.of("test")) == 40
    put(tmp_path, "babi-1-lstm-tanh-0-random.json", 0.857, 0.5)
    put(tmp_path, "babi-1-lstm-tanh-0-en-10k.json", 1.0, 0.5)
    assert "| accuracy | 1.000 | 1.000 | — | +0.000 |" in table(finished(large, [CELL]))
    assert "0 of 1 seed learned" in table(finished(Config(tmp_path, out=tmp_path), [CELL]))[2]
    assert table(finished(Config(tmp_path, babi="en-10k", epochs=2, out=tmp_path), [CELL])) == []


def test_the_treebank_has_as_many_test_sentences_as_published(shared_data: Path) -> None:
    task = read_task(Config(shared_data), "sst")
    assert len(task.texts.of("test")) == 1725
    assert [sum(text.label == label for text in task.texts.of("test")) for label in "01"] in ([863, 862], [862, 863])
