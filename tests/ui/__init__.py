"""The dashboard in Chromium: each page, and each action."""
