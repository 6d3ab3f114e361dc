"""What examples/convergence.py is made of.

methods   the table of methods: data
training  one run: a method, a learning rate, a seed
processes the same run over real processes
sweep     which run comes next, and the file of results
report    the tables and the pictures
"""
