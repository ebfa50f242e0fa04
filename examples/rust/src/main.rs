// SPDX-License-Identifier: MIT
//! Derives a weight from several threads, looks it up in a guard, tears down. cargo run --offline
use oc::{Backend, Error, Model, Result};
use oc_sys::{OC_BF16, OC_E_KIND, OC_E_NOT_FOUND, OC_E_RELEASED, OC_ROWWISE_FP8};
use std::sync::atomic::{AtomicUsize, Ordering};

fn status<T>(r: Result<T>) -> i32 {
    r.err().map_or(0, |e: Error| {
        println!("{e}");
        e.status
    })
}

fn main() -> Result<()> {
    let device = Backend::host()?;
    let model = Model::new(&device)?;
    let weight = model.alloc(4096)?;
    let builds = AtomicUsize::new(0);

    let derive = || {
        model.get_or_build(OC_BF16, weight, |build| {
            builds.fetch_add(1, Ordering::Relaxed);
            build.alloc(8192) // ... and launch the kernel that fills it
        })
    };
    let values: Vec<u64> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|_| s.spawn(derive)).collect();
        threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
    });
    assert!(values.iter().all(|v| *v == values[0]), "one value for every thread");
    assert_eq!(builds.load(Ordering::Relaxed), 1, "one build a key");

    {
        let guard = model.enter()?;
        assert_eq!(guard.find(OC_BF16, weight)?.map(|v| v.address()), Some(values[0]));
        assert_eq!(status(guard.find(OC_ROWWISE_FP8, weight)), OC_E_KIND);
        assert_eq!(status(guard.kernel("ops", "none")), OC_E_NOT_FOUND);
    }

    let report = model.teardown()?;
    println!("{report}");
    assert!(report.contains("main.rs"), "the block that nobody owned is reported with its call site");
    assert_eq!(status(model.enter()), OC_E_RELEASED);
    println!("liboc {}", oc::version());
    Ok(())
}
