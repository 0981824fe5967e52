"""Options of XLA for programs on a CPU that take longer to compile than to run."""

from importlib.metadata import version

# Versions of jaxlib that know the emitter's option: XLA refuses unknown ones, and 0.11 lacks it.
_KNOWN_BY = "0.10."


def quick_to_compile() -> dict[str, bool | int]:
    """Compiler options: the older of XLA's emitters, and few optimisations of LLVM.

    The newer emitter takes two thirds longer to compile, and hardly makes a program here faster.
    """
    options: dict[str, bool | int] = {"xla_backend_optimization_level": 1}
    if version("jaxlib").startswith(_KNOWN_BY):
        options["xla_cpu_use_fusion_emitters"] = False
    return options
