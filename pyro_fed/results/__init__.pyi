# Results: what they are, and how they are made of draws and of a run's record.
from .inference_data import InferenceData as InferenceData
from .inference_data import check_savable as check_savable
from .record_dataset import federation_group as federation_group
from .to_arviz import make_inference_data as make_inference_data
from .to_arviz import posterior_alone as posterior_alone
from .to_arviz import to_inference_data as to_inference_data
from .to_arviz import unconstrained_draws as unconstrained_draws
