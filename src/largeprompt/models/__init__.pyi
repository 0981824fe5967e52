from .recording import RecordedHead as RecordedHead
from .recording import RecordedLayer as RecordedLayer
from .recording import Recording as Recording

__all__: list[str]
