"""
Runs the lines of a script of runs.

script reads the commands, plan checks them and finds their run folders, process makes a process of one run, pool and
slots train several at once; local trains on this machine, slurm submits jobs, status tells how far the runs are.
"""
