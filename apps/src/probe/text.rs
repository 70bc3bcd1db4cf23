//! What people read: a line a test, then the choice.

use std::fmt::Write;

use crate::report::ProbeReport;

/// The whole text.
pub fn of(report: &ProbeReport) -> String {
    let mut text = String::new();
    write(report, &mut text).expect("a string takes everything");
    text
}

fn write(report: &ProbeReport, text: &mut String) -> std::fmt::Result {
    let widest = report.tests.iter().map(|test| test.name.len()).max();
    let width = widest.unwrap_or(0);
    for test in &report.tests {
        let (name, result) = (test.name, test.result.to_uppercase());
        let line = format!("{name:width$}  {result}  {}", test.note);
        writeln!(text, "{}", line.trim_end())?;
    }
    writeln!(text)?;
    let (mode, reason) = (report.key_mode, &report.reason);
    writeln!(
        text,
        "key_mode = \"auto\" on {}: {mode}: {reason}",
        report.device
    )?;
    if report.interrupted {
        writeln!(
            text,
            "interrupted: the tests behind the signal were not done"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::TestReport;

    #[test]
    fn the_columns_stand_below_each_other() {
        let test = |name, result, note: &str| TestReport {
            name,
            result,
            note: note.into(),
        };
        let report = ProbeReport {
            device: "rxe0".into(),
            tests: vec![
                test("arena_key", "pass", ""),
                test("send_with_inv_scope", "fail", "it ended the window"),
            ],
            key_mode: "region",
            reason: "windows won't do".into(),
            interrupted: false,
        };
        assert_eq!(
            of(&report),
            "arena_key            PASS\n\
             send_with_inv_scope  FAIL  it ended the window\n\
             \n\
             key_mode = \"auto\" on rxe0: region: windows won't do\n"
        );
    }
}
