"""Coreference: does a mention attend most, of all earlier mentions, to one of the same entity? (Clark et al. 2019)"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.head_specialization.config import Config
from analyses.head_specialization.inputs import Inputs
from analyses.head_specialization.pooled import Pooled, corrected, pooled
from analyses.head_specialization.sentences import Parsed, batch
from interp import HookedModel
from interp.ablation import without_logits
from interp.attention.probes import StrongestGroup
from interp.data import Sentence, align
from interp.data.treebank import Span
from interp.model_data import pass_arguments
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import halves

_LONGEST = 512  # tokens of a stretch of a document
COREFERENCE: dict[str, Any] = {
    "site": str, "layer": int, "head": int, "accuracy": float, "ci_low": float, "ci_high": float, "nearest": float,
    "head_match": float, "difference": float, "difference_low": float, "difference_high": float, "p_corrected": float,
    "n": int, "best": bool, "called": bool,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Stretch:
    """Sentences of one document that fit into the model together. Mentions stand for themselves by their head words.

    Attributes:
        tokens: with those around a text.
        words: number of the mention whose head word a token is part of; −1 for all other tokens.
        entities: of each of these head words, by the mentions that it heads.
        forms: of each, without case.
    """

    document: str
    tokens: list[int]
    words: list[int]
    entities: list[frozenset[str]]
    forms: list[str]

    @property
    def anaphors(self) -> list[int]:
        """Mentions with an earlier one of the same entity."""
        return [m for m in range(1, len(self.entities)) if any(self.same(m, other) for other in range(m))]

    def same(self, one: int, other: int) -> bool:
        """Whether two mentions are of one entity."""
        return bool(self.entities[one] & self.entities[other])

    def head_match(self, mention: int) -> int:
        """The nearest earlier mention with the same head word; the nearest of all where there is none."""
        alike = [other for other in range(mention) if self.forms[other] == self.forms[mention]]
        return alike[-1] if alike else mention - 1


def stretches(model: HookedModel, given: Inputs, sentences: tuple[Sentence, ...]) -> Iterator[Stretch]:
    """Documents, cut between sentences where they are longer than the model's context or 512 tokens."""
    room = min(_LONGEST, model.n_ctx or _LONGEST) - len(given.prefix) - len(given.suffix)
    held: list[Sentence] = []
    for sentence in sentences:
        if held and held[0].document != sentence.document:
            yield _stretch(model, given, held)
            held = []
        longer = [*held, sentence]
        if held and len(align(model.tokenizer, *_text(longer)).tokens) > room:
            yield _stretch(model, given, held)
            longer = [sentence]
        held = longer
    if held:
        yield _stretch(model, given, held)


def _text(sentences: list[Sentence]) -> tuple[str, list[Span]]:
    text, spans = "", []
    for sentence in sentences:
        start = len(text)
        spans += [(start + a, start + b) for a, b in sentence.spans]
        text += sentence.text + " "
    return text.rstrip(), spans


def _stretch(model: HookedModel, given: Inputs, sentences: list[Sentence]) -> Stretch:
    text, spans = _text(sentences)
    found = align(model.tokenizer, text, spans)
    entities: dict[int, set[str]] = {}
    start = 0
    for sentence in sentences:
        for mention in sentence.mentions:
            entities.setdefault(start + mention.head, set()).add(mention.entity)
        start += len(sentence)
    present = set(found.words)
    heads = [word for word in sorted(entities) if word in present and (given.prefix or word != found.words[0])]
    number = {word: i for i, word in enumerate(heads)}
    forms = [text[spans[word][0] : spans[word][1]].casefold() for word in heads]
    groups = [number.get(word, -1) for word in found.words]
    tokens = [*given.prefix, *found.tokens, *given.suffix]
    words = [-1] * len(given.prefix) + groups + [-1] * len(given.suffix)
    if model.n_ctx is not None:  # a single sentence longer than the context
        tokens, words = tokens[: model.n_ctx], words[: model.n_ctx]
        heads = heads[: max(words, default=-1) + 1]
    return Stretch(
        sentences[0].document, tokens, words, [frozenset(entities[word]) for word in heads], forms[: len(heads)]
    )


