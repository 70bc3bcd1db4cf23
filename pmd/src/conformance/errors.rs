//! Control calls: each wrong one is a typed error that says what, and changes nothing.

use super::bench::{Bench, End};
use super::{Failure, Outcome, ensure, tests};
use crate::device::{Access, ControlEvent, Device, QpConfig};
use crate::error::{ControlError, OpenPathError};
use crate::ids::{LcoreId, PdId, QpId, RegionId, RequestId, WindowId};
use crate::work::Rights;

tests! {
    unknown_objects_are_named,
    objects_in_use_cannot_be_ended,
    sizes_outside_the_limits_are_named,
    ranges_outside_the_arena_are_refused,
    paths_open_once,
    addresses_are_listened_on_once,
    unreachable_and_bad_addresses_are_named,
    a_connection_carries_private_data_both_ways,
    a_rejected_queue_pair_can_connect_again,
    connecting_twice_is_refused,
    requests_are_answered_once,
    windows_run_out_with_a_named_limit needs [FewWindows],
    domains_come_and_go,
}

const NO_QP: QpId = QpId(0x0fff_fff0);
const NO_PD: PdId = PdId(0x0fff_fff0);
const NO_REGION: RegionId = RegionId(0x0fff_fff0);
const NO_WINDOW: WindowId = WindowId(0x0fff_fff0);
const NO_REQUEST: RequestId = RequestId(0x0fff_ffff_fff0);

/// The call must end with exactly this error.
fn expect<T: core::fmt::Debug>(
    what: &str,
    result: Result<T, ControlError>,
    error: &ControlError,
) -> Outcome {
    ensure!(
        result.as_ref().err() == Some(error),
        "{what}: {result:?} instead of {error:?}"
    );
    Ok(())
}

fn unknown_objects_are_named<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (device, config) = (&bench.a.device, bench.config(End::A));
    let no_qp = ControlError::NoSuchQp(NO_QP);
    expect("error_qp", device.error_qp(NO_QP), &no_qp)?;
    expect("destroy_qp", device.destroy_qp(NO_QP), &no_qp)?;
    expect(
        "start_connect",
        device.start_connect(NO_QP, &bench.address, &[]),
        &no_qp,
    )?;
    if device.caps().windows {
        expect("alloc_window", device.alloc_window(NO_QP), &no_qp)?;
        let error = ControlError::NoSuchWindow(NO_WINDOW);
        expect("dealloc_window", device.dealloc_window(NO_WINDOW), &error)?;
    }
    let no_pd = ControlError::NoSuchPd(NO_PD);
    expect("dealloc_pd", device.dealloc_pd(NO_PD), &no_pd)?;
    let register = device.register(NO_PD, &bench.a.arena, 0..64, Access::default());
    expect("register", register, &no_pd)?;
    let elsewhere = QpConfig {
        pd: NO_PD,
        ..config
    };
    expect("create_qp", device.create_qp(&elsewhere), &no_pd)?;
    let error = ControlError::NoSuchRegion(NO_REGION);
    expect("deregister", device.deregister(NO_REGION), &error)?;
    let error = ControlError::NoSuchRequest(NO_REQUEST);
    let qp = device.create_qp(&config)?;
    expect("accept", device.accept(NO_REQUEST, qp, &[]), &error)?;
    expect("reject", device.reject(NO_REQUEST, &[]), &error)?;
    let closed = LcoreId(1);
    let elsewhere = QpConfig {
        lcore: closed,
        ..config
    };
    let error = ControlError::NoSuchLcore(closed);
    expect("create_qp", device.create_qp(&elsewhere), &error)
}

fn objects_in_use_cannot_be_ended<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let in_use =
        |result: &Result<(), ControlError>| matches!(result, Err(ControlError::InUse { .. }));
    let device = &bench.a.device;
    let early = device.dealloc_pd(bench.a.pd);
    ensure!(
        in_use(&early),
        "a domain with a region was ended: {early:?}"
    );
    let pd = device.alloc_pd()?;
    let qp = device.create_qp(&QpConfig {
        pd,
        ..bench.config(End::A)
    })?;
    let early = device.dealloc_pd(pd);
    ensure!(
        in_use(&early),
        "a domain with a queue pair was ended: {early:?}"
    );
    bench.step();
    crate::DataPath::release_qp(&mut bench.a.path, qp);
    bench.a.device.destroy_qp(qp)?;
    Ok(bench.a.device.dealloc_pd(pd)?)
}

