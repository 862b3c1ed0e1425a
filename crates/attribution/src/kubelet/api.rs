//! Messages of the kubelet's pod-resources API, version 1 (Kubernetes 1.20 and later), with the fields that are
//! used here. Other fields are skipped. Names and numbers of the fields are those of the API
//! (<https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources>).
//!
//! The messages are written by hand, because nine short messages are simpler than a protobuf compiler in the
//! build.

use prost::Message;

/// gRPC path of the call that lists the resources of pods. The requests of both calls have no fields.
pub const LIST: &str = "/v1.PodResourcesLister/List";
/// gRPC path of the call that lists the resources that can be allocated (Kubernetes 1.23).
pub const ALLOCATABLE: &str = "/v1.PodResourcesLister/GetAllocatableResources";

/// Resources of all pods.
#[derive(Clone, PartialEq, Message)]
pub struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// Resources that can be allocated.
#[derive(Clone, PartialEq, Message)]
pub struct AllocatableResponse {
    /// Devices by resource. A resource may be listed several times, for example once per NUMA node.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
}

/// Resources of a pod.
#[derive(Clone, PartialEq, Message)]
pub struct PodResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// Resources of a container.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerResources {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Device ids, grouped by resource.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// Claims of dynamic resource allocation.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

/// Devices of one resource.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerDevices {
    /// Name of the resource, for example `nvidia.com/gpu`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// Ids of the devices, as chosen by the device plugin.
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
    /// Devices allocated for the claim.
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

/// A device that was allocated for a claim.
#[derive(Clone, PartialEq, Message)]
pub struct ClaimResource {
    /// The device in the container runtime's terms.
    #[prost(message, repeated, tag = "1")]
    pub cdi_devices: Vec<CdiDevice>,
    /// Driver that allocated the device, for example `gpu.nvidia.com`; empty before Kubernetes 1.31.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// Pool of the device, usually the name of the node; empty before Kubernetes 1.31.
    #[prost(string, tag = "3")]
    pub pool_name: String,
    /// Name of the device in the pool, for example `gpu-0`; empty before Kubernetes 1.31.
    #[prost(string, tag = "4")]
    pub device_name: String,
    /// Id of the share, if several claims share the device.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// A device as container runtimes identify it (Container Device Interface).
#[derive(Clone, PartialEq, Message)]
pub struct CdiDevice {
    /// Full name, for example `k8s.gpu.nvidia.com/device=gpu-0`.
    #[prost(string, tag = "1")]
    pub name: String,
}
