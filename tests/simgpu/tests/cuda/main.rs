//! The library as libcuda: the functions that a program calls through cudarc, the kernels, and the steps of
//! a scenario that are about hardware.

mod calls;
mod company;
mod cuda;

mod errors;
mod hardware;
mod kernels;
mod numbers;
mod through_cudarc;
mod time;
