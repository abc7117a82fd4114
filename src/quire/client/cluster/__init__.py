"""The bookies, as a client knows them: connections, health, locations and placement.

Start with `pool`; then read `link_watch`, `health` and `placement`. This package may import
`observability`.
"""
