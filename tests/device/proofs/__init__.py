"""The proofs of `prove.py`, a module each."""
