"""Names of Python: those imported when first used, former ones, and the nearest to a misspelt one.

Start with `lazy`; then read `former_names`, which warns with the help of `caller_warnings`, and
`suggest`. `extras` says how to install an extra of the package.
"""
