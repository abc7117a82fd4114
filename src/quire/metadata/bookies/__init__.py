"""What the metadata store keeps for each bookie, whatever the driver: its directories, the orders
of operators, and the marks of garbage collection.

Each module is the value of one kind of node with its reads and writes. Start with `nodes`.
"""
