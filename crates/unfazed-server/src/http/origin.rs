//! Host and Origin: a page that a browser loaded from elsewhere must not reach a server on this machine, neither
//! directly nor by a name that was made to point here (DNS rebinding).

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Uri, header};

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
        if let Some(CorsOrigins::Only(origins)) = &options.cors {
            for origin in origins {
                if HeaderValue::from_str(origin).is_err() || !origin.contains("://") || origin.ends_with('/')
                {
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
    fn an_origin_with_a_path_is_refused_at_start() {
        let cors = Some(CorsOrigins::Only(vec!["https://app.example/".to_owned()]));
        let options = ServeOptions { cors, ..ServeOptions::default() };
        let error = Callers::new(&options, IpAddr::from([127, 0, 0, 1])).unwrap_err().to_string();
        assert!(error.contains("https://app.example/"), "{error}");
    }
}
