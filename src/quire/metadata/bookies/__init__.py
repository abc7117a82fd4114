"""What the metadata store keeps for each bookie: its directories, orders of operators, and marks
of garbage collection.
"""
