//! Durations as people write them: `90s`, `5m`, `1h30m`, `1.5s`, `200ms`; a bare number is seconds, as for flock,
//! timeout and sleep.

use std::time::Duration;

const UNITS: [(&str, f64); 5] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Reads a duration of up to 365 days.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let bad = |why: String| format!("{why}; write it like 90s, 5m, 1h30m, 1.5s, 200ms or 30 (seconds)");
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let value: f64 = number.parse().map_err(|_| bad(format!("{text:?} is not a duration")))?;
        let scale = match UNITS.iter().find(|(known, _)| *known == unit) {
            Some((_, scale)) => *scale,
            None if unit.is_empty() && number.len() == text.len() => 1.0,
            None if unit.is_empty() => return Err(bad(format!("{number:?} in {text:?} has no unit"))),
            None => return Err(bad(format!("{unit:?} in {text:?} is not a unit"))),
        };
        seconds += value * scale;
        rest = tail;
    }
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        _ => Err(format!("{text} is longer than 365 days")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        for (text, ms) in [
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1500),
            ("200ms", 200),
            ("30", 30_000),
            (".2", 200),
            ("0", 0),
            ("0.25", 250),
            ("1d", 86_400_000),
            ("1m500ms", 60_500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("", "is not a duration"),
            ("s", "is not a duration"),
            (".", "is not a duration"),
            ("1.2.3s", "is not a duration"),
            ("-1s", "is not a duration"),
            ("5 m", "\"5\" in \"5 m\" has no unit"),
            ("1h30", "\"30\" in \"1h30\" has no unit"),
            ("5min", "\"min\" in \"5min\" is not a unit"),
            ("366d", "is longer than 365 days"),
            ("99999999999999999999", "is longer than 365 days"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
