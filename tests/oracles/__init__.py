"""Plain NumPy and mpmath, one function per formula, importing nothing of ours."""
