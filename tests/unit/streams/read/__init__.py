"""Reading records, and figures about them."""
