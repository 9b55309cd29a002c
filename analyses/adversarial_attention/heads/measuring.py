"""Row by row: null space, freedom at ε, substitutes, agreement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from analyses.adversarial_attention.config import Config
from analyses.adversarial_attention.heads.choosing import mean_rows, together
from analyses.adversarial_attention.heads.continuations import Continuation, Watched, prefix_works
from analyses.adversarial_attention.heads.inputs import Inputs, Place
from analyses.adversarial_attention.heads.nullspace import farthest_null, farthest_random
from analyses.adversarial_attention.heads.rows import ReadRow, Row, rows_of
from analyses.adversarial_attention.heads.search import Freedom, Settings, find
from analyses.adversarial_attention.heads.substitutes import SUBSTITUTES, agreement, substitutes
from analyses.adversarial_attention.heads.tables import drawn_twice, shown
from interp import HookedModel
from interp.ablation import without_logits
from interp.errors import UserError
from interp.results import Workspace

__all__ = ["measure", "settings"]

Head = tuple[str, int]
Record = dict[str, Any]
Means = Mapping[int, Mapping[str, NDArray[np.float64]]]
_Read = tuple[Continuation, dict[int, dict[str, list[Row]]]]


def settings(config: Config) -> Settings:
    """What a search may cost."""
    if config.is_full:
        levels = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
        return Settings(
            config.head_epsilon, config.pinned, basis=64, rounds=3, vertices=4, starts=config.n_starts, levels=levels,
            rays=3, bisections=6,
        )  # fmt: skip
    return Settings(config.head_epsilon, config.pinned, starts=config.n_starts)


def measure(
    model: HookedModel, given: Inputs, heads: Sequence[Head], config: Config, work: Workspace
) -> dict[str, pd.DataFrame]:
    """The table ``freedom_rows``, and ``patterns`` and ``tokens`` of rows to be drawn twice.

    Every sequence and group of heads is a step of its own, so that a long run can be taken up again.
    """
    sites = list(dict.fromkeys(site for site, _ in heads))
    if closed := [site for site in sites if model.site(site).source == "softmax"]:
        work.skip("null spaces", f"{closed[0]} computes its own attention and keeps its values to itself")
    means = mean_rows(model, given, sites, [place.searched for place in given.places])
    prefix = prefix_works(model, given.changed.tokens[:1], given.places[0].searched)
    groups = together(model, heads)
    read = lru_cache(maxsize=1)(partial(_read, model, given, sites, prefix, config))
    asked = [(place, number) for place in given.places for number in range(len(groups))]
    parts = []
    for place, number in work.progress(asked, "groups of heads, sequence by sequence"):
        name = f"freedom-{place.sequence}-{number}"
        parts.append(work.step(name, partial(_group, read, given, place, groups[number], means, config)))
    tables = {
        name: pd.concat([part[name] for part in parts if name in part], ignore_index=True)
        for name in ("freedom_rows", "patterns", "tokens")
        if any(name in part for part in parts)
    }
    if "freedom_rows" not in tables:
        raise UserError(f"no row of these heads has as many as {config.least_keys} keys: lower --least-keys")
    n_rows = len(heads) * sum(len(place.queries) for place in given.places)
    if (short := n_rows - len(tables["freedom_rows"])) > 0:
        work.note(f"{short} of {n_rows} rows had fewer than {config.least_keys} keys and were left out.")
    return {"freedom_rows": tables["freedom_rows"], **drawn_twice(tables, tables["freedom_rows"])}


def _read(model: HookedModel, given: Inputs, sites: list[str], prefix: bool, config: Config, place: Place) -> _Read:
    """The searched query's continuation, and the rows of the other queries."""
    tokens = given.changed.tokens[place.sequence][None]
    watched = Watched(config.horizon, config.position)
    continuation = Continuation(model, tokens, place.searched, sites, watched, copies=config.copies, prefix=prefix)
    return continuation, _rows_elsewhere(model, tokens, place, sites)


def _group(
    read: Callable[[Place], _Read], given: Inputs, place: Place, heads: Sequence[Head], means: Means, config: Config
) -> dict[str, pd.DataFrame]:
    """The tables of one sequence and group of heads."""
    continuation, elsewhere = read(place)
    model = continuation.model
    searched = _long_enough(continuation.rows, heads, config)
    nulls = [_null(model, row, place, place.searched, config) for row in searched]
    here = {"data": given.data, "sequence": place.sequence}
    records: list[Record] = []
    for query, rows in elsewhere.items():
        for row in _long_enough(rows, heads, config):
            null = _null(model, row, place, query, config)
            records.append(here | {"query": query, "searched": False} | _of_row(model, row, null))
    found = _search(continuation, searched, [null.found for null in nulls], means, config, place)
    for (freedom, more), null in zip(found, nulls, strict=True):
        own = _of_row(model, freedom.row, null)
        records.append(here | {"query": place.searched, "searched": True} | own | more)
    if not records:
        return {}
    return {
        "freedom_rows": _table(records).assign(document=place.document),
        **shown(continuation, [freedom for freedom, _ in found], here | {"query": place.searched}),
    }


