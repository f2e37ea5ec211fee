"""Seeded chaos: clusters whose processes are killed, stopped and restarted, and what must hold afterwards.

python -m chaos --seeds 0:1000 --jobs 2      (with `tests` on PYTHONPATH; `nox -s chaos` does it)
"""
