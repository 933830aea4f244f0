//! What every answer tells a browser, and the token of the daemon's owner.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

/// Scripts, styles and requests are this daemon's own and nothing else, and no other page may frame this one. With trusted
/// types a browser refuses text as markup even where a script tried to use it so.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// What a daemon's owner sends; only its hash is kept, and hashes are compared, which takes the same time wherever two tokens
/// differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token(blake3::Hash);

impl Token {
    pub(crate) fn new(token: &str) -> Token {
        Token(blake3::hash(format!("Bearer {token}").as_bytes()))
    }

    /// Whether a request carries it.
    pub(crate) fn is_in(self, headers: &HeaderMap) -> bool {
        headers.get(header::AUTHORIZATION).is_some_and(|given| blake3::hash(given.as_bytes()) == self.0)
    }
}

/// Adds the headers to an answer.
pub(crate) async fn secured(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let said: [(HeaderName, &'static str); 6] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in said {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if !response.headers().contains_key(header::CACHE_CONTROL) {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}
