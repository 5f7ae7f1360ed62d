//! One logged decision.

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

/// A decision at a moment of store time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Record {
    /// Microseconds.
    pub(super) at: u64,
    pub(super) client: u32,
    pub(super) admitted: bool,
    pub(super) node: u8,
}

const BYTES: usize = 13;

impl Record {
    pub(super) fn write_all(path: &Path, records: &[Self]) -> anyhow::Result<()> {
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        for Self { at, client, admitted, .. } in records {
            file.write_all(&at.to_le_bytes())?;
            file.write_all(&client.to_le_bytes())?;
            file.write_all(&[u8::from(*admitted)])?;
        }
        Ok(file.flush()?)
    }

    pub(super) fn read_all(path: &Path, node: u8) -> anyhow::Result<Vec<Self>> {
        let mut bytes = Vec::new();
        BufReader::new(std::fs::File::open(path)?).read_to_end(&mut bytes)?;
        let record = |bytes: &[u8]| -> anyhow::Result<Self> {
            let (at, rest) = bytes.split_at(8);
            let (client, admitted) = rest.split_at(4);
            Ok(Self {
                at: u64::from_le_bytes(at.try_into()?),
                client: u32::from_le_bytes(client.try_into()?),
                admitted: admitted == [1],
                node,
            })
        };
        bytes.chunks_exact(BYTES).map(record).collect()
    }
}
