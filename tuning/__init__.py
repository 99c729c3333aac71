"""
Hyper-parameter search on cross-validation folds of classes, by Optuna.

ranges reads --tune, search holds the flags of a search and runs it, study opens Optuna's study, trials tells the states
of its trials, optimize runs trials until there are enough, folds trains one of them, report writes the results.

powerful_benchmarker, with experiment_folder, experiment_losses and experiment_images, reads the experiments of the
program of this name.
"""
