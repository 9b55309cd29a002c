"""Syntax: does a head attend from a word to its syntactic head, or back, more often than a fixed offset would?

Clark et al. 2019: on maps between words (weights to a word's tokens summed, weights from its tokens averaged), the
strongest other word; special tokens are no words. dependent→head: the word that the dependent attends to most is its
head. head→dependent: the word that attends most to the dependent is its head.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.head_specialization.config import Config
from analyses.head_specialization.pooled import Pooled, corrected, pooled
from analyses.head_specialization.schemas import DIRECTIONS
from analyses.head_specialization.sentences import Parsed
from interp import HookedModel
from interp.ablation import without_logits
from interp.attention.probes import StrongestGroup
from interp.model_data import pass_arguments
from interp.models.recording import Run
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import halves

#: All relations together; punctuation and roots are in none.
ALL = "all"
_NO_RELATION = ("punct", "root")
RELATIONS: dict[str, Any] = {
    "site": str, "layer": int, "head": int, "relation": str, "direction": str, "accuracy": float, "ci_low": float,
    "ci_high": float, "baseline": float, "baseline_offset": int, "difference": float, "difference_low": float,
    "difference_high": float, "p_corrected": float, "n": int, "possible": float, "best": bool, "called": bool,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a dependent and its head, both with tokens of their own.

    Attributes:
        sentence, dependent, head: numbers; [pair].
        relation: [pair].
        unit: which pairs count as one observation; [pair].
        sites: names of the sites, with their layers and numbers of heads.
        hits: by direction, whether each head got it right; [pair, head], heads of all sites one after the other.
        possible: by direction, whether the mask lets a site see it; [pair, site].
    """

    sentence: NDArray[np.intp]
    dependent: NDArray[np.intp]
    head: NDArray[np.intp]
    relation: NDArray[np.str_]
    unit: NDArray[np.intp]
    sites: tuple[tuple[str, int, int], ...]
    hits: dict[str, NDArray[np.bool_]]
    possible: dict[str, NDArray[np.bool_]]

    @property
    def offset(self) -> NDArray[np.intp]:
        """Words from the dependent to its head."""
        return self.head - self.dependent

    @property
    def names(self) -> list[str]:
        """Relations, the most common first, after all of them together."""
        names, counts = np.unique(self.relation, return_counts=True)
        return [ALL, *names[np.argsort(-counts, kind="stable")].tolist()]

    def of(self, relation: str) -> NDArray[np.bool_]:
        """Which pairs are of a relation."""
        return np.ones(len(self.relation), dtype=bool) if relation == ALL else self.relation == relation


def measure(model: HookedModel, parsed: Parsed, config: Config, work: Workspace) -> Pairs:
    """What every head makes of every pair, read while attention is computed."""
    where = [_pairs_of(parsed, i) for i in range(len(parsed.sentences))]
    starts = np.cumsum([0, *(len(each) for each in where)])
    flat = np.array([pair for each in where for pair in each], dtype=np.intp).reshape(-1, 2)
    sentence = np.repeat(np.arange(len(where)), np.diff(starts))
    relations = np.array(
        [parsed.sentences[s].relations[d] for s, (d, _) in zip(sentence, flat, strict=True)], dtype=str
    )
    sites = [(site.name, site.layer, site.n_heads) for site in model.sites if site.kind == "self"]
    first_head = dict(zip((name for name, *_ in sites), np.cumsum([0, *(n for *_, n in sites)]), strict=False))
    n_heads = sum(n for *_, n in sites)
    hits = {direction: np.zeros((len(flat), n_heads), dtype=bool) for direction in DIRECTIONS}
    possible = {direction: np.zeros((len(flat), len(sites)), dtype=bool) for direction in DIRECTIONS}
    spare, batches = without_logits(model), list(parsed.batches(config))
    for numbers, sequences, groups in work.progress(batches, "batches of sentences"):
        probe = StrongestGroup(groups, int(groups.max()) + 1, both_ways=True)
        run = model.run(**pass_arguments(model, sequences), probes=[probe], sites=[name for name, *_ in sites], **spare)
        found = {name: reading.values.long().cpu().numpy() for name, reading in run.readings(probe).items()}
        may = _may_read(run, groups.numpy())
        for row, number in enumerate(numbers):
            at, pairs = slice(starts[number], starts[number + 1]), flat[starts[number] : starts[number + 1]]
            dependent, head = pairs.T
            for place, (name, _, n) in enumerate(sites):
                columns, values = slice(first_head[name], first_head[name] + n), found[name][row]
                hits[DIRECTIONS[0]][at, columns] = (values[:, dependent, 0] == head).T
                hits[DIRECTIONS[1]][at, columns] = (values[:, dependent, 2] == head).T
                possible[DIRECTIONS[0]][at, place] = may[name][row][dependent, head]
                possible[DIRECTIONS[1]][at, place] = may[name][row][head, dependent]
    units = parsed.units[sentence] if len(sentence) else sentence
    return Pairs(sentence, flat[:, 0], flat[:, 1], relations, units, tuple(sites), hits, possible)


