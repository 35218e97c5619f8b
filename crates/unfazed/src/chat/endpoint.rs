//! Which server to talk to.

use anyhow::{Context, bail};
use hyper::Uri;

/// A server's address and the key for it.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
    /// What stands before `/v1`, without a slash at the end.
    path: String,
    key: Option<String>,
}

impl Endpoint {
    /// A server on this machine.
    pub(crate) fn local(port: u16, key: String) -> Endpoint {
        Endpoint { host: "127.0.0.1".to_owned(), port, path: String::new(), key: Some(key) }
    }

    /// From what a person gives: `http://host:port`, `host:port`, with or without `/v1`.
    pub(crate) fn parse(url: &str, key: Option<String>) -> anyhow::Result<Endpoint> {
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().with_context(|| format!("--url {url}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => bail!(
                "--url {url}: https is not supported here; use http on a trusted network or through a tunnel \
                 (ssh -L 8080:localhost:8080 HOST)"
            ),
            _ => bail!("--url {url}: a URL looks like http://127.0.0.1:8080"),
        }
        let host = uri.host().with_context(|| format!("--url {url}: no host in it"))?;
        let path = uri.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1").unwrap_or(path);
        Ok(Endpoint {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(80),
            path: path.to_owned(),
            key,
        })
    }

    /// Host and port to connect to.
    pub(crate) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Value of the `Host` header.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The path of an API endpoint such as `/v1/models`.
    pub(crate) fn path(&self, endpoint: &str) -> String {
        format!("{}{endpoint}", self.path)
    }

    /// The key, if one is needed.
    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority_and_path(url: &str) -> (String, String) {
        let endpoint = Endpoint::parse(url, None).unwrap();
        (endpoint.authority(), endpoint.path("/v1/models"))
    }

    #[test]
    fn urls_are_understood_as_people_write_them() {
        let expected = |a: &str, p: &str| (a.to_owned(), p.to_owned());
        assert_eq!(authority_and_path("http://localhost:8080"), expected("localhost:8080", "/v1/models"));
        assert_eq!(authority_and_path("localhost:8080/"), expected("localhost:8080", "/v1/models"));
        assert_eq!(authority_and_path("http://10.0.0.1/v1/"), expected("10.0.0.1:80", "/v1/models"));
        assert_eq!(authority_and_path("http://[::1]:81/x/v1"), expected("[::1]:81", "/x/v1/models"));
    }

    #[test]
    fn a_url_that_cannot_work_is_refused_by_what_is_wrong_with_it() {
        let refused = |url: &str| Endpoint::parse(url, None).unwrap_err().to_string();
        assert!(refused("https://localhost").contains("https is not supported"));
        assert!(refused("ftp://localhost").contains("looks like"));
    }
}
