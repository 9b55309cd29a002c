"""Every planted head is found and none is invented: precision and recall of 1 where weights are set by hand."""

from collections.abc import Sequence

import pytest

from analyses.induction_heads import Config, run
from interp.models.planted import (
    Part,
    current_token,
    duplicate_token,
    first_position,
    fixed_offset,
    induction,
    induction_circuit,
    label,
    plant,
    previous_token,
    twins,
    uniform,
)
from interp.results import Workspace

CALLED = ("induction", "previous_token", "duplicate_token")
PERIOD = 32  # two copies in the context of 64

Layers = Sequence[Sequence[Part]]

MODELS: dict[str, Layers] = {
    "the circuit": induction_circuit(),
    "two induction heads, one of which matters": twins(),
    "every kind": (
        [previous_token(writes="previous"), duplicate_token(), current_token(), first_position()],
        [induction(), label({3, 4}), uniform(), fixed_offset(2)],
    ),
    "nothing that is called": ([current_token(), first_position(), uniform()], [label({5}), fixed_offset(3)]),
    "offsets as long as the period, and as the way to what followed": (
        [fixed_offset(PERIOD), fixed_offset(PERIOD - 1)],
        [fixed_offset(2), fixed_offset(PERIOD + 1)],
    ),
    "previous-token heads that nothing reads": ([previous_token(), previous_token(), previous_token()],),
    "many of each in three layers": (
        [previous_token(writes="previous"), duplicate_token(), duplicate_token(), label(range(10))],
        [induction(), induction(writes="aside"), previous_token(), first_position()],
        [induction(), duplicate_token(), current_token(), fixed_offset(4)],
    ),
    "heads that read each other's output": (
        [previous_token(writes="output"), previous_token(writes="previous")],
        [induction(writes="output"), duplicate_token(writes="output")],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_planted_head_is_found_and_none_is_invented(name: str) -> None:
    planted = plant(*MODELS[name], d_vocab=70)
    config = Config(sequences=16, ablated=(1,), draws=1, ablated_on=4, followed=1, reach_sequences=2)
    result = run(planted.model, config, Workspace())
    assert result.provenance["inputs"]["repeated"]["period"] == PERIOD
    rows = result.tables["kinds"]
    for kind in CALLED:
        of = rows.loc[rows["kind"] == kind]
        called = of.loc[of["called"]]
        found = set(zip(called["layer"].tolist(), called["head"].tolist(), strict=True))
        assert found == planted.of_kind(kind), kind
        assert called["value"].tolist() == pytest.approx([1.0] * len(called), abs=1e-3)


def test_heads_that_matter_are_told_from_those_that_look_the_same() -> None:
    """The twins have one pattern; only without the one that writes to the output does the model no longer copy."""
    planted = plant(*twins(), d_vocab=70)
    result = run(planted.model, Config(sequences=16, ablated=(1,), draws=3), Workspace())
    matters, looks_alike = (1, 0), (1, 1)
    assert matters in planted.matter
    assert looks_alike not in planted.matter
    ablation = result.tables["ablation"]
    change = {
        heads: rows["loss_change"].abs().max()
        for heads, rows in ablation.loc[ablation["ablation"] == "zero"].groupby("heads")
    }
    assert change["L1H0"] > 1
    assert change["L1H1"] < 1e-4
