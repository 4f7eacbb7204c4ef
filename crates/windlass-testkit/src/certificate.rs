//! Self-signed certificates, which no client trusts by default.

use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// File name of the certificate for 127.0.0.1, in a server's directory.
pub(crate) const CERTIFICATE: &str = "certificate.pem";
/// File name of its private key.
pub(crate) const KEY: &str = "key.pem";

/// Writes a certificate and its key into a directory.
pub(crate) fn place(directory: &Path) {
    let certified = rcgen::generate_simple_self_signed([Ipv4Addr::LOCALHOST.to_string()])
        .expect("a certificate for an address can be generated");
    let files = [(CERTIFICATE, certified.cert.pem()), (KEY, certified.signing_key.serialize_pem())];
    for (name, text) in files {
        let path = directory.join(name);
        fs::write(&path, text).expect("the directory can be written to");
        // PostgreSQL rejects a key that others could read.
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("the file is our own");
    }
}
