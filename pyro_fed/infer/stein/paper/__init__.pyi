from .dsvgd import PaperDSVGD as PaperDSVGD
from .parallel_dsvgd import PaperParallelDSVGD as PaperParallelDSVGD
from .svgd import PaperSVGD as PaperSVGD
from .udsvgd import UDSVGD as UDSVGD
