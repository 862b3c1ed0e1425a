//! The one integration binary: the shipped program, tested through its doors on simulated nodes.
//!
//! `node` starts a daemon on a scenario and reads its pages; the other modules are the tests. Golden files
//! are rewritten with `UPDATE=1 cargo test --test e2e` and reviewed as a diff.

#![allow(clippy::disallowed_methods, reason = "tests start programs and wait for them")]

mod accounts;
mod allocations;
mod assets;
mod attack;
mod before_hopper;
mod canary_child;
mod canary_command;
mod canary_daemon;
mod claims;
mod config;
mod control;
mod coverage;
mod cpu;
mod dcgm;
mod dcgm_queries;
mod dcgm_values;
mod doctor;
mod driver;
mod fault_lines;
mod faults;
mod foreign;
mod golden;
mod groups;
mod halts;
mod hang;
mod health;
mod host_topology;
mod http;
mod kubelet;
mod lasting;
mod map;
mod mig;
mod node;
mod nvlink5;
mod own;
mod owners;
mod podresources;
mod privileges;
mod prometheus;
mod recorder;
mod samplers;
mod samples;
mod state;
mod widen;
mod windows;
