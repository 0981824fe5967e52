"""The studies, one file each. A new file is found by itself; helpers of studies begin with `_`."""
