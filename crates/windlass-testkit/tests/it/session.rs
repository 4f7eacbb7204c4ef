//! A PostgreSQL session that stays open between queries, which `psql` does not offer.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::Duration,
};

/// Maximum time for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The end of an answer outside a transaction.
const READY: &[u8] = b"Z\0\0\0\x05I";

pub(crate) struct Session {
    stream: TcpStream,
}

impl Session {
    /// Connects, and waits until the server is ready for a query.
    pub(crate) fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut session = Self { stream };
        let words = b"user\0windlass\0database\0postgres\0\0";
        let version = 3_u32 << 16;
        let length = u32::try_from(8 + words.len()).unwrap();
        session
            .stream
            .write_all(&[&length.to_be_bytes(), &version.to_be_bytes(), &words[..]].concat())
            .unwrap();
        session.answer(TIMEOUT).unwrap();
        session
    }

    pub(crate) fn send(&mut self, sql: &str) {
        let length = u32::try_from(5 + sql.len()).unwrap();
        self.stream.write_all(&[b"Q", &length.to_be_bytes()[..], sql.as_bytes(), b"\0"].concat()).unwrap();
    }

    /// Returns the whole answer, in the encoding of the protocol.
    pub(crate) fn answer(&mut self, timeout: Duration) -> io::Result<Vec<u8>> {
        self.stream.set_read_timeout(Some(timeout))?;
        let mut answer = Vec::new();
        while !answer.ends_with(READY) {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            answer.extend(byte);
        }
        Ok(answer)
    }

    pub(crate) fn ask(&mut self, sql: &str) -> io::Result<Vec<u8>> {
        self.send(sql);
        self.answer(TIMEOUT)
    }
}
