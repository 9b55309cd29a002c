"""Row by row: null space, freedom at ε, substitutes, agreement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.adversarial_attention.config import Config
from analyses.adversarial_attention.heads.choosing import mean_rows
from analyses.adversarial_attention.heads.continuations import Continuation, Watched, prefix_works
from analyses.adversarial_attention.heads.inputs import Inputs, Place
from analyses.adversarial_attention.heads.nullspace import farthest_null, farthest_random
from analyses.adversarial_attention.heads.rows import ReadRow, Row, rows_of
from analyses.adversarial_attention.heads.search import Freedom, Settings, find
from analyses.adversarial_attention.heads.substitutes import SUBSTITUTES, agreement, substitutes
from interp import HookedModel
from interp.ablation import without_logits
from interp.results import Workspace

__all__ = ["Found", "measure", "settings"]

Head = tuple[str, int]
Found = tuple[Freedom, Place, NDArray[np.float32]]

_TOGETHER = 6  # heads whose changed rows share a pass: neighbours, so that few layers are computed in vain


def settings(config: Config) -> Settings:
    """What a search may cost."""
    if config.is_full:
        return Settings(config.head_epsilon, config.pinned, basis=64, starts=config.n_starts, rays=3, bisections=6,
                        levels=(1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3))  # fmt: skip
    return Settings(config.head_epsilon, config.pinned, starts=config.n_starts)


def measure(
    model: HookedModel, given: Inputs, heads: Sequence[Head], config: Config, work: Workspace
) -> tuple[pd.DataFrame, list[tuple[Place, Freedom]]]:
    """The table ``freedom_rows``, and the rows that were found for the searched ones."""
    sites = list(dict.fromkeys(site for site, _ in heads))
    if closed := [site for site in sites if model.site(site).source == "softmax"]:
        work.skip("null spaces", f"{closed[0]} computes its own attention and keeps its values to itself")
    means = mean_rows(model, given, sites, [place.searched for place in given.places])
    first = given.places[0]
    prefix = prefix_works(model, given.changed.tokens[:1], first.searched)
    records, kept, short = [], [], 0
    for place in work.progress(given.places, "sequences"):
        tokens = given.changed.tokens[place.sequence][None]
        by_query = _null_rows(model, tokens, place, sites)
        watched = Watched(config.horizon, config.position)
        continuation = Continuation(
            model, tokens, place.searched, sites, watched, copies=config.copies, prefix=prefix
        )  # fmt: skip
        by_query[place.searched] = continuation.rows
        eligible: list[Row] = []
        nulls = []
        for query, rows in by_query.items():
            for site, head in heads:
                row = rows[site][head]
                if len(row.keys) < config.least_keys:
                    short += 1
                    continue
                rng = np.random.default_rng([config.seed, place.sequence, query, model.site(site).layer, head])
                null = farthest_null(row, config.n_starts, rng)
                record = {
                    "site": site, "layer": model.site(site).layer, "head": head, "data": given.data,
                    "sequence": place.sequence, "document": place.document, "query": query, "n_keys": len(row.keys),
                    "ceiling": row.ceiling, "max_weight": float(row.pattern.max()), "searched": query == place.searched,
                    "nullspace_jsd": float("nan") if null is None else null[1],
                    "random_values_jsd": farthest_random(row, config.n_starts, rng),
                }  # fmt: skip
                records.append(record)
                if query == place.searched:
                    eligible.append(row)
                    nulls.append(null)
        searched = _searched(continuation, eligible, nulls, means[place.searched], config, place)
        kept += [(place, freedom) for freedom, _ in searched]
        for record in (record for record in records if record["searched"] and record["sequence"] == place.sequence):
            record.update(next(more for freedom, more in searched
                               if freedom.row.address == (record["site"], record["head"])))  # fmt: skip
    if short:
        work.note(f"{short} rows with fewer than {config.least_keys} keys were left out.")
    return _table(records), kept


def _null_rows(model: HookedModel, tokens: object, place: Place, sites: list[str]) -> dict[int, dict[str, list[Row]]]:
    """The rows of the queries that are not searched, from one run."""
    queries = [query for query in place.queries if query != place.searched]
    if not queries:
        return {}
    own = any(model.site(site).source == "softmax" for site in sites)
    probes = [ReadRow(query=query, values=not own) for query in queries]
    run = model.run(tokens, probes=probes, sites=sites, **without_logits(model))  # type: ignore[arg-type]
    return {
        probe.query: {site: rows_of(reading.values[0], site) for site, reading in run.readings(probe).items()}
        for probe in probes
    }


def _searched(
    continuation: Continuation,
    rows: list[Row],
    nulls: list[tuple[NDArray[np.float64], float] | None],
    means: dict[str, NDArray[np.float64]],
    config: Config,
    place: Place,
) -> list[tuple[Freedom, dict[str, object]]]:
    found: list[tuple[Freedom, dict[str, object]]] = []
    for part in _parts(len(rows)):
        rng = np.random.default_rng([config.seed, 3, place.sequence, part.start])
        some = rows[part]
        freedoms = find(continuation, some, nulls[part], settings(config), rng)
        tables = [substitutes(row, means[row.site][row.head][: row.n_keys], rng) for row in some]
        asked = [(row, name, point) for row, table in zip(some, tables, strict=True) for name, point in table.items()]
        changes = continuation.changes([row for row, _, _ in asked], [point for _, _, point in asked])
        of = {(row.address, name): float(tvd) for (row, name, _), tvd in zip(asked, changes, strict=True)}
        taus = agreement(continuation, some, config.knocked, rng)
        for freedom, (tau_gradient, tau_knockout) in zip(freedoms, taus, strict=True):
            more: dict[str, object] = {
                "jsd": freedom.jsd, "share": freedom.share, "tvd": freedom.tvd, "found_by": freedom.by,
                "pinned": not freedom.share >= config.pinned, "runs": freedom.runs,
                "tau_gradient": tau_gradient, "tau_knockout": tau_knockout,
            }  # fmt: skip
            more |= {f"{name}_tvd": of.get((freedom.row.address, name), float("nan")) for name in SUBSTITUTES}
            found.append((freedom, more))
    return found


def _parts(n: int) -> Iterator[slice]:
    for start in range(0, n, _TOGETHER):
        yield slice(start, min(start + _TOGETHER, n))


def _table(records: list[dict[str, object]]) -> pd.DataFrame:
    numbers = ["jsd", "share", "tvd", "tau_gradient", "tau_knockout", *(f"{name}_tvd" for name in SUBSTITUTES)]
    table = pd.DataFrame(records)
    table = table.reindex(columns=[*table.columns, *(name for name in numbers if name not in table)])
    table["found_by"] = table["found_by"].fillna("not searched") if "found_by" in table else "not searched"
    table["pinned"] = table["pinned"].fillna(False).astype(bool) if "pinned" in table else False
    table["runs"] = table["runs"].fillna(0).astype(int) if "runs" in table else 0
    for kind in ("nullspace", "random_values"):
        table[f"{kind}_share"] = table[f"{kind}_jsd"] / table["ceiling"]
    return table
