"""Divergences between probability distributions on the last axis, in nats."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import rel_entr

_SUM_TOLERANCE = 1e-4  # float32 rows over many keys


def kl_divergence(*, of: ArrayLike, from_: ArrayLike) -> NDArray[np.float64]:
    """Kullback–Leibler divergence KL(of ‖ from_) = Σ of · ln(of / from_), in nats, from 0 to infinity.

    The arguments are named since their order matters: ``of`` is the distribution that the mean is taken under (the true
    one, the observed one), ``from_`` the one that it is compared with. Infinite where from_ has no mass and of has.

    Args:
        of: [..., outcome].
        from_: [..., outcome].

    Raises:
        ValueError: not distributions over the same outcomes.
    """
    p, q = _distributions(of=of, from_=from_)
    return np.maximum(rel_entr(p, q).sum(-1), 0.0)


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> NDArray[np.float64]:
    """Jensen–Shannon divergence ½ KL(p ‖ m) + ½ KL(q ‖ m), m = (p + q)/2, in nats, from 0 to ln 2 (Lin 1991).

    Symmetric. (`scipy.spatial.distance.jensenshannon` is its square root.)

    Args:
        p: [..., outcome].
        q: [..., outcome].

    Raises:
        ValueError: not distributions over the same outcomes.
    """
    p, q = _distributions(p=p, q=q)
    middle = p / 2 + q / 2
    # the half of the smallest number there is, is zero
    terms = np.where(middle > 0, rel_entr(p, middle) + rel_entr(q, middle), 0.0)
    return np.clip(terms.sum(-1) / 2, 0.0, np.log(2))


def total_variation(p: ArrayLike, q: ArrayLike) -> NDArray[np.float64]:
    """Total variation distance ½ Σ |p − q|, from 0 to 1.

    For one sigmoid output it is |Δp|: ``total_variation(bernoulli(p), bernoulli(q))``.

    Args:
        p: [..., outcome].
        q: [..., outcome].

    Raises:
        ValueError: not distributions over the same outcomes.
    """
    p, q = _distributions(p=p, q=q)
    return np.clip(np.abs(p - q).sum(-1) / 2, 0.0, 1.0)


def bernoulli(p: ArrayLike) -> NDArray[np.float64]:
    """The distribution (p, 1 − p) ``[..., 2]`` that one sigmoid output p stands for."""
    p = np.asarray(p, dtype=np.float64)
    return np.stack([p, 1 - p], axis=-1)


def _distributions(**named: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both as float64 arrays that are distributions over the same outcomes; leading axes broadcast."""
    arrays = {name: np.asarray(array, dtype=np.float64) for name, array in named.items()}
    for name, array in arrays.items():
        if array.ndim == 0:
            raise ValueError(f"{name} must have outcomes on its last axis; got one number (a sigmoid's: use bernoulli)")
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise ValueError(f"{name} must hold probabilities, finite and not below 0; got {array.min():.6g} as least")
        far = np.abs(array.sum(-1) - 1)
        if (far > _SUM_TOLERANCE).any():
            furthest = np.ravel(array.sum(-1))[np.argmax(far)]
            raise ValueError(
                f"{name} must add up to 1 over its last axis, within {_SUM_TOLERANCE:g}; got {furthest:.6g} "
                "(with attention sinks, add the sink's weight as an outcome; of a sigmoid's output, use bernoulli)"
            )
    first, second = arrays
    p, q = arrays[first], arrays[second]
    if p.shape[-1] != q.shape[-1]:
        raise ValueError(f"{first} and {second} must have the same outcomes; got {p.shape[-1]} and {q.shape[-1]}")
    return p, q
