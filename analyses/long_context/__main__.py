"""``python -m analyses.long_context --model MODEL [flags]``."""

from analyses import long_context
from interp.cli import run_module

if __name__ == "__main__":
    run_module(long_context)
