"""For criteria written for the public code of Roth et al., which import this name: the registry of batch_mining/."""
from batch_mining import BATCHMINERS as BATCHMINING_METHODS  # noqa: F401