fn sizes_outside_the_limits_are_named<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let config = bench.config(End::A);
    let device = &bench.a.device;
    let caps = device.caps();
    let wrong = [
        QpConfig {
            send_depth: caps.max_send_depth.saturating_add(1),
            ..config
        },
        QpConfig {
            send_depth: 0,
            ..config
        },
        QpConfig {
            receive_depth: caps.max_receive_depth.saturating_add(1),
            ..config
        },
        QpConfig {
            max_sge: caps.max_sge + 1,
            ..config
        },
        QpConfig {
            max_inline_bytes: caps.max_inline_bytes + 1,
            ..config
        },
    ];
    for wrong in wrong {
        let made = device.create_qp(&wrong);
        ensure!(
            matches!(made, Err(ControlError::OutOfRange { value, max, .. }) if value > max || value == 0),
            "{wrong:?} gave {made:?}"
        );
    }
    let qp = device.create_qp(&config)?;
    let private = vec![0; caps.max_private_bytes + 1];
    let started = device.start_connect(qp, &bench.address, &private);
    ensure!(
        matches!(started, Err(ControlError::OutOfRange { .. })),
        "private data over the limit gave {started:?}"
    );
    Ok(())
}

fn ranges_outside_the_arena_are_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let side = &bench.a;
    let bytes = side.arena.bytes();
    // A reversed one too: the type allows it.
    #[allow(clippy::reversed_empty_ranges, reason = "it is what is tested")]
    let wrong = [
        0..bytes + 1,
        bytes..bytes + 1,
        0..usize::MAX,
        8..8,
        9..8,
        usize::MAX..0,
    ];
    for range in wrong {
        let made = side
            .device
            .register(side.pd, &side.arena, range.clone(), Access::default());
        ensure!(
            matches!(made, Err(ControlError::OutOfRange { .. })),
            "registering {range:?} of {bytes} bytes gave {made:?}"
        );
    }
    Ok(())
}

fn paths_open_once<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let device = &bench.a.device;
    let again = device.open_path(LcoreId(0)).err();
    ensure!(
        again == Some(OpenPathError::AlreadyOpen(LcoreId(0))),
        "a path was opened twice: {again:?}"
    );
    let limit = device.caps().max_lcores;
    let beyond = device.open_path(LcoreId(limit)).err();
    ensure!(
        matches!(beyond, Some(OpenPathError::TooMany { limit: at, .. }) if at == limit),
        "lcore {limit} of {limit} was opened: {beyond:?}"
    );
    Ok(())
}

fn addresses_are_listened_on_once<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let error = ControlError::AddressInUse(bench.address.clone());
    expect(
        "a second listen",
        bench.b.device.listen(&bench.address),
        &error,
    )
}

fn unreachable_and_bad_addresses_are_named<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let qp = bench.a.device.create_qp(&bench.config(End::A))?;
    for address in ["", "nonsense", "\u{0}:", "local", "rdma:"] {
        let started = bench.a.device.start_connect(qp, address, &[]);
        ensure!(
            matches!(started, Err(ControlError::BadAddress { .. })),
            "connecting to {address:?} gave {started:?}"
        );
        let listening = bench.a.device.listen(address);
        ensure!(
            matches!(listening, Err(ControlError::BadAddress { .. })),
            "listening on {address:?} gave {listening:?}"
        );
    }
    // None of that took the queue pair's one connection.
    bench.a.device.start_connect(qp, &bench.address, &[])?;
    bench.connect_request().map(|_| ())
}

fn a_connection_carries_private_data_both_ways<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let most = bench.caps().max_private_bytes;
    for len in [0, 1, most] {
        let request: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let answer: Vec<u8> = (0..len).map(|at| !at as u8).collect();
        let a = bench.a.device.create_qp(&bench.config(End::A))?;
        let b = bench.b.device.create_qp(&bench.config(End::B))?;
        bench.a.device.start_connect(a, &bench.address, &request)?;
        let (id, private) = bench.connect_request()?;
        ensure!(private == request, "{len} bytes came as {private:?}");
        bench.b.device.accept(id, b, &answer)?;
        let private = bench.connected(End::A, a)?;
        ensure!(private == answer, "{len} bytes came back as {private:?}");
        let private = bench.connected(End::B, b)?;
        ensure!(private.is_empty(), "the accepting side got {private:?}");
        bench.works(End::A, a)?;
        bench.works(End::B, b)?;
    }
    Ok(())
}

