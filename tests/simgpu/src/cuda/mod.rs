//! libcuda's driver API, as far as a small program needs it. Memory is memory of the process, work is done
//! at once on the CPU, and all times are simulated: they follow from what a kernel did and from the model.
#![allow(non_snake_case)]

mod context;
mod device;
mod driver;
mod engine;
mod event;
mod launch;
mod machine;
mod memory;
mod module;
mod rates;
pub mod result;
mod slab;
mod visible;

pub(crate) use driver::enter;