def tables(
    model: HookedModel, parsed: Parsed | None, given: Inputs, config: Config, work: Workspace
) -> dict[str, pd.DataFrame]:
    """The table ``coreference``; empty where no treebank marks mentions."""
    nothing = {"coreference": empty_table(COREFERENCE)}
    if parsed is None:
        return nothing
    if not any(sentence.mentions for sentence in parsed.sentences):
        work.skip("coreference", f"{parsed.source} marks no mentions (Entity=)")
        return nothing
    found = [each for each in stretches(model, given, parsed.sentences) if each.anaphors]
    labels = [s.document for s in found for _ in s.anaphors]
    if len(set(labels)) < 2:
        labels = [str(i) for i, s in enumerate(found) for _ in s.anaphors]
    units = np.unique(labels, return_inverse=True)[1]
    if len(np.unique(units)) < 2:
        work.skip("coreference", "one stretch of text alone has mentions of one entity: two or more are needed")
        return nothing
    sites = [(site.name, site.layer, site.n_heads) for site in model.sites if site.kind == "self"]
    hits = np.concatenate(list(_hits(model, found, [name for name, *_ in sites], config, work)))
    nearest = np.array([s.same(m, m - 1) for s in found for m in s.anaphors])
    matched = np.array([s.same(m, s.head_match(m)) for s in found for m in s.anaphors])
    return {"coreference": _table(sites, hits, nearest, matched, units, config)}


def _hits(
    model: HookedModel, found: list[Stretch], sites: list[str], config: Config, work: Workspace
) -> Iterator[NDArray[np.bool_]]:
    """For each stretch whether each head got each anaphor right: [anaphor, head]."""
    for stretch in work.progress(found, "stretches with mentions"):
        sequences, groups = batch("a treebank", [stretch.tokens], [stretch.words])
        probe = StrongestGroup(groups, len(stretch.entities), earlier=True)
        run = model.run(**pass_arguments(model, sequences), probes=[probe], sites=sites, **without_logits(model))
        readings = run.readings(probe)
        choice = np.concatenate([readings[name].values[0, :, :, 0].long().cpu().numpy() for name in sites])
        yield np.array([
            [chosen >= 0 and stretch.same(m, chosen) for chosen in choice[:, m].tolist()] for m in stretch.anaphors
        ])  # fmt: skip


def _table(
    sites: list[tuple[str, int, int]], hits: NDArray[np.bool_], nearest: NDArray[np.bool_],
    matched: NDArray[np.bool_], units: NDArray[np.intp], config: Config,
) -> pd.DataFrame:  # fmt: skip
    selects, reports = halves(units, config.seed)
    better = matched if matched[reports].mean() >= nearest[reports].mean() else nearest
    select, report = (pooled(hits[half], better[half], units[half], config.seed) for half in (selects, reports))
    p = corrected(report.p)
    margin = config.coreference_margin
    above = (report.difference >= margin) & (select.difference >= margin)
    heads = pd.DataFrame(
        [(name, layer, head) for name, layer, n in sites for head in range(n)], columns=["site", "layer", "head"]
    )
    shares = {"nearest": nearest[reports].mean(), "head_match": matched[reports].mean()}
    best = np.arange(len(heads)) == np.argmax(select.accuracy)  # chosen here, its numbers are those of the other half
    table = _with(heads, report, p).assign(**shares, best=best, called=above & (p <= 0.05))
    return table.reindex(columns=list(COREFERENCE))


def _with(heads: pd.DataFrame, found: Pooled, p: NDArray[np.float64]) -> pd.DataFrame:
    return heads.assign(
        accuracy=found.accuracy, ci_low=found.low, ci_high=found.high, difference=found.difference,
        difference_low=found.difference_low, difference_high=found.difference_high, p_corrected=p, n=found.n,
    )  # fmt: skip


def head_rows(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Rows of the table ``heads``; the control is the better baseline."""
    if not len(table):
        return []
    rows = table[["site", "layer", "head", "ci_low", "ci_high", "p_corrected", "n"]]
    return [
        rows.assign(
            metric="coreference", data="treebank", value=table["accuracy"], chance=np.nan,
            control=table[["nearest", "head_match"]].max(axis=1), half="reporting", note="",
        )
    ]  # fmt: skip
