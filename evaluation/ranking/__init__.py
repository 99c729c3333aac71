"""
Exact ranks of every query's positives (positive_ranks), in bounded memory: by counting, by sorting, by torch on a GPU.

drawn_ranks: ranks in random galleries of a few images of each class. neighbours has what all of them need: queries,
gallery and scores. precision keeps float32's digits.
"""
from evaluation.ranking.draws import drawn_ranks
from evaluation.ranking.ranks import positive_ranks

__all__ = ['drawn_ranks', 'positive_ranks']
