"""The explorer: one HTML page with sliders, whose numbers are those of the library."""

from .assemble import page as page
from .assemble import write_page as write_page
