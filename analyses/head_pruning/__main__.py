"""``python -m analyses.head_pruning --model MODEL [flags]``."""

from analyses import head_pruning
from interp.cli import run_module

if __name__ == "__main__":
    run_module(head_pruning)