def _pairs_of(parsed: Parsed, number: int) -> list[tuple[int, int]]:
    sentence, present = parsed.sentences[number], set(parsed.words[number])
    return [
        (word, head)
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True))
        if head >= 0 and relation.split(":")[0] not in _NO_RELATION and word in present and head in present
    ]


def _may_read(run: Run, groups: NDArray[np.int64]) -> dict[str, list[NDArray[np.bool_]]]:
    """By site, for each sentence: whether some token of a word may read some token of another; [word, word]."""
    known: dict[int, list[NDArray[np.bool_]]] = {}
    found = {}
    for site, (mask, shape) in run.masks.items():
        if id(mask) not in known:
            allowed = shape.mask.allowed(0, shape.n_queries, 0, shape.n_keys).any(1).cpu().numpy()
            allowed = np.broadcast_to(allowed, (len(groups), *allowed.shape[1:]))
            known[id(mask)] = [_by_word(one, of_row) for one, of_row in zip(allowed, groups, strict=True)]
        found[site] = known[id(mask)]
    return found


def _by_word(allowed: NDArray[np.bool_], groups: NDArray[np.int64]) -> NDArray[np.bool_]:
    words = groups.max() + 1
    member = (groups[:, None] == np.arange(words)).astype(np.float32)
    return member.T @ allowed.astype(np.float32) @ member > 0


def best_offset(offsets: NDArray[np.intp], farthest: int) -> int:
    """The offset that hits most pairs, up to ``farthest`` words to either side; of equal ones the nearest."""
    candidates = sorted((o for o in range(-farthest, farthest + 1) if o), key=lambda o: (abs(o), -o))
    return max(candidates, key=lambda o: int((offsets == o).sum()))


def tables(model: HookedModel, parsed: Parsed | None, config: Config, work: Workspace) -> dict[str, pd.DataFrame]:
    """The table ``relations``: every head's accuracy on every relation and direction, beside the best fixed offset.

    A head is called syntactic for a relation where it is at least 10 points above that offset (Voita et al.) on either
    half of the treebank, and its difference is significant after correction over all heads. ``best`` marks the head
    that the other half chooses. The baseline's offset is the best one on the very pairs that it is reported on, which
    favours it.
    """
    nothing = {"relations": empty_table(RELATIONS)}
    if parsed is None:
        return nothing
    if len(np.unique(parsed.units)) < 2:
        work.skip("syntax", f"{parsed.source} holds {len(parsed.sentences)} usable sentences: two or more are needed")
        return nothing
    pairs = measure(model, parsed, config, work)
    return {"relations": relations(pairs, config, work)}


