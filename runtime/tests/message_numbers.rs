//! Messages, and the notices that count as such, are numbered on their lane from 1; every other frame says the last number.

mod pair;

use keyfence::wire::{Frame, Header, Kind, List, WireContext};
use keyfence::{Event, Local};
use pair::judged::Part;
use pair::raw::Duel;

/// Kind and number of each frame that came on a lane.
fn frames(duel: &Duel, lane: usize) -> Vec<(Kind, u32)> {
    let inbox = duel.raw.inbox.iter().filter(|(at, _)| *at == lane);
    let said = inbox.map(|(_, bytes)| Header::decode(bytes).unwrap());
    said.map(|(kind, header)| (kind, header.sequence)).collect()
}

fn is_message(kind: Kind) -> bool {
    matches!(kind, Kind::Message | Kind::Landed)
}

#[test]
fn messages_and_notices_of_landed_data_have_numbers_and_other_frames_the_last_one() {
    let mut duel = Duel::new(Part::quiet());
    let puppet = duel.side.puppet(0, "holder");
    duel.until(|duel| duel.side.id_of("holder").is_some());
    let partner = duel.holder(0);
    let lane = duel.raw.lanes.iter().position(|lane| lane.number == 0);
    let lane = lane.unwrap();
    let alive = |duel: &Duel| frames(duel, lane).last().map(|last| last.0) == Some(Kind::KeepAlive);
    duel.until(|duel| alive(duel));

    let header = Header {
        src: WireContext::from(partner.id),
        dst: duel.side.id_of("holder").unwrap().into(),
        ..duel.raw.header(lane)
    };
    let grants = [duel.raw.opened()];
    let grants = List::from(&grants[..]);
    duel.raw.send(lane, &header, &Frame::Grants { grants });
    let mut import = None;
    duel.until(|_| {
        import = puppet.events().into_iter().find_map(|event| match event {
            Event::Granted(import) => Some(import),
            _ => None,
        });
        import.is_some()
    });
    let import = import.unwrap();
    puppet.act(move |cx| {
        let buf = cx.alloc(8).unwrap();
        let local = [Local::prefix(&buf, 8)];
        cx.send(partner, b"first", 1).unwrap();
        cx.write_with_immediate(&import, 0, &local, 5, 2).unwrap();
        cx.write(&import, 0, &local, 3).unwrap();
        cx.send(partner, b"third", 4).unwrap();
    });
    duel.until(|duel| frames(duel, lane).contains(&(Kind::Message, 3)) && alive(duel));

    let mut last = 0;
    for (kind, number) in frames(&duel, lane) {
        last += u32::from(is_message(kind));
        assert_eq!(number, last, "{kind:?}");
    }
    let said = frames(&duel, lane).into_iter();
    let messages: Vec<Kind> = said
        .map(|(kind, _)| kind)
        .filter(|&it| is_message(it))
        .collect();
    assert_eq!(messages, [Kind::Message, Kind::Landed, Kind::Message]);
    // Of another lane they say nothing.
    let other = frames(&duel, 1 - lane);
    assert!(!other.is_empty() && other.iter().all(|(_, number)| *number == 0));
}
