"""The routes: what is answered to which request."""
