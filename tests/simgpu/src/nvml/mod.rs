//! The exported functions, by subject.
#![allow(non_snake_case)]

mod board;
mod errors;
mod events;
mod fields;
mod gpm;
mod instances;
mod links;
mod measures;
mod processes;
mod samples;
mod system;
mod vgpu;
mod video;
