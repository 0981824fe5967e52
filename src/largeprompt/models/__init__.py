"""Real transformers: recorded heads, probes, and models that act on smaller measures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
