"""Tests of the paper's claims: studies, the folder of their results, and the report."""