class _Null(NamedTuple):
    """The null space's point and divergence, None where values are not known; the divergence for random values."""

    found: tuple[NDArray[np.float64], float] | None
    random: float


def _null(model: HookedModel, row: Row, place: Place, query: int, config: Config) -> _Null:
    rng = np.random.default_rng([config.seed, place.sequence, query, model.site(row.site).layer, row.head])
    return _Null(farthest_null(row, config.n_starts, rng), farthest_random(row, config.n_starts, rng))


def _of_row(model: HookedModel, row: Row, null: _Null) -> Record:
    return {
        "site": row.site, "layer": model.site(row.site).layer, "head": row.head, "n_keys": len(row.keys),
        "ceiling": row.ceiling, "max_weight": float(row.pattern.max()),
        "nullspace_jsd": float("nan") if null.found is None else null.found[1], "random_values_jsd": null.random,
    }  # fmt: skip


def _long_enough(rows: Mapping[str, list[Row]], heads: Sequence[Head], config: Config) -> list[Row]:
    """The heads' rows of one query that have enough keys."""
    return [row for site, head in heads if len((row := rows[site][head]).keys) >= config.least_keys]


def _rows_elsewhere(
    model: HookedModel, tokens: Tensor, place: Place, sites: list[str]
) -> dict[int, dict[str, list[Row]]]:
    """The rows of the queries that are not searched, from one run."""
    queries = [query for query in place.queries if query != place.searched]
    if not queries:
        return {}
    own = any(model.site(site).source == "softmax" for site in sites)
    probes = [ReadRow(query=query, values=not own) for query in queries]
    run = model.run(tokens, probes=probes, sites=sites, **without_logits(model))
    return {
        probe.query: {site: rows_of(reading.values[0], site) for site, reading in run.readings(probe).items()}
        for probe in probes
    }


def _search(
    continuation: Continuation,
    rows: list[Row],
    nulls: list[tuple[NDArray[np.float64], float] | None],
    means: Means,
    config: Config,
    place: Place,
) -> list[tuple[Freedom, Record]]:
    """Freedom, substitutes and agreement of some rows of one query."""
    if not rows:
        return []
    model, mean = continuation.model, means[place.searched]

    def rngs(purpose: int) -> list[np.random.Generator]:
        seed = [config.seed, purpose, place.sequence]
        return [np.random.default_rng([*seed, model.site(row.site).layer, row.head]) for row in rows]

    freedoms = find(continuation, rows, nulls, settings(config), rngs(3))
    tables = [
        substitutes(row, mean[row.site][row.head][: row.n_keys], rng) for row, rng in zip(rows, rngs(4), strict=True)
    ]
    asked = [(row, name, point) for row, table in zip(rows, tables, strict=True) for name, point in table.items()]
    changes = continuation.changes([row for row, _, _ in asked], [point for _, _, point in asked])
    of = {(row.address, name): float(tvd) for (row, name, _), tvd in zip(asked, changes, strict=True)}
    taus = agreement(continuation, rows, config.knocked, rngs(5))
    return [
        (freedom, {
            "jsd": freedom.jsd, "share": freedom.share, "tvd": freedom.tvd, "found_by": freedom.by,
            "pinned": not freedom.share >= config.pinned, "runs": freedom.runs,
            "tau_gradient": tau_gradient, "tau_knockout": tau_knockout,
            **{f"{name}_tvd": of.get((freedom.row.address, name), float("nan")) for name in SUBSTITUTES},
        })
        for freedom, (tau_gradient, tau_knockout) in zip(freedoms, taus, strict=True)
    ]  # fmt: skip


def _table(records: list[Record]) -> pd.DataFrame:
    numbers = ["jsd", "share", "tvd", "tau_gradient", "tau_knockout", *(f"{name}_tvd" for name in SUBSTITUTES)]
    table = pd.DataFrame(records)
    table = table.reindex(columns=[*table.columns, *(name for name in numbers if name not in table)])
    table["found_by"] = table["found_by"].fillna("not searched") if "found_by" in table else "not searched"
    table["pinned"] = table["pinned"].fillna(False).astype(bool) if "pinned" in table else False
    table["runs"] = table["runs"].fillna(0).astype(int) if "runs" in table else 0
    for kind in ("nullspace", "random_values"):
        table[f"{kind}_share"] = table[f"{kind}_jsd"] / table["ceiling"]
    return table
