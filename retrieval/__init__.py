"""Uses a trained network: loads it in Python, and finds the nearest images in an index of any photos."""
from retrieval.index import Index
from retrieval.loading import embed, load

__all__ = ['Index', 'embed', 'load']
