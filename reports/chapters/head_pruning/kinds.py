"""Which kinds of heads go first: the order of importance beside what other analyses of the run call the heads."""

import pandas as pd
from matplotlib.figure import Figure

from interp.results import RunFolder
from reports import glossary, style, words
from reports.chapters import Finding, Plate, Rows, Sentence
from reports.chapters.reading import KEYS, Reading
from reports.figures import head_pruning as draw

#: Analyses that call heads something, the first that is there is taken.
CALLING = ("head-specialization", "induction-heads")
_OTHER = "no kind"
_LIMITS = (
    "that the kind is why a head stays or goes: heads of a kind may share a layer, and do more than they are named for."
)


def when_kinds_go(reading: Reading, run: RunFolder | None) -> pd.DataFrame:
    """``kind, share, source`` for each head and what it is called; share: of the heads that are gone when it goes."""
    order = reading.table("order", order="importance")
    source = None if run is None else next((name for name in CALLING if name in run.analyses()), None)
    if order.empty or run is None or source is None:
        return pd.DataFrame(columns=pd.Index(["kind", "share", "source"]))
    kinds = run.load(source).tables.get("kinds")
    if kinds is None or "called" not in kinds or "kind" not in kinds:
        return pd.DataFrame(columns=pd.Index(["kind", "share", "source"]))
    share = order.assign(share=(order["rank"] + 1) / len(order))[[*KEYS, "share"]]
    called = kinds.loc[kinds["called"].astype(bool), [*KEYS, "kind"]].drop_duplicates()
    joined = share.merge(called, on=KEYS, how="left").fillna({"kind": _OTHER})
    return joined.assign(source=source)


def finding(table: pd.DataFrame) -> tuple[Finding, ...]:
    """Which kind goes first and which stays longest, by the median."""
    kinds = _by_median(table)
    if len(kinds) < 2:
        return ()
    told = [f"{_counted(len(rows), kind)} ({100 * _median(rows):.0f} %)" for kind, rows in kinds]
    verdict = (
        f"In the order of importance, {words.join(told)} go when so much of the model's heads is pruned, by the "
        "median of each kind."
    )
    source = str(table["source"].iloc[0])
    support = Sentence(f"What heads are called is what `{source}` found in this run.", ())
    return (Finding(Sentence(verdict, (Rows("order", {"order": "importance"}),)), (support,), _LIMITS),)


def plate(table: pd.DataFrame) -> tuple[Plate, ...]:
    """The figure of it."""
    kinds = _by_median(table)
    if len(kinds) < 2:
        return ()

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.WIDE, 0.9 + 0.36 * len(kinds))
        draw.kinds_first(table, ax, [kind for kind, _ in kinds])
        return figure

    caption = (
        "One dot a head, at the share of the heads that is pruned when it goes, in the order of importance; those "
        f"that go first are on the left. Lines: medians. Kinds are those that `{table['source'].iloc[0]}` calls."
    )
    return (Plate("kinds-first", "Which kinds of heads go first", caption, figure, (Rows("order"),)),)


def _by_median(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    groups = [(str(kind), rows) for kind, rows in table.groupby("kind", sort=False)]
    return sorted(groups, key=lambda group: -_median(group[1]))


def _median(rows: pd.DataFrame) -> float:
    return float(pd.Series(rows["share"]).median())


def _counted(n: int, kind: str) -> str:
    if kind == _OTHER:
        return f"{words.count(n, 'head')} of no kind"
    return words.count(n, glossary.KINDS.get(kind, f"{kind.replace('_', ' ')} head"))
