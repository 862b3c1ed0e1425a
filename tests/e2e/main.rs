//! The one integration binary: the shipped program, tested through its doors on simulated nodes.
//!
//! `node` starts a daemon on a scenario and reads its pages; the other modules are the tests. Golden files
//! are rewritten with `UPDATE=1 cargo test --test e2e` and reviewed as a diff.

#![allow(clippy::disallowed_methods, reason = "tests start programs and wait for them")]

mod access;
mod accounts;
mod activation;
mod allocations;
mod assess;
mod assets;
mod attack;
mod autoscaling;
mod before_hopper;
mod canary_child;
mod canary_command;
mod canary_daemon;
mod claims;
mod compat_diff;
mod config;
mod conformance;
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
mod health_command;
mod heartbeat;
mod host_topology;
mod http;
mod kubelet;
mod lasting;
mod machine;
mod manual;
mod map;
mod mig;
mod migrating;
mod nccl;
mod node;
mod nvlink5;
mod nvrx;
mod own;
mod owner_records;
mod owners;
mod page;
mod pod;
mod podresources;
mod privileges;
mod prometheus;
mod recorder;
mod reload;
mod samplers;
mod samples;
mod schedulers;
mod state;
mod widen;
mod windows;
