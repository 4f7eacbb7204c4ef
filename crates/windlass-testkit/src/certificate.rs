//! Certificates that nobody trusts who was not told to.

use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A self-signed certificate for 127.0.0.1, in a server's folder.
pub(crate) const CERTIFICATE: &str = "certificate.pem";
/// Its private key.
pub(crate) const KEY: &str = "key.pem";

/// Puts a certificate and its key into a folder.
pub(crate) fn place(folder: &Path) {
    let certified = rcgen::generate_simple_self_signed([Ipv4Addr::LOCALHOST.to_string()])
        .expect("a certificate for an address can be made");
    let files = [(CERTIFICATE, certified.cert.pem()), (KEY, certified.signing_key.serialize_pem())];
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).expect("the folder can be written to");
        // PostgreSQL refuses a key that others could read.
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("the file is our own");
    }
}
