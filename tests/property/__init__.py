"""Properties that Hypothesis examines, and models that the code is compared with."""
