//! Certificates that nobody trusts who was not told to.

use std::{fs, net::Ipv4Addr, path::Path};

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
        fs::write(folder.join(name), text).expect("the folder can be written to");
    }
}
