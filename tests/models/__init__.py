"""Explicit-state models of the control plane's protocols; `python -m tests.models` runs them, each with its mutants.

Each model follows the code and the fencing page, and says at its top where the two differ. A mutant is the same protocol with
one guard taken away, and must break a rule: a model that cannot fail proves nothing.
"""