fn a_rejected_queue_pair_can_connect_again<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let a = bench.a.device.create_qp(&bench.config(End::A))?;
    let b = bench.b.device.create_qp(&bench.config(End::B))?;
    bench.a.device.start_connect(a, &bench.address, b"one")?;
    let (id, _) = bench.connect_request()?;
    bench.b.device.reject(id, b"busy")?;
    match bench.event(End::A)? {
        ControlEvent::Rejected { qp, private } if qp == a && private == b"busy" => {}
        event => return Err(Failure(format!("expected qp {a} rejected, got {event:?}"))),
    }
    bench.a.device.start_connect(a, &bench.address, b"two")?;
    let (id, private) = bench.connect_request()?;
    ensure!(private == b"two", "the second request carries {private:?}");
    bench.b.device.accept(id, b, &[])?;
    bench.connected(End::A, a)?;
    bench.connected(End::B, b)?;
    bench.works(End::A, a)
}

fn connecting_twice_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let wrong =
        |result: &Result<(), ControlError>| matches!(result, Err(ControlError::WrongState { .. }));
    let link = bench.link()?;
    let again = bench.a.device.start_connect(link.a, &bench.address, &[]);
    ensure!(
        wrong(&again),
        "a connected queue pair connected again: {again:?}"
    );
    let fresh = bench.a.device.create_qp(&bench.config(End::A))?;
    bench.a.device.start_connect(fresh, &bench.address, &[])?;
    let (id, _) = bench.connect_request()?;
    let again = bench.b.device.accept(id, link.b, &[]);
    ensure!(
        wrong(&again),
        "a connected queue pair accepted again: {again:?}"
    );
    // The request is still open.
    let b = bench.b.device.create_qp(&bench.config(End::B))?;
    bench.b.device.accept(id, b, &[])?;
    bench.connected(End::A, fresh)?;
    bench.works(End::A, link.a)
}

fn requests_are_answered_once<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let a = bench.a.device.create_qp(&bench.config(End::A))?;
    let b = bench.b.device.create_qp(&bench.config(End::B))?;
    bench.a.device.start_connect(a, &bench.address, &[])?;
    let (id, _) = bench.connect_request()?;
    bench.b.device.accept(id, b, &[])?;
    let error = ControlError::NoSuchRequest(id);
    let other = bench.b.device.create_qp(&bench.config(End::B))?;
    expect(
        "a second accept",
        bench.b.device.accept(id, other, &[]),
        &error,
    )?;
    expect("a late reject", bench.b.device.reject(id, &[]), &error)
}

fn windows_run_out_with_a_named_limit<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let limit = bench.caps().max_windows;
    let device = &bench.b.device;
    let mut windows = Vec::new();
    let end = loop {
        match device.alloc_window(link.b) {
            Ok(window) => windows.push(window.id),
            Err(error) => break error,
        }
        ensure!(windows.len() <= limit as usize, "more than {limit} windows");
    };
    ensure!(
        matches!(end, ControlError::Exhausted { .. }),
        "running out of windows gave {end:?}"
    );
    for window in windows {
        device.dealloc_window(window)?;
    }
    let window = device.alloc_window(link.b)?;
    Ok(device.dealloc_window(window.id)?)
}

fn domains_come_and_go<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let side = &bench.a;
    for _ in 0..100 {
        let pd = side.device.alloc_pd()?;
        let access = Access {
            remote: Rights::READ,
            bind: false,
        };
        let region = side.device.register(pd, &side.arena, 0..4096, access)?;
        side.device.deregister(region.id)?;
        let again = side.device.deregister(region.id);
        expect(
            "a second deregister",
            again,
            &ControlError::NoSuchRegion(region.id),
        )?;
        side.device.dealloc_pd(pd)?;
        expect(
            "a second dealloc_pd",
            side.device.dealloc_pd(pd),
            &ControlError::NoSuchPd(pd),
        )?;
    }
    Ok(())
}
