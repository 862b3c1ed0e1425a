//! deploy/otel on a real Collector: it scrapes the shipped program on simulated nodes, and what it pushes comes back to itself
//! and is written down. `make prove PARTS=otel` builds the Collector and runs this.

#![allow(clippy::disallowed_methods, reason = "tests start programs and wait for them")]

mod collector;
mod hw;
#[path = "../e2e/machine.rs"]
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
mod machine;
#[path = "../e2e/node.rs"]
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
mod node;
mod outage;
mod own;
#[path = "../e2e/podresources.rs"]
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
mod podresources;
