"""Chooses and generates the tasks of the next iteration from the variance of group rewards (METHOD section 5)."""
