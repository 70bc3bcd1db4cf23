//! `--plant`: breaks one rule of the runtime in this process, and says which check must see it.

use core::fmt::Write;

use keyfence::plant::{self, Plant};

use crate::exit::Exit;
use crate::report::{Body, Finished, PlantReport, PlantsReport, Problem, Report};

/// The check of `run`, a name of its JSON's `checks`, that catches each plant. `.ci/plant-table` says the same to CI.
pub const CAUGHT_BY: [(Plant, &str); Plant::ALL.len()] = [
    (Plant::FlushCounters, "stale_keys"),
    (Plant::FlushFreeList, "stale_keys"),
    (Plant::AckBeforeDrain, "open_wrs"),
    (Plant::AckBeforeInvalidate, "stale_keys"),
    (Plant::ReuseBeforeFlush, "stale_keys"),
    (Plant::OwnOpsForgotten, "open_wrs"),
];

/// The word that lists the plants instead of planting one.
const LIST: &str = "list";

/// Plants `name` for `command`; gives a result where that is all: a list, or a name that no plant has.
pub fn switch(name: &str, command: &str) -> Option<Finished> {
    if name == LIST {
        return Some(list(command));
    }
    match name.parse::<Plant>() {
        Ok(planted) => {
            tracing::warn!("planted {planted}: {}", planted.stands_for());
            plant::set(Some(planted));
            None
        }
        Err(unknown) => Some(Finished {
            exit: Exit::BadStart,
            report: Report::new(Some(command), vec![Problem::text(&unknown.to_string())]),
            text: String::new(),
        }),
    }
}

fn list(command: &str) -> Finished {
    let plants = CAUGHT_BY.map(|(plant, check)| PlantReport {
        name: plant.name(),
        stands_for: plant.stands_for(),
        caught_by: check,
    });
    let mut text = String::new();
    for plant in &plants {
        let PlantReport {
            name,
            stands_for,
            caught_by,
        } = plant;
        writeln!(text, "{name:23}{caught_by:18}{stands_for}").expect("a string takes everything");
    }
    let body = Body::Plants(PlantsReport {
        plants: plants.to_vec(),
    });
    Finished {
        exit: Exit::Good,
        report: Report {
            body: Some(body),
            ..Report::new(Some(command), Vec::new())
        },
        text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_plant_is_in_the_table_once_and_ci_has_the_same_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/plant-table");
        let table = std::fs::read_to_string(path).expect("the table is in the repository");
        let rows = table.lines().filter(|line| !line.starts_with('#'));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split_whitespace().collect()).collect();
        let ours = CAUGHT_BY.map(|(plant, check)| vec![plant.name(), check]);
        assert_eq!(rows, ours);
        for plant in Plant::ALL {
            assert_eq!(
                CAUGHT_BY
                    .iter()
                    .filter(|(known, _)| *known == plant)
                    .count(),
                1
            );
        }
    }
}
