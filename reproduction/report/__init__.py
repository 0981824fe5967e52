"""Figures and the page. Everything shown is read from results; nothing is computed."""
