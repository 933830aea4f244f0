//! Signature Version 4 in a header (docs.aws.amazon.com, "Authenticating Requests: Using the Authorization Header"). Not in
//! the address: a signed address in a log is a key.

use std::time::SystemTime;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::credentials::Credentials;
use crate::remote::address::encoded;
use crate::remote::download::hexadecimal;

/// SHA-256 of no content: all requests here are without one.
const NO_CONTENT: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A request to be signed.
pub(super) struct Unsigned<'a> {
    /// Host, with a port where it is not the usual one.
    pub(super) host: &'a str,
    /// Encoded already, from the first slash on.
    pub(super) path: &'a str,
    /// Names and values, not encoded.
    pub(super) query: &'a [(String, String)],
    /// Headers that are signed besides the host and those of the signature, in lower case.
    pub(super) headers: &'a [(&'static str, String)],
}

/// For whom and when.
pub(super) struct Scope<'a> {
    pub(super) region: &'a str,
    pub(super) service: &'a str,
    pub(super) time: SystemTime,
}

/// The headers that sign a GET.
pub(super) fn sign(
    unsigned: &Unsigned<'_>,
    scope: &Scope<'_>,
    credentials: &Credentials,
) -> Vec<(&'static str, String)> {
    let time = jiff::Timestamp::try_from(scope.time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let (time, day) = (time.strftime("%Y%m%dT%H%M%SZ").to_string(), time.strftime("%Y%m%d").to_string());
    let mut headers = vec![("x-amz-content-sha256", NO_CONTENT.to_owned()), ("x-amz-date", time.clone())];
    headers.extend(credentials.token.iter().map(|token| ("x-amz-security-token", token.clone())));
    let mut signed: Vec<(&str, &str)> = vec![("host", unsigned.host)];
    signed.extend(headers.iter().chain(unsigned.headers).map(|(name, value)| (*name, value.as_str())));
    signed.sort_unstable();
    let names = signed.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines: String = signed.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let request = format!("GET\n{}\n{}\n{lines}\n{names}\n{NO_CONTENT}", unsigned.path, query(unsigned.query));
    let Scope { region, service, .. } = scope;
    let place = format!("{day}/{region}/{service}/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{place}\n{}", hexadecimal(&Sha256::digest(request)));
    let first = format!("AWS4{}", credentials.secret_key).into_bytes();
    let key = [day.as_str(), region, service, "aws4_request"].iter().fold(first, |key, part| code(&key, part));
    let signature = hexadecimal(&code(&key, &text));
    let access = &credentials.access_key;
    let value = format!("AWS4-HMAC-SHA256 Credential={access}/{place}, SignedHeaders={names}, Signature={signature}");
    headers.push(("authorization", value));
    headers
}

fn code(key: &[u8], text: &str) -> Vec<u8> {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    code.update(text.as_bytes());
    code.finalize().into_bytes().to_vec()
}

/// A query, sorted and encoded.
pub(super) fn query(pairs: &[(String, String)]) -> String {
    let mut pairs: Vec<(String, String)> =
        pairs.iter().map(|(name, value)| (encoded(name, false), encoded(value, false))).collect();
    pairs.sort_unstable();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn signature(unsigned: &Unsigned<'_>, service: &str, seconds: u64, secret: &str) -> String {
        let credentials =
            Credentials { access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(), secret_key: secret.to_owned(), token: None };
        let scope = Scope { region: "us-east-1", service, time: UNIX_EPOCH + Duration::from_secs(seconds) };
        let headers = sign(unsigned, &scope, &credentials);
        let value = headers.iter().find(|(name, _)| *name == "authorization").expect("signed").1.clone();
        value.rsplit_once("Signature=").expect("a signature").1.to_owned()
    }

    /// The examples of Amazon's page on this signature, of 24 May 2013.
    #[test]
    fn amazons_own_examples_are_signed_alike() {
        let sign = |path, query: &[(&str, &str)], headers: &[(&'static str, String)]| {
            let query: Vec<(String, String)> =
                query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let unsigned = Unsigned { host: "examplebucket.s3.amazonaws.com", path, query: &query, headers };
            signature(&unsigned, "s3", 1_369_353_600, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
        };
        assert_eq!(
            sign("/test.txt", &[], &[("range", "bytes=0-9".to_owned())]),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        assert_eq!(
            sign("/", &[("prefix", "J"), ("max-keys", "2")], &[]),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
        assert_eq!(
            sign("/", &[("lifecycle", "")], &[]),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
    }
}