def relations(pairs: Pairs, config: Config, work: Workspace) -> pd.DataFrame:
    """Accuracies of all heads by relation and direction."""
    parts, few = [], []
    for relation in work.progress(pairs.names, "relations"):
        inside = pairs.of(relation)
        if inside.sum() < 2 * config.least_pairs:
            few.append(f"{relation} ({inside.sum()} pairs)")
            continue
        for direction in DIRECTIONS:
            made = _judged(pairs, relation, direction, inside, config)
            if len(made):
                parts.append(made)
            else:
                share = pairs.possible[direction][inside].mean()
                few.append(f"{relation} {direction} ({share:.0%} of {inside.sum()} can be seen)")
    if few:
        work.note(f"Syntax: fewer than {config.least_pairs} pairs in a half: {', '.join(few)}.")
    if not parts:
        return empty_table(RELATIONS)
    return pd.concat(parts, ignore_index=True).reindex(columns=list(RELATIONS))


def _judged(pairs: Pairs, relation: str, direction: str, inside: NDArray[np.bool_], config: Config) -> pd.DataFrame:
    selecting, _ = halves(pairs.unit, config.seed)
    selects = np.zeros(len(pairs.unit), dtype=bool)
    selects[selecting] = True
    parts = []
    groups: dict[bytes, list[int]] = {}
    for place in range(len(pairs.sites)):
        groups.setdefault(pairs.possible[direction][:, place].tobytes(), []).append(place)
    first = np.cumsum([0, *(n for *_, n in pairs.sites)])
    for places in groups.values():
        seen = inside & pairs.possible[direction][:, places[0]]
        by_half = [seen & selects, seen & ~selects]
        if min(half.sum() for half in by_half) < config.least_pairs:
            continue
        columns = np.concatenate([np.arange(first[place], first[place + 1]) for place in places])
        results = [_against_offset(pairs, half, direction, columns, config) for half in by_half]
        parts.append(_rows(pairs, places, *results, possible=seen.sum() / inside.sum()))
    if not parts:
        return pd.DataFrame()
    table = pd.concat(parts, ignore_index=True).assign(relation=relation, direction=direction)
    table["p_corrected"] = corrected(table["p_corrected"].to_numpy())
    table["best"] = table.index == table["chosen_by"].idxmax()
    margin = config.syntactic_margin
    above = (table["difference"] >= margin) & (table["chosen_by"] >= margin)
    table["called"] = above & (table["p_corrected"] <= 0.05)
    return table.drop(columns="chosen_by")


def _against_offset(
    pairs: Pairs, half: NDArray[np.bool_], direction: str, columns: NDArray[np.intp], config: Config
) -> tuple[Pooled, int]:
    offset = best_offset(pairs.offset[half], config.farthest_offset)
    baseline = pairs.offset[half] == offset
    return pooled(pairs.hits[direction][half][:, columns], baseline, pairs.unit[half], config.seed), offset


def _rows(
    pairs: Pairs, places: list[int], selected: tuple[Pooled, int], reported: tuple[Pooled, int], possible: float
) -> pd.DataFrame:
    found, offset = reported
    heads = [(name, layer, head) for name, layer, n in (pairs.sites[p] for p in places) for head in range(n)]
    table = pd.DataFrame(heads, columns=["site", "layer", "head"])
    return table.assign(
        accuracy=found.accuracy, ci_low=found.low, ci_high=found.high, baseline=found.baseline, baseline_offset=offset,
        difference=found.difference, difference_low=found.difference_low, difference_high=found.difference_high,
        p_corrected=found.p, n=found.n, possible=float(possible), chosen_by=selected[0].difference,
    )  # fmt: skip


def head_rows(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Rows of the table ``heads``: accuracy over all relations, by direction; the control is the best fixed offset."""
    parts = []
    for direction, metric in zip(DIRECTIONS, ("syntactic_head", "syntactic_dependent"), strict=True):
        rows: Any = table[(table["relation"] == ALL) & (table["direction"] == direction)]
        parts.append(
            rows[["site", "layer", "head", "ci_low", "ci_high", "p_corrected", "n"]].assign(
                metric=metric, data="treebank", value=rows["accuracy"], chance=np.nan, control=rows["baseline"],
                half="reporting", note="",
            )
        )  # fmt: skip
    return parts
