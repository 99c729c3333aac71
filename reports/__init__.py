"""
Compares many runs: their records, from run folders or W&B, become tables and figures; the networks of cross-validation
folds become ensembles.
"""
