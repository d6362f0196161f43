from .at_rest import EndOfRun as EndOfRun
from .dsvgd import DSVGD as DSVGD
from .parallel_dsvgd import ParallelDSVGD as ParallelDSVGD
from .svgd import SVGD as SVGD
