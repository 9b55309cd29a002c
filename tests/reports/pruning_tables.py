"""Made-up tables of `head-pruning`, in which the answer is planted."""

import numpy as np
import pandas as pd

from interp.results import Result

LAYERS, HEADS = 6, 4
N = LAYERS * HEADS
NEEDED, HARMFUL = (2, 1), (4, 3)


def result(budget: str = "report", gates: bool = True, **tables: pd.DataFrame | None) -> Result:
    """A result: L2H1 is needed most, L4H3 harms, 25 % of the heads are free, importance beats every random order."""
    made = {
        "heads": _heads(), "effects": _effects(), "agreement": _agreement(), "transfer": _transfer(), "order": _order(),
        "curve": _curve(), "areas": _areas(), "free": _free(), "left": _left(), "best_head": _best(),
        "gates": _gates() if gates else _gates().head(0), "gates_path": _path() if gates else _path().head(0),
        "cost": cost(), "from_scratch": from_scratch().head(0),
    }  # fmt: skip
    kept = {name: table for name, table in {**made, **tables}.items() if table is not None}
    provenance = {
        "model": {"name": "tiny-lantern", "quantisation": "Q4_1"}, "config": {"budget": budget, "sequences": 18},
        "inputs": {"text": {"unit": "nats", "metric": "loss of the next token"}}, "versions": {"interp-attention": "1"},
    }  # fmt: skip
    return Result("head-pruning", kept, provenance)


def _grid() -> pd.DataFrame:
    return pd.DataFrame(
        [(f"blocks.{layer}.attn", layer, head) for layer in range(LAYERS) for head in range(HEADS)],
        columns=pd.Index(["site", "layer", "head"]),
    )


def _value() -> np.ndarray:
    value = np.random.default_rng(0).uniform(0.1, 0.5, N)
    value[NEEDED[0] * HEADS + NEEDED[1]] = 0.95
    return value


