"""``python -m analyses.head_specialization --model MODEL [flags]``."""

from analyses import head_specialization
from interp.cli import run_module

if __name__ == "__main__":
    run_module(head_specialization)
