"Special functions, under their other names."
from ._absent import refuser
from ._elementwise import erf, expm1, log1p, xlogy  # noqa: F401
from ._elementwise import sigmoid as expit  # noqa: F401
from ._reduce import log_softmax, logsumexp, softmax  # noqa: F401

__getattr__ = refuser("torch.special")