def _heads() -> pd.DataFrame:
    parts = []
    for metric, data, sign in (
        ("importance", "text", 1), ("importance", "repeated", 1), ("first_order_zero", "text", -1),
        ("weight_norm", "weights", 1),
    ):  # fmt: skip
        value = sign * _value()
        parts.append(_grid().assign(metric=metric, data=data, value=value, ci_low=value - 0.05, ci_high=value + 0.05,
                                    chance=0.5, p_corrected=np.nan, n=6, note=""))  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def _effects() -> pd.DataFrame:
    change = 0.1 * _value() - 0.02
    change[NEEDED[0] * HEADS + NEEDED[1]] = 0.61
    change[HARMFUL[0] * HEADS + HARMFUL[1]] = -0.13
    parts = []
    for kind, path, size in (("resample", "total", 1.0), ("zero", "total", 1.3), ("resample", "direct", 0.2)):
        mine = size * change
        verdict = np.where(mine > 0.3, "needed", np.where(mine < -0.1, "harmful", "undecided"))
        parts.append(
            _grid().assign(ablation=kind, path=path, change=mine, ci_low=mine - 0.02, ci_high=mine + 0.02,
                           p_needed=0.01, p_harmful=0.5, verdict=verdict, importance=_value(),
                           importance_rank=pd.Series(-_value()).rank().astype(int), n=12, note="")
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def _agreement() -> pd.DataFrame:
    rows = [("importance", 0.42), ("first_order_resample", 0.71), ("weight_norm", -0.11)]
    return pd.DataFrame([
        {"score": score, "ablation": kind, "rho": rho - 0.05 * i, "ci_low": rho - 0.2, "ci_high": rho + 0.1,
         "n_heads": N, "n": 12}
        for i, kind in enumerate(("resample", "zero")) for score, rho in rows
    ])  # fmt: skip


def _transfer() -> pd.DataFrame:
    found = {"data": "text", "other": "repeated", "r": 0.68, "ci_low": 0.6, "ci_high": 0.74, "n_heads": N}
    return pd.DataFrame([found])


def _order() -> pd.DataFrame:
    rank = np.argsort(np.argsort(_value()))
    return pd.concat([
        _grid().assign(site_kind="self", order=name, draw=draw, rank=r)
        for name, draw, r in (("importance", 0, rank), ("random", 0, np.arange(N)), ("worst_first", 0, rank[::-1]))
    ], ignore_index=True)  # fmt: skip


def _curve() -> pd.DataFrame:
    parts = []
    for name, draw, power in (("importance", 0, 3.0), ("random", 0, 1.2), ("random", 1, 1.0), ("worst_first", 0, 0.4)):
        share = np.round(np.linspace(0, 1, 11) * N) / N
        value = 3 + 5 * share**power
        parts.append(
            pd.DataFrame({"order": name, "draw": draw, "share": share, "n_pruned": (share * N).round().astype(int),
                          "value": value, "ci_low": value - 0.1, "ci_high": value + 0.1, "change": value - 3,
                          "change_low": value - 3.05, "change_high": value - 2.95, "n": 12})
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def _areas() -> pd.DataFrame:
    rows = [("importance", 0, 0.0), ("random", 0, 1.4), ("random", 1, 1.9), ("worst_first", 0, 3.1)]
    return pd.DataFrame([
        {"order": name, "draw": draw, "area": 4 + margin, "area_low": 3.9 + margin, "area_high": 4.1 + margin,
         "margin": margin, "ci_low": margin - 0.2 * (margin > 0), "ci_high": margin + 0.2 * (margin > 0), "n": 12}
        for name, draw, margin in rows
    ])  # fmt: skip


def _free() -> pd.DataFrame:
    rows = [("importance", 0, 0.25), ("random", 0, 0.04), ("random", 1, 0.09)]
    return pd.DataFrame([
        {"order": name, "draw": draw, "leaves": leaves, "share": share if leaves == "interval" else 0.1,
         "ci_low": share - 0.03 if leaves == "interval" else np.nan,
         "ci_high": share + 0.03 if leaves == "interval" else np.nan, "room": 0.13}
        for name, draw, share in rows for leaves in ("interval", "certain")
    ])  # fmt: skip


def _left() -> pd.DataFrame:
    return pd.DataFrame([
        {"site": f"blocks.{layer}.attn", "layer": layer, "site_kind": "self", "n_heads": HEADS, "share": share,
         "kept": round(HEADS * (1 - share))}
        for layer in range(LAYERS) for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ])  # fmt: skip


def _best() -> pd.DataFrame:
    change = np.array([0.3, 0.05, 1.2, -0.01, 0.0, 0.02])
    return pd.DataFrame({"site": [f"blocks.{i}.attn" for i in range(LAYERS)], "layer": range(LAYERS), "kept_head": 1,
                         "change": change, "ci_low": change - 0.03, "ci_high": change + 0.03, "n": 12})  # fmt: skip


def _gates() -> pd.DataFrame:
    parts = []
    for penalty, closed in ((0.01, 4), (0.1, 12), (1.0, 20)):
        log_alpha = np.sort(_value())[::-1] * 6 - closed / 5
        gate = np.where(np.arange(N) < N - closed, 1.0, 0.0)
        parts.append(_grid().assign(penalty=penalty, log_alpha=log_alpha, p_open=0.5, gate=gate))
    return pd.concat(parts, ignore_index=True)


def _path() -> pd.DataFrame:
    return pd.DataFrame([
        {"penalty": penalty, "weights": "frozen", "kept": N - closed, "share_pruned": closed / N, "loss": 3 + change,
         "change": change, "ci_low": change - 0.02, "ci_high": change + 0.02, "n": 12, "steps": 60}
        for penalty, closed, change in ((0.01, 4, -0.01), (0.1, 12, 0.3), (1.0, 20, 2.4))
    ])  # fmt: skip


def cost(timed: bool = False) -> pd.DataFrame:
    """Savings in proportion to the share; half of the heads take 8 % of the parameters and 16 % of a prompt's time."""
    counted = (("parameters", 0.16, "", 0.0), ("KV cache", 0.24, "bytes per token", 0.0), ("FLOPs", 0.26, "", 0.0))
    times = (("prompt", 0.32, "seconds", 0.04), ("prompt, masked", -0.06, "seconds", 0.06))
    return pd.DataFrame([
        {"quantity": name, "share": share, "n_pruned": round(share * N), "value": 1e6 * (1 - slope * share),
         "unit": unit, "ratio": 1 - slope * share, "ci_low": 1 - slope * share - half if half else np.nan,
         "ci_high": 1 - slope * share + half if half else np.nan, "n": 5 if half else 0, "length": 128}
        for name, slope, unit, half in (counted + times if timed else counted)
        for share in (0.0, 0.25, 0.5, 0.75) if share or not half
    ])  # fmt: skip


def from_scratch() -> pd.DataFrame:
    """One head cut out of many learned better than one from the beginning; with two there is no difference."""
    return pd.DataFrame([
        {"model": model, "n_heads": heads, "dropout": dropout, "loss": 1 + change, "ci_low": 0.9 + change,
         "ci_high": 1.1 + change, "change": change, "change_low": change - 0.1, "change_high": change + 0.1, "n": 6,
         "steps": 800}
        for dropout in (0.0, 0.2)
        for model, heads, change in (("scratch", 1, 0.0), ("scratch", 2, 0.0), ("cut", 1, 2.0), ("cut", 2, 1.0),
                                     ("pruned", 1, -0.4), ("pruned", 2, 0.05), ("whole", 8, -0.6))
    ])  # fmt: skip
