"""Tables without rows, and tables put together."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pandera.pandas as pa


def empty_table(columns: Mapping[str, Any]) -> pd.DataFrame:
    """A table without rows.

    Args:
        columns: the dtype of each, by its name; or the column of a schema.
    """
    dtypes = {name: (of.metadata or {})["dtype"] if isinstance(of, pa.Column) else of for name, of in columns.items()}
    return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in dtypes.items()})


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables one below the other; empty ones, which may know no dtypes, are left out where another is not empty."""
    return pd.concat([table for table in tables if len(table)] or list(tables), ignore_index=True)
