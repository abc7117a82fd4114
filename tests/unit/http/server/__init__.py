"""The HTTP server itself: requests, access, reference pages."""
