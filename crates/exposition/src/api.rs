//! The JSON documents below `/api/v1/`. Field names stay; fields may be added. `null` means absent or not known.

pub mod events;
pub mod owners;
pub mod snapshot;
pub mod topology;
pub mod windows;
