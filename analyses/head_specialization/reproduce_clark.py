"""BERT-base's heads beside Clark et al.'s numbers: ``python -m analyses.head_specialization.reproduce_clark TREEBANK``.

Clark et al. measured on the Penn Treebank with Stanford Dependencies, which few may use; here any treebank in CoNLL-U
is read. Relations have other names in UD, and a few mean something else, so that margins and ranks are to be compared
rather than accuracies. Published: Table 1 and the authors' notebook, whose heads are counted from 0 as here.
"""

import argparse
import sys
from typing import Any

import pandas as pd

import interp
from analyses.head_specialization import inputs, sentences, syntax
from analyses.head_specialization.config import Config
from analyses.head_specialization.schemas import DIRECTIONS
from interp import HookedModel
from interp.errors import UserError
from interp.results import Workspace

#: UD's relation → (theirs, layer, head, accuracy, best fixed offset), dependent → head, in percent.
PUBLISHED = {
    "det": ("det", 7, 10, 94.3, 51.7),
    "obj": ("dobj", 7, 9, 86.8, 40.0),
    "nmod:poss": ("poss", 6, 5, 80.5, 47.7),
    "amod": ("amod", 3, 9, 75.6, 68.3),
    "aux": ("aux", 3, 9, 81.1, 71.5),
    "aux:pass": ("auxpass", 3, 9, 94.1, 82.5),
    "nsubj": ("nsubj", 7, 1, 58.5, 45.5),
    "compound": ("nn", 3, 9, 70.4, 70.2),
    "advmod": ("advmod", 6, 5, 48.8, 40.2),
    "mark": ("mark", 7, 1, 50.7, 14.5),
    "ccomp": ("ccomp", 7, 0, 48.8, 12.4),
    "cop": ("cop", 6, 5, 72.2, 40.5),
    "compound:prt": ("prt", 5, 6, 99.1, 91.4),
}
COLUMNS = {
    "relation": "relation", "pairs": "pairs", "best": "best head", "accuracy": "%", "interval": "95 %",
    "baseline": "best offset", "theirs": "Clark's head", "accuracy_theirs": "% here", "published": "% published",
    "published_baseline": "offset published",
}  # fmt: skip


def beside_published(model: HookedModel, treebank: str, work: Workspace | None = None) -> pd.DataFrame:
    """A row a relation: the best head (chosen on the other half of the treebank), and the head that was published.

    Raises:
        UserError: no such treebank, or it breaks a rule of its format.
    """
    work = work or Workspace()
    config = Config(treebank=treebank, budget="full", windows=1, least_pairs=20)
    parsed = sentences.read(model, inputs.make(model, config, work), config, work)
    table = syntax.tables(model, parsed, config, work)["relations"]
    table = table[table["direction"] == DIRECTIONS[0]]
    rows = []
    for relation, (name, layer, head, accuracy, baseline) in PUBLISHED.items():
        of_relation: Any = table[table["relation"] == relation]
        if not len(of_relation):
            continue
        best = of_relation[of_relation["best"]].iloc[0]
        theirs = of_relation[(of_relation["layer"] == layer) & (of_relation["head"] == head)]["accuracy"]
        rows.append(
            {
                "relation": relation if relation == name else f"{relation} ({name})", "pairs": best["n"],
                "best": f"L{best['layer']}H{best['head']}", "accuracy": 100 * best["accuracy"],
                "interval": f"{100 * best['ci_low']:.1f} to {100 * best['ci_high']:.1f}",
                "baseline": f"{100 * best['baseline']:.1f} at {best['baseline_offset']:+d}",
                "theirs": f"L{layer}H{head}", "accuracy_theirs": 100 * theirs.iloc[0] if len(theirs) else float("nan"),
                "published": accuracy, "published_baseline": baseline,
            }
        )  # fmt: skip
    if not rows:
        raise UserError(f"{treebank} has too few pairs of any of Clark et al.'s relations")
    return pd.DataFrame(rows)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("treebank", help="a CoNLL-U file, such as en_ewt-ud-dev.conllu")
    parser.add_argument("--model", default="bert-base-uncased", help="whose heads are compared with BERT-base's")
    given = parser.parse_args()
    try:
        table = beside_published(interp.load(given.model), given.treebank)
    except UserError as error:
        sys.exit(f"error: {error}")
    shown = table.rename(columns=COLUMNS).to_string(index=False, float_format=lambda number: f"{number:.1f}")
    sys.stdout.write(f"{given.model}, dependent → head, heads chosen on the other half of {given.treebank}\n{shown}\n")


if __name__ == "__main__":
    main()
