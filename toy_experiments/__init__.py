"""Small experiments that show one effect each: python -m toy_experiments.<name>"""
