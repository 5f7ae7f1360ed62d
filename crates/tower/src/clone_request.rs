//! Copies of requests that may be sent twice.

/// Copies requests. Closures implement it: `Fn(&Request) -> Option<Request>`, where `None` means that the request cannot be sent
/// twice, for example because its body is a stream.
#[diagnostic::on_unimplemented(
    message = "`{R}` may be sent twice, but `{Self}` cannot copy it",
    label = "cannot copy a request of this type",
    note = "is the body `Clone`? The bodies of axum, hyper and tonic are streams, which are not",
    note = "receive the body before this layer, or say how to copy a request: `clone_with(|request: &Request<_>| …)`, where \
            `None` stands for one that is sent only once"
)]
pub trait CloneRequest<R> {
    /// The copy, with a body that is complete.
    fn clone_request(&self, request: &R) -> Option<R>;
}

impl<R, F: Fn(&R) -> Option<R>> CloneRequest<R> for F {
    fn clone_request(&self, request: &R) -> Option<R> {
        self(request)
    }
}

/// Clones the whole request; its body must be `Clone`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneBody;

impl<R: Clone> CloneRequest<R> for CloneBody {
    fn clone_request(&self, request: &R) -> Option<R> {
        Some(request.clone())
    }
}
