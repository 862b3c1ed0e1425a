//! Messages of the kubelet's pod-resources API, version 1 (Kubernetes 1.20 and later), as far as they are read here;
//! what else they hold is skipped. Names and numbers of the fields are those of the API
//! (<https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources>).
//!
//! Written by hand: ten short messages need neither a compiler of the interface nor its file at build time.

use prost::Message;

/// gRPC path of the call that lists what pods have. The requests of both calls have no fields.
pub const LIST: &str = "/v1.PodResourcesLister/List";
/// gRPC path of the call that lists what can be given out (Kubernetes 1.23).
pub const ALLOCATABLE: &str = "/v1.PodResourcesLister/GetAllocatableResources";

/// What every pod has.
#[derive(Clone, PartialEq, Message)]
pub struct ListResponse {
    /// Every pod.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// What can be given out.
#[derive(Clone, PartialEq, Message)]
pub struct AllocatableResponse {
    /// Devices by resource; one resource may be there several times, as by NUMA node.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
}

/// A pod.
#[derive(Clone, PartialEq, Message)]
pub struct PodResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// A container.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its devices by resource.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// What it has of dynamic resource allocation.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

/// Devices of one resource.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerDevices {
    /// Name of the resource, as `nvidia.com/gpu`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// Ids of the devices, as their plugin calls them.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

/// A claim of dynamic resource allocation.
#[derive(Clone, PartialEq, Message)]
pub struct DynamicResource {
    /// Name of the claim.
    #[prost(string, tag = "2")]
    pub claim_name: String,
    /// Namespace of the claim.
    #[prost(string, tag = "3")]
    pub claim_namespace: String,
    /// What was given for it.
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

/// A device that was given for a claim.
#[derive(Clone, PartialEq, Message)]
pub struct ClaimResource {
    /// It, as the container runtime knows it.
    #[prost(message, repeated, tag = "1")]
    pub cdi_devices: Vec<CdiDevice>,
    /// Driver that gave it, as `gpu.nvidia.com`; empty before Kubernetes 1.31.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// Pool of the device, the node's name as a rule; likewise.
    #[prost(string, tag = "3")]
    pub pool_name: String,
    /// Its name in the pool, as `gpu-0`; likewise.
    #[prost(string, tag = "4")]
    pub device_name: String,
    /// Share of a device that several claims have.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// A device as container runtimes know it (Container Device Interface).
#[derive(Clone, PartialEq, Message)]
pub struct CdiDevice {
    /// Its full name, as `k8s.gpu.nvidia.com/device=gpu-0`.
    #[prost(string, tag = "1")]
    pub name: String,
}
