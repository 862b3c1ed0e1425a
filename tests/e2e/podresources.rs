//! A kubelet that speaks its pod-resources API over a Unix socket, and badly on request.

use std::convert::Infallible;
use std::fs;
use std::future::{Future, Ready, ready};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use attribution::kubelet::api::{
    ALLOCATABLE, AllocatableResponse, ContainerDevices, ContainerResources, LIST, ListResponse, PodResources,
};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Manner {
    /// As a kubelet.
    Well,
    /// As one that does not know what can be given out.
    Old,
    /// As one that is asked too often.
    Refusing,
    /// Takes connections and requests and does not answer.
    Hung,
    /// Answers with what is no HTTP/2.
    Garbage,
}

/// What it answers.
#[derive(Debug)]
pub struct Script {
    pub manner: Manner,
    pub pods: ListResponse,
    pub allocatable: AllocatableResponse,
    /// Connections taken.
    asked: usize,
}

/// A running kubelet. Its socket stays behind when it goes, as that of one that was killed.
pub struct Kubelet {
    script: Arc<Mutex<Script>>,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Where its socket is on a host.
pub fn socket(root: &Path) -> PathBuf {
    root.join("var/lib/kubelet/pod-resources/kubelet.sock")
}

/// Devices of one resource.
pub fn devices(resource: &str, ids: impl IntoIterator<Item = String>) -> ContainerDevices {
    ContainerDevices { resource_name: resource.into(), device_ids: ids.into_iter().collect() }
}

/// A pod with one container.
pub fn pod(name: &str, devices: Vec<ContainerDevices>) -> PodResources {
    let container = ContainerResources { name: "main".into(), devices, dynamic_resources: Vec::new() };
    PodResources { name: name.into(), namespace: "ml".into(), containers: vec![container] }
}

impl Kubelet {
    /// Starts one below this root.
    pub fn start(root: &Path, pods: Vec<PodResources>, allocatable: Vec<ContainerDevices>) -> Kubelet {
        let path = socket(root);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        let script = Arc::new(Mutex::new(Script {
            manner: Manner::Well,
            pods: ListResponse { pod_resources: pods },
            allocatable: AllocatableResponse { devices: allocatable },
            asked: 0,
        }));
        let (end, ended) = tokio::sync::oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = {
            let _guard = runtime.enter();
            UnixListener::bind(&path).unwrap()
        };
        let shared = Arc::clone(&script);
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = serve(listener, shared) => {}
                    _ = ended => {}
                }
            });
            runtime.shutdown_background();
        });
        Kubelet { script, end: Some(end), thread: Some(thread) }
    }

    /// Connections it has taken.
    pub fn asked(&self) -> usize {
        self.script.lock().unwrap().asked
    }

    /// Changes what it does.
    pub fn now(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.end.take().unwrap().send(());
        self.thread.take().unwrap().join().unwrap();
    }
}

async fn serve(listener: UnixListener, script: Arc<Mutex<Script>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let script = Arc::clone(&script);
        tokio::spawn(async move {
            let manner = {
                let mut script = script.lock().unwrap();
                script.asked += 1;
                script.manner
            };
            if manner == Manner::Garbage {
                garbage(stream).await;
                return;
            }
            let answer = move |request| answer(request, Arc::clone(&script));
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = connection.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

async fn garbage(mut stream: UnixStream) {
    let noise: Vec<u8> = (0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let _ = stream.write_all(&noise).await;
}

type Answered = Result<hyper::Response<Body>, Infallible>;

fn answer(
    request: hyper::Request<Incoming>,
    script: Arc<Mutex<Script>>,
) -> Pin<Box<dyn Future<Output = Answered> + Send>> {
    Box::pin(async move {
        let (manner, pods, allocatable) = {
            let script = script.lock().unwrap();
            (script.manner, script.pods.clone(), script.allocatable.clone())
        };
        if manner == Manner::Hung {
            std::future::pending::<()>().await;
        }
        let refused =
            (manner == Manner::Refusing).then(|| Status::resource_exhausted("rejected by rate limit"));
        Ok(match request.uri().path() {
            LIST => unary(request, refused.map_or(Ok(pods), Err)).await,
            ALLOCATABLE if manner != Manner::Old => {
                unary(request, refused.map_or(Ok(allocatable), Err)).await
            }
            _ => unary::<ListResponse>(request, Err(Status::unimplemented("unknown method"))).await,
        })
    })
}

async fn unary<A: prost::Message + Default + Clone + 'static>(
    request: hyper::Request<Incoming>,
    answer: Result<A, Status>,
) -> hyper::Response<Body> {
    let codec: ProstCodec<A, ()> = ProstCodec::default();
    Grpc::new(codec).unary(Fixed(answer), request).await
}

/// A service that has one answer.
struct Fixed<A>(Result<A, Status>);

impl<A: Clone> tower_service::Service<Request<()>> for Fixed<A> {
    type Response = Response<A>;
    type Error = Status;
    type Future = Ready<Result<Response<A>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(self.0.clone().map(Response::new))
    }
}
