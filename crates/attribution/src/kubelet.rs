//! The kubelet's pod-resources API.

pub mod api;
pub mod client;
