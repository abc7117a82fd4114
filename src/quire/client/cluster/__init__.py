"""What a client knows of the bookies: connections, health, locations and placement.

Start with `pool`.
"""
