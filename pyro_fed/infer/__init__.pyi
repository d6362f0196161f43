# An algorithm is one line in the door of its family, `<family>/__init__.pyi`; from there it is here, `pf.infer`.
from .auto import Auto as Auto
from .averaging import *
from .ep import *
from .langevin import *
from .laplace import *
from .papers import *
from .peers import *
from .pooled import *
from .stein import *
from .subposteriors import *
from .surrogates import *
from .variational import *
