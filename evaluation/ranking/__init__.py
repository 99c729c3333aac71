"""
Exact ranks of every query's positives (positive_ranks), in bounded memory: by counting, by sorting, by torch on a GPU.

What all of them need, queries with their gallery and scores, is in neighbours; float32's digits are kept by precision.
"""
from evaluation.ranking.ranks import BACKENDS, positive_ranks

__all__ = ['BACKENDS', 'positive_ranks']
