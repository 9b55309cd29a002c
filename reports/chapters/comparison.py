"""The chapter of two runs side by side: what `interp compare RUN RUN --out FOLDER` saves."""

import pandas as pd
from matplotlib.figure import Figure

from interp.results import Result, RunFolder
from reports import glossary, style, words
from reports.chapters import Chapter, Finding, Method, Plate, Rows, Sentence, TableNote
from reports.chapters.reading import Reading, Row, first, records
from reports.figures import comparison as draw
from reports.figures.kind_map import KindMap, kind_figure
from reports.references import cited

_ROWS = 24  # of the figure of differences
_KEYS = ["analysis", "site", "layer", "head"]
TABLES = {
    "kind_changes": TableNote("What heads are called in either run.", "kind", "change!=kept"),
    "differences": TableNote("Every score in both runs, after less before.", "p_corrected"),
}
METHODS = (
    Method(
        "Differences of scores",
        "After less before, with an interval from the intervals of both, which takes the runs for independent samples. "
        "Where both read the same tokens and scores go up and down together, the true interval is narrower.",
        "low = d − √((a − a_low)² + (b_high − b)²),   high = d + √((a_high − a)² + (b − b_low)²),   d = a − b",
        "Zou & Donner 2008",
    ),
    Method(
        "What changed",
        "A score counts as changed where its two-sided p-value, from the width of that interval, is at most 0.05 after "
        "correction over the heads of the score. A head that is called a kind in one run alone has crossed a "
        "threshold, which may take little: its difference says how much.",
        "",
        "Benjamini & Hochberg 1995",
    ),
)
REFERENCES = cited(
    "zou2008construction",
    "benjamini1995controlling",
)


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The chapter of one saved comparison."""
    reading = Reading(result)
    return Chapter(
        title="Two runs compared",
        question="Which heads are called something else in the second run, and which scores differ?",
        lead=_lead(reading),
        opening=_maps(reading),
        findings=tuple(finding for finding in (_kinds(reading), _scores(reading)) if finding is not None),
        plates=tuple(plate for plate in (_largest(reading),) if plate is not None),
        tables=TABLES,
        methods=METHODS,
        references=REFERENCES,
    )


def _lead(reading: Reading) -> Sentence:
    changes, differences = reading.table("kind_changes"), reading.table("differences")
    moved = changes.loc[changes["change"] != "kept"] if len(changes) else changes
    known = pd.concat([table.filter(_KEYS[1:]) for table in (changes, differences)]).drop_duplicates()
    n = len(moved.drop_duplicates(_KEYS[1:])) if len(moved) else 0
    text = (
        f"Between the two runs, of {reading.model_name}, {words.number_word(n)} of {words.count(len(known), 'head')} "
    )
    text += f"{words.agree(n, 'changes', 'change')} what {words.agree(n, 'it is', 'they are')} called."
    return Sentence(text, (Rows("kind_changes"),))


def _kinds(reading: Reading) -> Finding | None:
    changes = reading.table("kind_changes")
    if changes.empty:
        return None
    support = []
    for (analysis, kind), rows in changes.groupby(["analysis", "kind"], sort=False):  # pyright: ignore[reportGeneralTypeIssues]: two keys
        name = glossary.KINDS.get(str(kind), words.visible(str(kind)).replace("_", " "))
        before, after = (len(rows.loc[rows["change"] != word]) for word in ("gained", "lost"))
        parts = [f"{words.count(before, name)} before, {after} after"]
        for word in ("gained", "lost"):
            of = rows.loc[rows["change"] == word]
            parts += [f"{word} {words.some([reading.name(row) for row in records(of)])}"] if len(of) else []
        text = f"{words.sentence_case('; '.join(parts))} ({words.visible(str(analysis))})."
        support.append(Sentence(text, (Rows("kind_changes", {"analysis": str(analysis), "kind": str(kind)}),)))
    kept = len(changes.loc[changes["change"] == "kept"])
    same = f"{words.agree(kept, 'is', 'are')} the same in both runs"
    verdict = f"{words.number_word(kept)} of {words.count(len(changes), 'verdict')} {same}."
    limits = (
        "that a head which changed kind changed much: it may have crossed a threshold by little. Its difference and "
        "the interval of that are in the table of differences."
    )
    return Finding(Sentence(words.sentence_case(verdict), (Rows("kind_changes"),)), tuple(support), limits)


def _scores(reading: Reading) -> Finding | None:
    table = reading.table("differences")
    if table.empty:
        return None
    tested = table.dropna(subset="p_corrected")
    changed = tested.loc[tested["changed"].astype(bool)]
    n = len(changed)
    link = (Rows("differences", {"changed": True}),)
    differ = words.agree(n, "differs", "differ")
    verdict = f"{words.count(n, 'score')} of {len(tested):,} with an interval {differ} between the runs."
    support = []
    for (analysis, metric, data), rows in changed.groupby(["analysis", "metric", "data"], sort=False):  # pyright: ignore[reportGeneralTypeIssues]: three keys
        largest = first(rows.sort_values("difference", key=abs, ascending=False))
        size = words.measured(largest["difference"], largest["ci_low"], largest["ci_high"], sign=True)
        where = {"analysis": str(analysis), "metric": str(metric), "data": str(data)}
        on = glossary.DATA.get(str(data), words.visible(str(data)))
        name = f"{words.sentence_case(glossary.metric_name(str(metric)))} ({on})"
        text = f"{name}: {words.count(len(rows), 'head')}, most {reading.name(largest)}, by {size}."
        support.append(Sentence(text, (Rows("differences", {**where, "changed": True}),)))
    limits = "that other scores are the same: a difference may be too small to be seen with so many sequences."
    return Finding(Sentence(words.sentence_case(verdict), link), tuple(support[:12]), limits)


def _maps(reading: Reading) -> Plate | None:
    changes, differences = reading.table("kind_changes"), reading.table("differences")
    if changes.empty:
        return None
    known = pd.concat([table.filter(["site", "layer", "head"]) for table in (changes, differences)])
    stacks = list(dict.fromkeys(words.stack_name(str(site)) for site in known["site"]))

    def figure() -> Figure:
        maps = []
        for stack in stacks:
            here = reading.stack(known, stack)
            for side, gone in (("before", "gained"), ("after", "lost")):
                rows = reading.stack(changes.loc[changes["change"] != gone], stack)
                called = rows.assign(value=rows[f"value_{side}"])
                sizes = int(max(here["layer"])) + 1, int(max(here["head"])) + 1
                maps.append(KindMap(f"{stack} {side}".strip(), called, *sizes))
        return kind_figure(maps)

    return Plate(
        "kinds-before-and-after",
        "What each head is called, before and after",
        "Colour and letter by kind, opacity by score; a cell cut in two shows two kinds. The numbers behind the kinds "
        "add both maps up.",
        figure,
        (Rows("kind_changes"),),
    )


def _largest(reading: Reading) -> Plate | None:
    table = reading.table("differences")
    rows = table.loc[table["changed"].astype(bool)] if len(table) else table
    rows = rows.loc[[not glossary.UNITS.get(str(metric)) for metric in rows["metric"]]] if len(rows) else rows
    if rows.empty:
        return None
    shown = rows.sort_values("difference", key=abs, ascending=False, kind="stable").head(_ROWS)
    names = [_label(reading, row) for row in records(shown)]

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.WIDE - 0.6, 0.8 + 0.19 * len(shown))
        draw.differences(shown, names, ax)
        return figure

    return Plate(
        "largest-differences",
        "Scores that changed most",
        f"The {len(shown)} largest differences among scores that are shares, of {words.count(len(rows), 'score')} that "
        "changed (p ≤ 0.05, corrected): from the first run (ring) to the second (dot). Bars: 95 % intervals of the "
        "difference, around the second.",
        figure,
        (Rows("differences", {"changed": True}),),
    )


def _label(reading: Reading, row: Row) -> str:
    return f"{reading.name(row)}  {glossary.short_metric(str(row['metric']))} ({words.visible(str(row['data']))})"
