//! Ids of requests that bring none.

use http::header::HeaderValue;

/// The id of these random bits: 128 of them identify a request in the logs of several machines.
pub fn random_request_id(bits: [u8; 16]) -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut id = [0; 32];
    for (digits, byte) in id.chunks_exact_mut(2).zip(bits) {
        digits.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_has_two_digits_for_each_byte() {
        let bits = std::array::from_fn(|n| u8::try_from(n * 17).unwrap());
        assert_eq!(random_request_id(bits), "00112233445566778899aabbccddeeff");
    }
}
