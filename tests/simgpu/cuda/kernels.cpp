// The kernels themselves, compiled for the CPU.
#include "suite.cu"

// Asked for, so that the linker takes this file and with it the kernels, which nothing else names.
void sim_suite() {}
