"""What a bookie does beside its requests: garbage collection, damage reports, orders."""
