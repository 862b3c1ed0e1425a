//! The built library, driven through nvml-wrapper as the product drives it.

mod faults;
mod messages;
mod node;
mod values;
