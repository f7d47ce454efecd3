"""Triton reads this when it is first imported, which transformers does where it can: so it is said before any test is collected.

On a machine with a GPU `TRITON_INTERPRET=0 pytest tests/kernels` runs the compiled kernels instead.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

collect_ignore = ["clients"]
"""Needs clients that the project's own environment does not have: `make test-clients`."""
