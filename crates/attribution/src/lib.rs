//! Attribution of processes on GPUs to owners, from control groups, names, users and the kubelet's answers.

#![forbid(unsafe_code)]

pub mod cdi;
pub mod cgroup;
pub mod devices;
pub mod environ;
pub mod identify;
pub mod kubelet;
pub mod names;
pub mod nccl;
pub mod pods;
pub mod proc;
pub mod slurm;
pub mod text;
pub mod usage;
pub mod users;
