"""Results of analyses: tidy tables with what made them, saved whole or not at all. Does not import torch.

A run folder is ``RUN/ANALYSIS/{tables/NAME.parquet, meta.json, figures/}`` with ``RUN/run.json`` (the model that it is
about) and the page ``RUN/index.html``.

    result.py      Result
    schemas.py     what tables must look like
    columns.py     columns that many tables have, for schemas
    storage.py     a folder of tables that appears whole
    folder.py      RunFolder, save, load
    workspace.py   Workspace: what an analysis works in
    provenance.py  what made a result, and the fingerprint of its inputs
"""

from interp.results.folder import RunFolder, load, save
from interp.results.provenance import code_sha256, fingerprint, provenance
from interp.results.result import Result
from interp.results.schemas import HEADS, check_tables
from interp.results.storage import write_file
from interp.results.workspace import Workspace

__all__ = [
    "HEADS",
    "Result",
    "RunFolder",
    "Workspace",
    "check_tables",
    "code_sha256",
    "fingerprint",
    "load",
    "provenance",
    "save",
    "write_file",
]
