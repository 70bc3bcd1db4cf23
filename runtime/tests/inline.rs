//! Requests that travel inline: short writes and messages, where the device says that this pays.

mod pair;

use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::{Event, Local, Status};
use keyfence_mempool::sync::Arc;
use pair::scene::{Scene, completions};
use pair::switched::{Switched, Switches};
use pair::{Pair, builder};

/// What the device says that pays.
const PAYS: usize = 100;

fn pair(pays: usize) -> (Pair<Switched<SoftDevice>>, Arc<Switches>) {
    let fabric = Fabric::new();
    let device = || {
        let soft = fabric.device(SoftConfig::default()).unwrap();
        let (device, switches) = Switched::new(soft);
        let device = device.saying(|caps| caps.inline_pays_bytes = pays);
        (device, switches)
    };
    let ((left, switches), (right, _)) = (device(), device());
    let left_engine = builder("left", "right", 1);
    let pair = Pair::on(left_engine, left, builder("right", "left", 1), right);
    (pair, switches)
}

/// Writes and sends `bytes` bytes, checks what came, and gives the lengths that the left posted inline.
fn write_and_send(pays: usize, bytes: usize) -> Vec<u64> {
    let (mut pair, switches) = pair(pays);
    let scene = Scene::new(&mut pair);
    let granted = scene.grant(&mut pair, 4096);
    switches.inline.lock().unwrap().clear();
    let (import, to) = (granted.import, scene.owner_id);
    scene.holder.act(move |cx| {
        let buf = cx.alloc(bytes).unwrap();
        let content: Vec<u8> = (0..bytes).map(|at| at as u8 ^ 0x5a).collect();
        buf.write_at(0, &content).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, bytes)], 1)
            .unwrap();
        cx.send_from(to, &[Local::prefix(&buf, bytes)], 2).unwrap();
    });
    let mut done = Vec::new();
    let mut came = Vec::new();
    let (holder, owner) = (scene.holder.clone(), scene.owner.clone());
    pair.until(|_| {
        done.extend(completions(&holder.events()));
        came.extend(owner.events());
        done.len() == 2 && !came.is_empty()
    });
    assert!(
        done.iter().all(|done| done.status == Status::Ok),
        "{done:?}"
    );
    let Event::Message(message) = &came[0] else {
        panic!("{came:?}");
    };
    let mut sent = vec![0; message.len()];
    assert!(message.read_at(0, &mut sent));
    let mut written = vec![0; bytes];
    let buf = granted.buf.take().unwrap();
    buf.read_at(0, &mut written).unwrap();
    let content: Vec<u8> = (0..bytes).map(|at| at as u8 ^ 0x5a).collect();
    assert_eq!((&written, &sent), (&content, &content));
    let inline = switches.inline.lock().unwrap();
    inline
        .iter()
        .copied()
        .filter(|&len| len >= bytes as u64)
        .collect()
}

#[test]
fn what_fits_travels_inline_up_to_the_last_byte() {
    const HEADER: usize = keyfence::wire::HEADER_BYTES;
    let fits = PAYS - HEADER;
    assert_eq!(write_and_send(PAYS, fits), [fits as u64, PAYS as u64]);
    // The message with its header is a byte too long, the write is not.
    assert_eq!(write_and_send(PAYS, fits + 1), [fits as u64 + 1]);
    assert_eq!(write_and_send(PAYS, PAYS), [PAYS as u64]);
    assert_eq!(write_and_send(PAYS, PAYS + 1), []);
}

#[test]
fn nothing_travels_inline_where_it_does_not_pay() {
    assert_eq!(write_and_send(0, 8), []);
}
