"""Speed and memory beside the alternatives a user has: always in one run, as ratios."""
