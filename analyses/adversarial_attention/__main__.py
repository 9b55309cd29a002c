"""``python -m analyses.adversarial_attention --model MODEL [flags]``."""

from analyses import adversarial_attention
from interp.cli import run_module

if __name__ == "__main__":
    run_module(adversarial_attention)
