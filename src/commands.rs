//! The commands beside `serve`.

pub mod assets;
pub mod canary;
pub mod doctor;
pub mod topology;
pub mod window;
