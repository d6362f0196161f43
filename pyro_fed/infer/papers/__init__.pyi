from .dsvgd import PaperDSVGD as PaperDSVGD
from .gvi import GVI as GVI
from .npv import NPV as NPV
from .p2p_finite import P2PFinite as P2PFinite
from .parallel_dsvgd import PaperParallelDSVGD as PaperParallelDSVGD
from .pmd import PMD as PMD
from .svgd import PaperSVGD as PaperSVGD
from .udsvgd import UDSVGD as UDSVGD
