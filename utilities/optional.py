"""Packages that need not be installed."""


def faiss_or_none():
    """faiss, if it is installed."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss
