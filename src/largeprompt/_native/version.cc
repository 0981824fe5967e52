// The interface of foreign functions that the kernels were compiled for.

#include "xla/ffi/api/c_api.h"

extern "C" int largeprompt_interface_major() { return XLA_FFI_API_MAJOR; }
extern "C" int largeprompt_interface_minor() { return XLA_FFI_API_MINOR; }
