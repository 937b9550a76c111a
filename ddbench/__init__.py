"""ddbench: a profiling and benchmark laboratory for the DFlash + DDTree speculative-decoding engine."""

from pathlib import Path

__version__ = "0.1.0"

# A checkout runs uninstalled: its sibling folders `kernels`, `reference` and `experiments` become subpackages.
_CHECKOUT = Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "kernels").is_dir():
    __path__.append(str(_CHECKOUT))
