"""The paper, claim by claim: studies (one file each), the runner, and the page of results.

`python -m reproduction` runs it; `study.py` says how to write a study. Not part of the wheel.
"""
