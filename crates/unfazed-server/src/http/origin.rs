//! Host and Origin: a page that a browser loaded from elsewhere must not reach a server on this machine, neither
//! directly nor by a name that was made to point here (DNS rebinding).

use std::net::IpAddr;

use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderMap, Uri, header};

use super::error::ApiError;
use crate::ServerError;
use crate::options::{CorsOrigins, ServeOptions};

/// Names and origins that are let in.
#[derive(Clone, Debug)]
pub(crate) struct Callers {
    hosts: Vec<String>,
    any_host: bool,
    /// Bound to every address: each of them is ours. A rebound name is never an address.
    any_address: bool,
    cors: Option<CorsOrigins>,
}

impl Callers {
    pub(crate) fn new(options: &ServeOptions, bound: IpAddr) -> Result<Callers, ServerError> {
        let mut hosts = vec!["localhost".to_owned(), normal_host(&options.host)];
        hosts.extend(["127.0.0.1", "::1"].map(str::to_owned));
        hosts.push(bound.to_string());
        hosts.extend(options.allowed_hosts.iter().map(|host| normal_host(host)));
        if let Some(host) = options.allowed_hosts.iter().find(|host| *host != "*" && !is_host(host)) {
            let reason = "a host is a name or an address, such as box.example, without scheme, port and path";
            return Err(ServerError::Option { option: "--allowed-host", value: host.clone(), reason });
        }
        if let Some(CorsOrigins::Only(origins)) = &options.cors {
            for origin in origins {
                if !is_origin(origin) {
                    let reason =
                        "an origin is a scheme and a host, such as https://example.org, without a path";
                    return Err(ServerError::Option { option: "--cors", value: origin.clone(), reason });
                }
            }
        }
        Ok(Callers {
            any_host: hosts.iter().any(|host| host == "*"),
            any_address: bound.is_unspecified(),
            cors: options.cors.clone(),
            hosts,
        })
    }

    /// Checks both headers of a request.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if headers.get_all(header::HOST).iter().count() > 1 {
            // Whoever stands in front may have looked at another one.
            return Err(ApiError::field("Host", "Host stands in the request more than once"));
        }
        let host = match uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => match headers.get(header::HOST) {
                Some(value) => Some(value.to_str().map_err(|_| refused_host("(not text)"))?),
                // HTTP/1.0 has none. Browsers, against whom this check is made, always send one.
                None => None,
            },
        };
        if let Some(host) = host
            && !self.host_allowed(host)
        {
            return Err(refused_host(host));
        }
        match headers.get(header::ORIGIN) {
            None => Ok(()),
            Some(origin) => match origin.to_str() {
                Ok(origin) if self.origin_allowed(origin, host) => Ok(()),
                Ok(origin) => Err(refused_origin(origin)),
                Err(_) => Err(refused_origin("(not text)")),
            },
        }
    }

    fn host_allowed(&self, host: &str) -> bool {
        if self.any_host {
            return true;
        }
        let name = normal_host(without_port(host));
        self.hosts.contains(&name) || (self.any_address && name.parse::<IpAddr>().is_ok())
    }

    fn origin_allowed(&self, origin: &str, host: Option<&str>) -> bool {
        let same = origin
            .split_once("://")
            .is_some_and(|(_, authority)| host.is_some_and(|host| authority.eq_ignore_ascii_case(host)));
        same || match &self.cors {
            None => false,
            Some(CorsOrigins::Any) => true,
            Some(CorsOrigins::Only(origins)) => {
                origins.iter().any(|known| known.eq_ignore_ascii_case(origin))
            }
        }
    }
}

fn refused_host(host: &str) -> ApiError {
    let host: String = host.chars().take(100).collect();
    ApiError::forbidden(
        "host_not_allowed",
        format!("Host {host:?} is not a name of this server (--allowed-host adds one)"),
    )
}

fn refused_origin(origin: &str) -> ApiError {
    let origin: String = origin.chars().take(100).collect();
    ApiError::forbidden(
        "origin_not_allowed",
        format!("Origin {origin:?} may not call this server (--cors adds one)"),
    )
}

/// Whether a browser could send this as an `Origin`: `scheme://host` or `scheme://host:port`.
fn is_origin(origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let Ok(parsed) = authority.parse::<Authority>() else { return false };
    let port = match authority.strip_prefix(parsed.host()).map(|port| port.strip_prefix(':').ok_or(port)) {
        Some(Ok(port)) => port.parse::<u16>().is_ok(),
        Some(Err(none)) => none.is_empty(),
        // A user's name stands before the host.
        None => false,
    };
    !scheme.is_empty() && scheme.parse::<Scheme>().is_ok() && port && is_host(parsed.host())
}

