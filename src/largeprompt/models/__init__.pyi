from .compressed_cache import compressed_attention as compressed_attention
from .compressed_decoder import compress_prompt as compress_prompt
from .compressed_decoder import next_token_loss as next_token_loss
from .fetch import fetch_weights as fetch_weights
from .fetch import weights_path as weights_path
from .hugging_face import record as record
from .linearised_model import LinearisedLearner as LinearisedLearner
from .linearised_model import linearise_learner as linearise_learner
from .linearised_model import linearised_agreement as linearised_agreement
from .pretrained import load_pretrained as load_pretrained
from .probing import probe as probe
from .recording import RecordedHead as RecordedHead
from .recording import RecordedLayer as RecordedLayer
from .recording import Recording as Recording
from .rotary import rotate as rotate
from .tabpfn import InContextLearner as InContextLearner
from .tabpfn import TabPFN as TabPFN

__all__: list[str]
