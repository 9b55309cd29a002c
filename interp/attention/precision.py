"""Full precision of matrix products while attention is computed, whatever the process has set."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["full_precision"]


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, no TF32 or bfloat16 products: statistics of rounded scores are statistics of another model."""
    with torch.autocast(device.type, enabled=False), _EXACT_PRODUCTS:
        yield


class _ExactProducts:
    """float32 products at full precision while any thread asks for it. The settings are the whole process's, so that
    the last to leave restores what the first one found."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before: list[Any] = []
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
            self._products, self._name = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul], "fp32_precision"  # pyright: ignore[reportAttributeAccessIssue]
            self._exact: Any = "ieee"
        else:  # before torch 2.9
            self._products, self._name, self._exact = [torch.backends.cuda.matmul], "allow_tf32", False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = [getattr(product, self._name) for product in self._products]
                self._set([self._exact] * len(self._products))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._set(self._before)

    def _set(self, settings: Sequence[Any]) -> None:
        for product, setting in zip(self._products, settings, strict=True):
            setattr(product, self._name, setting)


_EXACT_PRODUCTS = _ExactProducts()
