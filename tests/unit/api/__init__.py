"""What users import: names, signatures, docstrings."""
