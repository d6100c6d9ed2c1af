// Prints how Rust's std writes durations: kind, milliseconds (rounded up), expression, text.
use std::time::Duration;

fn main() {
    for nanoseconds in [0u64, 1, 1_500, 1_500_000, 1_000_000_000, 90_500_000_000, 3_600_000_000_000, 93_784_500_000_000] {
        let duration = Duration::from_nanos(nanoseconds);
        println!("duration\t{}\tformat!(\"{{:?}}\", Duration)\t{:?}", (nanoseconds + 999_999) / 1_000_000, duration);
    }
}