/// Whether this is a name or an address, as in a `Host` header without its port.
fn is_host(host: &str) -> bool {
    if normal_host(host).parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    name.split('.').all(|label| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    })
}

/// Lower case, without the brackets of an IPv6 address and the dot of a complete name.
fn normal_host(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase()
}

/// `name:port`, `[v6]:port`, or either without a port.
fn without_port(host: &str) -> &str {
    if let Some(end) = host.find(']') {
        return host.get(..=end).unwrap_or(host);
    }
    match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn status(options: &ServeOptions, bound: &str, host: &str, origin: Option<&str>) -> bool {
        let callers = Callers::new(options, bound.parse().unwrap()).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        callers.check(&Uri::from_static("/v1/models"), &headers).is_ok()
    }

    #[test]
    fn loopback_names_the_bound_address_and_allowed_names_are_hosts_and_no_other_name() {
        let options =
            ServeOptions { allowed_hosts: vec!["Box.example".to_owned()], ..ServeOptions::default() };
        let host = |host| status(&options, "192.0.2.7", host, None);
        for good in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:8080",
            "[::1]:1",
            "[::1]",
            "192.0.2.7",
            "box.example:9",
        ] {
            assert!(host(good), "{good}");
        }
        for bad in
            ["evil.example", "localhost.evil.example:8080", "192.0.2.8", "", "127.0.0.1.evil.example", "::"]
        {
            assert!(!host(bad), "{bad}");
        }
    }

    #[test]
    fn a_server_bound_to_every_address_takes_any_address_and_no_unknown_name() {
        let options = ServeOptions { host: "0.0.0.0".to_owned(), ..ServeOptions::default() };
        assert!(status(&options, "0.0.0.0", "10.1.2.3:8080", None));
        assert!(status(&options, "::", "[fd00::1]:8080", None));
        assert!(!status(&options, "0.0.0.0", "evil.example:8080", None));
        let all = ServeOptions { allowed_hosts: vec!["*".to_owned()], ..options };
        assert!(status(&all, "0.0.0.0", "evil.example:8080", None));
    }

    #[test]
    fn an_origin_must_be_the_servers_own_or_allowed() {
        let own = ServeOptions::default();
        let check =
            |options: &ServeOptions, origin| status(options, "127.0.0.1", "localhost:8080", Some(origin));
        assert!(check(&own, "http://localhost:8080"));
        for bad in ["http://localhost:3000", "https://evil.example", "null"] {
            assert!(!check(&own, bad), "{bad}");
        }
        let origins = CorsOrigins::Only(vec!["https://app.example".to_owned()]);
        let some = ServeOptions { cors: Some(origins), ..ServeOptions::default() };
        assert!(check(&some, "https://app.example"));
        assert!(!check(&some, "https://app.example.evil"));
        let any = ServeOptions { cors: Some(CorsOrigins::Any), ..ServeOptions::default() };
        assert!(check(&any, "null"));
    }

    #[test]
    fn an_origin_or_a_host_that_no_browser_sends_is_refused_at_start_by_its_value() {
        let start = |options: &ServeOptions| {
            Callers::new(options, IpAddr::from([127, 0, 0, 1])).map(drop).map_err(|error| error.to_string())
        };
        let cors = |origin: &str| {
            let cors = Some(CorsOrigins::Only(vec![origin.to_owned()]));
            start(&ServeOptions { cors, ..ServeOptions::default() })
        };
        let host = |host: &str| {
            start(&ServeOptions { allowed_hosts: vec![host.to_owned()], ..ServeOptions::default() })
        };
        for good in ["https://app.example", "http://localhost:3000", "http://[::1]:80", "app-x://id_1"] {
            assert_eq!(cors(good), Ok(()), "{good}");
        }
        for bad in [
            "https://a/",
            "https://a/b",
            "https://a?b",
            "https://u@a",
            "https://a:99999",
            "https://",
            "a",
            "://a",
            "http://a b",
            "",
        ] {
            let error = cors(bad).expect_err(bad);
            assert!(error.contains("--cors") && error.contains(&format!("{bad:?}")), "{error}");
        }
        for good in ["*", "box.example", "box.example.", "BOX", "my_box", "192.0.2.1", "::1", "[::1]"] {
            assert_eq!(host(good), Ok(()), "{good}");
        }
        for bad in ["http://x", "a:80", "a b", "a/b", "", ".", "*.example", "[::1]:80", "é"] {
            let error = host(bad).expect_err(bad);
            assert!(error.contains("--allowed-host") && error.contains(&format!("{bad:?}")), "{error}");
        }
    }
}
