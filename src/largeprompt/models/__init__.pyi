from .hugging_face import record as record
from .pretrained import load_pretrained as load_pretrained
from .recording import RecordedHead as RecordedHead
from .recording import RecordedLayer as RecordedLayer
from .recording import Recording as Recording
from .rotary import rotate as rotate

__all__: list[str]
