"""``python analyses/adversarial_attention.py --model MODEL [flags]``: runs the package beside this file."""

from analyses import adversarial_attention  # the package, which Python prefers to a file of its name
from interp.cli import run_module

if __name__ == "__main__":
    run_module(adversarial_attention)
