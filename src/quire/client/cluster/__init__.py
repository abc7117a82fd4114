"""The bookies, as a client knows them: connections, health, locations and placement.

Start with `pool`; then `link_watch`, `health` and `placement`. It may import `observability`.
"""
