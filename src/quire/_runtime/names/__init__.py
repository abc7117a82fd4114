"""Helpers for Python names: lazy imports, deprecated names, and suggestions for misspelt names.

Start with `lazy`; then read `former_names`, which warns with the help of `caller_warnings`, and
`suggest`. `extras` has the hint for installing an optional extra of the package.
"""
